"""Every call ends as one execution whose text tells the model what to do next."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from tool_calls import execute, run_calls

from patchbay import ToolRunner
from patchbay.errors import ConfigurationError, ToolError, ToolFailed, ToolRetry, ToolTimeoutError, UnknownToolError
from patchbay.executor import Executor, ToolExecution
from patchbay.testing import ScriptedModel
from patchbay.tools import AgentScope, merge_actions, tool
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
    assert [] == run_calls([])


def test_an_unknown_name_lists_the_nearest():
    async def get_weather(): ...
    async def send_mail(): ...

    done, long = run_calls([get_weather, send_mail], ToolCall("c1", "get_wether"), ToolCall("c2", "x" * 1_000_000))
    assert isinstance(done.error, UnknownToolError)
    assert ("unknown_tool", ("get_weather",)) == (done.result.code, done.error.nearest)
    assert "Did you mean 'get_weather'? Available tools: get_weather, send_mail." in done.content
    assert done.arguments is None
    assert len(long.content) < 1000


class OutOfStockError(ToolError):
    code = "out_of_stock"

    @property
    def for_model(self) -> str:
        return "Offer another size."


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class ExitsError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class BrokenRetry(ToolRetry):
    @property
    def for_model(self) -> str:
        raise RuntimeError


FAILED = "Error: tool 'fail' failed: "
NESTED = ExceptionGroup("both", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])])
RETRY = "Fix the arguments and call the tool again."


@pytest.mark.parametrize(
    ("error", "code", "content"),
    [
        (KeyError("foo"), "tool_error", f"{FAILED}KeyError: 'foo'"),
        (AssertionError(), "tool_error", f"{FAILED}AssertionError"),
        (ValueError("two\nlines"), "tool_error", f"{FAILED}ValueError: two\nlines"),
        (NESTED, "tool_error", f"{FAILED}ExceptionGroup: both: ValueError: a; KeyError: 'b'"),
        (
            ExceptionGroup("many", [ValueError("a")] * 11),
            "tool_error",
            f"{FAILED}ExceptionGroup: many: {'ValueError: a; ' * 10}...",
        ),
        (UnprintableError(), "tool_error", f"{FAILED}UnprintableError: <UnprintableError>"),
        (ExitsError(), "tool_error", f"{FAILED}ExitsError: <ExitsError>"),
        (BrokenRetry("like this"), "tool_error", f"{FAILED}BrokenRetry: like this"),
        (OutOfStockError("none left"), "out_of_stock", "Offer another size."),
        (ToolRetry("Give the date as YYYY-MM-DD"), "tool_retry", f"Error: Give the date as YYYY-MM-DD. {RETRY}"),
        (ToolRetry("Which city?"), "tool_retry", f"Error: Which city? {RETRY}"),
        (ToolRetry(""), "tool_retry", f"Error: {RETRY}"),
        (
            ToolFailed("The archive is closed."),
            "tool_failed",
            "Error: The archive is closed. Do not try the same again: do something else, or tell the user.",
        ),
    ],
)
async def test_an_exception_of_a_tool_is_the_result_of_its_call_alone(error, code, content):
    async def fail() -> None:
        raise error

    async def sibling() -> str:
        return "fine"

    done, other = await Executor([fail, sibling]).run([ToolCall("1", "fail"), ToolCall("2", "sibling")])
    assert (code, content, error, "fine") == (done.result.code, done.content, done.error, other.content)


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (ToolCall("c1", "f", '{"a": "x"}'), "invalid_arguments", ["/a must be a valid integer", "The tool did not run."]),
        (IncompleteCall("c1", "f", '{"a": 1', '{"a": 1'), "incomplete_call", ["shorter"]),
    ],
)
def test_an_invalid_or_incomplete_call_is_never_run(call, code, words):
    async def f(a: int = 0):
        raise AssertionError("it ran")

    (done,) = run_calls([f], call)
    assert (code, None, call.raw_arguments) == (done.result.code, done.arguments, done.call.raw_arguments)
    assert all(word in done.content for word in words)


@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_tool_that_raises_keyboard_interrupt_is_an_error_result(kind, timeout):
    """It must not end the background loop of sync code."""

    def sync() -> None:
        raise KeyboardInterrupt

    async def asynchronous() -> None:
        raise KeyboardInterrupt

    press = tool(sync if kind == "sync" else asynchronous, name="press", timeout=timeout)
    result = ToolRunner(ScriptedModel([ToolCall("c", "press", "{}"), "done"]), tools=[press]).run_sync("hi")
    assert "done" == result.content
    assert "KeyboardInterrupt" in result.tool_executions[0].content


async def test_state_changes_of_a_failed_call_are_dropped_and_invisible_to_siblings():
    state: dict[str, Any] = {}
    seen = []
    wrote = asyncio.Event()

    async def a(tool_context: Any) -> None:
        tool_context.state["from_a"] = 1
        wrote.set()
        raise ValueError

    async def b(tool_context: Any) -> None:
        await wrote.wait()
        seen.append(tool_context.state.get("from_a"))
        tool_context.state["from_b"] = 2

    done = await Executor([a, b]).run([ToolCall("1", "a"), ToolCall("2", "b")], agent_scope=AgentScope(state=state))
    assert ([None], {}) == (seen, state)
    assert (None, {"from_b": 2}) == (done[0].actions, done[1].actions.state_delta)
    assert {"from_b": 2} == merge_actions(done).state_delta


@pytest.mark.parametrize("fails", ["timeout", "after", "stop"])
async def test_any_failure_drops_the_state_changes_of_its_call(fails):
    wrote = asyncio.Event()

    async def write(tool_context: Any) -> None:
        tool_context.state["x"] = 1
        wrote.set()
        if fails != "after":
            await asyncio.Event().wait()

    def after(*_: Any) -> None:
        raise RuntimeError

    options = {"timeout": {"tool_timeout": SHORT}, "after": {"after": after}, "stop": {}}[fails]
    batch = Executor([write], **options).start_batch([ToolCall("1", "write")])
    await wrote.wait()
    if fails == "stop":
        await batch.stop()
    done = await anext(batch)
    assert (True, None) == (done.is_error, done.actions)


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

    done = run_calls([own, none], ToolCall("1", "own"), ToolCall("2", "none"), tool_timeout=SHORT)
    assert [False, True] == [execution.is_error for execution in done]


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
    done = await Executor([meet]).run(calls, on_settled=lambda execution: settled.append(execution.value))
    assert (["a", "b"], ["b", "a"]) == ([execution.value for execution in done], settled)


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

    batch = Executor([quick, slow]).start_batch([ToolCall("1", "slow"), ToolCall("2", "quick")])
    try:
        first = await anext(batch)
        assert ("quick", ["quick"]) == (first.value, [execution.value for execution in batch.executions])
        gate.set()
        assert ["slow"] == [execution.value async for execution in batch]
        assert ["slow", "quick"] == [execution.value for execution in batch.executions]
    finally:
        await batch.stop()


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
    batch = Executor([item], cancel_grace=SHORT).start_batch([ToolCall("1", "f")])
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

    batch = Executor([careful]).start_batch([ToolCall("1", "careful")])
    await cleaning.wait()
    stopping = asyncio.create_task(batch.stop())
    await asyncio.sleep(0)
    clean.set()
    await stopping
    assert (["clean"], "tool_timeout") == (log, batch.executions[0].result.code)


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


async def test_a_tool_sees_the_context_of_its_call_and_the_callers_variables():
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("mine")

    async def on_loop(tool_context) -> Any:
        about = tool_context.call_id, tool_context.name, len(tool_context.messages), tool_context.iteration
        return *about, variable.get()

    def in_thread() -> str:
        return variable.get()

    calls = [ToolCall("c9", "on_loop"), ToolCall("2", "in_thread")]
    done = await Executor([on_loop, in_thread]).run(calls, messages=[{"role": "user", "content": "hi"}], iteration=4)
    assert [("c9", "on_loop", 1, 4, "mine"), "mine"] == [each.value for each in done]


@pytest.mark.parametrize(
    "options",
    [
        {"max_repeats": 0},
        *({"max_result_chars": value} for value in (10, 0)),
        {"on_progress": 3},
        *({"before": value} for value in (3, "before", [None], {"a": print})),
        {"after": 3},
        *({"tool_timeout": value} for value in (0, float("nan"))),
        *({"max_parallel": value} for value in (0, True)),
        *({"cancel_grace": value} for value in (-1, "1", None, True)),
    ],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Executor([], **options)
