"""The event bus: subscriptions, filters, and isolation of publishers from their handlers."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import threading

import pytest

from patchbay.agents import BusEvent, EventBus, LlmAgent, Runner
from patchbay.errors import ConfigurationError
from patchbay.testing import ScriptedModel
from support.running import run

from .turns import call, lines, run_turn


def recording(into: list, name: str | None = None):
    async def handler(event):
        into.append(event if name is None else name)

    return handler


def listening(pattern: str, **options) -> tuple[EventBus, list[BusEvent]]:
    """Return a bus and the events of a subscriber."""
    bus, seen = EventBus(), []
    bus.subscribe(pattern, recording(seen), **options)
    return bus, seen


async def publish(bus, *types: str) -> list[int]:
    return [await bus.publish(BusEvent(event_type, {"n": number})) for number, event_type in enumerate(types)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("tool.call", ["tool.call"]),
        ("tool.*", ["tool.call", "tool.result", "tool.call.deep"]),
        ("tool.call.*", ["tool.call.deep"]),
        ("*", ["tool", "tool.call", "tool.result", "tool.call.deep", "toolbox.x"]),
        ("tool", ["tool"]),
        ("too*", []),
    ],
)
async def test_pattern_matches_a_type_its_subtypes_or_everything(pattern, expected):
    bus, seen = listening(pattern)
    handed = await publish(bus, "tool", "tool.call", "tool.result", "tool.call.deep", "toolbox.x")
    await bus.drain()
    assert len(expected) == sum(handed)
    assert expected == [event.type for event in seen]


async def test_an_event_arrives_with_its_data_time_and_source():
    bus, seen = listening("tool.call")
    await bus.publish(BusEvent("tool.call", {"tool": "f", "args": {"a": 1}}, 12.5, "agent"))
    await bus.publish(BusEvent("tool.call", {"date": dt.date(2026, 1, 1), "odd": {(1, 2): object}}))
    await bus.drain()
    assert BusEvent("tool.call", {"tool": "f", "args": {"a": 1}}, 12.5, "agent") == seen[0]
    assert "2026-01-01" == seen[1].data["date"]


async def test_hanging_handler_does_not_block_publishers():
    bus = EventBus(queue_size=3)
    stuck, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_event):
        stuck.set()
        await go_on.wait()

    seen: list[str] = []
    bus.subscribe("*", slow)
    bus.subscribe("*", recording(seen, "quick"))
    await bus.publish(BusEvent("a"))
    await stuck.wait()
    handed = []
    for event_type in "bcdef":
        handed += await publish(bus, event_type)
        await asyncio.sleep(0)  # the quick one's turn
    assert [2, 2, 2, 1, 1] == handed  # a queue is bounded, and a handler's own
    assert (2, 3) == (bus.get_stats()["dropped"], bus.get_stats()["waiting"])
    assert ["the handler's queue is full"] * 2 == [letter.error for letter in bus.get_dead_letters()]
    assert ["quick"] * 6 == seen
    go_on.set()
    await bus.drain()
    assert 4 + 6 == bus.get_stats()["delivered"]


async def test_a_sync_handler_runs_in_a_thread_and_does_not_stall_the_loop():
    bus = EventBus()
    release, threads = threading.Event(), []

    def blocking(event):
        threads.append(threading.current_thread())
        assert release.wait(30)

    bus.subscribe("*", blocking)
    await bus.publish(BusEvent("a"))
    await asyncio.sleep(0)  # the loop goes on while the handler blocks
    release.set()
    await bus.drain()
    assert [threading.current_thread()] != threads
    assert (1, 0, []) == (bus.get_stats()["delivered"], bus.get_stats()["failed"], bus.get_dead_letters())


def fails(_event):
    raise ValueError("broken")


async def fails_later(_event):
    raise ValueError("broken")


async def cancels(_event):
    raise asyncio.CancelledError


async def exits(_event):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("handler", "error"),
    [(fails, "ValueError: broken"), (fails_later, "ValueError: broken"), (cancels, "CancelledError"), (exits, "SystemExit: 3")],
)
async def test_failing_handler_adds_a_dead_letter_and_gets_the_next_event(handler, error):
    bus = EventBus()
    seen: list[str] = []
    bus.subscribe("*", handler)
    bus.subscribe("*", recording(seen, "other"))
    assert [2, 2] == await publish(bus, "a", "b")
    await bus.drain()
    letters = bus.get_dead_letters()
    assert [("a", error), ("b", error)] == [(letter.event.type, letter.error) for letter in letters]
    assert {handler.__qualname__} == {letter.handler_name for letter in letters}
    assert ["other", "other"] == seen
    assert (2, 2) == (bus.get_stats()["failed"], bus.get_stats()["delivered"])
    assert 2 == bus.clear_dead_letters()
    assert [] == bus.get_dead_letters()


async def test_filter_selects_the_events_of_its_handler_and_a_failing_one_affects_no_other():
    bus, seen = listening("*", filter_func=lambda event: event.data["n"] == 1)
    bus.subscribe("*", recording(seen), filter_func=lambda event: event.data["unknown"])
    assert [2] * 3 == await publish(bus, "a", "b", "c")
    await bus.drain()
    assert ["b"] == [event.type for event in seen]
    assert (1, 3) == (bus.get_stats()["delivered"], bus.get_stats()["failed"])
    assert {"KeyError: 'unknown'"} == {letter.error for letter in bus.get_dead_letters()}


async def test_handlers_get_copies_and_can_change_nothing():
    bus = EventBus()
    args = {"a": 1, "list": [1]}
    seen: list[BusEvent] = []

    async def meddle(event):
        event.data["args"]["a"] = 666
        event.data["args"]["list"].append(2)

    bus.subscribe("*", meddle, priority=1)
    bus.subscribe("*", recording(seen), filter_func=lambda event: event.data["args"].pop("a"))
    await bus.publish(BusEvent("tool.call", {"args": args}))
    args["list"].append(3)  # after it was published
    await bus.drain()
    assert {"a": 1, "list": [1, 3]} == args
    assert [{"args": {"a": 1, "list": [1]}}] == [event.data for event in seen]


async def test_priorities_are_ordered_across_patterns():
    bus = EventBus()
    seen: list[str] = []
    for pattern, priority in (("tool.call", 0), ("*", 10), ("tool.*", 5), ("tool.call", -1), ("*", 0), ("tool.*", 10)):
        bus.subscribe(pattern, recording(seen, f"{pattern} {priority}"), priority=priority)
    await publish(bus, "tool.call")
    await bus.drain()
    assert ["* 10", "tool.* 10", "tool.* 5", "tool.call 0", "* 0", "tool.call -1"] == seen


async def test_handler_gets_events_one_at_a_time_and_in_order():
    bus = EventBus()
    seen: list[str] = []
    at_once = 0

    async def handler(event):
        nonlocal at_once
        at_once += 1
        assert 1 == at_once
        await asyncio.sleep(0)
        seen.append(event.type)
        at_once -= 1

    bus.subscribe("*", handler)
    await publish(bus, *"abcdef")
    await bus.drain()
    assert list("abcdef") == seen
    assert [] == bus.get_dead_letters()


async def test_an_object_with_an_async_call_and_a_function_that_returns_a_coroutine_are_handlers():
    class Listener:
        def __init__(self):
            self.seen = []

        async def __call__(self, event):
            self.seen.append(event.type)

    bus, listener, seen = EventBus(), Listener(), []
    later = recording(seen, "later")
    bus.subscribe("*", listener)
    bus.subscribe("*", lambda event: later(event))
    await publish(bus, "a")
    await bus.drain()
    assert (["a"], ["later"], 2) == (listener.seen, seen, bus.get_stats()["delivered"])


async def test_unsubscribed_handler_gets_no_more_events():
    bus = EventBus()
    seen: list[BusEvent] = []
    handler = recording(seen)
    bus.subscribe("a", handler)
    bus.subscribe("*", handler)
    await publish(bus, "a")
    await bus.drain()
    assert (True, False) == (bus.unsubscribe("a", handler), bus.unsubscribe("a", handler))
    assert [1] == await publish(bus, "a")
    await bus.drain()
    assert (3, 1) == (len(seen), bus.get_stats()["subscriptions"])


async def test_dead_letters_are_bounded_to_the_newest():
    bus = EventBus(dead_letter_size=2)
    bus.subscribe("*", fails)
    await publish(bus, *"abc")
    await bus.drain()
    assert (["b", "c"], ["c"], [], 3) == (
        [letter.event.type for letter in bus.get_dead_letters()],
        [letter.event.type for letter in bus.get_dead_letters(1)],
        bus.get_dead_letters(0),
        bus.get_stats()["failed"],
    )


async def test_a_handler_may_publish():
    bus = EventBus()
    seen: list[BusEvent] = []

    async def echo(event):
        if event.type == "ping":
            await bus.publish(BusEvent("pong"))

    bus.subscribe("*", echo)
    bus.subscribe("pong", recording(seen))
    await publish(bus, "ping")
    await bus.drain()
    assert ["pong"] == [event.type for event in seen]


def test_events_pending_in_a_closed_loop_are_delivered_in_the_next():
    bus = EventBus()
    seen: list[BusEvent] = []

    async def handler(event):
        seen.append(event)

    bus.subscribe("*", handler)
    run(publish(bus, "a", "b"))  # the loop ends before any handler runs

    async def later():
        await publish(bus, "c")
        await bus.drain()

    run(later())
    outcome = [event.type for event in seen] + [letter.event.type for letter in bus.get_dead_letters()]
    assert ["a", "b", "c"] == sorted(outcome)
    assert "c" in [event.type for event in seen]


async def test_a_handler_does_not_see_the_publishers_context():
    mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="nobody's")
    bus = EventBus()
    seen: list[str] = []

    async def handler(_event):
        seen.append(mine.get())

    bus.subscribe("*", handler)
    mine.set("the first publisher's")
    await publish(bus, "a", "b")
    await bus.drain()
    assert ["nobody's", "nobody's"] == seen


def test_queue_without_capacity_is_refused():
    with pytest.raises(ConfigurationError, match="queue_size"):
        EventBus(queue_size=0)


async def test_listener_can_neither_stall_nor_end_a_run_nor_change_tool_arguments():
    bus, given, never = EventBus(), [], asyncio.Event()

    async def meddle(event) -> None:
        event.data["args"]["a"] = 666

    async def hang(_event) -> None:
        await never.wait()

    def refuse(_event) -> bool:
        raise ValueError("no")

    def blind(_event) -> None:
        raise SystemExit

    bus.subscribe("tool.call", meddle, priority=9)
    bus.subscribe("*", hang, priority=5)
    bus.subscribe("*", blind)
    bus.subscribe("*", lambda _event: None, filter_func=refuse)

    async def double(a: int) -> int:
        for _ in range(5):
            await asyncio.sleep(0)  # every listener has had its turn
        given.append(a)
        return 2 * a

    model = ScriptedModel([call("double", a=3), "six"])
    events = await run_turn(Runner(LlmAgent(name="a", model=model, tools=[double]), bus=bus))
    never.set()
    await bus.drain()
    outcome = lines(events)
    assert [3] == given
    assert ["a > double", "a < double", "a: six"] == outcome
    assert {"a": 3} == events[0].get_function_calls()[0].args
