"""Observer events of a turn: the kinds and payloads of the contract (spec/hooks.md, section 9.2), member by member."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from patchbay import ToolRunner
from patchbay.agents import AgentTool, LlmAgent
from patchbay.executor import Executor
from patchbay.hooks import DenyTool, Event, HookManager, HookScope
from patchbay.hooks.process.protocol import KINDS, encode_event
from patchbay.loop import FinalEvent, turn
from patchbay.models import ModelReply
from patchbay.testing import ScriptedModel
from patchbay.tools.output import ToolOutput
from patchbay.types import Reply, ToolCall, Usage
from support.running import run

SCOPE = HookScope("helper", "t1", "", "s1", "scripted")
ASKED = [{"role": "user", "content": [{"type": "text", "text": "Add."}, {"type": "image_url", "image_url": {"url": "x"}}]}]
PAYLOADS = {
    "agent.turn.start": {"UserMessage": str, "MediaCount": int},
    "agent.turn.end": {
        "Status": str, "Workspace": str, "Iterations": int, "Duration": int, "FinalContentLen": int, "UserMessage": str,
        "FinalContent": str, "ActiveSkills": None, "AttemptedSkills": None, "FinalSuccessfulPath": None,
        "SkillContextSnapshots": None, "ToolKinds": None, "ToolExecutions": list,
    },
    "agent.llm.request": {"Model": str, "MessagesCount": int, "ToolsCount": int, "MaxTokens": int, "Temperature": float},
    "agent.llm.response": {"ContentLen": int, "ToolCalls": int, "HasReasoning": bool},
    "agent.tool.exec_start": {"Tool": str, "Arguments": dict},
    "agent.tool.exec_end": {"Tool": str, "Duration": int, "ForLLMLen": int, "ForUserLen": int, "IsError": bool, "Async": bool},
    "agent.tool.exec_skipped": {"Tool": str, "Reason": str},
    "agent.subturn.spawn": {"AgentID": str, "Label": str, "ParentTurnID": str},
    "agent.subturn.end": {"AgentID": str, "Status": str},
    "agent.error": {"Stage": str, "Message": str},
    "agent.user_output": {"Tool": str, "Text": str, "Media": list, "Handled": bool},
}  # fmt: skip


class RecordingObserver:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def on_runtime_event(self, event: Event) -> None:
        self.events.append(event)

    def told(self, kind: str) -> dict[str, Any]:
        (found,) = [dict(each.payload) for each in self.events if each.kind == kind]
        return found


class Policy:
    async def before_tool(self, call: Any) -> Any:
        return DenyTool("not this") if call.tool == "remove" else None


async def add(a: int, b: int) -> ToolOutput:
    await asyncio.sleep(0.005)
    return ToolOutput(str(a + b), for_user="three")


def remove() -> None: ...


def fail() -> None:
    raise ValueError("no luck")


def watched(*script: Any, scope: HookScope = SCOPE, hook: object | None = None, **options: Any) -> RecordingObserver:
    """Run a turn over the script, and return who watched it."""

    async def work() -> RecordingObserver:
        hooks, watching = HookManager(), RecordingObserver()
        hooks.mount("watching", watching)
        hooks.mount("policy", hook if hook is not None else Policy())
        bound = Executor([add, remove, fail], hooks=hooks).begin_run(scope=scope)
        with contextlib.suppress(RuntimeError):
            async for _ in turn(ScriptedModel(list(script)), bound, ASKED, **options):
                pass
        await hooks.events.flush()
        await hooks.aclose()
        return watching

    return run(work())


def test_each_kind_has_the_members_of_the_contract():
    calls = [ToolCall("1", "add", '{"a": 1, "b": 2}'), ToolCall("2", "remove"), ToolCall("3", "fail")]
    scope = HookScope("helper", "t2", "t1", "s1")
    parts = [
        watched(calls, "It is 3.", scope=scope, parameters={"max_tokens": 9, "temperature": 0.5}),
        watched(RuntimeError("x")),
    ]
    events = [each for watching in parts for each in watching.events]
    assert PAYLOADS.keys() == {each.kind for each in events}
    assert PAYLOADS.keys() <= KINDS
    for each in events:
        expected = PAYLOADS[each.kind]
        assert expected.keys() == each.payload.keys(), each.kind
        for name, kind in expected.items():
            value = each.payload[name]
            assert value is None if kind is None else type(value) in (kind, int if kind is float else kind, type(None)), name


def test_answers_and_ends_of_turns_have_the_tokens_that_were_counted():
    call = ToolCall("1", "add", '{"a": 1, "b": 2}')
    first = ModelReply(Reply(None, tool_calls=(call,)), None, Usage(10, 2, 12))
    watching = watched(first, ModelReply(Reply("It is 3."), None, Usage(20, 3, 23)))
    found = [each.attrs.get("usage") for each in watching.events if each.kind in ("agent.llm.response", "agent.turn.end")]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [dict(zip(names, counts, strict=True)) for counts in ((10, 2, 12), (20, 3, 23), (30, 5, 35))] == found
    uncounted = [each for each in watched("Done.").events if each.kind in ("agent.llm.response", "agent.turn.end")]
    assert [False, False] == ["usage" in each.attrs for each in uncounted]


@pytest.mark.parametrize(("last", "status"), [(True, "completed"), (False, "aborted")])
async def test_turn_abandoned_at_its_end_is_complete_and_before_it_is_not(last, status):
    hooks, watching = HookManager(), RecordingObserver()
    hooks.mount("watching", watching)
    events = turn(ScriptedModel(["Done."]), Executor([], hooks=hooks).begin_run(scope=SCOPE), ASKED)
    async for event in events:
        if isinstance(event, FinalEvent) or not last:
            break
    await events.aclose()
    await hooks.events.flush()
    await hooks.aclose()
    assert status == watching.told("agent.turn.end")["Status"]


def test_subturn_events_enclose_the_turn_of_a_sub_agent():
    watching = watched("Done.", scope=HookScope("helper", "t2", "t1", "s1"))
    kinds = [each.kind for each in watching.events]
    assert ["agent.subturn.spawn", "agent.turn.start", "agent.turn.end", "agent.subturn.end"] == [*kinds[:2], *kinds[-2:]]
    assert {"AgentID": "helper", "Label": "t2", "ParentTurnID": "t1"} == watching.told("agent.subturn.spawn")
    assert {"AgentID": "helper", "Status": "completed"} == watching.told("agent.subturn.end")
    assert {"t1"} == {encode_event(each)["correlation"]["parent_turn_id"] for each in watching.events}
    assert not any("subturn" in each.kind for each in watched("Done.").events)


async def test_agent_called_as_a_tool_is_a_nested_turn():
    hooks, watching = HookManager(), RecordingObserver()
    hooks.mount("watching", watching)
    helper = LlmAgent(name="helper", model=ScriptedModel(["yes"]))
    model = ScriptedModel([[ToolCall("1", "helper", '{"request": "really?"}')], "done"])
    assert "done" == (await ToolRunner(model, [AgentTool(helper)], hooks=hooks).run("hi")).content
    await hooks.events.flush()
    await hooks.aclose()
    whole = ["turn.start", "llm.request", "llm.response"]
    within = ["subturn.spawn", *whole, "turn.end", "subturn.end"]
    rest = ["tool.exec_end", "llm.request", "llm.response", "turn.end"]
    kinds = [each.kind.removeprefix("agent.") for each in watching.events]
    assert [*whole, "tool.exec_start", *within, *rest] == kinds
    spawned = watching.told("agent.subturn.spawn")
    assert ("helper", watching.events[0].meta.turn_id) == (spawned["AgentID"], spawned["ParentTurnID"])
