"""Reasoning between markers: where it counts, and how a call drafted in it is treated.

An opening tag counts at the start of the reply and of a line; in the middle of a line it is only mentioned. At the start of the
reply it needs no closer (the reply may have been cut off); later it does, and is held back until the closer is seen. One that
ends the reply is dropped. A special token counts anywhere. A closer without an opener means that the prompt opened the reasoning.
A call inside is a draft if the closer follows; if the text ends without one, the model forgot to close and really called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from patchbay.formats.context import Context
from patchbay.formats.emitter import Emitter
from patchbay.formats.scanner import RegionReader
from patchbay.formats.source import MarkerSet, Steps, discard, marker_length, marker_set
from patchbay.formats.spec import ReasoningMarkers


class SeparateReasoning:
    """Emits reasoning separately from the content and drops its markers (a marker "" was written by the prompt)."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.text = emitter.reasoning

    def begins(self, _marker: str) -> None:
        """Begin reasoning."""
        self.emitter.markup()

    def ends(self, _marker: str) -> None:
        """End reasoning."""
        self.emitter.end_reasoning()

    def unopened_closer(self, _marker: str) -> None:
        """Turn all content so far into reasoning."""
        self.emitter.reclassify_as_reasoning()

    def repeated_closer(self, _marker: str) -> None:
        """Drop a second closer."""

    def unclosed(self) -> None:
        """Do nothing if the text ends, or a call may begin, before the reasoning is closed."""


class InlineReasoning:
    """Emits reasoning as content, with its markers. The text behind it counts as the beginning of a line: a call may stand there.

    Markers with only white space between them are dropped.
    """

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self._empty: list[str] | None = None
        """The opener and the white space behind it, while nothing else came."""

    def begins(self, marker: str) -> None:
        """Hold the marker back until something follows."""
        self._empty = [marker]

    def text(self, text: str) -> None:
        """Emit a piece of reasoning."""
        if self._empty is not None and not text.strip():
            self._empty.append(text)
            return
        self.unclosed()
        self.emitter.text(text)

    def unclosed(self) -> None:
        """Emit what was held back."""
        pieces, self._empty = self._empty, None
        if pieces is not None:
            self.emitter.text("".join(pieces))

    def ends(self, marker: str) -> None:
        """Emit the marker, or drop an empty pair."""
        if self._empty is not None:
            self._empty = None
            self.emitter.markup()
        else:
            self.repeated_closer(marker)

    def unopened_closer(self, marker: str) -> None:
        """Emit the marker, or drop it if nothing came before it."""
        if self.emitter.has_text:
            self.repeated_closer(marker)
        else:
            self.emitter.markup()

    def repeated_closer(self, marker: str) -> None:
        """Emit the marker; the text behind it counts as the beginning of a line."""
        self.emitter.text(marker)
        self.emitter.at_line_start = True


ReasoningSink = SeparateReasoning | InlineReasoning
_FENCE = "```"


class ReasoningSyntax:
    """The reasoning markers of a set of formats, in compiled form.

    ``calls``: markers that open calls. ``messages``: markers that begin the next message, and so end reasoning that the prompt
    opened.
    ``named``: the format was given, not detected. ``stops``: special tokens that are not reasoning where the text ends behind
    them.
    """

    def __init__(
        self,
        rows: Sequence[ReasoningMarkers],
        *,
        calls: Iterable[str],
        messages: Iterable[str],
        stops: Iterable[str],
        named: bool,
    ) -> None:
        self.calls = frozenset(calls)
        self.messages = frozenset(messages)
        self.by_opener = {opener: row for row in reversed(rows) for opener in row.openers}
        self.named = named
        self.special = frozenset(closer for row in rows if row.special for closer in row.closers)
        self.alone = _closers(row for row in rows if row.alone)
        self.ends = _closers(row for row in rows if named or row.alone or row.special)
        self.stops = marker_set(tuple(sorted({*stops} - self.calls - self.messages)))


