"""Markers around calls and around the answer, and special tokens that a server let through.

A wrapper says that calls follow, not in which notation: models write one family's calls in another's wrapper, leave a marker out,
or take the wrong closer. So every codec is tried in every wrapper, and the offered tools decide. Until a call is emitted,
everything read can still become prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Protocol

from patchbay.formats.codecs.elements import NestedCalls
from patchbay.formats.codecs.gemma import GemmaCalls
from patchbay.formats.codecs.json import CallReader, JsonArguments, fence_line
from patchbay.formats.codecs.key_value import KeyValueCalls
from patchbay.formats.codecs.named import ArgumentCodec, BracketArguments, CodeCalls, NamedCalls
from patchbay.formats.codecs.python import PythonCalls
from patchbay.formats.codecs.xml import XmlCalls
from patchbay.formats.context import Context, Reader
from patchbay.formats.emitter import CallEmitter, Emitter
from patchbay.formats.source import (
    MalformedCall,
    MarkerSet,
    NoMatch,
    Source,
    Steps,
    Truncated,
    UnknownTool,
    marker_length,
    marker_set,
)
from patchbay.formats.spec import AnswerMarkers, Wrapper, last_part
from patchbay.formats.values.tool_names import ToolRules

_TURN = re.compile("assistant|model|user", re.IGNORECASE)
"""Role names in tokens that begin another turn."""


def ends_or_tag(source: Source) -> Steps[bool]:
    """True if only white space stands before the end of the text or a ``<``; nothing is read."""
    begin = source.offset
    char = yield from source.space()
    source.rewind_to(begin)
    return not char or char == "<"


class ControlTokenReader:
    """Drops control tokens where they are not part of the answer."""

    def __init__(self, source: Source, emitter: Emitter) -> None:
        self.source = source
        self.emitter = emitter

    def read(self, marker: str) -> Steps[bool]:
        """Drop the token if it stands at the beginning or end of the answer, or beside markup."""
        source, emitter = self.source, self.emitter
        if emitter.next_is_mention:
            return False
        size = yield from marker_length(source, marker)
        source.pos += size
        if not size:
            return False
        if emitter.has_calls and _TURN.search(marker):
            emitter.turn_ended = True
        yield from source.peek()
        if emitter.has_calls or emitter.after_markup or not emitter.has_text:
            return True
        if source.buf[source.pos : source.pos + 1] in ("{", "["):
            emitter.markup()  # the token may have been meant to open calls
            return True
        return (yield from ends_or_tag(source))


class AnswerMarkerReader:
    """Drops markers around the answer. ``named``: the format was given, so they count without markup before them."""

    def __init__(self, source: Source, emitter: Emitter, answer_markers: Sequence[AnswerMarkers], *, named: bool) -> None:
        self.source = source
        self.emitter = emitter
        self.named = named
        self._expected_closers: frozenset[str] = frozenset()
        self._closers_of = {opener: frozenset(row.closers) for row in answer_markers for opener in row.openers}

    def drop(self, marker: str) -> Steps[bool]:
        """Drop a special token."""
        yield from ()
        if self.emitter.next_is_mention:
            return False
        self.source.pos += len(marker)
        return True

    def open(self, marker: str) -> Steps[bool]:
        """Drop a tag at the beginning of the answer."""
        yield from ()
        emitter = self.emitter
        if emitter.has_text or emitter.in_blockquote or not (self.named or emitter.after_markup):
            return False
        self.source.pos += len(marker)
        emitter.markup()
        self._expected_closers = self._closers_of[marker]
        return True

    def close(self, marker: str) -> Steps[bool]:
        """Drop a tag at the end of the answer."""
        source, emitter = self.source, self.emitter
        if marker not in self._expected_closers and not (emitter.has_calls and emitter.after_markup):
            return False
        source.pos += len(marker)
        if not (yield from ends_or_tag(source)):
            return False
        emitter.markup()
        self._expected_closers = frozenset()
        return True


_MAX_DEPTH = 3
_MAX_WORDS = 64
_WORDS = re.compile(r"[^\r\n\[\]{}<>`]{1,64}")


class Codec(Protocol):
    """One notation of calls: reads an item of a wrapper, from its first character on."""

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:
        """Read an item; return the number of calls emitted. ``first``: the item directly follows the opener.

        Raises NoMatch while no call was emitted, Truncated.
        """


class WrapperTable:
    """The wrappers of a set of formats: by opener, with all closers and all markers."""

    def __init__(self, wrappers: Sequence[Wrapper]) -> None:
        self.by_opener: dict[str, Wrapper] = {}
        for wrapper in wrappers:
            for opener in wrapper.openers:
                known = self.by_opener.get(opener)
                self.by_opener[opener] = _merged(known, wrapper) if known else wrapper
        self.closers = tuple(dict.fromkeys(closer for wrapper in wrappers for closer in wrapper.closers))
        self.literals = (*self.by_opener, *self.closers, *(marker for wrapper in wrappers for marker in wrapper.noise_markers))
        self.marker_set = marker_set(self.literals)


def _merged(one: Wrapper, other: Wrapper) -> Wrapper:
    """Merge two families' wrappers with the same opener: whichever family wrote it, its markers are known."""
    return replace(
        one,
        openers=one.openers + other.openers,
        closers=one.closers + other.closers,
        noise_markers=one.noise_markers + other.noise_markers,
        separators=one.separators + other.separators,
        name=other.name if one.name is last_part else one.name,
        name_is_key=one.name_is_key or other.name_is_key,
        closing_char=one.closing_char or other.closing_char,
        noop_names=one.noop_names + other.noop_names,
        code_tools=one.code_tools + other.code_tools,
    )


