"""The text that a parser still has to read, and sets of markers to search for in it.

Readers are generators. They read ``buf`` from ``pos`` on and ``yield`` when they need more text; the parser then pushes the next
chunk and resumes them. Text before ``pos`` is dropped at the next push, so a chunk is copied once and memory is bounded by what a
reader still needs. A reader that may have to go back calls ``mark()``; from then on the text is kept in pieces (never
concatenated while it grows: that would be quadratic) until ``take()``, ``release()`` or ``rewind()``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from patchbay.formats.events import TextDelta


class Truncated(Exception):  # noqa: N818 - a signal between readers, not an error of the program
    """The text ended inside a construct."""


class MalformedCall(Exception):  # noqa: N818 - a signal between readers, not an error of the program
    """A call is broken up to the end of its block; what was read ends at the latest at the block's end marker."""


class NoMatch(Exception):  # noqa: N818 - a signal between readers, not an error of the program
    """The text that was read is not a call, but prose."""


class BrokenValue(NoMatch):
    """A value, which was read to its end, can only be repaired by inventing something, and no marker says that it is a call's."""


class UnknownTool(NoMatch):
    """The text that was read calls a tool that was not offered, so it is prose."""


BLANKS = " \t\r\n"
T = TypeVar("T")
Steps = Generator[None, None, T]
"""A generator that yields when it needs more text, and returns what it read."""


def discard(_text: str) -> None:
    """Ignore a text: in place of an emitter for text that is only skipped, or of a recorder of repairs."""


class Source:
    """A window on a growing text. ``ended``: no more text will come."""

    __slots__ = ("_found", "_kept", "_mark", "base", "buf", "ended", "fast_argument", "fast_prose", "pos")

    def __init__(self) -> None:
        self.buf = ""
        self.pos = 0
        self.ended = False
        self.base = 0
        self.fast_argument: Callable[[str], str | None] | None = None
        """Fast path inside a streamed argument: the JSON that a chunk adds, or None if the reader must see the chunk."""
        self.fast_prose: Callable[[str], TextDelta | None] | None = None
        """Fast path inside prose: returns the event for a chunk, or None if the reader must see the chunk."""
        self._kept: list[str] = []
        self._mark = -1
        self._found: dict[str, tuple[int, int, int]] = {}

    @property
    def offset(self) -> int:
        """Position of ``pos`` in the whole text."""
        return self.base + self.pos

    def push(self, text: str) -> None:
        """Add ``text``. Text before ``pos`` is dropped, or kept aside if there is a mark."""
        pos = self.pos
        if self._mark >= 0:
            if pos > self._mark:
                self._kept.append(self.buf[self._mark : pos])
            self._mark = 0
        self.base += pos
        self.buf = self.buf[pos:] + text if pos < len(self.buf) else text
        self.pos = 0

    def skip_ahead(self, text: str) -> None:
        """Record that a fast path consumed ``text``. Call only when ``buf`` is read to its end."""
        if self._mark >= 0:
            if self.pos > self._mark:
                self._kept.append(self.buf[self._mark : self.pos])
            self._mark = 0
        self.base += self.pos
        self.buf = text
        self.pos = len(text)

    def mark(self) -> None:
        """Set the mark: keep the text from ``pos`` on."""
        self._kept.clear()
        self._mark = self.pos

    def take(self) -> str:
        """Return the text between the mark and ``pos``; remove the mark."""
        text = "".join(self._kept) + self.buf[max(self._mark, 0) : self.pos]
        self._kept.clear()
        self._mark = -1
        return text

    def release(self) -> None:
        """Remove the mark and the text kept for it."""
        self._kept.clear()
        self._mark = -1

    def rewind(self) -> None:
        """Go back to the mark and remove it."""
        if self._kept:
            self.rewind_to(self.base - sum(map(len, self._kept)))
        else:
            self.pos = self._mark
        self._kept.clear()
        self._mark = -1

    def rewind_to(self, offset: int) -> None:
        """Go back to an offset behind the mark, which stays. Costs the length of the text gone back over."""
        taken = []
        while self.base > offset:
            taken.append(self._kept.pop())
            self.base -= len(taken[-1])
        if taken:
            self.buf = "".join(reversed(taken)) + self.buf
        self.pos = offset - self.base

    def since(self, offset: int) -> str:
        """Return the text from an offset behind the mark up to ``pos``."""
        parts = [self.buf[max(0, offset - self.base) : self.pos]]
        start = self.base
        for piece in reversed(self._kept):
            if start <= offset:
                break
            start -= len(piece)
            parts.append(piece[max(0, offset - start) :])
        return "".join(reversed(parts))

    def find(self, needle: str, pos: int) -> int:
        """Like ``buf.find(needle, pos)``, but never scans a character twice for one needle while reading moves forward.

        A reader may ask at every token where the next fence or closer is. Scanning the buffer each time would be quadratic.
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

    def ahead(self, size: int) -> Steps[str]:
        """Return the next ``size`` characters, fewer at the end of the text, without reading them."""
        while len(self.buf) - self.pos < size and not self.ended:
            yield
        return self.buf[self.pos : self.pos + size]

    def char(self, at: int) -> Steps[str]:
        """Return the character ``at`` places after ``pos``, "" beyond the end of the text."""
        while self.pos + at >= len(self.buf):
            if self.ended:
                return ""
            yield
        return self.buf[self.pos + at]

    def run(self, at: int, pattern: re.Pattern[str], limit: int = 128) -> Steps[int]:
        """Return the end, relative to ``pos``, of the run that matches ``pattern`` from ``at`` places after ``pos``."""
        while True:
            start = self.pos + at
            found = pattern.match(self.buf, start, start + limit)
            end = found.end() if found else start
            if end < len(self.buf) or end - start >= limit or self.ended:
                return end - self.pos
            yield

    def read_run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Read the run that matches ``pattern``, across chunks."""
        pieces: list[str] = []
        while True:
            found = pattern.match(self.buf, self.pos)
            if found:
                pieces.append(found.group())
                self.pos = found.end()
            if self.pos < len(self.buf) or self.ended:
                return "".join(pieces)
            yield

    def read_to(
        self, markers: MarkerSet, emit: Callable[[str], object], fast_argument: Callable[[str], str | None] | None = None
    ) -> Steps[str]:
        """Read up to the next of ``markers`` and emit the text before it. Return the marker, "" at the end of the text."""
        while True:
            end, marker = markers.next(self, self.pos)
            emit(self.buf[self.pos : end])
            self.pos = end
            if marker or self.ended:
                return marker
            self.fast_argument = fast_argument
            yield
            self.fast_argument = None

    def space(self, blanks: str = BLANKS) -> Steps[str]:
        """Read white space; return the next character, "" at the end of the text."""
        while True:
            buf, pos = self.buf, self.pos
            while pos < len(buf) and buf[pos] in blanks:
                pos += 1
            self.pos = pos
            if pos < len(buf):
                return buf[pos]
            if self.ended:
                return ""
            yield

    def peek(self) -> Steps[str]:
        """Return the next character, or "" at the end of the text, without reading it."""
        while self.pos >= len(self.buf):
            if self.ended:
                return ""
            yield
        return self.buf[self.pos]


