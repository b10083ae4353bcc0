"""The same POST by httpx, as a program without us would send it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from bench.calls import cases, servers, starlette_server

UVLOOP = True


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[cases.Opened]:
    """Start the server and a client."""
    with servers.starlette(folder) as running:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", trust_env=False, timeout=30.0) as client:

            async def call(number: int) -> object:
                answer = await client.post(starlette_server.PATH, json=cases.body(number))
                answer.raise_for_status()
                return answer.json()["output"]

            yield cases.Opened(call, {"server": running.pid})