def _closers_of(wrapper: Wrapper, opener: str) -> tuple[str, ...]:
    """Return the closer that belongs to an opener, or all if it is not known which one does."""
    if len(wrapper.openers) != len(wrapper.closers):
        return wrapper.closers
    return (wrapper.closers[wrapper.openers.index(opener)],)


class WrapperReader(Reader):
    """Reads what the openers of ``wrappers`` open. ``codecs`` are tried in order."""

    def __init__(self, context: Context, wrappers: WrapperTable, codecs: Iterable[Codec]) -> None:
        super().__init__(context)
        self.json = context.json
        self.codecs = codecs
        self._wrappers = wrappers.by_opener
        self._closers = frozenset(wrappers.closers)
        self._markers = wrappers.marker_set
        self._open_closers: frozenset[str] = frozenset()
        """Closers that may still follow, after a wrapper was left before its end."""
        self._furthest = 0
        """The furthest offset that a codec reached without success."""
        self._quote = ""
        """The character after the last object's bracket: the kind of quotes it is written in."""

    def open(self, marker: str) -> Steps[bool]:
        """Read from an opener on."""
        if self.emitter.next_is_mention or self.emitter.turn_ended:
            return False  # the marker is only mentioned, or belongs to an invented conversation
        self._open_closers = frozenset()
        self.calls.name = ""
        start = self.calls.skipped_to = self.source.offset
        emitted = 0
        try:
            emitted = yield from self._read_wrapper(marker, depth=0, outer=frozenset())
        except Truncated:
            self.source.pos = len(self.source.buf)
            self.calls.cut(self.source.since(max(start, self._item_start)))
            return True
        except NoMatch:
            # Move on instead of back: markers inside belong to this text, and reading it again for each would be quadratic.
            self.source.rewind_to(max(self.source.offset, self.calls.skipped_to, self._furthest))
        return emitted > 0

    def unexpected_closer(self, marker: str) -> Steps[bool]:
        """Drop a closer outside of its wrapper, if it may still follow or directly follows calls."""
        if marker not in self._open_closers and not self.emitter.after_markup:
            return False
        size = yield from marker_length(self.source, marker)
        self.source.pos += size
        self._open_closers -= {marker}
        return size > 0

    def _read_wrapper(self, marker: str, *, depth: int, outer: frozenset[str]) -> Steps[int]:
        """Read a wrapper from its opener to its closer; return the number of calls emitted in it. Raises NoMatch while none was.

        ``outer``: openers and closers of the wrappers around this one.
        """
        source, wrapper, stops = self.source, self._wrappers[marker], self.json.stops
        if not depth:
            self._item_start = source.offset
        size = yield from marker_length(source, marker)
        if not size or depth > _MAX_DEPTH:
            raise NoMatch
        source.pos += max(0, size - wrapper.body_prefix_len)
        context, around = self.context, outer.union(wrapper.openers, wrapper.closers)
        self.json.stops = marker_set(tuple(sorted(around)))
        openers, closers = context.call_openers, context.call_closers
        context.call_openers = openers.union((marker,))
        context.call_closers = closers.union(_closers_of(wrapper, marker))
        try:
            return (yield from self._read_items(wrapper, depth=depth, around=around))
        finally:
            self.json.stops = stops
            context.call_openers, context.call_closers = openers, closers

    def _read_items(self, wrapper: Wrapper, *, depth: int, around: frozenset[str]) -> Steps[int]:
        """Read the items of a wrapper and its closer. ``around``: the markers of this wrapper and of those around it."""
        source = self.source
        emitted, first, after = 0, True, source.offset
        while True:
            char = yield from source.space()
            if char == "\\" and not (yield from source.char(2)).isalnum() and (yield from source.char(1)) == "n":
                source.pos += 2  # a line break, written as in a string
                continue
            marker = yield from self._markers.at(source)
            size = yield from marker_length(source, marker)
            is_part_of_call = self._is_part_of_call(marker)
            if is_part_of_call or not size:
                marker = ""
            if marker in wrapper.noise_markers:
                source.pos += size
            elif marker in self._closers:
                if not emitted and not depth:
                    raise NoMatch
                if marker in wrapper.closers or marker not in around:
                    source.pos += size
                return emitted
            elif marker in wrapper.openers and emitted:
                source.pos += size  # its closer was left out
                first = True
                continue
            elif marker in self._wrappers:
                if emitted:
                    self._item_start = source.offset
                elif marker in wrapper.openers and self.emitter.has_calls:
                    self.calls.degenerate = True
                try:
                    emitted += yield from self._read_wrapper(marker, depth=depth + 1, outer=around)
                except NoMatch:
                    return self._leave(after, emitted, around)
            elif not char or self._markers.is_cut_off(source):
                source.pos = len(source.buf)
                if not emitted:
                    raise Truncated
                return emitted
            elif emitted and char == wrapper.closing_char:
                source.pos += 1
                return emitted
            elif emitted and char in ",;":
                source.pos += 1
                continue
            elif emitted and char in "}]" and not is_part_of_call:
                source.pos += 1
                self.emitter.note("stray_bracket")
            else:
                if emitted:
                    self._item_start = source.offset
                read = yield from self._read_item(wrapper, char, after=after, emitted=emitted, first=first)
                if not read:
                    emitted = self._leave(after, emitted, around)
                    if self.calls.skipped_to > after:
                        source.rewind_to(self.calls.skipped_to)
                        self.emitter.verbatim(source.since(after))
                    return emitted
                emitted += read
                first = False
            after = source.offset

    def _leave(self, after: int, emitted: int, markers: frozenset[str]) -> int:
        """Leave a wrapper behind its last call; closers among ``markers`` may still follow. Raises NoMatch if it had no call."""
        if not emitted:
            raise NoMatch
        self.source.rewind_to(after)
        self._open_closers |= markers
        return emitted

    def _read_item(self, wrapper: Wrapper, char: str, *, after: int, emitted: int, first: bool) -> Steps[int]:
        """Read the item that begins with ``char``; return the number of calls in it. ``after``: end of the item before."""
        source = self.source
        if char == "{":
            quote = (yield from source.ahead(2))[1:]
            if quote == "'" and self._quote == '"':
                self.calls.degenerate = True  # Python's notation after JSON: it may repeat the same calls
            self._quote = quote
        try:
            read = yield from self._decode(wrapper, first=first)
            if not read and not emitted and (yield from self._skip_words()):
                self.calls.text_before_call = source.since(after)
                read = yield from self._decode(wrapper, first=True)
        except MalformedCall:
            yield from self.json.skip_to_end()
            self.calls.cut(source.since(max(self.calls.skipped_to, self._item_start)))
            return 1
        finally:
            self.calls.text_before_call = ""
        return read

    def _is_part_of_call(self, mark: str) -> bool:
        """True if an opener belongs entirely to the call that it opens."""
        wrapper = self._wrappers.get(mark)
        return wrapper is not None and wrapper.body_prefix_len >= len(mark)

    def _skip_words(self) -> Steps[bool]:
        """Read words between an opener and a list; return False if no list follows."""
        source = self.source
        size = yield from source.run(0, _WORDS, _MAX_WORDS)
        if not source.buf.startswith("[", source.pos + size):
            return False
        source.pos += size
        return True

    def _decode(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:
        """Read one item with the first codec that fits; return 0, with nothing read, if none does."""
        source = self.source
        start = source.offset
        for codec in self.codecs:
            try:
                return (yield from codec.read(wrapper, first=first))
            except NoMatch as error:
                self._furthest = max(self._furthest, source.offset)
                source.rewind_to(start)
                if isinstance(error, UnknownTool):
                    break  # the shape fits, the tool does not
        return 0


class JsonCalls:
    """JSON objects and arrays of objects, in a fence or not; see ``CallReader``."""

    def __init__(self, context: Context) -> None:
        self.source = context.source
        self.json = context.json
        self.rules = context.rules
        self.sink = context.calls
        self.calls = CallReader(context.source, context.json, context.calls, context.rules, note=context.emitter.note)
        self.calls.resolve = partial(_tool_or_noop, self.sink, self.rules)  # a bound method would make a reference cycle

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:
        """Read one value; return the number of calls in it."""
        char = yield from self.source.peek()
        fenced = char == "`" and (yield from self.json.at_fence())
        if fenced:
            yield from fence_line(self.source)
            char = yield from self.json.space()
        if char not in ("{", "["):
            raise NoMatch
        self.calls.name_is_key = wrapper.name_is_key
        self.sink.noop_names = tuple(name for name in wrapper.noop_names if self.rules.offered(name) is None)
        begin = self.source.offset
        self.json.guarded = True
        try:
            emitted = yield from self.calls.read()
        except UnknownTool:
            self.source.rewind_to(begin)
            yield from self._skip_value()
            raise
        except (MalformedCall, Truncated) as error:
            if type(error) is MalformedCall and not first and not self.calls.name:
                raise NoMatch from None  # behind a call, braces that name no tool are prose
            self.sink.name = self.calls.name
            raise
        except NoMatch:
            self.source.rewind_to(begin)
            if first and (yield from self._is_object(char)) and (yield from self.json.breaks_off()):
                raise MalformedCall from None
            raise
        finally:
            self.json.guarded = False
        if fenced and (yield from self.json.space()) == "`" and (yield from self.json.at_fence()):
            self.source.pos += 3
        return emitted

    def _is_object(self, char: str) -> Steps[bool]:
        """True if an object, or a list of objects, begins at ``pos``: a list of anything else may be Python."""
        begin = self.source.offset
        if char == "[":
            self.source.pos += 1
            char = yield from self.json.space()
            self.source.rewind_to(begin)
        return char == "{"

    def _skip_value(self) -> Steps[None]:
        self.json.guarded = False
        try:
            yield from self.json.value([])
        except (MalformedCall, Truncated):
            pass
        self.sink.skipped_to = self.source.offset


def _tool_or_noop(sink: CallEmitter, rules: ToolRules, name: str) -> str | None:
    """Return the tool that a name means, or the name itself if it means "no tool"."""
    return name if name in sink.noop_names else rules.resolve(name)


class Codecs:
    """All codecs, in the order they are tried; each is created when the ones before it did not fit.

    ``closers``: markers that end wrappers. ``ends``: all markers and tokens that cannot be part of a call.
    """

    def __init__(self, context: Context, closers: tuple[str, ...], ends: MarkerSet) -> None:
        self._made: list[Codec] = []
        self._others = _codecs(context, closers, ends)

    def __iter__(self) -> Iterator[Codec]:
        yield from self._made
        for codec in self._others:
            self._made.append(codec)
            yield codec


def _codecs(context: Context, closers: tuple[str, ...], ends: MarkerSet) -> Iterator[Codec]:
    yield JsonCalls(context)
    yield XmlCalls(context, ends)
    yield NestedCalls(context)
    yield KeyValueCalls(context, closers, ends)
    yield GemmaCalls(context, ends)
    yield PythonCalls(context, context.source, context.calls, lambda name: _resolve_and_record(context, name))
    arguments: tuple[ArgumentCodec, ...] = (JsonArguments(context), BracketArguments(context))
    yield NamedCalls(context, arguments, closers)
    yield CodeCalls(context, _tags(ends))


def _resolve_and_record(context: Context, name: str) -> str | None:
    """Return the tool that a name means; record it for the case that the call is cut off."""
    found = context.rules.resolve(name)
    context.calls.name = found or ""
    return found


@lru_cache(maxsize=64)
def _tags(ends: MarkerSet) -> MarkerSet:
    return marker_set(tuple(literal for literal in ends.literals if literal[0] == "<"))
