"""HTTP/1.1 as uvicorn speaks it, with a deadline for each request's head.

uvicorn bounds how long a connection may be idle between two requests, and nothing before that: connections that send nothing, or
a head byte by byte, would stay for ever, until the process has no file descriptors left.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD_SECONDS: Final = 10.0


class BoundedHeads(HttpToolsProtocol):
    """One connection. It is closed where a head is not complete ``head_seconds`` after it began, or the connection did."""

    head_seconds = _HEAD_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.head_seconds, transport.close)

    def on_headers_complete(self) -> None:
        """Take a head."""
        self._stop_waiting()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Take bytes; those after an answer begin another head, unless they have completed it."""
        super().data_received(data)
        # What has become a WebSocket is no connection of this kind any more.
        if self._deadline is None and self.cycle is not None and self.cycle.response_complete and self in self.connections:
            self._deadline = self.loop.call_later(self.head_seconds, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
