"""Order and limits of concurrent calls: sequential tools, permits, budgets and progress."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from patchbay.errors import ConfigurationError, RunTimeoutError
from patchbay.executor import Budget, Executor, ToolExecution
from patchbay.tools import tool
from patchbay.types import ToolCall
from support.running import run

SHORT = 0.02


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(str(number), name) for number, name in enumerate(names, 1)]


class Log:
    """Tools that write down when they begin and end."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.running = 0
        self.most = 0

    def make(self, name: str, **options: Any) -> Any:
        async def body(tool_context: Any) -> str:
            self.running += 1
            self.most = max(self.most, self.running)
            self.lines.append(f"+{tool_context.call_id}")
            for _ in range(3):
                await asyncio.sleep(0)
            self.lines.append(f"-{tool_context.call_id}")
            self.running -= 1
            return name

        return tool(handler=body, name=name, **options)


def test_sequential_tool_waits_for_earlier_calls_and_blocks_later_ones():
    log = Log()
    executor = Executor([log.make("free"), log.make("alone", sequential=True)])
    done = run(executor.run(calls("free", "free", "alone", "free", "free", "alone", "alone")))
    assert ["+1", "+2", "-1", "-2", "+3", "-3", "+4", "+5", "-4", "-5", "+6", "-6", "+7", "-7"] == log.lines
    assert [str(number) for number in range(1, 8)] == [execution.call.id for execution in done]


def test_a_call_that_fails_opens_the_barrier_too():
    async def fail() -> None:
        raise ValueError

    log = Log()
    executor = Executor([tool(handler=fail, name="fail", sequential=True), log.make("free")])
    done = run(executor.run(calls("fail", "nope", "free")))
    assert ["tool_error", "unknown_tool", None] == [execution.result.code for execution in done]


def test_concurrency_limit_of_a_tool_applies_across_runs():
    log = Log()
    few = log.make("few", max_parallel=2)
    free = Log()

    async def main() -> None:
        await asyncio.gather(*(Executor([few, free.make("free")]).run(calls(*["few", "free"] * 4)) for _ in range(3)))

    run(main())
    assert (2, 12) == (log.most, free.most)
    run(main())  # in another event loop


def test_no_more_calls_run_at_once_than_allowed():
    log = Log()
    assert 20 == len(run(Executor([log.make("f")], max_parallel=3).run(calls(*["f"] * 20))))
    assert 3 == log.most


def test_a_call_made_by_a_call_of_the_same_tool_does_not_wait_for_it():
    async def nest(depth: int) -> int:
        if depth:
            (inner,) = await Executor([once]).run([ToolCall("i", "nest", f'{{"depth": {depth - 1}}}')])
            return inner.value + 1
        return 0

    once = tool(handler=nest, name="nest", max_parallel=1)
    (done,) = run(Executor([once]).run([ToolCall("1", "nest", '{"depth": 3}')]))
    assert 3 == done.value


@pytest.mark.usefixtures("time_jumps")
async def test_queued_time_does_not_count_as_run_time():
    """Three calls, one at a time, each nearly as long as the limit: none is over it."""

    async def nap() -> None:
        await asyncio.sleep(SHORT)

    executor = Executor([tool(handler=nap, name="nap", timeout=SHORT * 1.5)], max_parallel=1)
    assert {None} == {execution.result.code for execution in await executor.run(calls(*["nap"] * 30))}


@pytest.mark.usefixtures("time_jumps")
async def test_run_timeout_stops_a_waiting_hook_and_tool_timeout_does_not():
    async def ask(*_: Any) -> None:
        await asyncio.Event().wait()

    async def quick() -> None: ...

    executor = Executor([quick], tool_timeout=SHORT, before=ask)
    (done,) = await executor.run(calls("quick"), budget=Budget(max_seconds=SHORT * 5))
    assert ("run_timeout", None) == (done.result.code, done.arguments)


