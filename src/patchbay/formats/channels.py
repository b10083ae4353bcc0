"""Replies that are a sequence of framed messages, ``<start>header<begin>body<end>``: the header says what the body is.

A body of the answer goes back to the scanner, which reads it like any prose; the marker that ends it comes back here.
Reasoning and quoted answers are read in place, calls by the codecs. A body ends at its end marker and just as well at the next
header, for models leave ends out. Where several formats share a marker, the whole header decides whose it is. A start that no
header follows is prose; where a message may begin, it is a leaked token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from patchbay.formats.codecs.json import JsonArguments, fence_line
from patchbay.formats.codecs.named import ArgumentCodec, Parameters, TagArguments
from patchbay.formats.context import Context, Reader
from patchbay.formats.envelopes import Codec, ControlTokenReader
from patchbay.formats.source import MalformedCall, MarkerSet, NoMatch, Steps, Truncated, marker_set
from patchbay.formats.spec import Body, Channels, Header, Kind, Wrapper
from patchbay.formats.values.json_strict import escaped
from patchbay.formats.values.raw_text import end_text_call, start_text_call

_ROOM = 256
_HALF_MARKER = re.compile(r"<\|?\w*$")
CALLS = (Kind.NAMED, Kind.CALLS)


@dataclass(frozen=True)
class Message:
    """A message whose header was read: ``pos`` is where its body begins. ``start``: where the header began."""

    row: Channels
    body: Body
    start: int


class HeaderReader(Reader):
    """Reads headers of the formats that are asked for."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.named = context.named
        self.last: Channels | None = None
        """The format of the last message."""

    def implied(self, rows: Iterable[Channels]) -> Steps[Message | None]:
        """Read a header whose start was left out; None, with nothing read, if there is none."""
        source = self.source
        for alike in _implied_together(tuple(rows)):
            source.mark()
            message = yield from self.read("", alike)
            if message is not None:
                return message
            source.release()
        return None

    def read(self, marker: str, rows: Iterable[Channels], *, whole: bool = False) -> Steps[Message | None]:
        """Read a header from its start on. None, with nothing read, if it is none. ``whole``: no marker of it is left out."""
        start = self.source.offset
        message = yield from self._parts(marker, rows, whole=whole or not marker)
        if message is None:
            self.source.rewind_to(start)
        return message

    def _parts(self, marker: str, rows: Iterable[Channels], *, whole: bool) -> Steps[Message | None]:
        """Read a header's markers and the texts between them."""
        source = self.source
        start, implied = source.offset, not marker
        source.pos += len(marker)
        if not implied:
            alone = self._settle(start, rows, Header((), marker))
            if alone is not None:
                return alone if alone.body.kind in CALLS or self._is_due(alone.row) else None
        rows = tuple(row for row in rows if marker in row.starts or implied)
        wanted, begins, divides = _looked_for(rows)
        pieces: list[tuple[str, str]] = []
        while True:
            end, found = wanted.next(source, source.pos)
            text = source.buf[source.pos : end]
            rows = tuple(row for row in rows if self._fits(row, text, implied=implied))
            if not rows:
                return None
            if source.offset + len(text) - start > _ROOM:
                return None if whole else self._bare(start, rows, pieces, marker, text)
            if implied and found and not (pieces or text.strip()):
                return None
            if found in begins or found in divides:
                pieces.append((marker, text))
                source.pos = end + len(found)
                if found in begins:
                    return self._settle(start, rows, Header(tuple(pieces), found))
                marker = found
            elif found:
                return None if whole else self._bare(start, rows, pieces, marker, text, over=True)
            elif source.ended:
                return self._cut(start, rows, Header((*pieces, (marker, text)), ""))
            else:
                yield

    def _fits(self, row: Channels, text: str, *, implied: bool) -> bool:
        fits = row.implied if implied else row.fits
        return fits is None or fits(text, self.rules)

    def _settle(self, start: int, rows: Iterable[Channels], header: Header) -> Message | None:
        """The message whose header was read: the last message's format first, then the first that is sure."""
        found = [
            Message(row, body, start)
            for row in rows
            if (header.begin in row.begins or header.begin in row.alone)
            and (body := row.reads(header)) is not None
            and (row.special or self._is_meant(row, header, body))
            and (not body.damaged or self._is_due(row))
        ]
        if not found:
            return None
        return next((message for message in found if message.row is self.last), None) or next(
            (message for message in found if not message.body.doubtful), found[0]
        )

    def _is_meant(self, row: Channels, header: Header, body: Body) -> bool:
        """True if a header whose start is mere text, or was left out, is one: it names a tool, or the format is known."""
        if body.kind in CALLS and body.name:
            known = self.rules.resolve if any(marker for marker, _ in header.pieces) else self.rules.offered
            return known(body.name) is not None
        return self.named or row is self.last

    def _is_due(self, row: Channels) -> bool:
        """True if a message of the row's is what must stand here: nothing but markup came before, or such messages did."""
        return row is self.last or not self.emitter.has_text or self.emitter.after_markup

    def _bare(
        self, start: int, rows: Iterable[Channels], pieces: list[tuple[str, str]], marker: str, text: str, *, over: bool = False
    ) -> Message | None:
        """The message of a header whose last marker was left out; ``over``: what follows ``text`` ends the message."""
        source = self.source
        for row in rows:
            if row.words is None or not self._is_due(row):
                continue
            length = row.words(text)
            body = row.reads(Header((*pieces, (marker, text[:length])), "")) if length or over else None
            if body is not None:
                source.pos += length
                return Message(row, body, start)
        return None

    def _cut(self, start: int, rows: Iterable[Channels], header: Header) -> Message | None:
        """What becomes of a header that the text ended in: a call that was begun, or markup."""
        source = self.source
        *before, (marker, text) = header.pieces
        if not (marker or before):
            return None  # no marker was seen: these are words
        header = Header((*before, (marker, _HALF_MARKER.sub("", text))), "")
        for row in rows:
            body = row.reads(header)
            if body is None:
                continue
            name = self.rules.offered(body.name) if body.kind in CALLS else None
            last = header.pieces[-1][1]
            if name is None and (
                not row.special or body.damaged or (last and row.implied is not None and not row.implied(last, self.rules))
            ):
                continue
            source.pos = len(source.buf)
            if name is not None or (body.kind in CALLS and self.rules.begins_name(body.name)):
                self.calls.name = name or ""
                self.calls.cut(source.since(start))
            return Message(row, Body(Kind.NOTHING), start)
        return None


