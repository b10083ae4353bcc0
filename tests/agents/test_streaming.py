"""Partial events, progress and usage during a run, and ``output_key``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from patchbay.agents import Event, EventBus, LlmAgent
from patchbay.models.chat_model import ChatRequest, ModelEvent, ModelReply, ReasoningDelta, TextDelta
from patchbay.testing import ScriptedModel
from patchbay.tools import ToolContext
from patchbay.types import Reply, ToolCall, Usage

from .turns import Chat, agent, kinds


async def add(a: int) -> int:
    """Add one."""
    return a + 1


def pieces(events: list[Event], *, thought: bool) -> str:
    return "".join(
        part.text or ""
        for event in events
        if event.partial and event.content is not None
        for part in event.content.parts
        if part.thought is thought
    )


async def test_partial_events_add_up_to_the_answer_and_are_not_logged():
    asking = Reply("let me see", reasoning="hm, a sum", tool_calls=(ToolCall("1", "add", '{"a": 1}'),))
    chat = Chat(agent([asking, Reply("it is two", reasoning="so")], add))
    events = await chat.say(streaming=True)
    rounds = [events[: (cut := next(n for n, event in enumerate(events) if event.get_function_calls()) + 1)], events[cut:]]
    for outcome, text, thoughts in zip(rounds, ("let me see", "it is two"), ("hm, a sum", "so"), strict=True):
        whole = next(event for event in reversed(outcome) if not event.partial and not event.get_function_responses())
        assert (text, thoughts) == (pieces(outcome, thought=False), pieces(outcome, thought=True))
        assert text == whole.content.text
        assert thoughts == whole.content.parts[0].text
    assert 1 == len({event.invocation_id for event in events})
    assert 1 == sum(event.is_final_response() for event in events)
    kept = (await chat.session()).events
    assert ["hi", "?addlet me see", "!add", "it is two"] == kinds(kept)
    assert not any(event.partial for event in kept)


def test_non_streaming_run_requests_and_yields_no_partial_events():
    one = agent([Reply("done", reasoning="hm")])
    assert ["done"] == kinds(asyncio.run(Chat(one).say()))
    assert [False] == [request.stream for request in one.model.requests]
    one = agent(["done"])
    asyncio.run(Chat(one).say(streaming=True))
    assert [True] == [request.stream for request in one.model.requests]


def test_answer_of_a_non_streaming_model_is_one_partial_event():
    class Whole:
        async def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
            yield ModelReply(Reply("done", reasoning="hm"), "stop")

    events = asyncio.run(Chat(LlmAgent(name="a", model=Whole())).say(streaming=True))
    assert ["~", "~done", "done"] == kinds(events)
    assert ("done", "hm") == (pieces(events, thought=False), pieces(events, thought=True))


async def test_stream_that_ends_with_a_delta_yields_its_answer_once():
    class Pieces:
        async def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
            yield ReasoningDelta("")
            yield TextDelta("do")
            yield TextDelta("")
            yield TextDelta("ne")
            yield ModelReply(Reply("done"), "stop")

    chat = Chat(LlmAgent(name="a", model=Pieces()))
    assert ["~do", "~ne", "done"] == kinds(await chat.say(streaming=True))
    assert ["hi", "done"] == kinds((await chat.session()).events)


async def test_usage_is_in_each_answer_and_summed_over_the_run():
    steps = [
        ModelReply(Reply(None, tool_calls=(ToolCall("1", "add", '{"a": 1}'),)), "tool_calls", Usage(10, 2, 12)),
        ModelReply(Reply("done"), "stop", Usage(20, 3, 23)),
    ]
    chat = Chat(agent(steps, add))
    events = await chat.say()
    assert [
        {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
        None,
        {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23},
    ] == [event.usage for event in events]
    assert ["tool_calls", None, "stop"] == [event.finish_reason for event in events]
    assert Usage(30, 5, 35) == chat.runs[0].usage
    assert [event.usage for event in events] == [event.usage for event in (await chat.session()).events][1:]


async def test_progress_is_streamed_while_a_tool_runs_and_not_logged():
    seen_by_tool = asyncio.Event
    outcome = seen_by_tool()

    async def work(tool_context: ToolContext) -> str:
        tool_context.progress("half", fraction=0.5, data={"left": 1})
        await outcome.wait()  # the consumer has heard of it before the tool is done
        return "ok"

    chat = Chat(agent([ToolCall("1", "work"), "done"], work), bus=(bus := EventBus()))
    topics: list[Any] = []
    bus.subscribe("tool.progress", lambda event: topics.append(event.data))
    received = []
    async for event in chat.begin():
        if event.progress is not None:
            received.append((event.partial, event.content, event.progress.to_dict()))
            outcome.set()
    assert [(True, None, {"name": "work", "id": "1", "message": "half", "fraction": 0.5, "data": {"left": 1}})] == received
    await bus.drain()
    assert [{"tool": "work", "call_id": "1", "message": "half", "fraction": 0.5, "data": {"left": 1}}] == topics
    assert not any(event.progress is not None for event in (await chat.session()).events)


def test_bus_gets_chunks_of_streaming_runs_only():
    async def topics_of(**settings: Any) -> list[str]:
        bus = EventBus()
        received: list[str] = []
        bus.subscribe("llm.*", lambda event: received.append(event.type.removeprefix("llm.")))
        await Chat(agent(["done"]), bus=bus).say(**settings)
        await bus.drain()
        return received

    assert ["request", "stream.chunk", "stream.chunk", "response"] == asyncio.run(topics_of(streaming=True))
    assert ["request", "response"] == asyncio.run(topics_of())


@pytest.mark.parametrize("stops_early", [False, True])
async def test_the_answer_is_in_the_state_by_the_event_that_brings_it(local_service, stops_early):
    chat = Chat(agent(["one", "two"], output_key="out"), local_service)
    run = chat.begin()
    async for event in run:
        assert event.is_final_response()
        assert {"out": "one"} == event.actions.state_delta
        assert {"out": "one"} == (await chat.session()).state, "the state is stored before the event is yielded"
        if stops_early:
            break
    await run.aclose()
    session = await chat.session()
    assert {"out": "one"} == session.state
    assert {"out": "one"} == session.events[-1].actions.state_delta
    await chat.say()
    assert {"out": "two"} == (await chat.session()).state


@pytest.mark.parametrize(("key", "kept"), [("user:out", {"user:out": "one"}), ("app:out", {"app:out": "one"}), ("temp:out", {})])
async def test_a_key_for_the_answer_may_have_a_scope(local_service, key, kept):
    chat = Chat(agent(["one"], output_key=key), local_service)
    (event,) = await chat.say()
    assert {key: "one"} == event.actions.state_delta
    assert kept == (await chat.session()).state


async def test_text_beside_calls_is_not_the_answer():
    asking = Reply("let me see", tool_calls=(ToolCall("1", "add", '{"a": 1}'),))
    chat = Chat(agent(ScriptedModel([asking, "done"]), add, output_key="out"))
    events = await chat.say()
    assert [{}, {}, {"out": "done"}] == [event.actions.state_delta for event in events]
    assert "done" == chat.runs[0].text
