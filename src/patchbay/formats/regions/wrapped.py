"""Calls between markers: what a wrapper opens is read item by item, each item in whatever shape of call it has.

A wrapper says that calls follow, not how they are written: models write one family's calls in another's wrapper, leave a marker
out, or take the wrong closer. So every shape is tried in every wrapper, and the known tools decide. Until a call is told, all
that was read can still become prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from patchbay.formats.engine.marks import extent, marks
from patchbay.formats.engine.source import BrokenOff, CutOff, NotACall, NotOffered, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.rows import Wrapper, last_part

_MAX_DEPTH = 3
_JUNK_ROOM = 64
_JUNK = re.compile(r"[^\r\n\[\]{}<>`]{1,64}")
_BLANKS = " \t\r\n"


class Shape(Protocol):
    """One shape of a call: reads an item of a wrapper, from its first character on."""

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:
        """How many calls were told. Raises NotACall while none was, CutOff. ``first``: it stands right behind the opener."""


class Wrappers:
    """What some wrappers come to, made once for each set of formats: by their openers, all their closers, all their markers."""

    def __init__(self, wrappers: Sequence[Wrapper]) -> None:
        self.by_opener: dict[str, Wrapper] = {}
        for wrapper in wrappers:
            for opener in wrapper.openers:
                known = self.by_opener.get(opener)
                self.by_opener[opener] = _joined(known, wrapper) if known else wrapper
        self.closers = tuple(dict.fromkeys(closer for wrapper in wrappers for closer in wrapper.closers))
        self.literals = (*self.by_opener, *self.closers, *(lead for wrapper in wrappers for lead in wrapper.leads))
        self.marks = marks(self.literals)


def _joined(one: Wrapper, other: Wrapper) -> Wrapper:
    """What two families' wrappers with the same opener come to: whichever wrote it, its markers are known."""
    return replace(
        one,
        openers=one.openers + other.openers,
        closers=one.closers + other.closers,
        leads=one.leads + other.leads,
        separators=one.separators + other.separators,
        name=other.name if one.name is last_part else one.name,
        keyed=one.keyed or other.keyed,
        tail=one.tail or other.tail,
        idle=one.idle + other.idle,
        code=one.code + other.code,
    )


