"""Replies that are a sequence of framed messages, ``<start>header<begin>body<end>``: the header says what the body is.

The body of an answer goes back to the scanner, which reads it like any prose; the marker that ends it comes back here. Reasoning
and quoted answers are read in place, calls by the codecs. A body ends at its end marker or at the next header, because models
leave end markers out. Where several formats share a marker, the whole header decides whose it is. A start without a header is
prose, or a leaked token where a message may begin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from patchbay.formats.codecs.json import JsonArguments, fence_line
from patchbay.formats.codecs.named import ArgumentCodec, Parameters, TagArguments
from patchbay.formats.context import Context, Reader
from patchbay.formats.source import MalformedCall, MarkerSet, NoMatch, Steps, Truncated, discard, marker_set
from patchbay.formats.spec import Body, Channels, Header, Kind, Wrapper
from patchbay.formats.values.json_strict import escaped
from patchbay.formats.values.raw_text import end_text_call, start_text_call
from patchbay.formats.wrappers import Codec, ControlTokenReader

_MAX_HEADER = 256
_HALF_MARKER = re.compile(r"<\|?\w*$")
CALLS = (Kind.NAMED, Kind.CALLS)


@dataclass(frozen=True)
class Message:
    """A message whose header was read: ``pos`` is at its body. ``start``: offset of the header."""

    row: Channels
    body: Body
    start: int


class HeaderReader(Reader):
    """Reads the headers of given formats."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.named = context.named
        self.last: Channels | None = None
        """Format of the last message."""

    def implied(self, rows: Iterable[Channels]) -> Steps[Message | None]:
        """Read a header whose start was left out; return None, with nothing read, if there is none."""
        source = self.source
        for alike in _implied_groups(tuple(rows)):
            source.mark()
            message = yield from self.read("", alike)
            if message is not None:
                return message
            source.release()
        return None

    def read(self, marker: str, rows: Iterable[Channels], *, whole: bool = False) -> Steps[Message | None]:
        """Read a header from its start on; return None, with nothing read, if it is not one.

        ``whole``: no marker may be missing.
        """
        start = self.source.offset
        message = yield from self._read_parts(marker, rows, whole=whole or not marker)
        if message is None:
            self.source.rewind_to(start)
        return message

    def _read_parts(self, marker: str, rows: Iterable[Channels], *, whole: bool) -> Steps[Message | None]:
        """Read a header's markers and the texts between them."""
        source = self.source
        start, implied = source.offset, not marker
        source.pos += len(marker)
        if not implied:
            message = self._choose(start, rows, Header((), marker))
            if message is not None:
                return message if message.body.kind in CALLS or self._may_begin_here(message.row) else None
        rows = tuple(row for row in rows if marker in row.starts or implied)
        stops, body_starts, dividers = _header_markers(rows)
        parts: list[tuple[str, str]] = []
        while True:
            end, found = stops.next(source, source.pos)
            text = source.buf[source.pos : end]
            rows = tuple(row for row in rows if self._fits(row, text, implied=implied))
            if not rows:
                return None
            if source.offset + len(text) - start > _MAX_HEADER:
                return None if whole else self._unterminated(start, rows, parts, marker, text)
            if implied and found and not (parts or text.strip()):
                return None
            if found in body_starts or found in dividers:
                parts.append((marker, text))
                source.pos = end + len(found)
                if found in body_starts:
                    return self._choose(start, rows, Header(tuple(parts), found))
                marker = found
            elif found:
                return None if whole else self._unterminated(start, rows, parts, marker, text, over=True)
            elif source.ended:
                return self._cut(start, rows, Header((*parts, (marker, text)), ""))
            else:
                yield

    def _fits(self, row: Channels, text: str, *, implied: bool) -> bool:
        fits = row.may_be_implied if implied else row.may_follow_start
        return fits is None or fits(text, self.rules)

    def _choose(self, start: int, rows: Iterable[Channels], header: Header) -> Message | None:
        """Return the message that a header begins: in the last message's format if possible, else in the first that is sure."""
        found = [
            Message(row, body, start)
            for row in rows
            if (header.body_start in row.body_starts or header.body_start in row.headerless_starts)
            and (body := row.parse_header(header)) is not None
            and (row.special or self._is_real(row, header, body))
            and (not body.damaged or self._may_begin_here(row))
        ]
        if not found:
            return None
        return next((message for message in found if message.row is self.last), None) or next(
            (message for message in found if not message.body.doubtful), found[0]
        )

    def _is_real(self, row: Channels, header: Header, body: Body) -> bool:
        """True if a header whose start is plain text, or was left out, is really one: it names a tool, or the format is known."""
        if body.kind in CALLS and body.name:
            resolve = self.rules.resolve if any(marker for marker, _ in header.parts) else self.rules.offered
            return resolve(body.name) is not None
        return self.named or row is self.last

    def _may_begin_here(self, row: Channels) -> bool:
        """True if a message of this format must begin here: only markup came before, or messages of the format did."""
        return row is self.last or not self.emitter.has_text or self.emitter.after_markup

    def _unterminated(
        self, start: int, rows: Iterable[Channels], parts: list[tuple[str, str]], marker: str, text: str, *, over: bool = False
    ) -> Message | None:
        """Return the message of a header whose last marker was left out. ``over``: the text behind ``text`` ends the message."""
        source = self.source
        for row in rows:
            if row.header_words is None or not self._may_begin_here(row):
                continue
            length = row.header_words(text)
            body = row.parse_header(Header((*parts, (marker, text[:length])), "")) if length or over else None
            if body is not None:
                source.pos += length
                return Message(row, body, start)
        return None

    def _cut(self, start: int, rows: Iterable[Channels], header: Header) -> Message | None:
        """Handle a header that the end of the text cut off: it began a call, or it is markup."""
        source = self.source
        *before, (marker, text) = header.parts
        if not (marker or before):
            return None  # no marker was seen: these are words
        header = Header((*before, (marker, _HALF_MARKER.sub("", text))), "")
        for row in rows:
            body = row.parse_header(header)
            if body is None:
                continue
            name = self.rules.offered(body.name) if body.kind in CALLS else None
            last = header.parts[-1][1]
            if name is None and (
                not row.special
                or body.damaged
                or (last and row.may_be_implied is not None and not row.may_be_implied(last, self.rules))
            ):
                continue
            source.pos = len(source.buf)
            if name is not None or (body.kind in CALLS and self.rules.begins_name(body.name)):
                self.calls.name = name or ""
                self.calls.cut(source.since(start))
            return Message(row, Body(Kind.NOTHING), start)
        return None


