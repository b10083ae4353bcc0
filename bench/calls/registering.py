"""The registration of a tool over HTTP with ``patchbay serve``, kept in SQLite: each call registers another tool of one source."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.calls import cases, post, servers

UVLOOP = True


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[cases.Opened]:
    """Start a server without any tools."""
    database = folder / "tools.db"
    database.unlink(missing_ok=True)
    with servers.patchbay_serve(folder, store=f"sqlite:///{database}") as server:
        async with post.posting(server.port) as send:

            async def call(number: int) -> object:
                message = {
                    "name": f"tool_{number}",
                    "description": cases.DESCRIPTION,
                    "parameters": cases.PARAMETERS,
                    "callback_url": "http://127.0.0.1:9/tool_invoke",
                    "source": "bench",
                }
                answer = await send("/api/tools/register", message)
                return cases.expected(number) if answer["ok"] and answer["stored"] else answer

            yield cases.Opened(call, {"server": server.pid})
