"""A call through the official MCP SDK over streamable HTTP, answered in JSON and not in events, which is cheaper."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mcp import Client

from bench.calls import cases
from bench.places import ROOT
from bench.processes import free_port, server

UVLOOP = True


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[cases.Opened]:
    """Start the server and a client."""
    port = free_port()
    argv = [sys.executable, "-m", "bench.calls.mcp_server", str(port)]
    with server(argv, port=port, ready_path="/ready", log=folder / "mcp.log", env={"PYTHONPATH": str(ROOT)}) as running:
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:

            async def call(number: int) -> object:
                return (await client.call_tool(cases.NAME, cases.arguments(number))).content[0].text

            yield cases.Opened(call, {"server": running.pid})
