"""External tools: their calls end the turn as pending, other calls of the reply run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from patchbay.executor import Budget, Executor
from patchbay.hooks import AbortTurn, DenyTool, HardAbort, HookManager, HookPolicy, Modify, Respond
from patchbay.loop import FinalEvent, LoopEvent, turn
from patchbay.models.chat_model import ModelReply
from patchbay.testing.models import ScriptedModel
from patchbay.transcript import insert_results
from patchbay.types import Attachment, IncompleteCall, Reply, ToolCall, ToolSpec

USER = {"role": "user", "content": "hi"}
THEIRS = ToolSpec("open_door", "Open a door.")


async def echo(text: str = "") -> str:
    return text


async def picture() -> Attachment:
    return Attachment(b"\x89PNG", "image/png")


def run_turn(steps: list[Any], *, tools: Any = (echo,), messages: Any = (USER,), run: Any = None, **options: Any) -> Any:
    model = ScriptedModel(steps)
    options.setdefault("external", [THEIRS])

    async def main() -> list[LoopEvent]:
        executor = Executor(tools)
        return [event async for event in turn(model, executor.begin_run(**run) if run else executor, messages, **options)]

    events = asyncio.run(asyncio.wait_for(main(), 30))
    assert isinstance(events[-1], FinalEvent)
    model.assert_consumed()
    return events[-1], events, model


def test_external_tools_are_listed_first():
    _, _, model = run_turn(["hello"])
    assert ["open_door", "echo"] == [spec.name for spec in model.requests[0].tools]


def test_client_call_ends_the_turn_as_pending():
    call = ToolCall("c1", "open_door", '{"which": 1}')
    end, events, _ = run_turn([Reply("I will.", tool_calls=(call,))])
    assert ("tool_calls", (call,), (), "I will.", 1) == (
        end.finish_reason, end.pending, end.tool_executions, end.content, end.iterations
    )  # fmt: skip
    assert [USER, {"role": "assistant", "content": "I will.", "tool_calls": [call.to_openai()]}] == end.messages
    assert ["text", "reply", "iteration_end", "final"] == [event.type for event in events]
    assert "tool_calls" == events[-2].finish_reason


def test_other_calls_of_the_reply_run():
    calls = [ToolCall("a", "echo", '{"text": "1"}'), ToolCall("b", "open_door"), ToolCall("c", "echo", '{"text": "2"}')]
    end, events, _ = run_turn([calls])
    assert ["a", "c"] == [execution.call.id for execution in end.tool_executions]
    assert ("tool_calls", ("b",)) == (end.finish_reason, tuple(call.id for call in end.pending))
    assert ["a", "c"] == [event.tool_call.id for event in events if event.type == "tool_call"]
    assert ["a", "b", "c"] == [call["id"] for call in end.messages[1]["tool_calls"]]
    assert ["1", "2"] == [message["content"] for message in end.messages[2:]]
    (reply,) = [event for event in events if event.type == "reply"]
    assert ["a", "b", "c"] == [call.id for call in reply.calls]


THEIR_CALL = ToolCall("a", "open_door")
CUT = IncompleteCall("b", "open_door", '{"w', '{"w')
MIXED = [ToolCall("x", "echo"), ToolCall("y", "echo"), ToolCall("a", "open_door")]


@pytest.mark.parametrize(
    ("steps", "options", "ending", "pending", "executed"),
    [
        pytest.param([ToolCall("x", "echo"), THEIR_CALL], {}, "tool_calls", "a", [None], id="after an earlier round"),
        pytest.param([ToolCall("x", "echo"), "done"], {}, "stop", "", [None], id="none"),
        pytest.param(
            [ToolCall("a", "echo")], {"external": [ToolSpec("echo")]}, "tool_calls", "a", [], id="the same name as a tool"
        ),
        pytest.param([THEIR_CALL], {"tools": (), "tool_choice": "required"}, "tool_calls", "a", [], id="no tools of the server"),
        pytest.param(
            [ModelReply(Reply(None, tool_calls=(THEIR_CALL,), incomplete=(CUT,)), "length")],
            {}, "tool_calls", "a", ["incomplete_call"], id="beside a truncated call",
        ),
        pytest.param(
            [ModelReply(Reply(None, incomplete=(CUT,)), "length"), "done"],
            {}, "stop", "", ["incomplete_call"], id="a truncated call alone",
        ),
        pytest.param([MIXED], {"run": {"budget": Budget(max_calls=1)}}, "tool_calls", "a", [None, "call_budget"], id="calls"),
        pytest.param([MIXED], {"run": {"budget": Budget(max_iterations=1)}}, "tool_calls", "a", [None, None], id="rounds"),
    ],
)  # fmt: skip
def test_which_calls_are_left_to_the_caller(steps, options, ending, pending, executed):
    end, _, model = run_turn(steps, **options)
    assert (ending, [*pending]) == (end.finish_reason, [call.id for call in end.pending])
    assert executed == [execution.result.code for execution in end.tool_executions]
    assert options.get("tool_choice") == model.requests[0].tool_choice


def test_ids_that_collide_are_made_distinct():
    end, _, _ = run_turn([[ToolCall("a", "open_door"), ToolCall("a", "open_door"), ToolCall("", "echo")]])
    ids = [call["id"] for call in end.messages[1]["tool_calls"]]
    assert 3 == len(set(ids))
    assert ids[:2] == [call.id for call in end.pending]


def test_unusual_names_of_client_tools_are_kept_in_the_conversation():
    end, _, _ = run_turn([ToolCall("a", "开门 !")], external=[ToolSpec("开门 !")])
    assert "开门 !" == end.messages[1]["tool_calls"][0]["function"]["name"]


def test_client_results_are_ordered_by_call_before_attachments():
    calls = [ToolCall("a", "open_door"), ToolCall("b", "picture"), ToolCall("c", "open_door")]
    end, _, _ = run_turn([calls], tools=(picture,), run={"attachments": ["image"]})
    assert ["user", "assistant", "tool", "user"] == [message["role"] for message in end.messages]
    theirs = [{"role": "tool", "tool_call_id": name, "content": name} for name in ("c", "x", "a")]
    whole = insert_results(end.messages, theirs)
    assert ["user", "assistant", "tool", "tool", "tool", "tool", "user"] == [message["role"] for message in whole]
    assert ["a", "b", "c", "x"] == [message["tool_call_id"] for message in whole[2:6]]
    assert whole == insert_results(whole, [])
    assert [USER] == insert_results([USER], [])


def test_continued_conversation_has_one_result_for_every_call():
    first, _, _ = run_turn([[ToolCall("a", "open_door"), ToolCall("b", "echo")]])
    messages = insert_results(first.messages, [{"role": "tool", "tool_call_id": "a", "content": "open"}])
    end, _, model = run_turn(["done"], messages=messages)
    assert messages == list(model.requests[0].messages)
    assert ["a", "b"] == [message["tool_call_id"] for message in end.messages if message["role"] == "tool"]


# Hooks, where calls are left to the caller


def hooks(policy: HookPolicy | None = None, **methods: Any) -> dict[str, Any]:
    """Return run options with one mounted hook; ``methods`` are functions of the view that it gets."""

    def method(answer: Any) -> Any:
        async def asked(_self: Any, view: Any) -> Any:
            return answer(view)

        return asked

    manager = HookManager(policy=policy)
    manager.mount("hook", type("Hook", (), {name: method(answer) for name, answer in methods.items()})())
    return {"hooks": manager}


BOTH = [ToolCall("a", "open_door"), ToolCall("b", "echo", '{"text": "1"}'), ToolCall("c", "open_door")]


def test_hooks_are_not_called_for_client_calls():
    asked: list[Any] = []
    run = hooks(before_tool=lambda call: asked.append(call.tool), approve_tool=lambda call: asked.append(call.tool) or True)
    end, _, _ = run_turn([BOTH], run=run)
    assert (["echo", "echo"], ("a", "c")) == (asked, tuple(call.id for call in end.pending))


@pytest.mark.parametrize("point", ["before_tool", "after_tool"])
def test_turn_ended_by_a_hook_answers_every_client_call(point):
    """The caller does not get the calls, so the conversation has results that say so, in call order (law 1)."""
    pictured = [*BOTH, ToolCall("d", "picture")]
    end, _, _ = run_turn([pictured], tools=(echo, picture), run={**hooks(**{point: one_ends_it}), "attachments": ["image"]})
    assert ("abort_turn", (), None) == (end.finish_reason, end.pending, end.content)
    results = {message["tool_call_id"]: message["content"] for message in end.messages if message["role"] == "tool"}
    assert ["a", "b", "c", "d"] == list(results)
    assert "Error: tool 'open_door' was cancelled before it finished. It had not begun." == results["a"] == results["c"]
    assert ["user", "assistant", *["tool"] * 4] == [message["role"] for message in end.messages[:6]]


def one_ends_it(view: Any) -> Any:
    return AbortTurn("enough") if view.tool == "echo" else None


@pytest.mark.parametrize(
    ("steps", "methods", "ending", "pending", "executed"),
    [
        ([BOTH], {"before_tool": lambda _: DenyTool("no")}, "tool_calls", "ac", ["tool_denied"]),
        ([BOTH], {"before_tool": lambda _: HardAbort("enough")}, "hard_abort", "", ["hook_abort"]),
        ([BOTH], {"after_llm": lambda _: AbortTurn("enough")}, "abort_turn", "", []),
        ([BOTH], {"after_llm": lambda response: Modify({"tool_calls": response.tool_calls[2:]})}, "tool_calls", "c", []),
        ([BOTH], {"after_llm": lambda _: Modify({"tool_calls": []})}, "stop", "", []),
        ([ToolCall("x", "echo"), "done"], {"before_tool": lambda _: Modify({"tool": "open_door"})}, "stop", "", ["unknown_tool"]),
    ],
    ids=["denied", "hard abort", "abort after the answer", "calls removed", "all calls removed", "redirected to the caller's"],
)
def test_hooks_beside_calls_of_the_caller(steps, methods, ending, pending, executed):
    end, _, _ = run_turn(steps, run=hooks(**methods))
    assert (ending, [*pending]) == (end.finish_reason, [call.id for call in end.pending])
    assert executed == [execution.result.code for execution in end.tool_executions]
    if "abort" in ending:
        assert [USER] == end.messages
    elif pending:
        assert [*pending] == [call["id"] for call in end.messages[1]["tool_calls"] if call["function"]["name"] == "open_door"]


def named(name: str, description: str = "The hook's.") -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


@pytest.mark.parametrize("injection", ["additive", "full", "off"])
def test_hook_cannot_inject_a_tool_with_the_name_of_a_client_tool(injection):
    answered_for: list[Any] = []
    run = hooks(
        HookPolicy(tool_injection=injection),
        before_llm=lambda request: Modify({"tools": [*request.tools, named("open_door")]}),
        before_tool=lambda call: answered_for.append(call.tool) or Respond("mine"),
    )
    end, _, model = run_turn([ToolCall("a", "open_door")], run=run)
    assert ([], ("a",)) == (answered_for, tuple(call.id for call in end.pending))
    assert ["open_door", "echo"] == [spec.name for spec in model.requests[0].tools]


@pytest.mark.parametrize("tools", [[], [named("open_door")], [named("other")]])
def test_hook_changes_to_client_tools_are_undone(tools):
    run = hooks(before_llm=lambda _request: Modify({"tools": tools}), before_tool=lambda _call: None)
    _, _, model = run_turn(["hello"], run=run)
    assert "open_door" == model.requests[0].tools[0].name
    assert "Open a door." == model.requests[0].tools[0].description


def test_client_tool_removed_by_a_hook_is_still_the_clients():
    run = hooks(HookPolicy(tool_injection="full"), before_llm=lambda _request: Modify({"tools": []}))
    end, _, model = run_turn([ToolCall("a", "open_door")], run=run)
    assert ((), ("a",)) == (tuple(model.requests[0].tools), tuple(call.id for call in end.pending))
