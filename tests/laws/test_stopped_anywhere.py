"""Laws 1, 3 and 10 for a whole turn: stopped at any moment, it leaves nothing running and loses no result."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from patchbay.executor import Budget, Executor
from patchbay.loop import turn
from patchbay.models import ChatRequest, ModelReply
from patchbay.models.chat_model import TextDelta
from patchbay.tools import tool
from patchbay.types import Reply, ToolCall

from .clock import SteppedLoop

STEPS = 60
"""More than the turn below takes."""


class World:
    """A turn of three rounds with tools that wait, fail and clean up, and what is going on in it."""

    def __init__(self, loop: SteppedLoop) -> None:
        self.loop = loop
        self.busy: list[str] = []
        self.events: list[Any] = []
        self.asked = 0

    async def respond(self, request: ChatRequest) -> AsyncIterator[Any]:
        self.asked += 1
        self.busy.append("model")
        try:
            yield TextDelta("thinking")
            await asyncio.sleep(0)
            names = ["wait", "fail", "slow", "alone", "nope"] if self.asked < 3 else []
            calls = tuple(ToolCall(f"{self.asked}{name}", name) for name in names)
            yield ModelReply(Reply("thinking", tool_calls=calls))
        finally:
            self.busy.remove("model")

    def tools(self) -> list[Any]:
        async def wait() -> str:
            return await self.work("wait", 3)

        async def fail() -> str:
            await self.work("fail", 1)
            raise ValueError

        async def slow() -> str:
            return await self.work("slow", 6)

        async def alone() -> str:
            return await self.work("alone", 2)

        return [wait, fail, tool(handler=slow, name="slow", timeout=5), tool(handler=alone, name="alone", sequential=True)]

    async def work(self, name: str, pauses: int) -> str:
        self.busy.append(name)
        try:
            for _ in range(pauses):
                await asyncio.sleep(0)
            return name
        finally:
            try:
                await asyncio.sleep(0)  # cleaning up takes a moment
            finally:
                self.busy.remove(name)

    async def consume(self, events: Any) -> None:
        async for event in events:
            self.events.append(event)
            await asyncio.sleep(0)

    def turn(self, budget: Budget | None = None) -> Any:
        return turn(self, Executor(self.tools()).begin_run(budget=budget), [{"role": "user", "content": "hi"}])

    def hold(self) -> None:
        """Check that no task is left and each announced call has at most one result."""
        assert [] == self.busy
        assert set() == asyncio.all_tasks(self.loop)
        called = [event.tool_call.id for event in self.events if event.type == "tool_call"]
        settled = [event.execution.call.id for event in self.events if event.type == "tool_result"]
        assert len(set(called)) == len(called)
        assert len(set(settled)) == len(settled)
        assert set(settled) <= set(called)


@pytest.fixture
def loop():
    reports: list[Any] = []
    stepped = SteppedLoop()
    stepped.set_exception_handler(lambda _loop, report: reports.append(report))
    yield stepped
    stepped.run_until_complete(stepped.shutdown_asyncgens())
    stepped.close()
    gc.collect()
    assert [] == reports


@pytest.mark.parametrize("moment", range(STEPS))
def test_turn_cancelled_at_any_moment_leaves_nothing_running(loop, moment):
    world = World(loop)
    events = loop.inside(world.turn)
    task = loop.create_task(world.consume(events))
    loop.step(moment)
    done_before = task.done()
    task.cancel()
    loop.step(30)
    assert task.done()
    assert task.cancelled() is not done_before
    # What an async generator's consumer must do anyway; it finds nothing to stop.
    loop.run_until_complete(events.aclose())
    world.hold()


@pytest.mark.parametrize("count", range(20))
def test_turn_abandoned_after_any_event_leaves_nothing_running(loop, count):
    world = World(loop)

    async def leave() -> None:
        events = world.turn()
        async for event in events:
            world.events.append(event)
            if len(world.events) > count:
                break
        await events.aclose()

    loop.run_until_complete(leave())
    world.hold()


@pytest.mark.parametrize("moment", range(STEPS))
def test_turn_timed_out_at_any_moment_ends_with_every_call_settled(loop, moment):
    world = World(loop)
    task = loop.create_task(world.consume(loop.inside(lambda: world.turn(Budget(max_seconds=10)))))
    loop.step(moment)
    loop.now += 10
    loop.step(STEPS)
    assert task.done()
    assert task.exception() is None
    world.hold()
    end = world.events[-1]
    assert "final" == end.type
    assert end.finish_reason in ("max_seconds", "stop")
    called = [event.tool_call.id for event in world.events if event.type == "tool_call"]
    assert called == [execution.call.id for execution in end.tool_executions]
    assert called == [message["tool_call_id"] for message in end.messages if message["role"] == "tool"]
