"""A call through the official MCP SDK over stdio: its client starts its server."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mcp import Client, StdioServerParameters

from bench.calls import cases
from bench.places import ROOT
from bench.processes import tree

UVLOOP = True


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[cases.Opened]:  # noqa: ARG001
    """Let the client start the server and call it."""
    parameters = StdioServerParameters(command=sys.executable, args=["-m", "bench.calls.mcp_server"], cwd=ROOT)
    async with Client(parameters) as client:
        _, server = tree(os.getpid())

        async def call(number: int) -> object:
            return (await client.call_tool(cases.NAME, cases.arguments(number))).content[0].text

        yield cases.Opened(call, {"server": server})
