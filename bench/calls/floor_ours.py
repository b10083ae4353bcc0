"""The floor of HTTP: a POST to a server of Starlette's, by our own client. No executor, no registry, no signature."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.calls import cases, post, servers, starlette_server

UVLOOP = True


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[cases.Opened]:
    """Start the server and a client."""
    with servers.starlette(folder) as running:
        async with post.posting(running.port) as send:

            async def call(number: int) -> object:
                return (await send(starlette_server.PATH, cases.body(number)))["output"]

            yield cases.Opened(call, {"server": running.pid})
