"""Mounted MCP servers, and calls of their tools through an executor."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from patchbay.executor import Executor, ToolExecution
from patchbay.mcp import McpHost, McpServer
from patchbay.tools.registry import DEFAULT_ROLE, ToolRegistry
from patchbay.types import ToolCall
from support.processes import Process

HERE = Path(__file__).parent


def sdk_server(name: str = "sdk", **options: Any) -> McpServer:
    """A server on the official SDK over stdio, which speaks both eras."""
    return McpServer(name=name, command=sys.executable, args=(str(HERE / "sdk_server.py"),), **options)


@contextmanager
def over_http(port: int, script: str = "sdk_server.py", *arguments: object) -> Iterator[None]:
    """Run a server on the SDK over streamable HTTP, forked from a process that has imported the SDK; kill it at the end."""
    command = [sys.executable, str(HERE / script), str(port), *map(str, arguments)]
    with Process(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any("running on" in line for line in process.stderr)
            yield
        finally:
            process.kill()


def raw_server(*arguments: str, name: str = "raw", **options: Any) -> McpServer:
    """A server of the handshake era without the SDK; it starts quickly, and misbehaves as its arguments say."""
    return McpServer(name=name, command=sys.executable, args=("-S", str(HERE / "raw_server.py"), *arguments), **options)


class Mounted:
    """Servers whose tools are in a registry."""

    def __init__(self, host: McpHost) -> None:
        self.host = host
        self.registry = host.registry
        self.progress: list[tuple[str | None, float | None]] = []

    @property
    def tools(self) -> list[str]:
        """The names of the tools that a model would get."""
        return list(self.registry.snapshot(DEFAULT_ROLE).tools)

    @property
    def hidden(self) -> list[str]:
        return sorted(self.registry.snapshot(DEFAULT_ROLE).hidden)

    def executor(self) -> Executor:
        """An executor with all tools, hidden ones too: a model may still call them."""
        tools = [each.tool for each in self.registry.registrations() if each.tool is not None]
        return Executor(tools, on_progress=lambda _, each: self.progress.append((each.message, each.fraction)))

    async def call(self, name: str, /, **arguments: Any) -> ToolExecution:
        (execution,) = await self.executor().run([ToolCall("c1", name, json.dumps(arguments))])
        return execution

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait, within the test's own bound, until a change of the registry or of a connection has come."""
        while not holds():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def mounted(*servers: McpServer, **options: Any) -> AsyncIterator[Mounted]:
    host = McpHost(servers, ToolRegistry(), **options)
    try:
        await host.start()
        yield Mounted(host)
    finally:
        await host.aclose()
