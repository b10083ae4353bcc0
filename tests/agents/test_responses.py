"""Recording of tool results: promptly and exactly once, despite slow consumers, failing services and stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchbay.agents import BusEvent, Event, EventBus, InMemorySessionService, Session
from patchbay.testing import ScriptedModel
from patchbay.tools import ToolContext
from patchbay.types import ToolCall
from support.repeated import examples
from support.running import run

from .turns import Chat, agent, assert_settled, kinds, said_to


class WatchedSessionService(InMemorySessionService):
    """Session service that signals appends, and fails or blocks on request."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[Event], bool] = lambda event: False
        self.fails_after = False
        self.gate: asyncio.Event | None = None
        self.begun = asyncio.Event()
        self.appended = asyncio.Condition()
        self.written: list[str] = []

    async def append_event(self, session: Session, event: Event) -> Event:
        responses = event.get_function_responses()
        if responses:
            self.begun.set()
            if self.gate is not None:
                await self.gate.wait()
        fails = self.fails(event)
        if fails and not self.fails_after:
            raise OSError("the disk is full")
        kept = await super().append_event(session, event)
        async with self.appended:
            self.written += [response.id for response in responses]
            self.appended.notify_all()
        if fails:
            raise OSError("the line was cut behind the commit")
        return kept

    async def has(self, *ids: str) -> None:
        """Wait until the results of these calls are in the log."""
        async with self.appended:
            await self.appended.wait_for(lambda: set(ids) <= set(self.written))


class ToolGates:
    """Their tool ``wait(name)`` returns when the gate of this name is opened."""

    def __init__(self, *names: str) -> None:
        self.open = {name: asyncio.Event() for name in names}

    async def wait(self, name: str, tool_context: ToolContext) -> str:
        """Wait."""
        tool_context.state["last"] = name
        tool_context.state[name] = True
        await self.open[name].wait()
        return name


def waits(*names: str) -> list[ToolCall]:
    return [ToolCall(name, "wait", f'{{"name": "{name}"}}') for name in names]


def responses(events: Any) -> list[str]:
    return [response.id for event in events for response in event.get_function_responses()]


def make_chat(steps: list[Any], tool: Any, service: Any = None, **options: Any) -> tuple[Chat, ScriptedModel]:
    model = ScriptedModel(steps)
    return Chat(agent(model, tool), service if service is not None else WatchedSessionService(), **options), model


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL, "patchbay")


async def test_results_are_logged_as_they_settle_and_yielded_in_call_order():  # law 3
    gates = ToolGates("a", "b", "c")
    chat, model = make_chat([waits("a", "b", "c"), "done"], gates.wait)
    events: list[Event] = []

    async def consume() -> None:
        events.extend([event async for event in chat.begin()])

    task = asyncio.create_task(consume())
    for name in "cab":
        gates.open[name].set()
        await chat.service.has(name)
    await task
    assert ["c", "a", "b"] == responses((await chat.session()).events)
    assert [["a", "b", "c"]] == [responses([event]) for event in events if event.get_function_responses()]
    assert {"last": "c", "a": True, "b": True, "c": True} == events[1].actions.state_delta
    assert {"last": "c", "a": True, "b": True, "c": True} == (await chat.session()).state, "in call order, however they settled"
    assert ["a", "b", "c"] == [message["content"] for message in said_to(model)[2:]]
    assert "done" == events[-1].content.text


async def test_results_that_settle_together_are_one_event_in_log_and_stream():
    async def quick(n: int) -> int:
        return n

    chat, _ = make_chat([[ToolCall(str(n), "quick", f'{{"n": {n}}}') for n in range(5)], "done"], quick)
    events = await chat.say()
    kept = (await chat.session()).events
    assert ["?quick" * 5, "!quick" * 5, "done"] == kinds(events) == kinds(kept)[1:]
    assert [event.id for event in events] == [event.id for event in kept][1:]


async def test_slow_consumer_does_not_delay_results_in_the_log():
    async def talk(tool_context: ToolContext) -> str:
        tool_context.progress("now")
        await asyncio.sleep(0)
        return "said"

    chat, _ = make_chat([[ToolCall("t", "talk")], "done"], talk)
    async for event in chat.begin():
        if event.progress is not None:
            await chat.service.has("t")  # while the run has no consumer


@settings(max_examples=examples(10))
@given(st.permutations(["a", "b", "c", "d"]), st.integers(0, 3), st.integers(0, 6))
def test_run_stopped_while_tools_run_loses_no_result(order, opened, rounds):  # law 3
    """The first ``opened`` gates are open when the run is stopped, ``rounds`` rounds of the event loop later."""

    async def main() -> None:
        gates = ToolGates(*order)
        finished = []

        async def guarded(name: str, tool_context: ToolContext) -> str:
            value = await gates.wait(name, tool_context)
            finished.append(name)
            return value

        model = ScriptedModel([[ToolCall(name, "guarded", f'{{"name": "{name}"}}') for name in "abcd"], "better"])
        chat = Chat(agent(model, guarded), WatchedSessionService())
        running = asyncio.Event()

        async def consume() -> None:
            async for event in chat.begin():
                if event.get_function_calls():
                    running.set()

        task = asyncio.create_task(consume())
        await running.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        for name in order[:opened]:
            gates.open[name].set()
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        kept = (await chat.session()).events
        results = {each.id: each.response for event in kept for each in event.get_function_responses()}
        assert {"a", "b", "c", "d"} == set(results), "each call has its result"
        assert 4 == len(responses(kept))
        assert all({"result": name} == results[name] for name in finished)
        assert all("cancelled" in results[name]["error"] for name in set("abcd") - set(finished))
        assert "better" == kinds(await chat.say("again"))[-1]
        assert_settled(said_to(model))

    run(main())


