"""JSON, server-sent events, and the fields of a chunk that are decoded."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from patchbay.errors import UpstreamError

Raw = msgspec.Raw


class Choice(msgspec.Struct):
    """``choices[]`` of a chunk. Servers send members of other types than OpenAI's, so most are read as they come."""

    index: Any = 0
    delta: dict[str, Any] | None = None
    finish_reason: Any = None
    logprobs: Raw = Raw(b"null")
    message: dict[str, Any] | None = None  # some servers send the whole answer as one event


class Chunk(msgspec.Struct):
    """One streamed chunk."""

    id: Any = None
    created: Any = None
    model: Any = None
    system_fingerprint: Any = None
    service_tier: Any = None
    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None


_chunk = msgspec.json.Decoder(Chunk)
_encoder = msgspec.json.Encoder()


def decode_chunk(data: bytes) -> Chunk:
    """Decode a chunk; raises ValueError for invalid JSON or any other shape."""
    try:
        return _chunk.decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Servers that cut text by UTF-16 units send lone surrogates, which only the standard library decodes.
        chunk = json.loads(data)
    for choice in objects(chunk.get("choices")) if isinstance(chunk, dict) else ():
        if "logprobs" in choice:
            choice["logprobs"] = Raw(encode(choice["logprobs"]))
    return msgspec.convert(chunk, Chunk)


def objects(values: Any) -> list[dict[str, Any]]:
    """Return the objects in an optional array; empty for anything else."""
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def encode(value: Any) -> bytes:
    """Encode JSON, also text with lone surrogates (as escapes). Raises ValueError, RecursionError."""
    try:
        return _encoder.encode(value)
    except (UnicodeEncodeError, TypeError):
        return json.dumps(value, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return json.loads(bytes(value))
    return dict(value)


def decode(data: bytes) -> Any:
    """Decode JSON, also with lone surrogates in its strings. Raises ValueError, RecursionError."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(data)


def sse_event(data: bytes) -> bytes:
    """Return a server-sent event of JSON; line breaks, which are white space there, become spaces."""
    return b"data: " + data.replace(b"\n", b" ") + b"\n\n"


DONE = b"data: [DONE]\n\n"


_MOST_BYTES = 32 * 1024 * 1024
_LINE_FEED, _RETURN = b"\n\r"  # (searching for numbers is ten times as fast as for bytes)


class ErrorEvent(bytes):
    """The data of an event of the type "error"."""


class SseDecoder:
    """Returns the ``data`` of each event; line ends may be LF, CRLF or CR, cut anywhere. Drops comments and other fields."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._tail = b""
        self._held_cr = False
        self.empty = True
        """No part of an event is held back."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that these bytes complete. Raises UpstreamError for an event beyond 32 MiB."""
        if self._held_cr or _RETURN in data:
            data = self._line_feeds(data)
        if not self._parts and data[-2:] == b"\n\n":
            lines = data.split(b"\n")  # (splitting by b"\n\n" takes three times as long)
            events = [line[6:] for line in lines[:-2:2] if line[:6] == b"data: "]
            if 2 * len(events) == len(lines) - 1 and not any(lines[1::2]):  # each has one line and no other field
                self._tail = b""
                self.empty = not self._held_cr
                return events
        # The blank line may be split between this piece and the last byte of the one before.
        if b"\n\n" not in data and not (data[:1] == b"\n" and self._tail == b"\n"):
            self._keep(data)
            self.empty = not self._parts and not self._held_cr
            return []
        if self._parts:
            data = b"".join(self._parts) + data
            self._parts.clear()
            self._size = 0
        blocks = data.split(b"\n\n")
        self._tail = b""
        rest = blocks.pop()
        if rest:
            self._keep(rest)
        self.empty = not rest and not self._held_cr
        out = []
        for block in blocks:
            if block[:6] == b"data: " and _LINE_FEED not in block:
                out.append(block[6:])
            else:
                found = self._fields(block)
                if found is not None:
                    out.append(found)
        return out

    def close(self) -> list[bytes]:
        """Return the last event if its blank line is missing."""
        block = b"".join(self._parts)
        self._parts.clear()
        found = self._fields(block) if block.strip() else None
        return [] if found is None else [found]

    def _keep(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self._size += len(data)
            self._tail = data[-1:]
            if self._size > _MOST_BYTES:
                raise UpstreamError("The upstream sent an event of more than 32 MiB.")

    def _line_feeds(self, data: bytes) -> bytes:
        if self._held_cr:
            data = b"\r" + data
        self._held_cr = data.endswith(b"\r")
        if self._held_cr:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _fields(self, block: bytes) -> bytes | None:
        lines = []
        error = False
        for line in block.split(b"\n"):
            name, _, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                lines.append(value)
            elif name == b"event" and value == b"error":
                error = True
        data = b"\n".join(lines)
        if error:
            return ErrorEvent(data)
        return data if lines else None
