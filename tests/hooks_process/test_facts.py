"""A hook process that approves calls gets the tool's facts as an extra member, if there are any."""

from __future__ import annotations

import json

from hooks_process.peers import mounted_hooks, script, spec
from patchbay import ToolCall
from patchbay.executor import Executor
from patchbay.hooks.events import digest_of
from patchbay.tools import ToolContext, tool
from support.running import run

APPROVES = """
def on(method, params):
    with open("seen.jsonl", "a") as file:
        file.write(json.dumps([method, params]) + "\\n")
    if method == "approve_tool":
        answer({"approved": params.get("facts", {}).get("path", "").startswith("/srv/"), "reason": "only below /srv"})
    elif method == "before_tool":
        answer({"action": "modify", "call": params})
    else:
        answer()
"""

REAL = {"data": "/srv/data", "link": "/etc"}


def executions_of(tmp_path, **options):
    """Return the executions of a call with each path, and the hook's parameters."""
    ran = []

    @tool(**options)
    async def remove(path: str, tool_context: ToolContext) -> str:
        ran.append(tool_context.facts.get("path"))
        return "removed"

    async def main():
        async with mounted_hooks(spec(script(tmp_path, APPROVES), "tool", "approve", folder=tmp_path)) as manager:
            calls = [ToolCall(name, "remove", json.dumps({"path": name})) for name in REAL]
            return [(await Executor([remove], hooks=manager).run([call]))[0].content for call in calls]

    outcomes = run(main())
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    return outcomes, ran, seen


def test_a_hook_decides_by_where_a_path_really_leads(tmp_path, caplog):
    outcomes, ran, seen = executions_of(tmp_path, facts=lambda arguments: {"path": REAL[arguments["path"]]})
    assert (["removed", "Tool execution denied by approval hook: only below /srv"], ["/srv/data"]) == (outcomes, ran)
    asked = [params for method, params in seen if method == "approve_tool"]
    assert [{"path": "/srv/data"}, {"path": "/etc"}] == [params["facts"] for params in asked]
    assert digest_of("remove", {"path": "link"}, {"path": "/etc"}) == asked[1]["digest"]
    assert not [params for method, params in seen if method != "approve_tool" and "facts" in params]
    assert "oddly" not in caplog.text


def test_requests_about_a_tool_without_facts_are_unchanged(tmp_path):
    outcomes, _, seen = executions_of(tmp_path)
    assert 2 * ["Tool execution denied by approval hook: only below /srv"] == outcomes
    [first, _] = [params for method, params in seen if method == "approve_tool"]
    assert {"meta", "tool", "arguments", "call_id", "digest", "source"} == first.keys()