async def test_leaving_a_run_early_stops_its_tools_and_stores_their_changes():
    gates = ToolGates("a", "b")
    stopped = asyncio.Event()

    async def talk(tool_context: ToolContext) -> None:
        await chat.service.has("a")
        tool_context.progress("a is done")
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    model = ScriptedModel([[*waits("a"), ToolCall("t", "talk")], "better"])
    chat = Chat(agent(model, gates.wait, talk), WatchedSessionService())
    gates.open["a"].set()
    events = chat.begin()
    async for event in events:
        if event.progress is not None:
            break
    await events.aclose()
    assert stopped.is_set()
    assert ["a", "t"] == responses((await chat.session()).events)
    assert {"last": "a", "a": True} == (await chat.session()).state
    assert "better" == kinds(await chat.say("again"))[-1]
    assert_settled(said_to(model))


async def test_cancelled_run_completes_writing_its_results():
    gates = ToolGates("a", "b")
    gates.open["a"].set()
    service = WatchedSessionService()
    service.gate = asyncio.Event()
    chat, model = make_chat([waits("a", "b"), "better"], gates.wait, service)
    task = asyncio.create_task(chat.say())
    await service.begun.wait()
    gates.open["b"].set()
    for _ in range(10):
        await asyncio.sleep(0)  # "b" has settled, and waits for the write of "a"
    task.cancel()
    await asyncio.sleep(0)
    service.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ["a", "b"] == responses((await chat.session()).events)
    assert {"a": {"result": "a"}, "b": {"result": "b"}} == {
        each.id: each.response for event in (await chat.session()).events for each in event.get_function_responses()
    }
    assert "better" == kinds(await chat.say("again"))[-1]
    assert_settled(said_to(model))


@pytest.mark.parametrize("after_the_commit", [False, True])
@pytest.mark.parametrize("together", [False, True])
async def test_a_service_that_fails_once_loses_no_result(after_the_commit, together):
    gates = ToolGates("a", "b")
    service = WatchedSessionService()
    failed = []

    def fails(event: Event) -> bool:
        if event.get_function_responses() and not failed:
            failed.append(event)
            return True
        return False

    service.fails, service.fails_after = fails, after_the_commit
    chat, model = make_chat([waits("a", "b"), "better", "better"], gates.wait, service)
    gates.open["a"].set()
    if together:
        gates.open["b"].set()
    task = asyncio.create_task(chat.say())
    if not together:
        while not failed:
            await asyncio.sleep(0)
        gates.open["b"].set()
    await task
    kept = (await chat.session()).events
    assert ["a", "b"] == responses(kept)
    assert len({event.id for event in kept}) == len(kept)
    assert "better" == kinds(await chat.say("again"))[-1]
    assert_settled(said_to(model))


@pytest.mark.parametrize("what", ["calls", "responses", "answer", "everything"])
async def test_failing_session_service_is_an_error_event_or_an_exception(what):
    gates = ToolGates("a")
    gates.open["a"].set()
    service = WatchedSessionService()
    service.fails = {
        "calls": lambda event: bool(event.get_function_calls()),
        "responses": lambda event: bool(event.get_function_responses()),
        "answer": lambda event: event.is_final_response() and event.author != "user",
        "everything": lambda event: event.author != "user",
    }[what]
    chat, _ = make_chat([waits("a"), "done", "better"], gates.wait, service)
    if what == "everything":
        with pytest.raises(OSError, match="disk"):
            await chat.say()
    else:
        events = await chat.say()
        assert ("AGENT_ERROR", "OSError: the disk is full") == (events[-1].error_code, events[-1].error_message)
    service.fails = lambda event: False
    assert kinds(await chat.say("again"))[-1] in ("done", "better")


async def test_bus_gets_results_as_they_settle():
    gates = ToolGates("a", "b")
    bus = EventBus()
    received: list[str] = []
    recorded = {name: asyncio.Event() for name in "ab"}

    async def listen(event: BusEvent) -> None:
        received.append(event.data["call_id"])
        assert {"tool": "wait", "response": {"result": event.data["call_id"]}, "call_id": received[-1]} == event.data
        recorded[received[-1]].set()

    bus.subscribe("tool.result", listen)
    chat, _ = make_chat([waits("a", "b"), "done"], gates.wait, bus=bus)
    task = asyncio.create_task(chat.say())
    for name in "ba":
        gates.open[name].set()
        await recorded[name].wait()
    await task
    assert ["b", "a"] == received


async def test_state_changes_of_a_callback_are_in_the_yielded_event_and_the_log():
    gates = ToolGates("a", "b")

    def before(ctx: Any, name: str, args: dict[str, Any]) -> None:
        ctx.state[f"callback_{args['name']}"] = True

    model = ScriptedModel([waits("a", "b"), "done"])
    chat = Chat(agent(model, gates.wait, before_tool_callback=before), WatchedSessionService())
    task = asyncio.create_task(chat.say())
    for name in "ab":
        gates.open[name].set()
        await chat.service.has(name)
    events = await task
    expected = {"last": "b", "a": True, "b": True, "callback_a": True, "callback_b": True}
    assert expected == (await chat.session()).state
    assert expected == events[1].actions.state_delta
