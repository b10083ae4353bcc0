"""``patchbay hooks list``: the hooks of a configuration, in the order in which they are called."""

from __future__ import annotations

import json

CONFIG = {
    "hooks": {
        "builtins": {"guard": {"enabled": True}},
        "processes": {
            "weather": {
                "enabled": True, "command": ["python3", "a b.py"], "intercept": ["before_llm", "after_tool"],
                "required": True, "tools": ["fs_*"], "priority": 7,
            },
            "old": {"enabled": False, "command": ["x"]},
        },
    }
}  # fmt: skip
PAGE = """\
guard    builtin  priority 0, required
weather  process  priority 7, required; llm, tool; calls of fs_*
         python3 'a b.py'
old      disabled
"""


def test_hooks_are_listed_by_priority_with_their_commands(patchbay, tmp_path):
    config = tmp_path / "hooks.json"
    config.write_text(json.dumps(CONFIG))
    assert (0, PAGE, "") == patchbay("hooks", "list", "--config", config)
    rows = json.loads(patchbay("hooks", "list", "--config", config, "--json")[1])
    assert [("guard", []), ("weather", ["llm", "tool"]), ("old", [])] == [(row["name"], row["modes"]) for row in rows]