@lru_cache(maxsize=64)
def _implied_together(rows: tuple[Channels, ...]) -> tuple[tuple[Channels, ...], ...]:
    """The rows whose headers may lack their start, those with the same markers behind it together."""
    found: dict[tuple[str, ...], list[Channels]] = {}
    for row in rows:
        if row.implied is not None:
            found.setdefault((*row.begins, *row.alone), []).append(row)
    return tuple(map(tuple, found.values()))


@lru_cache(maxsize=256)
def _looked_for(rows: tuple[Channels, ...]) -> tuple[MarkerSet, frozenset[str], frozenset[str]]:
    """What a header of these formats is read up to, and of that what ends it and what stands in it."""
    return (
        marker_set(tuple(mark for row in rows for mark in (*row.divides, *row.begins, *row.endings))),
        frozenset(mark for row in rows for mark in (*row.begins, *row.alone)),
        frozenset(mark for row in rows for mark in row.divides),
    )


_BEGINNINGS = frozenset("{[<")


class ChannelCalls(Reader):
    """Reads bodies. ``codecs``: those of calls with their names. ``ends``: all markers and special tokens."""

    def __init__(self, context: Context, codecs: Iterable[Codec], ends: MarkerSet) -> None:
        super().__init__(context)
        self.sink = context.calls
        self.json = context.json
        self.codecs = codecs
        self.arguments: tuple[ArgumentCodec, ...] = (JsonArguments(context), TagArguments(context), Parameters(context, ends))
        self.item = 0
        """Where the call begins that is being read; 0 for the first one, which begins with the header."""

    def known(self, body: Body) -> bool:
        """True if the header names an offered tool."""
        return self.rules.offered(body.name) is not None

    def read(self, body: Body, row: Channels) -> Steps[int]:
        """Read what stands at ``pos``, at most to one of the row's markers; how many calls were emitted.

        Raises NoMatch, or returns 0, where it is none, and Truncated.
        """
        name = self.rules.resolve(body.name) if body.name else None
        self.sink.name, self.sink.ahead, self.sink.noop_names = name or "", "", ()
        self.item = 0
        if name is None and body.name:
            raise NoMatch
        self.json.stops = marker_set(row.endings)
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

    def look_like_one(self) -> Steps[bool]:
        """True if what stands at ``pos`` begins as calls do; nothing but blanks is read."""
        return (yield from self.source.space()) in _BEGINNINGS

    def begin(self) -> Steps[bool]:
        """True if a call's arguments begin at ``pos``, or the text ends there: blanks, and a fence's first line, are read."""
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
        """Read calls, one after the other; 0 if what stands first is none."""
        source, ends, noise_markers = self.source, marker_set(row.endings), marker_set(row.noise_markers)
        wrapper = Wrapper(openers=(), closers=row.noise_markers)
        emitted = 0
        while True:
            after = source.offset
            char = yield from self.source.space()
            lead = yield from noise_markers.at(source)
            if lead:
                source.pos += len(lead)
            elif emitted and char and char in ",;":
                source.pos += 1
            elif not char and not emitted:
                raise Truncated
            elif char not in _BEGINNINGS or (yield from ends.at(source)):
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
        """True if the tool that the header names takes a text, whatever it says, as its one argument."""
        return self._code_key(body) is not None

    def runs_code(self, body: Body) -> bool:
        """True if that text is a program: the parameter's name says so."""
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
        """Begin a call with code as its argument; the inside of its JSON is appended to the list that is returned."""
        name, key = self.rules.resolve(body.name), self._code_key(body)
        assert name is not None
        assert key is not None
        return start_text_call(self.sink, name, key)


