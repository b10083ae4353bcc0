"""Turns: rounds until an answer; model output never raises, and the conversation is always sendable."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchbay.errors import UpstreamError
from patchbay.executor import Executor
from patchbay.loop import FinalEvent, LoopEvent, ToolCallEvent, ToolResultEvent, relaxed, turn
from patchbay.models.chat_model import ChatRequest, ModelReply, ReasoningDelta, TextDelta
from patchbay.testing.models import ScriptedModel
from patchbay.types import IncompleteCall, Reply, ToolCall, Usage
from support.repeated import examples
from support.running import run

USER = {"role": "user", "content": "hi"}


async def echo(text: str = "") -> str:
    return text


def run_turn(steps: list[Any], tools: Any = (echo,), **options: Any) -> tuple[list[LoopEvent], ScriptedModel]:
    model = ScriptedModel(steps)

    async def main() -> list[LoopEvent]:
        return [event async for event in turn(model, Executor(tools), [USER], **options)]

    return run(main()), model


def final(events: list[LoopEvent]) -> FinalEvent:
    (event,) = [event for event in events if event.type == "final"]
    assert event is events[-1]
    assert isinstance(event, FinalEvent)
    return event


def assert_settled(messages: list[dict[str, Any]]) -> None:
    """Law 1: after each message with calls come exactly their results, in order; and all of it can be sent."""
    json.dumps(messages).encode()
    expected: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            assert expected
            assert expected.pop(0) == message["tool_call_id"]
            continue
        assert [] == expected
        expected = [call["id"] for call in message.get("tool_calls", ())]
        assert len(set(expected)) == len(expected)
        assert not seen & set(expected)
        seen |= set(expected)
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert 0 < len(call["function"]["name"]) <= 64
            json.dumps(call, ensure_ascii=False).encode()
    assert [] == expected


def test_a_turn_without_calls_is_one_round():
    events, model = run_turn(["hello"])
    assert ["text", "reply", "iteration_end", "final"] == [event.type for event in events]
    end = final(events)
    assert ("hello", 1, "stop", ()) == (end.content, end.iterations, end.finish_reason, end.tool_executions)
    assert [USER, {"role": "assistant", "content": "hello"}] == end.messages
    model.assert_consumed()


def test_calls_run_and_their_results_are_sent_to_the_model():
    events, model = run_turn([[ToolCall("1", "echo", '{"text":"a"}'), ToolCall("2", "echo", '{"text":"b"}')], "done"])
    expected = ["reply", "tool_call", "tool_call", "tool_result", "tool_result", "iteration_end"]
    expected += ["text", "reply", "iteration_end", "final"]
    assert expected == [event.type for event in events]
    assert [("1", "a"), ("2", "b")] == [
        (message["tool_call_id"], message["content"]) for message in model.requests[1].messages[2:]
    ]
    end = final(events)
    assert (2, ["a", "b"]) == (end.iterations, [execution.content for execution in end.tool_executions])
    assert_settled(end.messages)
    assert [{"role": "user", "content": "hi"}] == model.requests[0].messages


def test_streamed_text_is_emitted_once_as_it_arrives():
    events, _ = run_turn([Reply("hello", reasoning="hmm")], stream=True)
    assert [("reasoning", "hm"), ("reasoning", "m"), ("text", "hel"), ("text", "lo")] == [
        (event.type, event.delta) for event in events if event.type in ("text", "reasoning")
    ]
    events, _ = run_turn([Reply("hello", reasoning="hmm")])
    assert ["hmm", "hello"] == [event.delta for event in events if event.type in ("text", "reasoning")]


def test_usage_is_summed_over_all_rounds():
    call = Reply(None, tool_calls=(ToolCall("1", "echo"),))
    events, _ = run_turn([ModelReply(call, "tool_calls", Usage(1, 2, 3)), ModelReply(Reply("x"), "stop", Usage(10, 20, 30))])
    assert Usage(11, 22, 33) == final(events).usage


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), (None, "stop"), ("tool_calls", "stop")],
)
def test_finish_reason_is_kept(reason, expected):
    events, _ = run_turn([ModelReply(Reply("x"), reason)])
    assert expected == final(events).finish_reason


def test_iteration_limit_ends_the_turn_with_every_call_settled():
    events, model = run_turn([Reply(f"text {n}", tool_calls=(ToolCall(str(n), "echo"),)) for n in range(3)], max_iterations=3)
    end = final(events)
    assert ("max_iterations", 3, 3, "text 2") == (end.finish_reason, end.iterations, len(end.tool_executions), end.content)
    assert_settled(end.messages)
    model.assert_consumed()


NAMED = {"type": "function", "function": {"name": "echo"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.mark.parametrize(
    ("choice", "later"),
    [
        ("required", "auto"),
        (NAMED, "auto"),
        (ALLOWED, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}),
        ("auto", "auto"),
        ("none", "none"),
        (None, None),
    ],
)
def test_a_choice_that_demands_a_call_is_for_the_first_round_only(choice, later):
    _, model = run_turn([ToolCall("1", "echo"), ToolCall("2", "echo"), "done"], tool_choice=choice)
    assert [choice, later, later] == [request.tool_choice for request in model.requests]
    assert later == relaxed(later)


def test_without_tools_no_tool_choice_is_sent():
    _, model = run_turn(["x"], (), tool_choice="none")
    assert ((), None) == (model.requests[0].tools, model.requests[0].tool_choice)


def test_missing_and_repeated_ids_are_made_distinct():
    steps = [[ToolCall("", "echo"), ToolCall("call_0", "echo"), ToolCall("call_0", "echo")], ToolCall("call_0", "echo"), "done"]
    events, _ = run_turn(steps)
    end = final(events)
    assert_settled(end.messages)
    assert 4 == len({execution.call.id for execution in end.tool_executions})
    assert "call_0" == end.tool_executions[1].call.id


async def test_ids_of_the_conversation_so_far_are_taken():
    history = [USER, {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "echo", "arguments": "{}"}}]}]
    history.append({"role": "tool", "tool_call_id": "c", "content": "x"})
    model = ScriptedModel([ToolCall("c", "echo"), "x", "done"])
    assert_settled(final([event async for event in turn(model, Executor([echo]), history)]).messages)
    assert 3 == len(history)
    odd = [USER, {"role": "assistant", "tool_calls": [{"id": [1]}, {"id": None}, {}]}]
    assert "done" == final([event async for event in turn(model, Executor([]), odd)]).content


def test_invalid_messages_are_repaired_in_the_view_and_kept_in_the_record():
    events, _ = run_turn(
        [[ToolCall("1", "no such tool!", '{"a": 12'), ToolCall("2", "", "[]"), ToolCall("3", "echo", '{"text": NaN}')], "x"]
    )
    end = final(events)
    functions = [call["function"] for call in end.messages[1]["tool_calls"]]
    assert ["no_such_tool_", "unknown", "echo"] == [function["name"] for function in functions]
    assert ["{}"] * 3 == [function["arguments"] for function in functions]
    assert ("no such tool!", '{"a": 12') == (end.tool_executions[0].call.name, end.tool_executions[0].call.raw_arguments)
    assert all(execution.is_error for execution in end.tool_executions)
    assert_settled(end.messages)


def test_arguments_are_sent_back_as_the_model_wrote_them():
    raw = '{ "text":"12345678901234567890" ,"b":1.0}'
    events, _ = run_turn([ToolCall("1", "echo", raw), "x"])
    assert raw == final(events).messages[1]["tool_calls"][0]["function"]["arguments"]


def test_truncated_call_gets_an_error_result_and_the_turn_continues():
    cut = Reply("let me", tool_calls=(ToolCall("1", "echo"),), incomplete=(IncompleteCall("2", "echo", '{"te', '{"te'),))
    events, _ = run_turn([cut, "done"])
    end = final(events)
    assert [None, "incomplete_call"] == [execution.result.code for execution in end.tool_executions]
    assert ("done", "stop") == (end.content, end.finish_reason)
    assert_settled(end.messages)


def test_a_model_that_breaks_its_contract_is_an_upstream_error():
    class Silent:
        async def respond(self, request: ChatRequest):
            yield TextDelta("half")

    class Chatty:
        async def respond(self, request: ChatRequest):
            yield ModelReply(Reply("x"))
            yield ReasoningDelta("and")

    for model, words in ((Silent(), "ended before"), (Chatty(), "went on")):

        async def main(model: Any = model) -> None:
            async for _ in turn(model, Executor([]), [USER]):
                pass

        with pytest.raises(UpstreamError, match=words):
            run(main())


async def test_the_consumer_is_never_cancelled_by_a_limit_of_ours():
    """A tool's deadline passes while the consumer is busy between two events; the consumer must not feel it."""
    from patchbay.tools import tool

    async def never() -> None:
        await asyncio.Event().wait()

    timed_out = asyncio.Event()

    def watch() -> None: ...

    model = ScriptedModel([[ToolCall("1", "never"), ToolCall("2", "watch")], "done"])
    executor = Executor([tool(handler=never, name="never", timeout=0.01), watch])
    content = ""
    async for event in turn(model, executor, [USER]):
        if event.type == "tool_result" and event.execution.call.name == "watch":
            asyncio.get_running_loop().call_later(0.03, timed_out.set)
            await timed_out.wait()
        if event.type == "final":
            content = event.content or ""
    assert "done" == content


