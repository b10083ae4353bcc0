"""One end of the socket between a plugin and its host, on asyncio; the same for both.

What lives here: bytes in and out, in order and within bounds. What does not: frames and ids (``frames``), and what a message
means.

An acknowledgement is with the kernel before what it acknowledges is handed on. So a host that loses a plugin knows of each call
that was not acknowledged that it had not begun.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from patchbay.plugins.errors import FrameError
from patchbay.plugins.frames import MAX_FRAME_BYTES, Channel
from patchbay.plugins.messages import Message

DROP_ABOVE: Final = 1024 * 1024
"""How many bytes may wait to be sent before what may be dropped is."""
_ACKNOWLEDGE_WITHIN: Final = 0.02
"""Seconds that the side that asks may take to acknowledge: a plugin that ends waits for it."""
_PIECE: Final = 256 * 1024
_PIECES: Final = 16
"""More than a kernel keeps of a side that is gone; one that lives could go on for ever."""

MOST_HELD: Final = 64 * 1024 * 1024
"""How many bytes may arrive while the other side reads nothing of what it was sent, so that none of them is handed on."""

_logger = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """Sends messages, and hands on those that arrive, one after the other; made for ``create_unix_connection`` and its like.

    ``on_message`` is called with each message, ``on_close`` once, with what ended the connection (None: the other side closed it,
    or ``close`` was called). ``limit`` is the longest message that is taken (bytes), to be raised by ``trust`` when the other
    side has shown who it is. What is sent to a connection that is closed goes nowhere. Belongs to one event loop.

    ``asks``: this is the side that asks. What had arrived when the connection ended is handed on all the same, and what it has to
    acknowledge waits a little for a message to travel with. The side that is asked must not begin what it can tell nobody of, and
    has to acknowledge a call before it begins it.
    """

    def __init__(
        self,
        on_message: Callable[[Message], None],
        on_close: Callable[[Exception | None], None],
        *,
        limit: int = MAX_FRAME_BYTES,
        asks: bool = False,
    ) -> None:
        self._asks = asks
        self._acknowledging: asyncio.TimerHandle | None = None
        self._on_message = on_message
        self._on_close = on_close
        self._channel = Channel(limit=limit)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Message] = deque()
        self._is_full = False
        self._held = 0
        self._error: Exception | None = None
        self._deliveries: list[tuple[int, asyncio.Future[None]]] = []
        self.is_closed = False
        self.was_heard_out = False
        """Whether all that the other side has ever sent was read, its acknowledgements too. Not known before the end."""

    def send(self, message: Message) -> int:
        """Send a message and return its number. Raises FrameError for one that cannot be sent; the connection goes on."""
        data = self._channel.send(message)
        self._write(self._channel.acknowledge() + data)
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
        self._transport = cast("asyncio.Transport", transport)  # a host may run on uvloop, whose transports are no subclass
        self._transport.set_write_buffer_limits(high=0)  # so that "full" means: something is not with the kernel yet

    def data_received(self, data: bytes) -> None:
        """Read all that has arrived, acknowledge it, hand it on."""
        if self._error is not None:
            return
        if self._is_full:
            self._held += len(data)
            if self._held > MOST_HELD:
                self.abort(FrameError("The other side says much and reads nothing."))
                return
        error = self._take(data)
        if not self._asks:
            self._write(self._channel.acknowledge())
        elif self._acknowledging is None:
            self._acknowledging = asyncio.get_running_loop().call_later(_ACKNOWLEDGE_WITHIN, self._acknowledge)
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
        self._held = 0
        self._hand_on()

    def eof_received(self) -> None:
        """The other side has closed, and nothing that it sent is left."""
        self.was_heard_out = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell of the end, when all that has arrived before it was read."""
        if not self.was_heard_out and self._error is None:
            self._hear_out()
        self.is_closed = True
        if self._acknowledging is not None:
            self._acknowledging.cancel()
        if self._asks:
            self._hand_on_all()
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
            self._deliver(self._waiting.popleft())

    def _deliver(self, message: Message) -> None:
        try:
            self._on_message(message)
        except Exception:
            _logger.exception("A %s could not be taken", type(message).__name__)

    def _hand_on_all(self) -> None:
        while self._waiting:
            self._deliver(self._waiting.popleft())

    def _take(self, data: bytes) -> FrameError | None:
        """Read what has arrived into messages; return what is wrong with it."""
        self._channel.feed(data)
        try:
            while (message := self._channel.receive()) is not None:
                self._waiting.append(message)
        except FrameError as broken:
            return broken
        return None

    def _hear_out(self) -> None:
        """Read what the other side had sent before it closed. A write to it that fails ends the transport, whatever is unread.

        Without this a plugin that acknowledged a call and was killed would be taken for one that had not begun it. Its test:
        test_what_the_other_side_said_before_its_end_is_heard_though_a_write_fails_first.
        """
        transport = self._transport
        connection = None if transport is None else transport.get_extra_info("socket")
        if connection is None:
            return
        try:
            for _ in range(_PIECES):
                data = os.read(connection.fileno(), _PIECE)
                if not data:
                    self.was_heard_out = True
                    return
                self._error = self._take(data)
                if self._error is not None:
                    return
        except OSError:  # the other side lives, or the system knows no such reading: it was not heard out
            return

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _acknowledge(self) -> None:
        self._acknowledging = None
        self._write(self._channel.acknowledge())

    def _settle_deliveries(self) -> None:
        left = []
        for number, waiter in self._deliveries:
            if not self.is_closed and self._channel.acknowledged < number:
                left.append((number, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._deliveries = left
