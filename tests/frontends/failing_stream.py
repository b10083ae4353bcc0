"""A proxy whose upstream is silent at first, writes half of an answer, and fails."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from tests.server.proxy_rig import running_upstream

from patchbay.proxy import create_app
from support.http_server import BOUND, serving

HALF = "Half of the answer"
ERROR = "This model's maximum context length is 100 tokens. However, your messages resulted in 120 tokens."


@contextmanager
def failing_proxy(heartbeat: bytes) -> Iterator[str]:
    """Yield the proxy's URL. The upstream writes once the client was sent a ``heartbeat``."""
    beaten = threading.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert await asyncio.to_thread(beaten.wait, BOUND)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        chunk = {"id": "x", "model": "m", "choices": [{"index": 0, "delta": {"content": HALF}, "finish_reason": None}]}
        for event in (chunk, {"error": {"message": ERROR, "code": 400}}):
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        return response

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            await send(message)
            if message.get("body") == heartbeat:
                beaten.set()

        await app(scope, receive, note)

    with running_upstream(answer) as upstream:
        app = create_app(upstream.url, heartbeat=0.02)
        with serving(watched) as port:
            yield f"http://127.0.0.1:{port}"
