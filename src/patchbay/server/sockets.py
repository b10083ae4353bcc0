"""uvicorn's WebSocket protocol with bounded closing, redacted logs, readable rejections and lenient pings."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from patchbay.server.request_log import log_rejection

_MAX_BUFFERED_BYTES: Final = 4 * 1024 * 1024
"""Bytes waiting for a client above which reading pauses."""

_CLOSE_SECONDS: Final = 12.0
"""Seconds in which a connection may send queued data and close after its application has ended."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection.

    It is aborted some seconds after its application has ended: a client that does not read would keep it forever, since closing
    waits for what is still to be sent.

    A client counts as alive while it is not read, or has sent something since the last ping: its pong comes after what it has
    sent before, which the application may not have read yet.

    Reading pauses once a few megabytes wait for a client that does not read: each of its pings would add a pong.

    At shutdown a socket in use stays open: the application closes it.
    """

    close_seconds = _CLOSE_SECONDS
    max_buffered_bytes = _MAX_BUFFERED_BYTES
    _received_at = 0.0
    _is_rejected = False
    _abort_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start without the library's debug log: the opening request has the token in its head."""
        super().connection_made(transport)
        self.conn.debug = False

    def data_received(self, data: bytes) -> None:
        """Note the time, pause a client that does not read, and reject an invalid opening."""
        self._received_at = self.loop.time()
        super().data_received(data)
        if self.transport.get_write_buffer_size() > self.max_buffered_bytes:
            self.transport.pause_reading()
        if self.conn.handshake_exc is not None and not self._is_rejected:
            self._is_rejected = True
            peer = (self.client or ("",))[0]
            log_rejection(f"A WebSocket from {peer} could not be opened: {self.conn.handshake_exc}")
            if not self.handshake_initiated:
                self._reject(str(self.conn.handshake_exc))

    def _reject(self, why: str) -> None:
        """Reject an unreadable head, which uvicorn would leave without a response."""
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        self.transport.write(self.conn.reject(400, f"This WebSocket cannot be opened: {why}.\n").serialize())
        self.transport.close()

    async def send(self, message: Any) -> None:
        """Send a message. A handshake rejected with HTTP is complete, and not an error."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def resume_writing(self) -> None:
        """Resume writing, and reading."""
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        super().connection_lost(exc)

    def keepalive_timeout(self) -> None:
        """Close the connection, unless the client may be alive."""
        if self.read_paused or self._received_at > self.ping_sent_at:
            self.stop_keepalive()
            self.schedule_ping()
        else:
            super().keepalive_timeout()

    def shutdown(self) -> None:
        """Close the connection if it is not in use."""
        if self.close_sent or not self.handshake_complete:
            super().shutdown()

    def on_task_complete(self, task: asyncio.Task[Any]) -> None:
        """Schedule the abort."""
        super().on_task_complete(task)
        if self._abort_timer is None and self in self.connections:
            self._abort_timer = self.loop.call_later(self.close_seconds, self.transport.abort)
