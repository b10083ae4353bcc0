"""What is typed at a terminal, in lines: bytes in, lines out. No I/O."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 4096
"""How many bytes a line may have. What is longer is no answer: nobody knows what of it was meant."""


class TypedLines:
    """The lines of what is typed, as it comes; a line that is too long is an empty one."""

    def __init__(self) -> None:
        self._read = b""
        self._is_long = False

    def feed(self, piece: bytes) -> None:
        """Take in what was typed."""
        self._read += piece
        if len(self._read) > LONGEST and b"\n" not in self._read:
            self._read, self._is_long = b"", True

    def next(self) -> str | None:
        """Return the next line, None where none has ended yet."""
        line, end, rest = self._read.partition(b"\n")
        if not end:
            return None
        is_long, self._is_long, self._read = self._is_long or len(line) > LONGEST, False, rest
        return "" if is_long else line.decode("utf-8", "replace")

    def drop(self) -> None:
        """Forget what was typed until now."""
        self._read, self._is_long = b"", False
