"""A process's standard output and standard error as lines: decoded, and bounded in length and in number.

What lives here: bytes to lines, without I/O. What does not: the pipes (``process``), and keeping the lines (``logs``).
"""

from __future__ import annotations

from typing import Final

MOST_LINE_BYTES: Final = 4096
"""What is longer is cut, and the rest of the line is left out."""

MOST_LINES_AT_ONCE: Final = 500
"""Of one piece of output so many lines are kept; a plugin that prints without end must not cost the host its time."""


class LineReader:
    """``feed`` pieces of a stream, get whole lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that have become complete."""
        first, newline, others = data.partition(b"\n")
        if not newline:
            return self._grow(first)
        lines = self._grow(first)
        if not self._skipping:
            lines.append(_text(self._rest))
        self._rest, self._skipping = b"", False
        whole = others.split(b"\n")
        last = whole.pop()
        left_out = len(whole) - MOST_LINES_AT_ONCE
        if left_out > 0:
            lines.append(f"... ({left_out} lines left out)")
            whole = whole[left_out:]
        lines += [_text(line) if len(line) <= MOST_LINE_BYTES else _cut(line) for line in whole]
        return lines + self._grow(last)

    def close(self) -> list[str]:
        """Return what is left when the stream has ended."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest and not self._skipping else []

    def _grow(self, piece: bytes) -> list[str]:
        """Add to the line that is not complete; one that grows too long is given out now, and its rest is skipped."""
        if self._skipping or not piece:
            return []
        self._rest += piece
        if len(self._rest) <= MOST_LINE_BYTES:
            return []
        line = _cut(self._rest)
        self._rest, self._skipping = b"", True
        return [line]


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def _cut(line: bytes) -> str:
    return f"{line[:MOST_LINE_BYTES].decode('utf-8', 'replace')}... (the rest of the line is left out)"
