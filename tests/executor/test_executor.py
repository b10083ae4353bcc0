"""Every call ends as one execution whose text tells the model what to do next."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from tool_calls import execute, run_calls

from patchbay.errors import (
    ConfigurationError,
    IncompleteCallError,
    ToolArgumentsError,
    ToolError,
    ToolTimeoutError,
    UnknownToolError,
)
from patchbay.executor import Executor, ToolExecution
from patchbay.tools import tool
from patchbay.types import IncompleteCall, ToolCall

SHORT = 0.02


def test_a_call_is_found_checked_run_and_recorded():
    async def add(a: int, b: int = 2) -> int:
        return a + b

    done = execute(add, '{"a": "1"}')
    assert (3, "3", False, None) == (done.value, done.content, done.is_error, done.error)
    assert {"a": 1, "b": 2} == done.arguments
    assert {"role": "tool", "tool_call_id": "c1", "content": "3"} == done.result.to_message()
    assert done.seconds >= 0


def test_an_unknown_name_lists_the_nearest():
    async def get_weather(): ...
    async def send_mail(): ...

    (done,) = run_calls([get_weather, send_mail], ToolCall("c1", "get_wether"))
    assert isinstance(done.error, UnknownToolError)
    assert ("unknown_tool", ("get_weather",)) == (done.result.code, done.error.nearest)
    assert "Did you mean 'get_weather'? Available tools: get_weather, send_mail." in done.content
    assert done.arguments is None


def test_a_very_long_unknown_name_costs_little_and_is_not_repeated_whole():
    async def f(): ...

    (done,) = run_calls([f], ToolCall("c1", "x" * 1_000_000))
    assert len(done.content) < 1000


def test_invalid_arguments_are_an_error_and_the_body_does_not_run():
    ran = []

    async def f(a: int):
        ran.append(a)

    done = execute(f, '{"a": "x"}')
    assert [] == ran
    assert isinstance(done.error, ToolArgumentsError)
    assert ("invalid_arguments", None) == (done.result.code, done.arguments)
    assert "/a must be a valid integer" in done.content
    assert "The tool did not run." in done.content


def test_tool_error_may_define_its_message_for_the_model():
    class OutOfStockError(ToolError):
        code = "out_of_stock"

        @property
        def for_model(self) -> str:
            return "Offer another size."

    async def buy():
        raise OutOfStockError("none left")

    done = execute(buy)
    assert ("Offer another size.", "out_of_stock") == (done.content, done.result.code)


def test_a_call_that_was_cut_off_is_never_run():
    ran = []

    async def f(a: str = ""):
        ran.append(a)

    (done,) = run_calls([f], IncompleteCall("c1", "f", '{"a": "xx', '{"a": "xx'))
    assert [] == ran
    assert isinstance(done.error, IncompleteCallError)
    assert "incomplete_call" == done.result.code
    assert "shorter" in done.content
    assert '{"a": "xx' == done.call.raw_arguments


def test_timeout_is_an_error_and_cancels_an_async_tool():
    stopped = []

    @tool(timeout=SHORT)
    async def slow(tool_context):
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(tool_context.cancelled.is_set())

    done = execute(slow)
    assert isinstance(done.error, ToolTimeoutError)
    assert ("tool_timeout", [True]) == (done.result.code, stopped)
    assert done.content.startswith(f"Error: Tool 'slow' timed out after {SHORT}s")
    assert "may still be running" not in done.content


def test_thread_timeout_states_that_the_thread_may_still_run():
    seen = threading.Event()

    @tool(timeout=SHORT)
    def slow(tool_context):
        assert tool_context.cancelled.wait(30)
        seen.set()

    done = execute(slow)
    assert isinstance(done.error, ToolTimeoutError)
    assert "may still be running" in done.content
    assert seen.wait(30)


def test_tool_timeout_precedes_the_executors():
    @tool(timeout=10)
    async def own():
        return "done"

    async def none():
        await asyncio.Event().wait()

    assert [False, True] == [
        execution.is_error
        for execution in run_calls([own, none], ToolCall("1", "own"), ToolCall("2", "none"), tool_timeout=SHORT)
    ]


async def test_calls_run_at_the_same_time_and_results_are_in_call_order():
    """The first call ends only after the second has begun, and the other way round: neither could pass alone."""
    settled = []
    begun = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def meet(me: str, other: str) -> str:
        begun[me].set()
        await begun[other].wait()
        if me == "a":
            await released.wait()
        else:
            released.set()
        return me

    released = asyncio.Event()
    calls = [ToolCall("1", "meet", '{"me": "a", "other": "b"}'), ToolCall("2", "meet", '{"me": "b", "other": "a"}')]
    assert ["a", "b"] == [
        execution.value
        for execution in (await Executor([meet]).run(calls, on_settled=lambda execution: settled.append(execution.value)))
    ]
    assert ["b", "a"] == settled


async def test_sync_tools_run_at_the_same_time_and_leave_the_loop_free():
    barrier = threading.Barrier(9)

    def meet() -> str:
        barrier.wait(30)
        return "met"

    batch = asyncio.create_task(Executor([meet]).run([ToolCall(str(number), "meet") for number in range(8)]))
    # The eighth party of the barrier waits in a thread; the loop goes on.
    await asyncio.to_thread(barrier.wait, 30)
    assert ["met"] * 8 == [execution.value for execution in (await batch)]


async def test_a_result_is_recorded_the_moment_it_settles():
    gate = asyncio.Event()

    async def quick() -> str:
        return "quick"

    async def slow() -> str:
        await gate.wait()
        return "slow"

    batch = Executor([quick, slow]).start([ToolCall("1", "slow"), ToolCall("2", "quick")])
    try:
        first = await anext(batch)
        assert ("quick", ["quick"]) == (first.value, [execution.value for execution in batch.executions])
        gate.set()
        assert ["slow"] == [execution.value async for execution in batch]
        assert ["slow", "quick"] == [execution.value for execution in batch.executions]
    finally:
        await batch.stop()


async def test_no_more_calls_run_at_once_than_allowed():
    running = 0
    most = 0

    async def f() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    assert 20 == len(await Executor([f], max_parallel=3).run([ToolCall(str(number), "f") for number in range(20)]))
    assert 3 == most


@pytest.mark.parametrize("late", ["a value", "an error"])
@pytest.mark.parametrize("by", ["timeout", "stop"])
async def test_tool_that_ignores_cancellation_does_not_block_the_run(by, late, caplog):
    release = asyncio.Event()
    begun = asyncio.Event()

    async def stubborn() -> str:
        begun.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        if late == "an error":
            raise ValueError(late)
        return late

    item = tool(handler=stubborn, name="f", timeout=SHORT if by == "timeout" else None)
    batch = Executor([item], cancel_grace=SHORT).start([ToolCall("1", "f")])
    await begun.wait()
    if by == "stop":
        await batch.stop()
    async for _ in batch:
        pass
    (execution,) = batch.executions
    release.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert (execution,) == tuple(batch.executions)
    assert ("tool_timeout" if by == "timeout" else "cancelled") == execution.result.code
    assert "ignored its cancellation" in caplog.text


async def test_a_tool_that_cleans_up_after_its_timeout_is_not_cancelled_again_by_a_stop():
    log: list[str] = []
    cleaning, clean = asyncio.Event(), asyncio.Event()

    @tool(timeout=SHORT)
    async def careful() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await clean.wait()
            log.append("clean")

    batch = Executor([careful]).start([ToolCall("1", "careful")])
    await cleaning.wait()
    stopping = asyncio.create_task(batch.stop())
    await asyncio.sleep(0)
    clean.set()
    await stopping
    done = batch.executions[0]
    assert (["clean"], "tool_timeout") == (log, done.result.code)


async def test_exception_of_on_settled_is_raised_after_the_tools_are_stopped():
    stopped = []

    async def quick() -> None: ...

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    def fail(execution: ToolExecution) -> None:
        raise RuntimeError("observer")

    with pytest.raises(RuntimeError, match="observer"):
        await Executor([quick, never]).run([ToolCall("1", "never"), ToolCall("2", "quick")], on_settled=fail)
    assert [True] == stopped


async def test_a_tool_sees_the_context_of_its_call():
    async def f(tool_context) -> Any:
        return tool_context.call_id, tool_context.name, len(tool_context.messages), tool_context.iteration

    assert ("c9", "f", 1, 4) == (
        await Executor([f]).run([ToolCall("c9", "f")], messages=[{"role": "user", "content": "hi"}], iteration=4)
    )[0].value


async def test_context_variables_reach_the_tools():
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("mine")

    async def on_loop() -> str:
        return variable.get()

    def in_thread() -> str:
        return variable.get()

    assert ["mine", "mine"] == [
        each.value for each in await Executor([on_loop, in_thread]).run([ToolCall("1", "on_loop"), ToolCall("2", "in_thread")])
    ]


def test_empty_batch_has_no_executions():
    assert [] == run_calls([])


@pytest.mark.parametrize(
    "options",
    [
        {"max_repeats": 0},
        {"max_result_chars": 10},
        {"max_result_chars": 0},
        {"on_progress": 3},
        {"before": 3},
        {"before": "before"},
        {"before": [None]},
        {"before": {"a": print}},
        {"after": 3},
        {"tool_timeout": 0},
        {"tool_timeout": float("nan")},
        {"max_parallel": 0},
        {"max_parallel": True},
        {"cancel_grace": -1},
        {"cancel_grace": "1"},
        {"cancel_grace": None},
        {"cancel_grace": True},
    ],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Executor([], **options)
