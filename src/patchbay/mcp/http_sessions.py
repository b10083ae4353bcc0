"""MCP over streamable HTTP: the sessions of one role's server, and the requests without a session."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from patchbay.mcp.server import RegistryServer

MAX_SESSIONS: Final = 1000
"""Sessions of clients that begin with a handshake; a further one gets 503."""

SESSION_IDLE: Final = 30 * 60.0
"""Seconds without a request or an open stream after which a session ends."""

MAX_STREAM_SECONDS: Final = 3600.0
"""Maximum duration of a stream of notifications; clients open another one."""


_SESSION_HEADER: Final = b"mcp-session-id"
_SESSION_ID: Final = re.compile(rb"[0-9a-f]{32}")


class HttpSessions:
    """Serves ``server`` over HTTP as an ASGI application.

    ``start`` it before the first request, and ``aclose`` it after the last, in the same event loop.

    ``is_shared``: other servers may have begun a session that is not known here. Its requests are served without the session;
    only notifications, and questions to the user, need the server that began it.
    """

    def __init__(self, server: RegistryServer, *, max_body_size: int, is_shared: bool = False) -> None:
        self._server = server
        self._is_shared = is_shared
        self._without_session = StreamableHTTPSessionManager(server.sdk, max_request_body_size=max_body_size, stateless=True)
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
        if self._is_shared and (session := self._session_elsewhere(scope)) is not None:
            headers = [header for header in scope["headers"] if header != session]
            await self._serve_without_session({**scope, "headers": headers}, receive, send)
            return
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
        async with self._manager.run(), self._without_session.run():
            self._started.set()
            await self._closing.wait()

    def _session_elsewhere(self, scope: Any) -> tuple[bytes, bytes] | None:
        """Return the header of a session that another server has begun; None without one."""
        for header in scope["headers"]:
            if header[0] == _SESSION_HEADER and _SESSION_ID.fullmatch(header[1]):
                is_ours = header[1].decode() in self._manager._server_instances  # noqa: SLF001  (the SDK has no other way to ask)
                return None if is_ours else header
        return None

    async def _serve_without_session(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            await self._without_session.handle_request(scope, receive, send)
            return
        status, headers = (204, []) if scope["method"] == "DELETE" else (405, [(b"allow", b"DELETE, POST")])
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

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
