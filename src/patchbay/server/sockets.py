"""WebSockets as uvicorn speaks them, with a few things done otherwise.

What lives here: connections that must end, openings that cannot be read or must not be logged, pings of a client that is not
read, and what a stop of the server means to a socket in use. What does not: what is said over one (``sessions``), and how the
server runs (``serve``). Loaded where there are WebSockets.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from patchbay.server.request_log import REJECTIONS

_MOST_UNTAKEN: Final = 4 * 1024 * 1024
"""How many bytes may wait for a client while more is heard of it."""

_LAST_SECONDS: Final = 12.0
"""How long a connection may outlive what was served on it: what was still to be sent is sent, and the close frame answered."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection.

    It is cut off some seconds after its application has ended: a client that takes nothing would keep it for ever, since closing
    waits for what is still to be sent.

    A client counts as alive while it is not read, or was heard since it was pinged. Its pong stands behind what it has sent
    before, which the application has not taken yet.

    One that takes nothing is not read any more, once a few megabytes wait for it: each of its pings would add a pong.

    When the server stops a socket in use is left alone: the application has been told, and ends it in its own time.
    """

    last_seconds = _LAST_SECONDS
    most_untaken = _MOST_UNTAKEN
    _heard_at = 0.0
    _said_no = False
    _cut: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin. The opening request has the token in its head, and would be logged where all is."""
        super().connection_made(transport)
        self.conn.debug = False

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        self._heard_at = self.loop.time()
        super().data_received(data)
        if self.transport.get_write_buffer_size() > self.most_untaken:
            self.transport.pause_reading()
        if self.conn.handshake_exc is not None and not self._said_no:
            self._said_no = True
            peer = (self.client or ("",))[0]
            REJECTIONS.tell(f"A WebSocket from {peer} could not be opened: {self.conn.handshake_exc}")
            if not self.handshake_initiated:
                self._turn_away(str(self.conn.handshake_exc))

    def _turn_away(self, why: str) -> None:
        """Answer a head that cannot be read: nobody else would, and its sender would wait."""
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        self.transport.write(self.conn.reject(400, f"This WebSocket cannot be opened: {why}.\n").serialize())
        self.transport.close()

    async def send(self, message: Any) -> None:
        """Send what the application says. A handshake that it has answered with HTTP is over, and no error of ours."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Be over."""
        if self._cut is not None:
            self._cut.cancel()
        super().connection_lost(exc)

    def keepalive_timeout(self) -> None:
        """End it, but for a client that may well be there."""
        if self.read_paused or self._heard_at > self.ping_sent_at:
            self.stop_keepalive()
            self.schedule_ping()
        else:
            super().keepalive_timeout()

    def shutdown(self) -> None:
        """Have it end when the server does."""
        if self.close_sent or not self.handshake_complete:
            super().shutdown()

    def on_task_complete(self, task: asyncio.Task[Any]) -> None:
        """Allow the connection a few seconds more."""
        super().on_task_complete(task)
        if self._cut is None and self in self.connections:
            self._cut = self.loop.call_later(self.last_seconds, self.transport.abort)
