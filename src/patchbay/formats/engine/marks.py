"""A set of literal markers, looked for in a growing text: exactly, at one place or at the next one, longest first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from patchbay.formats.engine.source import Source, Steps

_SUFFIX = re.compile(r"[^<>\s]{0,64}(>?)")
_SUFFIX_ROOM = 64
_IN_PROSE = frozenset("-/>")


class Marks:
    """Markers to look for. Made once for each set (``marks``)."""

    __slots__ = ("_any", "_longest", "_starts", "first", "first_in", "literals")

    def __init__(self, literals: tuple[str, ...]) -> None:
        self.literals = frozenset(literals)
        self._any = re.compile(_longest(_trie(literals)) if literals else "(?!)")
        self.first = frozenset(literal[0] for literal in literals)
        self.first_in = re.compile("|".join(map(re.escape, self.first)) or "(?!)").search
        self._starts = frozenset(literal[:length] for literal in literals for length in range(1, len(literal)))
        self._longest = max(map(len, literals), default=0)

    def next(self, source: Source, pos: int) -> tuple[int, str]:
        """The next marker from ``pos`` on: its place and itself; where there is none, how far there surely is none, and ""."""
        buf = source.buf
        found = self._any.search(buf, pos)
        stop = found.start() if found else len(buf)
        if not source.ended:
            tail = len(buf) - self._longest + 1
            first = self.first_in(buf, max(pos, tail), stop)
            while first:
                if buf[first.start() :] in self._starts:
                    return first.start(), ""  # it may come to more, and hold what was found
                first = self.first_in(buf, first.end(), stop)
            if found and self._may_grow(source, stop, found.group()):
                return stop, ""
        return stop, found.group() if found else ""

    def find(self, text: str) -> int | None:
        """Where the first marker of a text begins; None where it has none."""
        found = self._any.search(text)
        return None if found is None else found.start()

    def at(self, source: Source) -> Steps[str]:
        """The marker at ``pos``, "" if there is none; it is not read. Waits only where the text may be a marker's beginning."""
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

    def begun(self, source: Source) -> bool:
        """Whether the text ends at ``pos`` in the middle of a marker; a letter alone, or the first of a word, does not say so."""
        rest = source.buf[source.pos :] if source.ended and len(source.buf) - source.pos < self._longest else ""
        return len(rest) > 1 and rest in self._starts and not rest[0].isalnum()

    def _may_grow(self, source: Source, start: int, literal: str) -> bool:
        """Whether a longer marker may come of what stands at the end of the text so far."""
        if literal not in self._starts or source.ended or len(source.buf) - start >= self._longest:
            return False
        return source.buf[start:] in self._starts


def extent(source: Source, marker: str) -> Steps[int]:
    """How long the marker at ``pos`` is; nothing is read.

    One that ends in a colon goes on with a suffix of the checkpoint's own (``<tool_call:v2>``); 0 if no such suffix follows.
    """
    if marker[:1] != "<" or marker[-1] != ":":
        return len(marker)
    while True:
        begin = source.pos + len(marker)
        found = _SUFFIX.match(source.buf, begin)
        assert found is not None
        if found[1]:
            return found.end() - source.pos
        if found.end() < len(source.buf) or found.end() - begin >= _SUFFIX_ROOM or source.ended:
            return 0
        yield


@lru_cache(maxsize=256)
def marks(literals: tuple[str, ...]) -> Marks:
    """The set for these literals; order and doubles do not matter."""
    return Marks(literals)


@lru_cache(maxsize=256)
def pauses(markers: Marks, *, lines: bool) -> re.Pattern[str]:
    """Finds where a chunk may begin a marker, or a line (without ``lines``: only one that begins at its end).

    A character that prose seldom has says so alone. Markers that begin with another must stand there as far as the chunk goes.
    Each branch begins with a literal, so that the search passes over other characters at once.
    """
    found = set()
    common = []
    for literal in markers.literals:
        if literal[0].isascii() and (literal[0].isalnum() or literal[0] in _IN_PROSE):
            common.append(literal)
        else:
            found.add(re.escape(literal[0]))
    found |= {re.escape(char) + _rest(node) for char, node in _trie(common).items()}
    line = "" if lines else r"[ \t>]*\Z"
    return re.compile("|".join(sorted(found | {"\n" + line, "\r" + line})))


@lru_cache(maxsize=256)
def line_starts(words: frozenset[str] | None) -> re.Pattern[str]:
    """Finds the break and the blanks before a line that begins with one of these words (None: any), as far as the chunk goes."""
    return re.compile(r"[\r\n]" + ("" if words is None else r"[ \t>]*(?=" + prefix(words) + ")"))


def prefix(words: Iterable[str]) -> str:
    """A pattern for one of these words, or as much of it as the text has so far."""
    return _rest(_trie(words))


_Trie = dict[str, "_Trie"]


def _trie(words: Iterable[str]) -> _Trie:
    root: _Trie = {}
    for word in words:
        node = root
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return root


def _rest(node: _Trie) -> str:
    """What must follow a marker's beginning: more of one, or the end of the text so far."""
    if not node or "" in node:
        return ""
    return "(?:" + "|".join([r"\Z", *(re.escape(char) + _rest(node[char]) for char in sorted(node))]) + ")"


def _longest(node: _Trie) -> str:
    """The longest of the words from here on. Each character decides where to go on: no word is tried after another."""
    ends = "" in node
    found = [re.escape(char) + _longest(node[char]) for char in sorted(node) if char]
    if not found:
        return ""
    if len(found) == 1 and not ends:
        return found[0]
    return "(?:" + "|".join(found) + ")" + ("?" if ends else "")
