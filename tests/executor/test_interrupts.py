"""A tool that raises KeyboardInterrupt by itself fails like any other; it must not take the background loop with it."""

from __future__ import annotations

import pytest

from patchbay import ToolCall, ToolRunner, tool
from patchbay.testing import ScriptedModel


@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_tool_that_raises_keyboard_interrupt_is_an_error_result(kind: str, timeout: float | None) -> None:
    def sync() -> None:
        raise KeyboardInterrupt

    async def asynchronous() -> None:
        raise KeyboardInterrupt

    press = tool(sync if kind == "sync" else asynchronous, name="press", timeout=timeout)
    runner = ToolRunner(ScriptedModel([ToolCall("c", "press", "{}"), "done"]), tools=[press])
    result = runner.run_sync("hi")
    assert "done" == result.content
    assert "KeyboardInterrupt" in result.tool_executions[0].content
