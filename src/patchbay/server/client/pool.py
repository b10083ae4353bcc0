"""The connections to one origin in one event loop: idle ones are kept for a while, the last used first."""

from __future__ import annotations

import asyncio

from patchbay.server.client.connection import Connection
from patchbay.server.client.origin import Origin

IDLE_LIMIT = 15.0
"""Seconds that an idle connection is kept: shorter than most servers keep theirs, so that few are closed under a request."""
_CLOSING_LIMIT = 1.0


class Pool:
    """Belongs to the loop it was made in. As many connections as requests at a time: who asks is what bounds them."""

    __slots__ = ("_all", "_closed", "_emptied", "_idle", "_origin", "_timer", "loop")

    def __init__(self, origin: Origin) -> None:
        self.loop = asyncio.get_running_loop()
        self._origin = origin
        self._all: set[Connection] = set()
        self._idle: dict[Connection, float] = {}  # in the order of their times
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._closed = False

    def take(self, *, alive: bool = False) -> Connection | None:
        """Return the idle connection that was used last; None where there is none.

        ``alive``: only one that the kernel, too, does not know to be closed. The loop may not have been told yet.
        """
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.open:
                if not alive or connection.is_silent():
                    return connection
                connection.abort()
        return None

    async def connect(self, limit: float) -> Connection:
        """Return a new connection; raises ConnectError and ConnectTimeoutError. ``limit``: seconds."""
        return await self._origin.connect(lambda: Connection(self), limit)

    def admit(self, connection: Connection) -> None:
        """Note that a connection is there."""
        self._all.add(connection)

    def keep(self, connection: Connection) -> None:
        """Take back a connection whose answer is complete."""
        if self._closed:
            connection.abort()
            return
        self._idle[connection] = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(IDLE_LIMIT, self._sweep)

    def forget(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        self._idle.pop(connection, None)
        self._all.discard(connection)
        if not self._all and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    async def close(self) -> None:
        """End all connections, also those in use, and wait until they are gone; bounded."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._all):
            connection.abort()
        if self._all:
            self._emptied = self.loop.create_future()
            await asyncio.wait([self._emptied], timeout=_CLOSING_LIMIT)

    def _sweep(self) -> None:
        """End the connections that were idle too long; come back when the next can be due."""
        self._timer = None
        now = self.loop.time()
        for connection, since in list(self._idle.items()):
            left = since + IDLE_LIMIT - now
            if left > 0:
                self._timer = self.loop.call_later(left, self._sweep)
                return
            del self._idle[connection]
            connection.abort()
