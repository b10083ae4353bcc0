"""The hooks of a turn in ``/api/turns/{id}``: those that took a while, and those that decided something."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from chat_server.rig import call, calls, serve_weather
from patchbay.errors import HookAbortError
from patchbay.hooks import AbortTurn, Approval, Ask, Continue, DenyTool, HookManager, Modify, Respond, native, pipeline
from patchbay.hooks.deadlines import HookTimeoutError
from patchbay.hooks.registered import outcome_of
from patchbay.server.governance import Governance, GovernanceSettings

PROCESS = """
from patchbay.hooks.sdk import Hook

hook = Hook("clerk")

@hook.before_llm
def look(request):
    return None

hook.run()
"""


class Guard:
    """Lets the first call pass with other arguments, denies the second, and ends the turn after the third answer."""

    def __init__(self) -> None:
        self.answers = iter([None, None, AbortTurn("three are enough")])
        self.decisions = iter([Modify({"arguments": {"city": "Oslo"}}), DenyTool("one is enough")])

    async def after_llm(self, response: Any) -> Any:
        return next(self.answers)

    async def before_tool(self, asked: Any) -> Any:
        return next(self.decisions)

    async def approve_tool(self, asked: Any) -> bool:
        return True


CLERK = ("clerk", "before_llm", "", "", "", "")
ROUND = [CLERK, ("guard", "after_llm", "", "", "", ""), ("clerk", "after_llm", "", "", "", "")]
DECIDED = [
    ("guard", "before_tool", "changed", "", "weather", "call_1"),
    ("guard", "approve_tool", "approved", "", "weather", "call_1"),
    ("guard", "before_tool", "denied", "one is enough", "weather", "call_2"),
    ("guard", "after_llm", "ended the turn", "three are enough", "", ""),
]


@pytest.mark.parametrize(
    ("noticeable", "expected"),
    [(60.0, DECIDED), (0.0, [*ROUND, *DECIDED[:2], *ROUND, DECIDED[2], CLERK, DECIDED[3]])],
)
def test_hooks_that_took_a_while_or_decided_are_in_the_turn(noticeable, expected, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pipeline, "NOTICEABLE", noticeable)
    (tmp_path / "clerk.py").write_text(PROCESS)
    process = {"enabled": True, "command": [sys.executable, str(tmp_path / "clerk.py")], "intercept": ["before_llm"]}
    process |= {"hello_timeout_ms": 30_000, "timeout_ms": 30_000}
    (tmp_path / "config.json").write_text(json.dumps({"hooks": {"processes": {"clerk": process}}}))
    manager = HookManager()
    manager.mount("guard", Guard())
    governance = Governance(GovernanceSettings(config=tmp_path / "config.json"), hooks=manager)
    made = [calls(call("weather", id=f"call_{number}")) for number in (1, 2, 3)]
    with serve_weather(made, governance=governance) as chat:
        chat.post()
        [turn] = chat.server.ask("GET", "/api/turns").json["turns"]
        shown = chat.server.ask("GET", f"/api/turns/{turn['id']}").json
    names = ("hook", "point", "decision", "reason", "tool", "call_id")
    assert expected == [tuple(each[name] for name in names) for each in shown["hooks"]]
    ends = [each["began"] + each["seconds"] for each in shown["hooks"]]
    assert turn["began"] <= shown["hooks"][0]["began"]
    assert sorted(ends) == ends
    assert ends[-1] <= turn["began"] + turn["seconds"]


GUARD = HookManager().mount("guard", Guard())


@pytest.mark.parametrize(
    ("point", "answer", "expected"),
    [
        ("before_tool", Continue(), ("", "")),
        ("before_tool", Respond("sunny"), ("answered", "")),
        ("before_tool", Ask("is it safe?"), ("asked a person", "is it safe?")),
        ("before_llm", DenyTool("no call"), ("failed", "DenyTool")),
        ("after_tool", "sunny", ("failed", "str")),
        ("after_tool", HookTimeoutError(5.0), ("timed out", "")),
        ("after_tool", ValueError("x"), ("failed", "ValueError")),
        ("approve_tool", None, ("denied", "")),
        ("approve_tool", Approval(approved=True, arguments={}), ("edited", "")),
        ("approve_tool", Approval(approved=False, reason="r" * 999), ("denied", "r" * 500)),
        ("approve_tool", Ask("is it safe?"), ("asked a person", "is it safe?")),
        ("approve_tool", asyncio.CancelledError(), ("cancelled", "")),
    ],
)
def test_what_a_hook_answered_is_said_in_words(point, answer, expected) -> None:
    assert expected == outcome_of(GUARD, point, answer)


def test_answer_of_a_programs_own_callback_is_no_failure() -> None:
    own = native("callback")
    assert ("", "") == outcome_of(own, "after_tool", {"any": "value"})
    assert ("failed", "HookAbortError") == outcome_of(own, "after_tool", HookAbortError("", hook="x", point="y", hard=False))
