"""Messages as bytes and back: a length of four bytes, then ``[id, message]`` as msgpack.

What lives here: the framing, the ids and the acknowledgements, without I/O and without a clock. What does not: sockets
(``connection``) and what the messages mean (``messages``).

Each side numbers what it sends from 1. A receiver takes nothing but the next number, and acknowledges with ACK (number 0) what
has arrived; so neither side can lose a message without the other one noticing. What is longer than the limit is refused by its
length alone, before anything of it is kept.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from patchbay.plugins.errors import FrameError
from patchbay.plugins.messages import Ack, Message

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""The longest message that either side takes."""

MAX_HELLO_BYTES: Final = 4096
"""The longest message that is taken from one who has not shown the token yet."""

_LENGTH: Final = struct.Struct(">I")
_KEPT: Final = 64 * 1024
"""How much of what was read may stand in the buffer before it is cleared away."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, Message])


def encode(number: int, message: Message) -> bytes:
    """Return one frame. Raises FrameError for a message that msgpack cannot express, or that is too long."""
    try:
        body = _encoder.encode((number, message))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FrameError(f"{type(message).__name__} cannot be sent: {error}") from None
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{type(message).__name__} cannot be sent: {len(body)} bytes are more than {MAX_FRAME_BYTES}.")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Frames out of a stream, however it is cut: ``feed`` what arrives, then ``read`` until it returns None.

    ``limit`` (bytes of one message) may be changed between two reads. Once a read has raised FrameError every further one does.
    """

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._start = 0
        self._error: str | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take what has arrived."""
        if self._error is None:
            self._buffer += data

    def read(self) -> tuple[int, Message] | None:
        """Return the next number and message; None if more has to arrive first. Raises FrameError."""
        if self._error is not None:
            raise FrameError(self._error)
        start = self._start + _LENGTH.size
        if len(self._buffer) < start:
            self._tidy()
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        if length > self.limit:
            raise self._broken(f"A message of {length} bytes is longer than {self.limit}.")
        if len(self._buffer) < start + length:
            self._tidy()
            return None
        with memoryview(self._buffer) as view:
            try:
                frame = _decoder.decode(view[start : start + length])
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                raise self._broken(f"Not a message: {error}") from None
        self._start = start + length
        return frame

    def close(self) -> None:
        """Say that nothing more will arrive. Raises FrameError if a message was cut off."""
        if self._error is None and len(self._buffer) > self._start:
            raise self._broken("The last message was cut off.")

    def _tidy(self) -> None:
        if self._start == len(self._buffer) or self._start > _KEPT:
            del self._buffer[: self._start]
            self._start = 0

    def _broken(self, why: str) -> FrameError:
        self._error = why
        return FrameError(why)


class Channel:
    """One end of a conversation: what is sent gets its number, what arrives is checked to be the next.

    ``sent`` is the number of the last message that was sent, ``acknowledged`` that of the last one the other side has. ``limit``
    is as for FrameReader.
    """

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.reader = FrameReader(limit=limit)
        self.sent = 0
        self.acknowledged = 0
        self._received = 0
        self._told = 0

    def send(self, message: Message) -> bytes:
        """Return the bytes of a message. Raises FrameError, and the message has no number then."""
        data = encode(self.sent + 1, message)
        self.sent += 1
        return data

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take what has arrived."""
        self.reader.feed(data)

    def receive(self) -> Message | None:
        """Return the next message, None if there is none yet. ACKs are taken note of and not returned. Raises FrameError."""
        while (frame := self.reader.read()) is not None:
            number, message = frame
            if isinstance(message, Ack):
                self._acknowledge(number, message.id)
                continue
            if number != self._received + 1:
                raise FrameError(f"Message {number} came after message {self._received}.")
            self._received = number
            return message
        return None

    def acknowledge(self) -> bytes:
        """Return the bytes that acknowledge all that was received; none if the other side was told already."""
        if self._told == self._received:
            return b""
        self._told = self._received
        return encode(0, Ack(id=self._received))

    def _acknowledge(self, number: int, up_to: int) -> None:
        if number != 0 or not self.acknowledged <= up_to <= self.sent:
            raise FrameError(f"Message {up_to} was acknowledged, but the last one sent is {self.sent}.")
        self.acknowledged = up_to
