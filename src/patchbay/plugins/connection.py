"""One end of the socket between a plugin and its host, on asyncio; the same for both.

What lives here: bytes in and out, in order and within bounds. What does not: frames and ids (``frames``), and what a message
means.

An acknowledgement is with the kernel before what it acknowledges is handed on. So a host that loses a plugin knows of each call
that was not acknowledged that it had not begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from patchbay.plugins.errors import FrameError
from patchbay.plugins.frames import MAX_FRAME_BYTES, Channel
from patchbay.plugins.messages import Message

DROP_ABOVE: Final = 1024 * 1024
"""How many bytes may wait to be sent before what may be dropped is."""

_logger = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """Sends messages, and hands on those that arrive, one after the other; made for ``create_unix_connection`` and its like.

    ``on_message`` is called with each message, ``on_close`` once, with what ended the connection (None: the other side closed it,
    or ``close`` was called). ``limit`` is the longest message that is taken (bytes), to be raised by ``trust`` when the other
    side has shown who it is. What is sent to a connection that is closed goes nowhere. Belongs to one event loop.
    """

    def __init__(
        self,
        on_message: Callable[[Message], None],
        on_close: Callable[[Exception | None], None],
        *,
        limit: int = MAX_FRAME_BYTES,
    ) -> None:
        self._on_message = on_message
        self._on_close = on_close
        self._channel = Channel(limit=limit)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Message] = deque()
        self._is_full = False
        self._error: Exception | None = None
        self._deliveries: list[tuple[int, asyncio.Future[None]]] = []
        self.is_closed = False

    def send(self, message: Message) -> int:
        """Send a message and return its number. Raises FrameError for one that cannot be sent; the connection goes on."""
        data = self._channel.send(message)
        self._write(data)
        return self._channel.sent

    def offer(self, message: Message) -> bool:
        """Send a message that may be dropped, and say whether it was sent: not where too much is waiting already."""
        if self._transport is None or self._transport.get_write_buffer_size() > DROP_ABOVE:
            return False
        try:
            self.send(message)
        except FrameError:
            return False
        return True

    def trust(self) -> None:
        """Take messages of any length that is allowed from now on."""
        self._channel.reader.limit = MAX_FRAME_BYTES

    async def delivered(self) -> bool:
        """Wait until all that was sent until now has arrived; False if the connection was closed before."""
        number = self._channel.sent
        if not self.is_closed and self._channel.acknowledged < number:
            waiter = asyncio.get_running_loop().create_future()
            self._deliveries.append((number, waiter))
            await waiter
        return self._channel.acknowledged >= number

    @property
    def acknowledged(self) -> int:
        """The number of the last message that has arrived at the other side."""
        return self._channel.acknowledged

    def close(self) -> None:
        """Close when all that was sent is on its way."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: Exception | None = None) -> None:
        """Close now."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=0)  # so that "full" means: something is not with the kernel yet
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read all that has arrived, acknowledge it, hand it on."""
        if self._error is not None:
            return
        self._channel.feed(data)
        error: FrameError | None = None
        try:
            while (message := self._channel.receive()) is not None:
                self._waiting.append(message)
        except FrameError as broken:
            error = broken
        self._write(self._channel.acknowledge())
        self._settle_deliveries()
        self._hand_on()
        if error is not None:
            self.abort(error)

    def pause_writing(self) -> None:
        """Hand nothing on until what was sent is with the kernel."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Go on."""
        self._is_full = False
        self._hand_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell of the end; what arrived and was not handed on is dropped, since nobody can be answered."""
        self.is_closed = True
        self._waiting.clear()
        if isinstance(exc, OSError):
            exc = None  # how a side that was killed closes
        if self._error is None and exc is None:
            try:
                self._channel.reader.close()
            except FrameError as cut:
                exc = cut
        self._settle_deliveries()
        self._on_close(self._error or exc)

    def _hand_on(self) -> None:
        while self._waiting and not self._is_full and not self.is_closed:
            message = self._waiting.popleft()
            try:
                self._on_message(message)
            except Exception:
                _logger.exception("A %s could not be taken", type(message).__name__)

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _settle_deliveries(self) -> None:
        left = []
        for number, waiter in self._deliveries:
            if not self.is_closed and self._channel.acknowledged < number:
                left.append((number, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._deliveries = left