class ReasoningReader:
    """Reads reasoning.

    ``call``: returns the reader of a marker that opens calls; ``message``: returns that of markers that begin messages.
    ``prefilled``:
    the prompt opened the reasoning (None: decide by the text). ``sink``: receives the reasoning.
    """

    def __init__(
        self,
        context: Context,
        syntax: ReasoningSyntax,
        call: Callable[[str], RegionReader],
        message: Callable[[], RegionReader],
        *,
        prefilled: bool | None,
        sink: ReasoningSink,
    ) -> None:
        self.source = context.source
        self.emitter = context.emitter
        self.fences = context.fences
        self._separate = context.reasoning
        self.sink = sink
        self.prefilled = prefilled
        self.syntax = syntax
        self._call = call
        self._message = message
        self._seen = False
        self._unclosed = False
        self._mentioned = False
        self._no_closer = False
        self._read_until = 0

    def begin(self) -> Steps[None]:
        """Read the reasoning that the prompt opened."""
        self.sink.begins("")
        yield from self._read(self.syntax.ends, closer_due=False, prefilled=True)

    def open(self, marker: str) -> Steps[bool]:
        """Read from an opener on."""
        source, emitter = self.source, self.emitter
        markers = self.syntax.by_opener[marker]
        if emitter.next_is_mention or not (
            markers.special or (emitter.at_line_start and not emitter.in_blockquote and not self._unclosed)
        ):
            self._mentioned |= not markers.needs_closer
            return False
        if markers.needs_closer and emitter.has_text:
            return False
        closer_due = (emitter.has_text and not markers.special) or (markers.needs_closer and not self.syntax.named)
        size = yield from marker_length(source, marker)
        written = source.buf[source.pos : source.pos + size]
        source.pos += size
        if not size:
            return False
        if closer_due:
            begin = source.offset
            if self._separate and not markers.needs_closer and (yield from self._ends_text()):
                emitter.markup()
                return True
            source.rewind_to(begin)
            emitter.muted = True
            closed = yield from self._skip_to_closer(markers.closers)
            emitter.muted = False
            source.rewind_to(begin)
            if not closed:
                self._unclosed = not markers.needs_closer
                emitter.at_line_start = True
                return False
        source.release()
        self.sink.begins(written)
        yield from self._read(markers.closers, closer_due=closer_due)
        return True

    def _skip_to_closer(self, closers: tuple[str, ...]) -> Steps[bool]:
        return bool((yield from self.source.read_to(marker_set(closers), discard)))

    def _read(self, closers: tuple[str, ...], *, closer_due: bool, prefilled: bool = False) -> Steps[None]:
        """Read up to and including the closer, or to the end of the text."""
        source, syntax = self.source, self.syntax
        self._seen = True
        wanted = marker_set(closers) if closer_due else _stop_markers(syntax, closers, prefilled)
        while True:
            marker = yield from source.read_to(wanted, self.sink.text)
            if marker in closers:
                size = yield from marker_length(source, marker)
                source.pos += size
                if size:
                    self.sink.ends(source.buf[source.pos - size : source.pos])
                    return
                self.sink.text(marker)
                source.pos += len(marker)
                continue
            if prefilled and marker in syntax.messages:
                self.sink.unclosed()
                source.mark()
                if (yield from self._message()(marker)):
                    source.release()
                    return
                source.pos += len(marker)
                self.sink.text(source.take())
            elif marker in syntax.stops.literals:
                if (yield from self._read_stops()):
                    return
            elif marker:
                self.sink.unclosed()
                if (yield from self._read_call(marker, closers)):
                    return
            else:
                self.sink.unclosed()
                return

    def _read_stops(self) -> Steps[bool]:
        """Read special tokens and white space behind them. If the text ends there drop them and return True, else emit them."""
        source = self.source
        source.mark()
        at_end = yield from self._ends_text()
        text = source.take()
        if at_end:
            self.sink.unclosed()
        else:
            self.sink.text(text)
        return at_end

    def _ends_text(self) -> Steps[bool]:
        """Read special tokens and white space; return whether the text ends behind them."""
        source = self.source
        while (yield from source.space()) and (token := (yield from self.syntax.stops.at(source))):
            source.pos += (yield from marker_length(source, token)) or len(token)
        return not (yield from source.peek())

    def _read_call(self, marker: str, closers: tuple[str, ...]) -> Steps[bool]:
        """Read a call inside reasoning. Return True if it is really called, so that the reasoning is over."""
        source = self.source
        begin = source.offset
        source.mark()
        if marker == _FENCE:
            is_call = yield from self._is_call_block()
        else:
            is_call = True
            source.pos += len(marker)
        if not is_call or (not self._no_closer and (yield from self._skip_to_closer(closers))):
            self.sink.text(source.take())
            return False
        self._no_closer = True
        source.rewind_to(begin)
        if marker == _FENCE:
            self.sink.ends("")
            self._unclosed = True
            source.release()
            return True
        if begin >= self._read_until and (yield from self._call(marker)(marker)):
            self._unclosed = True
            source.release()
            return True
        self._read_until = max(self._read_until, source.offset)
        source.rewind_to(begin + len(marker))
        self.sink.text(source.take())
        return False

    def _is_call_block(self) -> Steps[bool]:
        """Read a fence's run; return whether the fence holds calls."""
        at_line_start = self.emitter.at_line_start
        yield from self.fences.run("`")
        label = yield from self.fences.peek_label()
        return at_line_start and self.fences.is_tag(label)

    def unexpected_closer(self, marker: str) -> Steps[bool]:
        """Read a closer outside of reasoning: the text before it was reasoning, unless something speaks against it.

        A special token is dropped.
        """
        emitter = self.emitter
        size = yield from marker_length(self.source, marker)
        if emitter.next_is_mention or not size:
            return False
        special = marker in self.syntax.special
        # If the prompt opened nothing, a tag may be prose, unless it is a special token or begins the reply.
        is_prose = self.prefilled is False and not special and emitter.has_text
        if self._seen or self._mentioned or emitter.has_calls or is_prose:
            if not special:
                return False
            emit = self.sink.repeated_closer
        else:
            emit = self.sink.unopened_closer
        self._seen = True
        self.source.pos += size
        emit(self.source.buf[self.source.pos - size : self.source.pos])
        return True


@lru_cache(maxsize=256)
def _stop_markers(syntax: ReasoningSyntax, closers: tuple[str, ...], prefilled: bool) -> MarkerSet:  # noqa: FBT001 - positional for the cache
    """Return the markers to stop at in reasoning whose closer is not known to follow."""
    messages = syntax.messages if prefilled else ()
    return marker_set(tuple(sorted({*closers, *syntax.calls, _FENCE, *messages, *syntax.stops.literals})))


def _closers(rows: Iterable[ReasoningMarkers]) -> tuple[str, ...]:
    return tuple(sorted({closer for row in rows for closer in row.closers}))