@pytest.mark.usefixtures("time_jumps")
async def test_when_the_time_of_the_run_is_up_all_calls_settle_and_nothing_more_begins():
    began = []

    async def quick() -> str:
        return "quick"

    async def never(tool_context: Any) -> None:
        began.append(tool_context.call_id)
        await asyncio.Event().wait()

    executor = Executor([quick, never, tool(handler=never, name="alone", sequential=True)])
    run = executor.begin_run(budget=Budget(max_seconds=SHORT))
    batch = run.start_batch(calls("quick", "never", "alone", "never"))
    async for _ in batch:
        pass
    late = run.start_batch(calls("quick"))
    async for _ in late:
        pass
    done = [*batch.executions, *late.executions]
    assert [None, "run_timeout", "run_timeout", "run_timeout", "run_timeout"] == [execution.result.code for execution in done]
    assert ["2"] == began
    assert isinstance(done[1].error, RunTimeoutError)
    assert f"Error: Tool 'never' timed out after {SHORT}s, which was the limit of the whole run." == done[1].content
    assert "It had not begun." in done[2].content


def test_calls_beyond_the_budget_are_errors_and_do_not_run():
    ran = []

    async def f(tool_context: Any) -> None:
        ran.append(tool_context.call_id)

    budget = Budget(max_calls=2)
    done = run(Executor([f]).run(calls("f", "nope", "f", "f"), budget=budget))
    assert [None, "unknown_tool", "call_budget", "call_budget"] == [execution.result.code for execution in done]
    assert (["1"], "max_calls") == (ran, budget.exceeded)
    assert "Error: The run may make no more than 2 calls: the tool 'f' did not run. Answer with what you have." == done[2].content


@pytest.mark.parametrize(
    "limits",
    [
        {"max_calls": 0}, {"max_calls": True}, {"max_calls": 1.5}, {"max_iterations": 0}, {"max_seconds": 0},
        {"max_seconds": -1}, {"max_seconds": float("inf")}, {"max_seconds": float("nan")}, {"max_seconds": "1"},
    ],
)  # fmt: skip
def test_budgets_that_limit_nothing_are_refused(limits):
    with pytest.raises(ConfigurationError, match=next(iter(limits))):
        Budget(**limits)


async def test_progress_reaches_observers_in_order_and_from_threads(caplog):
    watched: list[Any] = []

    async def on_loop(tool_context: Any) -> None:
        tool_context.progress("half", fraction=0.5)
        tool_context.progress("done", fraction=1)

    def in_thread(tool_context: Any) -> None:
        tool_context.progress("from a thread", data={"n": 1})

    def watch(call: ToolCall, progress: Any) -> None:
        watched.append((call.name, progress.message))
        raise RuntimeError("a broken watcher")

    batch = Executor([on_loop, in_thread], on_progress=watch).start_batch(calls("on_loop", "in_thread"))
    news = []
    while (each := await batch.next_event()) is not None:
        news.append((each.call.name, each.progress.message if hasattr(each, "progress") else each.result.code))
    assert [("on_loop", "half"), ("on_loop", "done"), ("on_loop", None)] == [each for each in news if each[0] == "on_loop"]
    assert [("in_thread", "from a thread"), ("in_thread", None)] == [each for each in news if each[0] == "in_thread"]
    assert sorted([("on_loop", "half"), ("on_loop", "done"), ("in_thread", "from a thread")]) == sorted(watched)
    assert "a broken watcher" in caplog.text


async def test_a_flood_of_progress_is_cut_and_results_are_not():
    contexts = []

    async def flood(tool_context: Any) -> None:
        contexts.append(tool_context)
        for number in range(5000):
            tool_context.progress(str(number))

    batch = Executor([flood]).start_batch(calls("flood"))
    for _ in range(3):
        await asyncio.sleep(0)
    count = 0
    while (event := await batch.next_event()) is not None:
        count += 1
        if isinstance(event, ToolExecution):
            contexts[0].progress("too late")
    assert 1 == len(batch.executions)
    assert 1001 == count


async def test_failing_on_settled_callback_does_not_stop_the_run(caplog):
    seen = []

    def watch(execution: ToolExecution) -> None:
        seen.append(execution.call.id)
        raise ValueError("the watcher's own")

    async def quick() -> None: ...

    batch = Executor([quick]).begin_run(on_settled=watch).start_batch(calls("quick", "unknown", "quick"))
    async for _ in batch:
        pass
    assert 3 == len(batch.executions)
    assert ["1", "2", "3"] == sorted(seen)
    assert "the watcher's own" in caplog.text