# Lone surrogates too: a model's JSON may hold them.
TEXT = st.text(alphabet=st.characters() | st.sampled_from("\ud800\udfff"), max_size=12)
RAW = st.one_of(TEXT, st.sampled_from(["", "{}", '{"text": "x"}', '{"text": 1}', '{"a', "[]", "null", '"x"', "NaN", "[" * 2000]))
NAME = st.one_of(TEXT, st.sampled_from(["echo", "fail", "Echo", "a" * 100]))
ID = st.sampled_from(["", "1", "2", "call_0"])
CALL = st.builds(ToolCall, ID, NAME, RAW)
CUT = st.builds(lambda id_, name, raw: IncompleteCall(id_, name, raw, raw), ID, NAME, RAW)
REPLY = st.builds(
    lambda content, calls, cut: Reply(content, None, tuple(calls), tuple(cut)),
    st.none() | TEXT,
    st.lists(CALL, max_size=4),
    st.lists(CUT, max_size=1),
)
REASON = st.sampled_from([None, "stop", "length", "tool_calls", "content_filter", "weird"])


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(REPLY, REASON), min_size=1, max_size=4), st.booleans())
def test_any_model_output_leaves_a_settled_view(replies, stream):
    """Laws 1 and 2."""

    async def fail() -> None:
        raise ValueError("no")

    steps: list[Any] = [ModelReply(reply, reason) for reply, reason in replies]
    model = ScriptedModel([*steps, "done"])

    async def main() -> list[LoopEvent]:
        return [event async for event in turn(model, Executor([echo, fail]), [USER], max_iterations=5, stream=stream)]

    end = final(run(main()))
    for request in model.requests:
        assert_settled(list(request.messages))
    assert_settled(end.messages)
    json.dumps(end.messages, ensure_ascii=False).encode()
    asked = len(model.requests)
    written = sum(len(reply.tool_calls) + len(reply.incomplete) for reply, _ in replies[:asked])
    assert written == len(end.tool_executions)