class WrapperReader:
    """Reads what the openers of ``wrappers`` open. ``shapes`` are tried in their order."""

    def __init__(self, parts: Parts, wrappers: Wrappers, shapes: Iterable[Shape]) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.calls = parts.calls
        self.json = parts.json
        self.shapes = shapes
        self._wrappers = wrappers.by_opener
        self._closers = wrappers.closers
        self._marks = wrappers.marks
        self._open: frozenset[str] = frozenset()
        """The closers that are due, where a wrapper was left before its end."""
        self._far = 0
        """How far was read in vain."""
        self._quote = ""
        """What stood behind the bracket of the last object: the quotes that it is written in."""

    def open(self, marker: str) -> Steps[bool]:
        """Read from an opener on."""
        if self.emitter.opens_code or self.emitter.over:
            return False  # a word about the marker, or a call of an invented conversation
        self._open = frozenset()
        self.calls.name = ""
        start = self.calls.passed = self.source.offset
        told = 0
        try:
            told = yield from self._items(marker, depth=0, outer=frozenset())
        except CutOff:
            self.source.pos = len(self.source.buf)
            self.calls.cut(self.source.since(max(start, self._item)))
            return True
        except NotACall:
            # Forward: the markers in it are its own, and what was read in vain is not read again for a marker inside of it.
            self.source.rewind_to(max(self.source.offset, self.calls.passed, self._far))
        return told > 0

    def stray(self, marker: str) -> Steps[bool]:
        """A closer outside of its wrapper: markup if it is due, or stands right behind calls."""
        if marker not in self._open and not self.emitter.after_markup:
            return False
        size = yield from extent(self.source, marker)
        self.source.pos += size
        self._open -= {marker}
        return size > 0

    def _items(self, marker: str, *, depth: int, outer: frozenset[str]) -> Steps[int]:
        """Read a wrapper from its opener to its closer; how many calls were told in it. Raises NotACall while none was."""
        wrapper, stops = self._wrappers[marker], self.json.stops
        self.json.stops = marks(tuple(sorted({*wrapper.openers, *wrapper.closers, *outer})))
        try:
            return (yield from self._inside(wrapper, marker, depth=depth, outer=outer))
        finally:
            self.json.stops = stops

    def _inside(self, wrapper: Wrapper, marker: str, *, depth: int, outer: frozenset[str]) -> Steps[int]:
        source = self.source
        if not depth:
            self._item = source.offset
        size = yield from extent(source, marker)
        if not size or depth > _MAX_DEPTH:
            raise NotACall
        source.pos += max(0, size - wrapper.keeps)
        told = 0
        first = True
        after = source.offset
        while True:
            char = yield from self.space()
            mark = yield from self._marks.at(source)
            size = yield from extent(source, mark)
            in_body = self._in_body(mark)
            if in_body or not size:
                mark = ""
            if mark in wrapper.leads:
                source.pos += size
            elif mark in self._closers:
                if not told and not depth:
                    raise NotACall
                if mark not in wrapper.closers and mark in outer:
                    return told
                source.pos += size
                return told
            elif mark in wrapper.openers and told:
                source.pos += size  # its closer was left out
                first = True
                continue
            elif mark in self._wrappers:
                if told:
                    self._item = source.offset
                elif mark in wrapper.openers and self.emitter.has_calls:
                    self.calls.astray = True
                try:
                    told += yield from self._items(mark, depth=depth + 1, outer=outer.union(wrapper.closers))
                except NotACall:
                    if not told:
                        raise
                    source.rewind_to(after)
                    self._open |= outer.union(wrapper.closers)
                    return told
            elif not char or self._marks.begun(source):
                source.pos = len(source.buf)
                if not told:
                    raise CutOff
                return told
            elif told and char == wrapper.tail:
                source.pos += 1
                return told
            elif told and char in ",;":
                source.pos += 1
                continue
            elif told and char in "}]" and not in_body:
                source.pos += 1
                self.emitter.note("stray_bracket")
            else:
                if told:
                    self._item = source.offset
                if char == "{":
                    while len(source.buf) - source.pos < 2 and not source.ended:
                        yield
                    quote = source.buf[source.pos + 1 : source.pos + 2]
                    if quote == "'" and self._quote == '"':
                        self.calls.astray = True  # Python's notation behind JSON: what it said, it may say again
                    self._quote = quote
                try:
                    read = yield from self._shaped(wrapper, first=first)
                except BrokenOff:
                    yield from self.json.skip_to_end()
                    self.calls.cut(source.since(max(self.calls.passed, self._item)))
                    read = 1
                if not read and not told and (yield from self._words()):
                    self.calls.ahead = source.since(after)
                    read = yield from self._shaped(wrapper, first=True)
                    self.calls.ahead = ""
                if not read:
                    if not told:
                        raise NotACall
                    source.rewind_to(after)
                    if self.calls.passed > after:
                        source.rewind_to(self.calls.passed)
                        self.emitter.verbatim(source.since(after))
                    self._open |= outer.union(wrapper.closers)
                    return told
                told += read
                first = False
            after = source.offset

    def _in_body(self, mark: str) -> bool:
        """Whether an opener is all a part of what it opens: it stands at a call and not around it."""
        wrapper = self._wrappers.get(mark)
        return wrapper is not None and wrapper.keeps >= len(mark)

    def _words(self) -> Steps[bool]:
        """Read words that stand between an opener and a list."""
        source = self.source
        while True:
            found = _JUNK.match(source.buf, source.pos)
            end = found.end() if found else source.pos
            if end < len(source.buf) or source.ended or end - source.pos >= _JUNK_ROOM:
                break
            yield
        if source.buf[end : end + 1] != "[":
            return False
        source.pos = end
        return True

    def _shaped(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:
        """Read one item in the first shape that fits it; 0, with the item not read, if none does."""
        source = self.source
        start = source.offset
        for shape in self.shapes:
            try:
                return (yield from shape.read(wrapper, first=first))
            except NotACall as error:
                self._far = max(self._far, source.offset)
                source.rewind_to(start)
                if isinstance(error, NotOffered):
                    break  # the shape fits, the tool does not
        return 0

    def space(self) -> Steps[str]:
        """Read white space; the next character, "" at the end of the text."""
        source = self.source
        while True:
            char = yield from source.peek()
            if not char or char not in _BLANKS:
                return char
            source.pos += 1