def whole_text(text: str) -> Source:
    """Return a source that holds a whole text."""
    source = Source()
    source.push(text)
    source.ended = True
    return source


_SUFFIX = re.compile(r"[^<>\s]{0,64}(>?)")
_MAX_SUFFIX = 64
_COMMON_IN_PROSE = frozenset("-/>")


class MarkerSet:
    """A set of markers to search for. Use ``marker_set``, which caches them."""

    __slots__ = ("_any", "_longest", "_starts", "first", "first_in", "literals")

    def __init__(self, literals: tuple[str, ...]) -> None:
        self.literals = frozenset(literals)
        self._any = re.compile(_longest_pattern(_trie(literals)) if literals else "(?!)")
        self.first = frozenset(literal[0] for literal in literals)
        self.first_in = re.compile("|".join(map(re.escape, self.first)) or "(?!)").search
        self._starts = frozenset(literal[:length] for literal in literals for length in range(1, len(literal)))
        self._longest = max(map(len, literals), default=0)

    def next(self, source: Source, pos: int) -> tuple[int, str]:
        """Find the next marker from ``pos`` on.

        Return its position and the marker, or the position up to which there surely is none and "".
        """
        buf = source.buf
        found = self._any.search(buf, pos)
        stop = found.start() if found else len(buf)
        if not source.ended:
            tail = len(buf) - self._longest + 1
            first = self.first_in(buf, max(pos, tail), stop)
            while first:
                if buf[first.start() :] in self._starts:
                    return first.start(), ""  # a longer marker may begin here and contain the one that was found
                first = self.first_in(buf, first.end(), stop)
            if found and self._may_grow(source, stop, found.group()):
                return stop, ""
        return stop, found.group() if found else ""

    def find(self, text: str) -> int | None:
        """Return the position of the first marker in a text, None if there is none."""
        found = self._any.search(text)
        return None if found is None else found.start()

    def at(self, source: Source) -> Steps[str]:
        """Return the marker at ``pos``, "" if there is none, without reading it.

        Wait only while the text may be the start of a marker.
        """
        while True:
            buf, pos = source.buf, source.pos
            if pos < len(buf):
                if buf[pos] not in self.first:
                    return ""
                found = self._any.match(buf, pos)
                if found and not self._may_grow(source, pos, found.group()):
                    return found.group()
                if source.ended or not (found or (len(buf) - pos < self._longest and buf[pos:] in self._starts)):
                    return ""
            elif source.ended:
                return ""
            yield

    def is_cut_off(self, source: Source) -> bool:
        """True if the text ends inside a marker that begins at ``pos``.

        A single letter, or the start of a word, is not enough.
        """
        rest = source.buf[source.pos :] if source.ended and len(source.buf) - source.pos < self._longest else ""
        return len(rest) > 1 and rest in self._starts and not rest[0].isalnum()

    def _may_grow(self, source: Source, start: int, literal: str) -> bool:
        """True if a longer marker may follow from the end of the text so far."""
        if literal not in self._starts or source.ended or len(source.buf) - start >= self._longest:
            return False
        return source.buf[start:] in self._starts


