"""Progress from a callback: a response in lines of JSON (``application/x-ndjson``), read and written without I/O.

    {"progress": {"message": "one library has answered", "fraction": 0.5, "data": {"books": 3}}}
    {"output": {"books": 5}, "is_error": false}

Every line but the last is progress, the last one is the result. An object whose only key is ``progress``, with an object as its
value, is progress in any place: as the last line it means that the result is missing. Other lines before the last are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from patchbay.tools.context import Progress

NDJSON: Final = "application/x-ndjson"
ACCEPT: Final = f"application/json, {NDJSON};q=0.9"
"""The server's Accept header: one JSON response, or lines with progress."""

MAX_LINES: Final = 1000
MAX_LINE_BYTES: Final = 64 * 1024
"""Limits of progress; more lines, and longer ones, are ignored, except for the last."""
MAX_PROGRESS_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes before the last line."""


class TooMuchProgressError(Exception):
    """A response has too much before its last line."""


class _ProgressFields(msgspec.Struct):
    message: Any = None
    fraction: Any = None
    data: Any = None


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    progress: _ProgressFields


_decoder = msgspec.json.Decoder(_Line)


def is_accepted(accept: Iterable[bytes]) -> bool:
    """Return whether Accept headers name the format. A wildcard does not: clients without support send it."""
    return any(NDJSON.encode() in each.lower() for each in accept)


def progress_line(message: str | None, fraction: float | None, data: str | None) -> bytes:
    """Encode a line of progress; ``data`` is JSON text."""
    raw_data = msgspec.Raw(data.encode()) if data is not None else None
    members = {"message": message, "fraction": fraction, "data": raw_data}
    given = {name: value for name, value in members.items() if value is not None}
    return encode_line(msgspec.json.encode({"progress": given}))


def encode_line(text: bytes) -> bytes:
    """Terminate a JSON text as a line; a line break within it can only be whitespace."""
    return text.replace(b"\n", b" ") + b"\n"


class ProgressReader:
    """Reads a response in lines from chunks; ``limit`` is the maximum of its last line (bytes).

    ``is_cut``: the current line is longer, and nothing after it is of use.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial = bytearray()
        self._last = b""
        self._decoded = 0
        self._before_last = 0

    @property
    def is_cut(self) -> bool:
        """Whether the current line is too long for a result."""
        return len(self._partial) > self._limit

    def feed(self, data: bytes) -> list[Progress]:
        """Add a chunk, and return the progress in it. Raises TooMuchProgressError."""
        *lines, rest = data.split(b"\n")
        found: list[Progress] = []
        for line in lines:
            if self._partial:
                line, self._partial = bytes(self._partial) + line, bytearray()  # noqa: PLW2901  (its beginning was in an earlier chunk)
            self._before_last += len(line) + 1
            if self._before_last > MAX_PROGRESS_BYTES + self._limit:
                raise TooMuchProgressError(f"more than {MAX_PROGRESS_BYTES} bytes")
            if not line or line.isspace():
                continue
            self._last = line
            if self._decoded < MAX_LINES and len(line) <= MAX_LINE_BYTES:
                self._decoded += 1
                if (progress := _progress_in(line)) is not None:
                    found.append(progress)
        self._partial += rest
        return found

    def close(self) -> tuple[bytes, bool]:
        """Return the result, b"" if there is none, and whether it is complete."""
        if self._partial.strip():
            self._last = bytes(self._partial)
        last, self._partial, self._last = self._last, bytearray(), b""
        if _progress_in(last) is not None:
            last = b""
        return last[: self._limit], len(last) <= self._limit


def _progress_in(line: bytes) -> Progress | None:
    """Parse a line of progress; None for anything else."""
    try:
        fields = _decoder.decode(line).progress
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    message = fields.message if isinstance(fields.message, str) else None
    is_number = isinstance(fields.fraction, int | float) and not isinstance(fields.fraction, bool)
    return Progress(message, min(1.0, max(0.0, fields.fraction)) if is_number else None, fields.data)
