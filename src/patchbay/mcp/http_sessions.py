"""MCP over streamable HTTP: the sessions of one role's server, and the requests without a session."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from patchbay.mcp.server import RegistryServer

MAX_SESSIONS: Final = 1000
"""Sessions of clients that begin with a handshake; a further one gets 503."""

SESSION_IDLE: Final = 30 * 60.0
"""Seconds without a request or an open stream after which a session ends."""

MAX_STREAM_SECONDS: Final = 3600.0
"""Maximum duration of a stream of notifications; clients open another one."""


class HttpSessions:
    """Serves ``server`` over HTTP as an ASGI application.

    ``start`` it before the first request, and ``aclose`` it after the last, in the same event loop.
    """

    def __init__(self, server: RegistryServer, *, max_body_size: int) -> None:
        self._server = server
        self._manager = StreamableHTTPSessionManager(
            server.sdk, max_request_body_size=max_body_size, session_idle_timeout=SESSION_IDLE, max_sessions=MAX_SESSIONS
        )
        self._started = asyncio.Event()
        self._stopping = asyncio.Event()
        self._closing = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the task that owns the sessions."""
        self._owner = asyncio.create_task(self._run())
        started = asyncio.create_task(self._started.wait())
        await asyncio.wait([self._owner, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._owner.done():
            self._owner.result()

    def end_streams(self) -> None:
        """End the streams of notifications, for which a server that stops would wait. Running calls go on."""
        self._stopping.set()
        self._server.end_streams()

    async def aclose(self) -> None:
        """End all sessions and their calls."""
        self.end_streams()
        self._closing.set()
        if self._owner is not None:
            await asyncio.wait([self._owner])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one HTTP request."""
        # Blanks around a value do not belong to it (RFC 9110, 5.5); the parser leaves those at its end.
        scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        if scope["method"] != "GET":
            await self._manager.handle_request(scope, receive, send)
            return
        is_open = False

        async def watch(message: Any) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        await self._manager.handle_request(scope, self._until_stopped(receive), watch)
        if is_open:  # the transport does not finish the response, since it believes that the client has gone
            await send({"type": "http.response.body", "body": b""})

    async def _run(self) -> None:
        async with self._manager.run():
            self._started.set()
            await self._closing.wait()

    def _until_stopped(self, receive: Any) -> Any:
        """Return a ``receive`` by which the client seems to disconnect when the server stops, and after MAX_STREAM_SECONDS."""
        ends = asyncio.get_running_loop().time() + MAX_STREAM_SECONDS

        async def limited() -> Any:
            receiving = asyncio.ensure_future(receive())
            stopping = asyncio.ensure_future(self._stopping.wait())
            left = max(0.0, ends - asyncio.get_running_loop().time())
            try:
                await asyncio.wait([receiving, stopping], timeout=left, return_when=asyncio.FIRST_COMPLETED)
                return receiving.result() if receiving.done() else {"type": "http.disconnect"}
            finally:
                receiving.cancel()
                stopping.cancel()

        return limited
