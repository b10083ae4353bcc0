"""Failures of tools: their error results for the model, and dropped state changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tool_calls import execute

from patchbay import ToolRunner
from patchbay.errors import ToolFailed, ToolRetry
from patchbay.executor import Executor
from patchbay.testing import ScriptedModel
from patchbay.tools import AgentScope, merge_actions, tool
from patchbay.types import ToolCall

SHORT = 0.02


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


@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_tool_that_raises_keyboard_interrupt_is_an_error_result(kind: str, timeout: float | None) -> None:
    """It must not end the background loop of sync code."""

    def sync() -> None:
        raise KeyboardInterrupt

    async def asynchronous() -> None:
        raise KeyboardInterrupt

    press = tool(sync if kind == "sync" else asynchronous, name="press", timeout=timeout)
    result = ToolRunner(ScriptedModel([ToolCall("c", "press", "{}"), "done"]), tools=[press]).run_sync("hi")
    assert "done" == result.content
    assert "KeyboardInterrupt" in result.tool_executions[0].content
