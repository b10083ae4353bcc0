"""The connection between a plugin worker and its host: frames of a length of four bytes and one message as msgpack."""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, cast

import msgspec

from patchbay.plugins.errors import FrameError
from patchbay.plugins.protocol import Begun, Message, Trigger

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""The longest message that either side accepts."""
MAX_HELLO_BYTES: Final = 4096
"""The longest message that is accepted before HELLO has shown the token."""
DROP_ABOVE: Final = 1024 * 1024
"""Above so many unsent bytes, messages that may be dropped are."""
MAX_UNSENT: Final = 128 * 1024 * 1024
"""Above so many unsent bytes the connection is closed: the other side does not read."""
_LENGTH: Final = struct.Struct(">I")
_COMPACT_ABOVE: Final = 64 * 1024
_READ_BYTES: Final = 256 * 1024
_MAX_READS: Final = 16
"""Maximum reads from a closed connection: more than a kernel buffers, and a bound for a peer that keeps sending."""

_logger = logging.getLogger(__name__)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return one frame. Raises FrameError for a message that msgpack cannot express, or that is too long."""
    try:
        body = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FrameError(f"{type(message).__name__} cannot be sent: {error}") from None
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{type(message).__name__} cannot be sent: {len(body)} bytes are more than {MAX_FRAME_BYTES}.")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Decodes messages from a stream, however it is split: ``feed`` bytes, then ``read`` until it returns None.

    ``limit`` (bytes of one message) may change between two reads. After a FrameError every further ``read`` raises it.
    """

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._start = 0
        self._error = ""

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append received bytes."""
        if not self._error:
            self._buffer += data

    def read(self) -> Message | None:
        """Return the next message, None if it is not complete yet. Raises FrameError."""
        if self._error:
            raise FrameError(self._error)
        start = self._start + _LENGTH.size
        length = _LENGTH.unpack_from(self._buffer, self._start)[0] if len(self._buffer) >= start else 0
        if length > self.limit:
            raise self._failed(f"A message of {length} bytes is longer than {self.limit}.")
        if len(self._buffer) < start + length:
            if self._start == len(self._buffer) or self._start > _COMPACT_ABOVE:
                del self._buffer[: self._start]
                self._start = 0
            return None
        with memoryview(self._buffer) as view:
            try:
                message: Message = _decoder.decode(view[start : start + length])
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                raise self._failed(f"Not a message: {error}") from None
        self._start = start + length
        return message

    def close(self) -> None:
        """Mark the end of the stream. Raises FrameError if a message was cut off."""
        if not self._error and len(self._buffer) > self._start:
            raise self._failed("The last message was cut off.")

    def _failed(self, reason: str) -> FrameError:
        self._error = reason
        return FrameError(reason)


class MessageConnection(asyncio.Protocol):
    """One end of the socket: sends messages and passes on received ones in order. For one event loop.

    ``on_message`` is called with each message, ``on_close`` once, with what ended the connection (None: closed by either side).
    ``limit`` is the longest accepted message in bytes, until ``trust``. Messages sent after the end are discarded.

    ``is_worker``: answers each TRIGGER by BEGUN, and passes it on only when BEGUN is with the kernel; until then nothing is read.
    The host's end passes on everything, also what is left in the socket when the connection ends.
    """

    def __init__(
        self,
        on_message: Callable[[Message], None],
        on_close: Callable[[Exception | None], None],
        *,
        limit: int = MAX_FRAME_BYTES,
        is_worker: bool = False,
    ) -> None:
        self._is_worker = is_worker
        self._on_message = on_message
        self._on_close = on_close
        self._reader = FrameReader(limit=limit)
        self._transport: asyncio.Transport | None = None
        self._inbox: deque[Message] = deque()
        self._is_full = False
        self._error: Exception | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.was_read_to_end = False
        """Whether everything that the other side has ever sent was read. False until the connection has ended."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._closed.done()

    def send(self, message: Message) -> None:
        """Send a message. Raises FrameError for one that cannot be encoded; the connection stays usable."""
        self._write(encode(message))

    def offer(self, message: Message) -> bool:
        """Send a message that may be dropped, and return whether it was sent."""
        if self._transport is None or self._transport.get_write_buffer_size() > DROP_ABOVE:
            return False
        try:
            self.send(message)
        except FrameError:
            return False
        return True

    def trust(self) -> None:
        """Accept messages up to the maximum length from now on."""
        self._reader.limit = MAX_FRAME_BYTES

    async def close(self, *, within: float = 0.0) -> None:
        """Close when all that was sent is with the kernel; wait ``within`` seconds for that."""
        if self._transport is not None:
            self._transport.close()
            await asyncio.wait({self._closed}, timeout=within)

    def abort(self, error: Exception | None = None) -> None:
        """Close now."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)  # a host may run on uvloop, whose transports are no subclass
        self._transport.set_write_buffer_limits(high=0)  # "full" means: something is not with the kernel yet

    def data_received(self, data: bytes) -> None:
        """Implement asyncio.Protocol."""
        if self._error is not None:
            return
        error = self._decode(data)
        if self._is_worker:
            self._write(b"".join([encode(Begun(req_id=each.req_id)) for each in self._inbox if type(each) is Trigger]))
        self._deliver()
        if error is not None:
            self.abort(error)

    def pause_writing(self) -> None:
        """Implement asyncio.Protocol."""
        self._is_full = True
        if self._is_worker and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Implement asyncio.Protocol."""
        self._is_full = False
        if self._is_worker and self._transport is not None:
            self._deliver()
            if not self._is_full:
                self._transport.resume_reading()

    def eof_received(self) -> None:
        """Implement asyncio.Protocol."""
        self.was_read_to_end = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.Protocol."""
        if not self._is_worker:
            if not self.was_read_to_end and self._error is None:
                self._read_to_end()
            self._deliver()
        self._inbox.clear()
        self._closed.set_result(None)
        self._transport = None
        error = self._error or (None if isinstance(exc, OSError) else exc)  # an OSError is how a killed peer closes
        if error is None:
            try:
                self._reader.close()
            except FrameError as cut:
                error = cut
        self._on_close(error)

    def _write(self, data: bytes) -> None:
        if not data or self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._is_full and self._transport.get_write_buffer_size() > MAX_UNSENT:
            self.abort(FrameError(f"The other side does not read: {MAX_UNSENT} bytes wait for it."))

    def _decode(self, data: bytes) -> FrameError | None:
        self._reader.feed(data)
        try:
            while (message := self._reader.read()) is not None:
                self._inbox.append(message)
        except FrameError as error:
            return error
        return None

    def _deliver(self) -> None:
        while self._inbox:
            if self._is_worker and (self._is_full or self._transport is None or self._transport.is_closing()):
                return
            message = self._inbox.popleft()
            try:
                self._on_message(message)
            except Exception:
                _logger.exception("Handling a %s failed", type(message).__name__)

    def _read_to_end(self) -> None:
        """Read what the other side sent before it closed: a failed write ends the transport before everything is read.

        Without this, a call whose BEGUN is unread would be reported as not run. Its test:
        test_messages_sent_before_the_end_are_read_despite_a_failed_write.
        """
        connection = None if self._transport is None else self._transport.get_extra_info("socket")
        if connection is None:
            return
        try:
            for _ in range(_MAX_READS):
                data = os.read(connection.fileno(), _READ_BYTES)
                self.was_read_to_end = not data
                if data:
                    self._error = self._decode(data)
                if not data or self._error is not None:
                    return
        except OSError:  # the other side is alive, or the platform does not support this
            return
