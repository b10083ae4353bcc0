"""Runs calls with an executor of given tools."""

from __future__ import annotations

from typing import Any

from patchbay.executor import Executor, ToolExecution
from patchbay.types import IncompleteCall, ToolCall
from support.running import run


def run_calls(tools: list[Any], *calls: ToolCall | IncompleteCall, **options: Any) -> list[ToolExecution]:
    """Return the executions of ``calls``; ``options`` are the executor's."""

    async def main() -> list[ToolExecution]:
        return await Executor(tools, **options).run(calls)

    return run(main())


def execute(function: Any, raw: str = "{}", **options: Any) -> ToolExecution:
    """Return the execution of one call of ``function``."""
    (execution,) = run_calls([function], ToolCall("c1", getattr(function, "name", None) or function.__name__, raw), **options)
    return execution