@lru_cache(maxsize=64)
def _implied_groups(rows: tuple[Channels, ...]) -> tuple[tuple[Channels, ...], ...]:
    """Group the rows whose headers may lack their start by the markers that follow."""
    found: dict[tuple[str, ...], list[Channels]] = {}
    for row in rows:
        if row.may_be_implied is not None:
            found.setdefault((*row.body_starts, *row.headerless_starts), []).append(row)
    return tuple(map(tuple, found.values()))


@lru_cache(maxsize=256)
def _header_markers(rows: tuple[Channels, ...]) -> tuple[MarkerSet, frozenset[str], frozenset[str]]:
    """Return the markers to stop at in a header of these formats, those that end it, and those that divide it."""
    return (
        marker_set(tuple(mark for row in rows for mark in (*row.dividers, *row.body_starts, *row.endings))),
        frozenset(mark for row in rows for mark in (*row.body_starts, *row.headerless_starts)),
        frozenset(mark for row in rows for mark in row.dividers),
    )


_CALL_STARTS = frozenset("{[<")


class ChannelCalls(Reader):
    """Reads the bodies of calls. ``codecs``: for calls that carry their names. ``ends``: all markers and special tokens."""

    def __init__(self, context: Context, codecs: Iterable[Codec], ends: MarkerSet) -> None:
        super().__init__(context)
        self.sink = context.calls
        self.json = context.json
        self.codecs = codecs
        self.arguments: tuple[ArgumentCodec, ...] = (JsonArguments(context), TagArguments(context), Parameters(context, ends))
        self.item = 0
        """Offset of the call being read; 0 for the first one, which begins with the header."""

    def names_tool(self, body: Body) -> bool:
        """True if the header names an offered tool."""
        return self.rules.offered(body.name) is not None

    def read(self, body: Body, row: Channels) -> Steps[int]:
        """Read calls at ``pos``, at most up to one of the row's markers; return the number of calls emitted.

        Raises NoMatch, or returns 0, if there is none; raises Truncated.
        """
        name = self.rules.resolve(body.name) if body.name else None
        self.sink.name, self.sink.text_before_call, self.sink.noop_names = name or "", "", ()
        self.item = 0
        if name is None and body.name:
            raise NoMatch
        self.json.stops = marker_set(row.endings)
        self.context.call_openers = frozenset((*row.body_starts, *row.headerless_starts))
        self.context.call_closers = frozenset((*row.ends, *row.reasoning_ends))
        try:
            if body.kind is Kind.CALLS:
                begin = self.source.offset
                emitted = yield from self._items(row)
                if emitted or name is None:
                    return emitted
                self.source.rewind_to(begin)
            return (yield from self._named(name, row)) if name is not None else 0
        finally:
            self.json.stops = None
            self.context.call_openers = self.context.call_closers = frozenset()

    def may_begin_call(self) -> Steps[bool]:
        """True if a call may begin at ``pos``; only white space is read."""
        return (yield from self.source.space()) in _CALL_STARTS

    def at_arguments(self) -> Steps[bool]:
        """True if a call's arguments, or the end of the text, stand at ``pos``; white space and a fence's first line are read."""
        char = yield from self.source.space()
        fits = not char
        for codec in self.arguments:
            fits = fits or (yield from codec.fits())
        if not fits or char != "`":
            return fits
        try:
            yield from fence_line(self.source)
        except NoMatch:
            return False
        return (yield from self.source.space()) in ("{", "")

    def _named(self, name: str, row: Channels) -> Steps[int]:
        self.sink.name = name
        char = yield from self.source.space()
        if not char:
            raise Truncated
        for codec in self.arguments:
            if (yield from codec.fits()):
                yield from codec.read(name)
                return 1
        if not row.special or not (yield from marker_set(row.endings).at(self.source)):
            raise NoMatch
        self.sink.start(name).append("{}")
        self.sink.end()
        return 1

    def _items(self, row: Channels) -> Steps[int]:
        """Read calls, one after the other; return 0 if the first item is not a call."""
        source, ends, noise_markers = self.source, marker_set(row.endings), marker_set(row.noise_markers)
        wrapper = Wrapper(openers=(), closers=row.noise_markers)
        emitted = 0
        while True:
            after = source.offset
            char = yield from self.source.space()
            noise = yield from noise_markers.at(source)
            if noise:
                source.pos += len(noise)
            elif emitted and char and char in ",;":
                source.pos += 1
            elif not char and not emitted:
                raise Truncated
            elif char not in _CALL_STARTS or (yield from ends.at(source)):
                source.rewind_to(after)
                return emitted
            else:
                if emitted:
                    self.item = source.offset
                read = yield from self._decode(wrapper, first=not emitted)
                if not read:
                    source.rewind_to(after)
                    return emitted
                emitted += read

    def _decode(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:
        source = self.source
        start = source.offset
        for codec in self.codecs:
            try:
                return (yield from codec.read(wrapper, first=first))
            except NoMatch:
                source.rewind_to(start)
        return 0

    # code

    def takes_code(self, body: Body) -> bool:
        """True if the tool that the header names takes any text as its only argument."""
        return self._code_key(body) is not None

    def runs_code(self, body: Body) -> bool:
        """True if that text is a program, by the parameter's name."""
        return self._code_key(body) == "code"

    def _code_key(self, body: Body) -> str | None:
        name = self.rules.resolve(body.name) if body.name else None
        if name is None:
            return None
        if self.rules.offered(name) is None:
            return "code" if name == "python" else None
        types = self.rules.types(name)
        keys = types.keys or ()
        key = "code" if "code" in keys else keys[0] if len(keys) == 1 else None
        return key if key is not None and types.is_text(key) else None

    def begin_code(self, body: Body) -> list[str]:
        """Begin a call with a text argument; the inside of its JSON is appended to the list that is returned."""
        name, key = self.rules.resolve(body.name), self._code_key(body)
        assert name is not None
        assert key is not None
        return start_text_call(self.sink, name, key)


_ATTRIBUTES = re.compile("[^>]*")
_ANSWERS = (Kind.CONTENT, Kind.QUOTED, Kind.FOREIGN)


class ChannelReader:
    """Reads the messages of ``rows``. If reasoning is not emitted separately, its messages stay in the answer unchanged."""

    def __init__(self, context: Context, rows: tuple[Channels, ...], codecs: Iterable[Codec], ends: MarkerSet) -> None:
        self.source = context.source
        self.emitter = context.emitter
        self.headers = HeaderReader(context)
        self.calls = ChannelCalls(context, codecs, ends)
        self.reasoning = context.reasoning
        self._rows = rows
        self._control_tokens = ControlTokenReader(context.source, context.emitter)
        self._open: Channels | None = None
        """Format of the message whose body the scanner is reading."""
        self._in_foreign_turn = False
        """The model continued with a message in another author's name."""
        self._verbatim = False
        """The last message was emitted with its markers."""
        self._ended = False
        """The last body was read up to its end marker."""

    def read(self) -> Steps[bool]:
        """Read a message whose start is in the prompt; return False if there is none."""
        message = yield from self.headers.implied(self._rows)
        if message is None or (self._is_a_word(message) and (yield from self._is_prose(message))):
            return False
        yield from self._messages(message)
        self.source.release()
        return True

    def _is_a_word(self, message: Message) -> bool:
        """True if the header is only a tool's name: an ordinary word unless a call follows."""
        return message.body.kind in CALLS and not (message.row.special or self.headers.named)

    def _is_prose(self, message: Message) -> Steps[bool]:
        """True if neither arguments nor a program follow the header; then nothing is read."""
        source, calls = self.source, self.calls
        begin = source.offset
        if calls.runs_code(message.body) or (yield from calls.at_arguments()):
            source.rewind_to(begin)
            return False
        source.rewind_to(message.start)
        source.release()
        return True

    def open(self, marker: str) -> Steps[bool]:
        """Read from a start on, up to where the answer goes on."""
        if self.emitter.next_is_mention:
            return False  # the marker is only mentioned
        message = yield from self.headers.read(marker, self._rows)
        if message is not None:
            yield from self._messages(message)
            return True
        special = any(row.special for row in self._rows if marker in row.endings)
        return special and (yield from self._control_tokens.read(marker))

    def begin(self, marker: str) -> Steps[bool]:
        """Read a message from its start on; return False, with nothing read, if its header is incomplete."""
        message = yield from self.headers.read(marker, self._rows, whole=True)
        yield from self._messages(message)
        return message is not None

    def end(self, marker: str) -> Steps[bool]:
        """Read the end of a message of the answer; elsewhere it is a leaked token."""
        if self.emitter.next_is_mention:
            return False
        row, self._open = self._open, None
        if row is None:
            return (yield from self._control_tokens.read(marker))
        self.source.pos += len(marker)
        self.emitter.markup()
        self.source.release()
        yield from self._messages((yield from self.headers.implied((row,))))
        return True

    def noise(self, marker: str) -> Steps[bool]:
        """Drop noise in the message that the scanner is reading."""
        if self._open is None or marker not in self._open.noise or self.emitter.next_is_mention:
            return False
        return (yield from self._noise(marker))

    def _messages(self, message: Message | None) -> Steps[None]:
        """Read messages up to the one whose body the scanner reads, or to the end of the last one."""
        while message is not None:
            self.headers.last, self._open, self._ended = message.row, None, False
            message = yield from self._message(message)
            if message is None and self._ended:
                self.emitter.markup()
                message = yield from self.headers.implied((self.headers.last,))

    def _message(self, message: Message) -> Steps[Message | None]:
        """Read a body; return the next message if its header ended this one."""
        source, emitter, row, kind = self.source, self.emitter, message.row, message.body.kind
        if kind in CALLS and not self._in_foreign_turn:
            return (yield from self._call(message))
        if kind in CALLS or (kind is Kind.REASONING and not self.reasoning):
            return (yield from self._verbatim_message(message))
        source.release()
        if kind is Kind.REASONING:
            emitter.markup()
            following = yield from self._body(row, emitter.reasoning)
            emitter.end_reasoning()
            return following
        if kind in _ANSWERS and not self._verbatim:
            emitter.begin_message()
        else:
            emitter.markup()
        self._verbatim = False
        if kind is Kind.CONTENT:
            self._open = row
        elif kind in _ANSWERS:
            self._in_foreign_turn |= kind is Kind.FOREIGN
            return (yield from self._body(row, emitter.text))
        elif kind is Kind.DROPPED:
            return (yield from self._body(row, discard))
        return None

    def _call(self, message: Message) -> Steps[Message | None]:
        """Read a body of calls; a body without calls stays in the answer."""
        source, calls, body = self.source, self.calls, message.body
        begin = source.offset
        try:
            emitted = yield from calls.read(body, message.row)
        except Truncated:
            source.pos = len(source.buf)
            calls.sink.cut(source.since(max(message.start, calls.item)))
            return None
        except MalformedCall:
            yield from calls.json.skip_to_end()
            calls.sink.cut(source.since(max(message.start, calls.item)))
            emitted = 1
        except NoMatch:
            emitted = 0
        if emitted:
            self._open = message.row
            return None
        source.rewind_to(begin)
        may_be_call = yield from calls.may_begin_call()
        if not may_be_call and calls.takes_code(body):
            return (yield from self._code(message))
        if may_be_call or body.kind is Kind.NAMED or not (message.row.special and calls.names_tool(body)):
            return (yield from self._verbatim_message(message))
        return (yield from self._message(replace(message, body=Body(Kind.QUOTED))))

    def _code(self, message: Message) -> Steps[Message | None]:
        """Read a body whose whole text is the only argument of the call that the header names."""
        pieces = self.calls.begin_code(message.body)
        self.source.release()
        following = yield from self._body(message.row, lambda text: pieces.append(escaped(text)))
        end_text_call(self.calls.sink, pieces)
        return following

    def _verbatim_message(self, message: Message) -> Steps[Message | None]:
        """Emit a message as part of the answer, with its markers."""
        source, emitter = self.source, self.emitter
        header = source.since(message.start)
        source.release()
        emitter.text(header)
        self._verbatim = True
        return (yield from self._body(message.row, emitter.text, keep=True))

    def _body(self, row: Channels, emit: Callable[[str], None], *, keep: bool = False) -> Steps[Message | None]:
        """Emit a body up to its end; return the next message if its header is the end. ``keep``: emit the end marker too."""
        source, wanted = self.source, marker_set(row.endings)
        while True:
            marker = yield from source.read_to(wanted, emit)
            if marker in row.ends or marker in row.reasoning_ends:
                source.pos += len(marker)
                self._ended = True
                if keep:
                    emit(marker)
                return None
            if not marker or marker in row.stops:
                return None
            if marker in row.noise:
                if not (yield from self._noise(marker)):
                    emit(marker)
            else:
                source.mark()
                following = yield from self.headers.read(marker, self._rows)
                if following is not None and not (keep and following.body.kind is Kind.NOTHING):
                    return following
                if following is None:
                    source.pos += len(marker)
                emit(source.take())

    def _noise(self, marker: str) -> Steps[bool]:
        """Read a noise marker and what belongs to it; return False, with the marker read, if it is part of the body."""
        source = self.source
        source.pos += len(marker)
        if marker.endswith(":"):
            size = yield from source.run(0, _ATTRIBUTES)
            if not source.buf.startswith(">", source.pos + size):
                return False
            source.pos += size + 1
        return True


def channel_markers(rows: Iterable[Channels]) -> tuple[str, ...]:
    """Return the markers that end a value of a call, outside of its strings."""
    return tuple(mark for row in rows for mark in (*row.dividers, *row.body_starts, *row.endings) if mark[0] == "<")
