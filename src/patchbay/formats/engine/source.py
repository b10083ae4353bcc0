"""The text under the scanner: what has arrived and is not read yet. No knowledge of any format.

Readers are generators. They read ``buf`` from ``pos`` on and ``yield`` when they need more text; the parser then pushes the next
chunk and resumes them. What was read is dropped at the next push, so a chunk is copied once and memory is bounded by what a
reader still looks at. A reader that may have to take its reading back sets ``mark()``; from then on the text is kept in pieces
(never concatenated while it grows: that would be quadratic) until ``take()`` or ``rewind()``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from patchbay.formats.events import TextDelta


class CutOff(Exception):  # noqa: N818 - a signal between readers, not an error of the program
    """The text ended inside what was being read."""


class BrokenOff(Exception):  # noqa: N818 - a signal between readers, not an error of the program
    """A call is no JSON up to the end of its block; what was read is at most the text before the block's end marker."""


class NotACall(Exception):  # noqa: N818 - a signal between readers, not an error of the program
    """What was read is not a call; its text is prose."""


class NotOffered(NotACall):
    """What was read is a call of a tool that was not offered; its text is prose."""


T = TypeVar("T")
Steps = Generator[None, None, T]
"""A reader: yields when it needs more text, returns what it read."""


class Source:
    """A window on a growing text. ``ended`` says that no more will come."""

    __slots__ = ("_found", "_kept", "_mark", "base", "buf", "ended", "live", "pass_on", "pos")

    def __init__(self) -> None:
        self.buf = ""
        self.pos = 0
        self.ended = False
        self.base = 0
        self.live: Callable[[str], str | None] | None = None
        """Set by a reader that waits inside a value it passes on: what a chunk adds to it, or None where the reader must look."""
        self.pass_on: Callable[[str], TextDelta | None] | None = None
        """Set by a reader that waits inside of prose: tells a chunk and returns the event, or None where the reader must look."""
        self._kept: list[str] = []
        self._mark = -1
        self._found: dict[str, tuple[int, int, int]] = {}

    @property
    def offset(self) -> int:
        """How many characters of the whole text lie before ``pos``."""
        return self.base + self.pos

    def push(self, text: str) -> None:
        """Add ``text``; what lies before ``pos`` is dropped, or kept aside under a mark."""
        pos = self.pos
        if self._mark >= 0:
            if pos > self._mark:
                self._kept.append(self.buf[self._mark : pos])
            self._mark = 0
        self.base += pos
        self.buf = self.buf[pos:] + text if pos < len(self.buf) else text
        self.pos = 0

    def skip_ahead(self, text: str) -> None:
        """Note that ``text`` arrived and was read by other means; only where ``buf`` is read to its end."""
        self.push(text)
        self.pos = len(text)

    def mark(self) -> None:
        """Keep the text from ``pos`` on."""
        self._kept.clear()
        self._mark = self.pos

    def take(self) -> str:
        """The text between the mark and ``pos``; the mark is gone."""
        text = "".join(self._kept) + self.buf[max(self._mark, 0) : self.pos]
        self._kept.clear()
        self._mark = -1
        return text

    def release(self) -> None:
        """The mark is gone, and what was kept for it."""
        self._kept.clear()
        self._mark = -1

    def rewind(self) -> None:
        """Go back to the mark; the mark is gone."""
        if self._kept:
            self.rewind_to(self.base - sum(map(len, self._kept)))
        else:
            self.pos = self._mark
        self._kept.clear()
        self._mark = -1

    def rewind_to(self, offset: int) -> None:
        """Go back to a place behind the mark, which stays; the cost is the length of what is taken back."""
        taken = []
        while self.base > offset:
            taken.append(self._kept.pop())
            self.base -= len(taken[-1])
        if taken:
            self.buf = "".join(reversed(taken)) + self.buf
        self.pos = offset - self.base

    def since(self, offset: int) -> str:
        """The text from a place behind the mark up to ``pos``."""
        parts = [self.buf[max(0, offset - self.base) : self.pos]]
        start = self.base
        for piece in reversed(self._kept):
            if start <= offset:
                break
            start -= len(piece)
            parts.append(piece[max(0, offset - start) :])
        return "".join(reversed(parts))

    def find(self, needle: str, pos: int) -> int:
        """Like ``buf.find(needle, pos)``, but looks at no character twice for one needle while reading goes forward.

        A reader may ask at every token where the next fence or closer is; if each asked the buffer, whole texts would be read in
        quadratic time.
        """
        start = begin = self.base + pos
        known = self._found.get(needle)
        if known is not None and known[0] <= start:
            _, at, end = known
            if at >= start:
                return at - self.base
            if at < 0:
                begin = max(start, end - len(needle) + 1)
        at = self.buf.find(needle, begin - self.base)
        self._found[needle] = (start, at + self.base if at >= 0 else -1, self.base + len(self.buf))
        return at

    def peek(self) -> Steps[str]:
        """The next character, or "" at the end of the text; nothing is read."""
        while self.pos >= len(self.buf):
            if self.ended:
                return ""
            yield
        return self.buf[self.pos]
