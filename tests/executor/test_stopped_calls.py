"""Stopped calls, even if cancellation is swallowed: the tool does not begin, and a late value is ignored."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from patchbay.executor import Budget, Executor
from patchbay.tools import tool
from patchbay.types import ToolCall

SHORT = 0.02


@pytest.mark.parametrize("when", ["at once", "after it was left to itself"])
@pytest.mark.usefixtures("time_jumps")
async def test_hook_that_swallows_cancellation_does_not_start_the_tool(when):
    before = asyncio.all_tasks()
    ran: list[str] = []
    resume, let_through = asyncio.Event(), asyncio.Event()

    async def ask(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if when != "at once":
                await resume.wait()
            let_through.set()

    async def act() -> None:
        ran.append("act")

    executor = Executor([act], before=ask, cancel_grace=SHORT)
    (done,) = await executor.run([ToolCall("1", "act")], budget=Budget(max_seconds=SHORT))
    resume.set()
    await let_through.wait()
    if others := asyncio.all_tasks() - before:
        await asyncio.wait(others)
    assert [] == ran
    assert ("run_timeout", None) == (done.result.code, done.arguments)
    assert done.content.endswith("which was the limit of the whole run. It had not begun.")


@pytest.mark.usefixtures("time_jumps")
async def test_late_result_of_a_stopped_call_reaches_no_hook_and_is_not_stored():
    seen = []

    @tool(timeout=SHORT)
    async def slow() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "x" * 5000
        return ""

    run = Executor([slow], after=lambda *about: seen.append(about), max_result_chars=1000).begin_run()
    batch = run.start_batch([ToolCall("1", "slow")])
    done = await anext(batch)
    assert "tool_timeout" == done.result.code
    assert [] == seen
    assert ["slow"] == list(run.tools)


@pytest.mark.usefixtures("time_jumps")
async def test_queued_call_at_the_deadline_had_not_begun():
    @tool(max_parallel=1)
    async def wait() -> None:
        await asyncio.Event().wait()

    calls = [ToolCall("1", "wait"), ToolCall("2", "wait")]
    executions = await Executor([wait]).run(calls, budget=Budget(max_seconds=SHORT))
    assert [False, True] == ["It had not begun." in done.content for done in executions]


async def test_a_generator_in_a_thread_is_stopped_between_its_items():
    gone_on, closed = threading.Event(), threading.Event()
    items = []
    loop = asyncio.get_running_loop()
    began = asyncio.Event()

    def count() -> Any:
        try:
            loop.call_soon_threadsafe(began.set)
            gone_on.wait(30)
            for n in range(3):
                items.append(n)
                yield n
        finally:
            closed.set()

    batch = Executor([count]).start_batch([ToolCall("1", "count")])
    await began.wait()
    batch.cancel("1")
    assert "cancelled" == (await anext(batch)).result.code
    gone_on.set()
    assert closed.wait(30)
    assert [0] == items


async def test_tool_thread_is_signalled_if_its_task_is_cancelled_externally():
    """As ``asyncio.run`` does at its end, with all tasks."""
    before, outcome = asyncio.all_tasks(), threading.Event()
    loop = asyncio.get_running_loop()
    began = asyncio.Event()

    def wait(tool_context: Any) -> None:
        loop.call_soon_threadsafe(began.set)
        if tool_context.cancelled.wait(30):
            outcome.set()

    batch = Executor([wait]).start_batch([ToolCall("1", "wait")])
    await began.wait()
    for task in asyncio.all_tasks() - before:
        task.cancel()
    assert "cancelled" == (await anext(batch)).result.code
    assert outcome.wait(30)
