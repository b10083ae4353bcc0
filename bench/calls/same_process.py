"""A tool of the same process: a function, registered for a role, and called through the executor over the role's snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.calls import cases
from patchbay import ToolCall, tool
from patchbay.executor import Executor
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.registry import DEFAULT_ROLE, ToolRegistry

UVLOOP = True


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[cases.Opened]:  # noqa: ARG001
    """Register the function and call it."""
    registry = ToolRegistry([DEFAULT_ROLE])
    manager = LLMSessionManager(DEFAULT_ROLE, registry)
    manager.register_tool(tool(cases.echo))
    executor = Executor(manager.snapshot().tools.values())

    async def call(number: int) -> object:
        [execution] = await executor.run([ToolCall(f"c{number}", cases.NAME, cases.arguments_text(number))])
        return execution.content

    yield cases.Opened(call)
