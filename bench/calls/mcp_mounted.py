"""A call through a mounted MCP server over stdio: the executor, our transport, the official SDK's client; the server is that of ``mcp_stdio``."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.calls import cases
from bench.places import ROOT
from bench.processes import tree
from patchbay import ToolCall
from patchbay.executor import Executor
from patchbay.mcp import McpHost, McpServer
from patchbay.tools.registry import DEFAULT_ROLE, ToolRegistry

UVLOOP = True


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[cases.Opened]:  # noqa: ARG001
    """Mount the server, and call its tool as any other of the registry."""
    server = McpServer(name="bench", command=sys.executable, args=("-m", "bench.calls.mcp_server"), cwd=str(ROOT))
    host = McpHost([server], ToolRegistry())
    try:
        await host.start()
        _, process = tree(os.getpid())
        (tool,) = host.registry.snapshot(DEFAULT_ROLE).tools.values()
        executor = Executor([tool])

        async def call(number: int) -> object:
            [execution] = await executor.run([ToolCall(f"c{number}", tool.name, cases.arguments_text(number))])
            return execution.value["result"]

        yield cases.Opened(call, {"server": process})
    finally:
        await host.aclose()
