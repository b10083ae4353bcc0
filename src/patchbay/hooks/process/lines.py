"""A stream of bytes as lines, without I/O, in bounded memory.

What lives here: where lines begin and end. A line that is too long is told of the moment it is, by its head, and skipped to its
end; what follows is read as ever. What does not: what a line says (``wire``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEAD: Final = 4096
"""How much is kept of a line that is too long."""


@dataclass(frozen=True, slots=True)
class Overlong:
    """A line of more bytes than the limit: its first ones."""

    head: bytes


class LineReader:
    """``feed`` it pieces of a stream, get the lines that are whole by then; ``limit`` is in bytes, the newline not counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._skipping = False

    @property
    def held(self) -> int:
        """How many bytes wait for the rest of their line."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes | Overlong]:
        """Return the lines that have become whole, without their newlines, and those that have become too long."""
        first, newline, others = data.partition(b"\n")
        if not newline:
            return self._grown(first)
        lines = self._grown(first)
        if not self._skipping:
            lines.append(bytes(self._rest))
        self._rest.clear()
        self._skipping = False
        if others:
            *whole, last = others.split(b"\n")
            lines += [line if len(line) <= self._limit else Overlong(line[:HEAD]) for line in whole]
            lines += self._grown(last)
        return lines

    def close(self) -> list[bytes | Overlong]:
        """Return what the stream has ended with: a last line that has no newline."""
        rest = bytes(self._rest)
        self._rest.clear()
        return [rest] if rest else []

    def _grown(self, piece: bytes) -> list[bytes | Overlong]:
        """Add to the line that is not whole; one that grows too long is told of now."""
        if self._skipping or not piece:
            return []
        if len(self._rest) + len(piece) <= self._limit:
            self._rest += piece
            return []
        head = bytes(self._rest[:HEAD]) + piece[: max(0, HEAD - len(self._rest))]
        self._rest = bytearray()  # not clear(): that would keep the room
        self._skipping = True
        return [Overlong(head)]
