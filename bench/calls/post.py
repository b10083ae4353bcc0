"""Our HTTP client, for the rows that ask a server of HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from patchbay.server.http_client import HttpClient
from patchbay.server.origin import Origin

_HEADERS = ((b"Content-Type", b"application/json"),)


class Post(Protocol):
    """Sends JSON to a path and returns the JSON of the answer; raises RuntimeError for a status that is not 200."""

    async def __call__(self, path: str, message: Any) -> Any: ...


@asynccontextmanager
async def posting(port: int) -> AsyncIterator[Post]:
    """A client of the server at this port of loopback, with connections that are kept."""
    client = HttpClient(Origin(f"http://127.0.0.1:{port}"), connect_timeout=5.0)

    async def post(path: str, message: Any) -> Any:
        data = json.dumps(message, separators=(",", ":")).encode()
        answer = await client.request(b"POST", path.encode(), _HEADERS, data)
        pieces = []
        try:
            while piece := await answer.read():
                pieces.append(piece)
        finally:
            answer.close()
        if answer.status != 200:
            raise RuntimeError(f"{path} was answered with {answer.status}: {b''.join(pieces)[:200]!r}")
        return json.loads(b"".join(pieces))

    try:
        yield post
    finally:
        await client.close()
