"""Replies that are a sequence of framed messages: what their headers say becomes of their bodies.

A body of the answer goes back to the scanner, which reads it like any prose; the marker that ends it comes back here. Reasoning
and quoted answers are read to their end in place, calls by ``channelcalls``. A body is over at its end marker and just as well at
the next header, for models leave ends out. Where several formats share a marker, the whole header decides whose it is.

A start that no header follows is prose, like every marker in it; where a message may begin, it is a token that leaked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from patchbay.formats.channelrows import Body, Channels, Kind
from patchbay.formats.channels.channelcalls import ChannelCalls
from patchbay.formats.channels.channelheaders import CALLS, HeaderReader, Message
from patchbay.formats.engine.marks import Marks, marks
from patchbay.formats.engine.source import BrokenOff, CutOff, NotACall, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.regions.leaks import LeakReader
from patchbay.formats.regions.wrapped import Shape

_NOISE_ROOM = 128
_ANSWERS = (Kind.CONTENT, Kind.QUOTED, Kind.FOREIGN)


class ChannelReader:
    """Reads the messages of ``rows``. Where reasoning is not told as such, its messages stay in the answer as they stand."""

    def __init__(self, parts: Parts, rows: tuple[Channels, ...], shapes: Iterable[Shape], ends: Marks) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.headers = HeaderReader(parts)
        self.calls = ChannelCalls(parts, shapes, ends)
        self.reasoning = parts.reasoning
        self._rows = rows
        self._leaks = LeakReader(parts.source, parts.emitter)
        self._open: Channels | None = None
        """The format of the message that the scanner is in."""
        self._made_up = False
        """The model went on with a message that is not its own."""
        self._verbatim = False
        """The last message was told as it stands."""
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
        """Whether a message's header is no more than a tool's name: a word like any other, if no call follows."""
        return message.body.kind in CALLS and not (message.row.loud or self.headers.named)

    def _is_prose(self, message: Message) -> Steps[bool]:
        """Whether no arguments follow a header, nor a program; then nothing is read."""
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
        loud = any(row.loud for row in self._rows if marker in row.endings)
        return loud and (yield from self._leaks.read(marker))

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
        """Leave out what is no part of the message that the scanner is in."""
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
            return (yield from self._as_it_stands(message))
        source.release()
        if kind is Kind.REASONING:
            emitter.thought_begins()
            following = yield from self._body(row, emitter.thought)
            emitter.thought_ends()
            return following
        if kind in _ANSWERS and not self._verbatim:
            emitter.message_begins()
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
            told = yield from calls.read(body, message.row)
        except CutOff:
            source.pos = len(source.buf)
            calls.telling.cut(source.since(max(message.start, calls.item)))
            return None
        except BrokenOff:
            yield from calls.json.skip_to_end()
            calls.telling.cut(source.since(max(message.start, calls.item)))
            told = 1
        except NotACall:
            told = 0
        if told:
            self._open = message.row
            return None
        source.rewind_to(begin)
        looks_like_one = yield from calls.look_like_one()
        if not looks_like_one and calls.takes_code(body):
            return (yield from self._code(message))
        if looks_like_one or body.kind is Kind.NAMED or not (message.row.loud and calls.known(body)):
            return (yield from self._as_it_stands(message))
        return (yield from self._message(replace(message, body=Body(Kind.QUOTED))))

    def _code(self, message: Message) -> Steps[Message | None]:
        """Read a body that is, as it stands, the one argument of the call that the header names."""
        tell = self.calls.begin_code(message.body)
        self.source.release()
        following = yield from self._body(message.row, tell)
        self.calls.end_code()
        return following

    def _as_it_stands(self, message: Message) -> Steps[Message | None]:
        """Tell a message as a part of the answer, its markers too."""
        source, emitter = self.source, self.emitter
        header = source.since(message.start)
        source.release()
        emitter.text(header)
        self._verbatim = True
        return (yield from self._body(message.row, emitter.text, keep=True))

    def _body(self, row: Channels, tell: Callable[[str], None], *, keep: bool = False) -> Steps[Message | None]:
        """Tell a body to its end; the next message, where its header is the end. ``keep``: tell the marker that ends it, too."""
        source, wanted = self.source, marks(row.endings)
        while True:
            end, marker = wanted.next(source, source.pos)
            tell(source.buf[source.pos : end])
            source.pos = end
            if marker in row.ends or marker in row.thought_ends:
                source.pos += len(marker)
                self._ended = True
                if keep:
                    tell(marker)
                return None
            if marker in row.stops or (not marker and source.ended):
                return None
            if not marker:
                yield
            elif marker in row.noise:
                if not (yield from self._noise(marker)):
                    tell(marker)
            else:
                source.mark()
                following = yield from self.headers.read(marker, self._rows)
                if following is not None and not (keep and following.body.kind is Kind.NOTHING):
                    return following
                if following is None:
                    source.pos += len(marker)
                tell(source.take())

    def _noise(self, marker: str) -> Steps[bool]:
        """Read a marker that is no part of a body, and what belongs to it; False, with the marker read, if it is a part."""
        source = self.source
        source.pos += len(marker)
        while marker.endswith(":"):
            end = source.buf.find(">", source.pos, source.pos + _NOISE_ROOM)
            if end >= 0:
                source.pos = end + 1
                break
            if source.ended or len(source.buf) - source.pos >= _NOISE_ROOM:
                return False
            yield
        return True


def _leave_out(_text: str) -> None:
    pass


def channel_marks(rows: Iterable[Channels]) -> tuple[str, ...]:
    """The markers that end a value of a call, outside of its strings."""
    return tuple(mark for row in rows for mark in (*row.divides, *row.begins, *row.endings) if mark[0] == "<")
