"""Real sockets for tests: an ASGI application under uvicorn in a thread, and requests to it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn

BOUND = 60.0
"""Seconds that any wait may take."""


@dataclass
class HttpResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])


def ask(
    port: int, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None, chunked: bool = False
) -> HttpResponse:
    """Make one request on a connection of its own, the path sent as it is written."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND)
    try:
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        connection.request(method, path, body, headers or {}, encode_chunked=chunked)
        response = connection.getresponse()
        return HttpResponse(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
    finally:
        connection.close()


@contextlib.contextmanager
def serving(app: Any, *, clock: Any = None, sockets: bool = False) -> Iterator[int]:
    """Run an ASGI app, with WebSockets or without; yields its port. ``clock.loop`` is its event loop, if it is given."""
    ws: Any = "patchbay.server.sockets:WebSocketProtocol" if sockets else "none"
    server = uvicorn.Server(
        uvicorn.Config(
            app, port=0, log_config=None, lifespan="on", ws=ws, http="httptools", proxy_headers=False, server_header=False,
            timeout_graceful_shutdown=2, ws_max_size=getattr(app, "max_message_size", 1), ws_per_message_deflate=False,
        )
    )  # fmt: skip
    up = threading.Event()

    async def main() -> None:
        task = asyncio.ensure_future(server.serve())
        while not server.started and not task.done():
            await asyncio.sleep(0.005)
        up.set()
        await task

    def run() -> None:
        with asyncio.Runner(loop_factory=None if clock is None else lambda: clock.loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert up.wait(BOUND)
    assert server.started
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(BOUND)
        assert not thread.is_alive()