def test_reply_event_precedes_its_calls():
    events, _ = run_turn([[ToolCall("1", "echo", '{"text":"a"}'), ToolCall("1", "echo", '{"text":"b"}')], "done"])
    first, last = (event for event in events if event.type == "reply")
    assert ("1", 1, "tool_calls") == (first.calls[0].id, first.iteration, first.finish_reason)
    ids = [event.tool_call.id for event in events if event.type == "tool_call"]
    assert ids == [call.id for call in first.calls]
    assert ("done", (), 2) == (last.reply.content, last.calls, last.iteration)


def test_tool_cannot_change_the_conversation():
    async def forget(tool_context: Any) -> int:
        seen = len(tool_context.messages)
        tool_context.messages.clear()
        return seen

    events, model = run_turn([[ToolCall("1", "forget")], "done"], tools=[forget])
    assert_settled(final(events).messages)
    assert ["user", "assistant", "tool"] == [message["role"] for message in model.requests[1].messages]
    assert 2 == final(events).tool_executions[0].value


def test_empty_answer_is_a_sendable_message():
    events, _ = run_turn([Reply(None)])
    assert None is final(events).content
    assert {"role": "assistant", "content": ""} == final(events).messages[-1]


def test_excluded_event_types_are_not_emitted_but_calls_run():
    left_out = (ToolCallEvent, ToolResultEvent)
    events, model = run_turn([[ToolCall("1", "echo", '{"text":"a"}')], "done"], without=left_out)
    assert ["reply", "iteration_end", "text", "reply", "iteration_end", "final"] == [event.type for event in events]
    assert "a" == model.requests[1].messages[-1]["content"]
    assert ["1"] == [execution.call.id for execution in final(events).tool_executions]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ModelReply(Reply("", [ToolCall("1", "echo")])), "reasoning is list"),
        (ModelReply(Reply(5)), "content is int"),
        (ModelReply(Reply("x"), 5), "finish_reason is int"),
        (ModelReply(Reply("x"), "stop", 5), "usage is int"),
        (ModelReply("x"), "ModelReply of str"),
        (ModelReply(Reply(None, tool_calls=(ToolCall("1", "echo", {"a": 1}),))), "must be JSON text"),
    ],
)
def test_invalid_model_reply_is_a_type_error_that_names_the_model(answer, words):
    with pytest.raises(TypeError, match=words):
        run_turn([answer])