def marker_length(source: Source, marker: str) -> Steps[int]:
    """Return the length of the marker at ``pos``, without reading it.

    A marker that ends in a colon continues with a suffix of the checkpoint's own (``<tool_call:v2>``); 0 if no such suffix
    follows.
    """
    if marker[:1] != "<" or marker[-1] != ":":
        return len(marker)
    while True:
        begin = source.pos + len(marker)
        found = _SUFFIX.match(source.buf, begin)
        assert found is not None
        if found[1]:
            return found.end() - source.pos
        if found.end() < len(source.buf) or found.end() - begin >= _MAX_SUFFIX or source.ended:
            return 0
        yield


@lru_cache(maxsize=256)
def marker_set(literals: tuple[str, ...]) -> MarkerSet:
    """Return the cached set of these markers; order and duplicates do not matter."""
    return MarkerSet(literals)


@lru_cache(maxsize=256)
def pause_pattern(markers: MarkerSet, *, lines: bool) -> re.Pattern[str]:
    """Pattern that finds where a chunk may begin a marker or a line (without ``lines``: only a line that begins at its end).

    A character that is rare in prose suffices. Of other markers the whole beginning must be there, as far as the chunk goes. Each
    branch begins with a literal, so that the search skips other characters quickly.
    """
    found = set()
    common = []
    for literal in markers.literals:
        if literal[0].isascii() and (literal[0].isalnum() or literal[0] in _COMMON_IN_PROSE):
            common.append(literal)
        else:
            found.add(re.escape(literal[0]))
    found |= {re.escape(char) + _rest_pattern(node) for char, node in _trie(common).items()}
    line = "" if lines else r"[ \t>]*\Z"
    return re.compile("|".join(sorted(found | {"\n" + line, "\r" + line})))


@lru_cache(maxsize=256)
def line_start_pattern(words: frozenset[str] | None) -> re.Pattern[str]:
    """Pattern that finds a line break and the blanks before one of these words (None: any), as far as the chunk goes."""
    return re.compile(r"[\r\n]" + ("" if words is None else r"[ \t>]*(?=" + prefix_pattern(words) + ")"))


def prefix_pattern(words: Iterable[str]) -> str:
    """Pattern for one of these words, or for its beginning at the end of the text so far."""
    return _rest_pattern(_trie(words))


_Trie = dict[str, "_Trie"]


def _trie(words: Iterable[str]) -> _Trie:
    root: _Trie = {}
    for word in words:
        node = root
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return root


def _rest_pattern(node: _Trie) -> str:
    """Pattern for the rest of a marker, or for the end of the text so far."""
    if not node or "" in node:
        return ""
    return "(?:" + "|".join([r"\Z", *(re.escape(char) + _rest_pattern(node[char]) for char in sorted(node))]) + ")"


def _longest_pattern(node: _Trie) -> str:
    """Pattern for the longest word below this node. Each character selects the branch: no word is tried after another."""
    ends = "" in node
    found = [re.escape(char) + _longest_pattern(node[char]) for char in sorted(node) if char]
    if not found:
        return ""
    if len(found) == 1 and not ends:
        return found[0]
    return "(?:" + "|".join(found) + ")" + ("?" if ends else "")


LINE_END = marker_set(("\n",))
