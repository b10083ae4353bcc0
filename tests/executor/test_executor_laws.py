"""Laws 1, 2 and 3 for any batch of calls: one result per call, in call order, nothing raised, no sibling lost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from patchbay.executor import Executor, ToolExecution
from patchbay.tools import tool
from patchbay.types import IncompleteCall, ToolCall
from support.repeated import examples

SHORT = 0.005

# What a model may write, and the code that its result must have.
KINDS: dict[str, str | None] = {
    "fine": None,
    "fine_sync": None,
    "unknown": "unknown_tool",
    "bad_arguments": "invalid_arguments",
    "not_json": "invalid_arguments",
    "throws": "tool_error",
    "throws_sync": "tool_error",
    "exits": "tool_error",
    "exits_sync": "tool_error",
    "raises_timeout": "tool_error",
    "too_slow": "tool_timeout",
    "too_slow_sync": "tool_timeout",
    "raises_cancelled": "cancelled",
    "raises_cancelled_sync": "cancelled",
    "cancels_its_task": "cancelled",
    "cut_off": "incomplete_call",
    "odd_result": None,
}


def make_tools(pause: Any, release: threading.Event) -> list[Any]:
    async def fine(n: int) -> int:
        await pause()
        return n

    def fine_sync(n: int) -> int:
        return n

    async def throws(n: int) -> None:
        await pause()
        raise ValueError(n)

    def throws_sync(n: int) -> None:
        raise ValueError(n)

    async def exits(n: int) -> None:
        raise SystemExit(n)

    def exits_sync(n: int) -> None:
        raise SystemExit(n)

    async def raises_timeout(n: int) -> None:
        raise TimeoutError

    @tool(timeout=SHORT)
    async def too_slow(n: int) -> None:
        await asyncio.Event().wait()

    @tool(timeout=SHORT)
    def too_slow_sync(n: int) -> None:
        release.wait(30)

    async def raises_cancelled(n: int) -> None:
        await pause()
        raise asyncio.CancelledError

    def raises_cancelled_sync(n: int) -> None:
        raise asyncio.CancelledError

    async def cancels_its_task(n: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await pause()
        await asyncio.Event().wait()

    async def odd_result(n: int) -> Any:
        return {(n, float("nan")): {object, b"\xff"}}

    return [
        fine, fine_sync, throws, throws_sync, exits, exits_sync, raises_timeout, too_slow, too_slow_sync, raises_cancelled,
        raises_cancelled_sync, cancels_its_task, odd_result,
    ]  # fmt: skip


def make_call(index: int, kind: str) -> ToolCall | IncompleteCall:
    name, raw = kind, f'{{"n": {index}}}'
    if kind == "unknown":
        name = "finee"
    elif kind == "bad_arguments":
        name, raw = "fine", '{"n": "x"}'
    elif kind == "not_json":
        name, raw = "fine", '{"n": '
    elif kind == "cut_off":
        return IncompleteCall(f"c{index}", "fine", '{"n": ', '{"n": ')
    return ToolCall(f"c{index}", name, raw)


@settings(max_examples=examples(25))
@given(
    st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 3)), max_size=12),
    st.integers(1, 6),
    st.sampled_from([None, 10.0]),
)
def test_every_call_gets_exactly_one_result_in_call_order_for_any_siblings(batch, max_parallel, tool_timeout):
    release = threading.Event()
    received: list[ToolExecution] = []

    async def main() -> list[ToolExecution]:
        turns = iter([pauses for _, pauses in batch] * 2)

        async def pause() -> None:
            for _ in range(next(turns, 0)):
                await asyncio.sleep(0)

        executor = Executor(make_tools(pause, release), max_parallel=max_parallel, tool_timeout=tool_timeout)
        calls = [make_call(index, kind) for index, (kind, _) in enumerate(batch)]
        return await asyncio.wait_for(executor.run(calls, on_settled=received.append), 30)

    try:
        done = asyncio.run(main())
    finally:
        release.set()
    assert [f"c{index}" for index in range(len(batch))] == [execution.call.id for execution in done]
    assert [f"c{index}" for index in range(len(batch))] == [execution.result.call_id for execution in done]
    assert [KINDS[kind] for kind, _ in batch] == [execution.result.code for execution in done]
    assert all(execution.is_error is (execution.result.code is not None) for execution in done)
    assert all(execution.content for execution in done)
    # Each call has exactly one event.
    assert sorted(execution.call.id for execution in received) == sorted(execution.call.id for execution in done)
    for index, (kind, _) in enumerate(batch):
        if kind in ("fine", "fine_sync"):
            assert index == done[index].value


def test_timeout_of_one_call_leaves_its_siblings_running() -> None:
    async def main() -> list[ToolExecution]:
        timed_out = asyncio.Event()

        @tool(timeout=SHORT)
        async def too_slow() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                timed_out.set()

        async def slower() -> str:
            await timed_out.wait()
            await asyncio.sleep(0.05)
            return "done"

        calls = [ToolCall("c0", "slower", "{}"), ToolCall("c1", "too_slow", "{}"), ToolCall("c2", "slower", "{}")]
        return await asyncio.wait_for(Executor([too_slow, slower]).run(calls), 30)

    assert [None, "tool_timeout", None] == [execution.result.code for execution in asyncio.run(main())]


@settings(max_examples=examples(15))
@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=8), st.integers(0, 12))
def test_batch_stopped_at_any_moment_has_one_result_per_call_and_leaves_no_task(batch, moment):
    release = threading.Event()

    async def main() -> list[ToolExecution]:
        async def pause() -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        calls = [make_call(index, kind) for index, kind in enumerate(batch)]
        running = Executor(make_tools(pause, release)).start_batch(calls)
        for _ in range(moment):
            await asyncio.sleep(0)
        await running.stop()
        await running.stop()  # does nothing
        assert {asyncio.current_task()} == asyncio.all_tasks()
        return running.executions

    try:
        done = asyncio.run(main())
    finally:
        release.set()
    assert [f"c{index}" for index in range(len(batch))] == [execution.call.id for execution in done]
    assert all(execution.result.code in (KINDS[kind], "cancelled") for kind, execution in zip(batch, done, strict=True))
