"""Writes one answer to the client through ASGI's ``send``, and knows how much of it is already out.

A stream's answer may have to begin before the upstream has said anything (the heartbeat), so who writes first starts it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from patchbay.server.direct import direct_sink, write_whole
from patchbay.server.headers import Headers
from patchbay.server.watch import ClientLeftError

if TYPE_CHECKING:
    from patchbay.server.chat import ChatExchange
    from patchbay.server.journal import Capture
    from patchbay.server.watch import Watch

HEARTBEAT = b": keep-alive\n\n"
EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")

Send = Callable[[Any], Awaitable[None]]


class Reply:
    """The client's answer. ``started``: its head is out and the status can no longer change."""

    __slots__ = ("_common", "_send", "finished", "pausable", "started", "status")

    def __init__(self, send: Send, common: Headers) -> None:
        self._send = send
        self._common = common
        self.started = False
        self.finished = False
        self.status = 0
        self.pausable = True
        """Whether a comment line may be written now: only between two events."""

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head."""
        self.started = True
        self.status = status
        await self._out({"type": "http.response.start", "status": status, "headers": self._common + headers})

    def write(self, data: bytes) -> Awaitable[None]:
        """Send a piece of the body; waits while the client reads slower than this writes."""
        return self._out({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """Send the last piece of the body."""
        self.finished = True
        await self._out({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send an answer that is complete."""
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        if write_whole(self._send, status, self._common + headers, body):
            self.started = self.finished = True
            self.status = status
            return
        await self.start(status, headers)
        await self.finish(body)

    async def heartbeat(self) -> None:
        """Show that an idle stream is alive; starts it where it has not begun."""
        if not self.started:
            await self.start(200, EVENT_STREAM)
        if self.pausable and not self.finished:
            await self.write(HEARTBEAT)

    def direct(self, exchange: ChatExchange, watch: Watch, capture: Capture | None) -> Callable[[bytes], bool] | None:
        """Return what writes the rest of a stream that has begun without waking a task; see ``direct_sink``."""
        return direct_sink(self._send, exchange, watch, capture) if self.started else None

    def passed(self, data: bytes) -> None:
        """Note bytes of a foreign stream that go out, to know whether they ended with a whole event."""
        self.pausable = data.endswith(_EVENT_ENDS)

    async def _out(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError as error:  # ASGI 2.4: a send to a client that has gone
            raise ClientLeftError("The client left.") from error
