"""Answers that are streams of server-sent events, with comments while nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final

from fastapi.responses import StreamingResponse

PING: Final = 15.0
"""Seconds without an event after which a stream gets a comment: a write is how a lost client is noticed."""

COMMENT: Final = b": \n\n"


class SseResponse(StreamingResponse):
    """A stream of server-sent events; ``on_end`` is called however it ends."""

    def __init__(self, frames: AsyncIterator[bytes], on_end: Callable[[], object] = lambda: None) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(frames, media_type="text/event-stream", headers=headers)
        self._on_end = on_end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def with_comments(frames: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Yield ``frames``, and a comment whenever there was none for 15 seconds, as a sign of life."""
    coming: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            if coming is None:
                coming = asyncio.ensure_future(anext(frames, None))
            await asyncio.wait([coming], timeout=PING)
            if not coming.done():
                yield COMMENT
            elif (frame := coming.result()) is None:
                return
            else:
                coming = None
                yield frame
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait([coming])
        await frames.aclose()


def sse_frame(data: bytes, **fields: str) -> bytes:
    """Encode one event: ``data`` is JSON on one line, ``fields`` are its ``id`` or ``event``."""
    head = "".join(f"{name}: {value}\n" for name, value in fields.items())
    return head.encode() + b"data: " + data + b"\n\n"
