"""Failures of tools: cancellations, timeouts, exceptions and odd values are results; state changes of failed calls are dropped."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import json
import threading
from typing import Any

import pytest
from pydantic import BaseModel

from patchbay.errors import ToolFailed, ToolRetry, ToolTimeoutError
from patchbay.executor import Executor, ToolExecution
from patchbay.tools import AgentScope, merge_actions, tool
from patchbay.types import ToolCall

SHORT = 0.02


def run_calls(tools: list[Any], *calls: ToolCall, state: dict[str, Any] | None = None, **options: Any) -> list[ToolExecution]:
    async def main() -> list[ToolExecution]:
        return await asyncio.wait_for(Executor(tools, **options).run(calls, agent_scope=AgentScope(state=state or {})), 30)

    return asyncio.run(main())


def execute(function: Any, raw: str = "{}", **options: Any) -> ToolExecution:
    (execution,) = run_calls([function], ToolCall("c1", getattr(function, "name", None) or function.__name__, raw), **options)
    return execution


def test_sync_tools_run_in_parallel_beside_the_loop():
    """Four that wait for each other, and for the loop: in series, or on the loop, none would ever end."""
    together = threading.Barrier(5)
    variable = contextvars.ContextVar("variable", default="lost")

    def meet() -> str:
        together.wait(30)
        return variable.get()

    async def main() -> list[ToolExecution]:
        variable.set("mine")
        running = asyncio.create_task(Executor([meet]).run([ToolCall(str(n), "meet") for n in range(4)]))
        await asyncio.to_thread(together.wait, 30)
        return await running

    assert ["mine"] * 4 == [execution.value for execution in asyncio.run(asyncio.wait_for(main(), 30))]


def test_timeout_of_a_sync_tool_states_that_it_may_still_run():
    release = threading.Event()

    @tool(timeout=SHORT)
    def slow(tool_context: Any) -> str:
        release.wait(30)
        return "x"

    done = execute(slow)
    release.set()
    assert isinstance(done.error, ToolTimeoutError)
    assert f"Tool 'slow' timed out after {SHORT}s" in done.content
    assert "It could not be interrupted and may still be running: its effects may still happen." in done.content


@pytest.mark.parametrize("sibling_first", [True, False])
def test_cancellation_raised_by_a_tool_fails_only_its_call(sibling_first):
    async def gives_up() -> None:
        raise asyncio.CancelledError("by itself")

    async def fine() -> str:
        return "fine"

    calls = [ToolCall("1", "fine"), ToolCall("2", "gives_up")]
    done = run_calls([gives_up, fine], *(calls if sibling_first else calls[::-1]))
    assert {"fine": None, "gives_up": "cancelled"} == {execution.call.name: execution.result.code for execution in done}


@pytest.mark.parametrize("limit", [None, 10.0])
def test_timeout_raised_by_a_tool_is_a_tool_error(limit):
    async def netfail() -> None:
        raise TimeoutError("connect")

    done = execute(tool(handler=netfail, name="netfail", timeout=limit))
    assert ("Error: tool 'netfail' failed: TimeoutError: connect", "tool_error") == (done.content, done.result.code)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("foo"), "KeyError: 'foo'"),
        (AssertionError(), "AssertionError"),
        (ValueError("two\nlines"), "ValueError: two\nlines"),
        (
            ExceptionGroup("both", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])]),
            "ExceptionGroup: both: ValueError: a; KeyError: 'b'",
        ),
        (ExceptionGroup("many", [ValueError("a")] * 11), f"ExceptionGroup: many: {'ValueError: a; ' * 10}..."),
    ],
)
def test_error_text_includes_the_exception_type(error, words):
    async def fail() -> None:
        raise error

    assert f"Error: tool 'fail' failed: {words}" == execute(fail).content


def test_unprintable_error_is_named_by_its_type():
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class BrokenRetry(ToolRetry):
        @property
        def for_model(self) -> str:
            raise RuntimeError

    async def odd() -> None:
        raise OddError

    async def broken() -> None:
        raise BrokenRetry("like this")

    assert "OddError" in execute(odd).content
    assert "Error: tool 'broken' failed: BrokenRetry: like this" == execute(broken).content


@pytest.mark.parametrize(
    ("error", "content", "code"),
    [
        (ToolRetry("Give the date as YYYY-MM-DD"), "Give the date as YYYY-MM-DD. Fix the arguments and call the tool again.", "tool_retry"),
        (ToolRetry("Which city?"), "Which city? Fix the arguments and call the tool again.", "tool_retry"),
        (ToolRetry(""), "Fix the arguments and call the tool again.", "tool_retry"),
        (
            ToolFailed("The archive is closed."),
            "The archive is closed. Do not try the same again: do something else, or tell the user.",
            "tool_failed",
        ),
    ],
)  # fmt: skip
def test_tool_error_can_instruct_the_model(error, content, code):
    async def fail() -> None:
        raise error

    done = execute(fail)
    assert (f"Error: {content}", code, error) == (done.content, done.result.code, done.error)


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
    batch = Executor([write], **options).start([ToolCall("1", "write")])
    await wrote.wait()
    if fails == "stop":
        await batch.stop()
    done = await anext(batch)
    assert (True, None) == (done.is_error, done.actions)


async def test_concurrent_increments_are_all_merged():
    all_have_read = asyncio.Barrier(5)

    async def count(tool_context: Any) -> None:
        n = tool_context.state["n"]
        await all_have_read.wait()
        tool_context.state["n"] = n + 1

    assert {"n": 5} == merge_actions(
        await Executor([count]).run([ToolCall(str(n), "count") for n in range(5)], agent_scope=AgentScope(state={"n": 0}))
    ).state_delta


async def test_last_write_in_call_order_wins():
    second_is_done = asyncio.Event()

    async def first(tool_context: Any) -> None:
        await second_is_done.wait()
        tool_context.state["k"] = "first"
        tool_context.actions.transfer_to_agent = "a"

    async def second(tool_context: Any) -> None:
        tool_context.state["k"] = "second"
        tool_context.actions.transfer_to_agent = "b"
        second_is_done.set()

    merged = merge_actions(await Executor([first, second]).run([ToolCall("1", "first"), ToolCall("2", "second")]))
    assert ({"k": "second"}, "b") == (merged.state_delta, merged.transfer_to_agent)


class Day(BaseModel):
    day: dt.date


@pytest.mark.parametrize(
    "value",
    [
        dt.date(2026, 1, 2), {"when": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)}, Day(day=dt.date(2026, 1, 2)), {1, 2}, b"\xff",
        ValueError("as a value"), object(), float("nan"), [complex(1, 2)], {("a", 1): {frozenset({1})}}, iter([1]), type, print,
    ],
)  # fmt: skip
def test_any_return_value_gives_a_sendable_result(value):
    async def give() -> Any:
        return value

    done = execute(give)
    assert not done.is_error
    assert done.content
    json.dumps(done.result.to_message())


@pytest.mark.parametrize("hostile", ["str", "dump", "exit"])
def test_value_with_failing_methods_gives_a_result(hostile):
    class Hostile:
        def __str__(self) -> str:
            raise SystemExit(3) if hostile == "exit" else RuntimeError("no")

        def model_dump(self, **_: Any) -> Any:
            raise RuntimeError("no")

    async def give() -> Any:
        return {"it": Hostile()} if hostile == "dump" else Hostile()

    async def sibling() -> str:
        return "fine"

    done = run_calls([give, sibling], ToolCall("1", "give"), ToolCall("2", "sibling"))
    assert "fine" == done[1].content
    assert done[0].content
    json.dumps(done[0].result.to_message())