_ATTRIBUTES = re.compile("[^>]*")
_ANSWERS = (Kind.CONTENT, Kind.QUOTED, Kind.FOREIGN)


class ChannelReader:
    """Reads the messages of ``rows``. Where reasoning is not emitted as such, its messages stay in the answer as they stand."""

    def __init__(self, context: Context, rows: tuple[Channels, ...], codecs: Iterable[Codec], ends: MarkerSet) -> None:
        self.source = context.source
        self.emitter = context.emitter
        self.headers = HeaderReader(context)
        self.calls = ChannelCalls(context, codecs, ends)
        self.reasoning = context.reasoning
        self._rows = rows
        self._leaks = ControlTokenReader(context.source, context.emitter)
        self._open: Channels | None = None
        """The format of the message that the scanner is in."""
        self._made_up = False
        """The model went on with a message that is not its own."""
        self._verbatim = False
        """The last message was emitted as it stands."""
        self._ended = False
        """The last body was read to the marker that ends it."""

    def read(self) -> Steps[bool]:
        """Read a message whose start stands in the prompt; False if none is there."""
        message = yield from self.headers.implied(self._rows)
        if message is None or (self._is_a_word(message) and (yield from self._is_prose(message))):
            return False
        yield from self._messages(message)
        self.source.release()
        return True

    def _is_a_word(self, message: Message) -> bool:
        """True if a message's header is no more than a tool's name: a word like any other, if no call follows."""
        return message.body.kind in CALLS and not (message.row.special or self.headers.named)

    def _is_prose(self, message: Message) -> Steps[bool]:
        """True if no arguments follow a header, nor a program; then nothing is read."""
        source, calls = self.source, self.calls
        begin = source.offset
        if calls.runs_code(message.body) or (yield from calls.begin()):
            source.rewind_to(begin)
            return False
        source.rewind_to(message.start)
        source.release()
        return True

    def open(self, marker: str) -> Steps[bool]:
        """Read from a start on, up to where the answer goes on."""
        if self.emitter.opens_code:
            return False  # a word about the marker
        message = yield from self.headers.read(marker, self._rows)
        if message is not None:
            yield from self._messages(message)
            return True
        special = any(row.special for row in self._rows if marker in row.endings)
        return special and (yield from self._leaks.read(marker))

    def begin(self, marker: str) -> Steps[bool]:
        """Read a message from its start on; False, with nothing read, if its header is not whole."""
        message = yield from self.headers.read(marker, self._rows, whole=True)
        yield from self._messages(message)
        return message is not None

    def end(self, marker: str) -> Steps[bool]:
        """Read the end of a message of the answer; elsewhere it is a token that leaked."""
        if self.emitter.opens_code:
            return False
        row, self._open = self._open, None
        if row is None:
            return (yield from self._leaks.read(marker))
        self.source.pos += len(marker)
        self.emitter.markup()
        self.source.release()
        yield from self._messages((yield from self.headers.implied((row,))))
        return True

    def noise(self, marker: str) -> Steps[bool]:
        """Leave out anything that is not part of the message that the scanner is in."""
        if self._open is None or marker not in self._open.noise or self.emitter.opens_code:
            return False
        return (yield from self._noise(marker))

    def _messages(self, message: Message | None) -> Steps[None]:
        """Read messages up to the one that the scanner goes on with, or to the end of the last one."""
        while message is not None:
            self.headers.last, self._open, self._ended = message.row, None, False
            message = yield from self._message(message)
            if message is None and self._ended:
                self.emitter.markup()
                message = yield from self.headers.implied((self.headers.last,))

    def _message(self, message: Message) -> Steps[Message | None]:
        """Read a body; the next message, where its header ended this one."""
        source, emitter, row, kind = self.source, self.emitter, message.row, message.body.kind
        if kind in CALLS and not self._made_up:
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
            self._made_up |= kind is Kind.FOREIGN
            return (yield from self._body(row, emitter.text))
        elif kind is Kind.DROPPED:
            return (yield from self._body(row, _leave_out))
        return None

    def _call(self, message: Message) -> Steps[Message | None]:
        """Read a body that is a call, or several; one that is none stays in the answer."""
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
        looks_like_one = yield from calls.look_like_one()
        if not looks_like_one and calls.takes_code(body):
            return (yield from self._code(message))
        if looks_like_one or body.kind is Kind.NAMED or not (message.row.special and calls.known(body)):
            return (yield from self._verbatim_message(message))
        return (yield from self._message(replace(message, body=Body(Kind.QUOTED))))

    def _code(self, message: Message) -> Steps[Message | None]:
        """Read a body that is, as it stands, the one argument of the call that the header names."""
        pieces = self.calls.begin_code(message.body)
        self.source.release()
        following = yield from self._body(message.row, lambda text: pieces.append(escaped(text)))
        end_text_call(self.calls.sink, pieces)
        return following

    def _verbatim_message(self, message: Message) -> Steps[Message | None]:
        """Emit a message as a part of the answer, its markers too."""
        source, emitter = self.source, self.emitter
        header = source.since(message.start)
        source.release()
        emitter.text(header)
        self._verbatim = True
        return (yield from self._body(message.row, emitter.text, keep=True))

    def _body(self, row: Channels, emit: Callable[[str], None], *, keep: bool = False) -> Steps[Message | None]:
        """Emit a body to its end; the next message, where its header is the end. ``keep``: emit the marker that ends it, too."""
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
        """Read a marker that is no part of a body, and what belongs to it; False, with the marker read, if it is a part."""
        source = self.source
        source.pos += len(marker)
        if marker.endswith(":"):
            size = yield from source.run(0, _ATTRIBUTES)
            if not source.buf.startswith(">", source.pos + size):
                return False
            source.pos += size + 1
        return True


def _leave_out(_text: str) -> None:
    pass


def channel_marks(rows: Iterable[Channels]) -> tuple[str, ...]:
    """The markers that end a value of a call, outside of its strings."""
    return tuple(mark for row in rows for mark in (*row.divides, *row.begins, *row.endings) if mark[0] == "<")
