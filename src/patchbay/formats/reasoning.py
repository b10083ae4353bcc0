"""Reasoning between markers: where it counts, and what becomes of a call that is drafted in it.

An opening tag counts at the start of the reply and at the start of a line; in the middle of a line it is a word about the tag. At
the start of the reply it needs no closer (the reply may have been cut off); later it does, and is held back until the closer is
seen. A special token counts anywhere. A closer without an opener means that the prompt opened the reasoning. A call inside is a
draft if the closer follows; if the text ends without one, the model forgot to close and really called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from patchbay.formats.context import Context
from patchbay.formats.emitter import Emitter
from patchbay.formats.scanner import Region
from patchbay.formats.source import MarkerSet, Steps, extent, marker_set
from patchbay.formats.spec import ReasoningMarkers


class SeparateReasoning:
    """Reasoning is emitted apart from the content, and its markers go away ("" stands for one that the prompt wrote)."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.text = emitter.reasoning

    def begins(self, _marker: str) -> None:
        """Begin to emit reasoning."""
        self.emitter.markup()

    def ends(self, _marker: str) -> None:
        """Go back to content."""
        self.emitter.end_reasoning()

    def unopened_closer(self, _marker: str) -> None:
        """Say of all content so far that it was reasoning."""
        self.emitter.reclassify_as_reasoning()

    def repeated_closer(self, _marker: str) -> None:
        """Leave the marker of reasoning that is closed already out."""

    def unclosed(self) -> None:
        """Do nothing where the text is over, or a call may begin, before the reasoning is closed."""


class InlineReasoning:
    """Reasoning is content, markers and all. What follows it begins like a line: a call may stand there.

    Markers with nothing but white space between them are no reasoning that could be asked for, and go away.
    """

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self._empty: list[str] | None = None
        """The opener and the white space behind it, as long as there is nothing else."""

    def begins(self, marker: str) -> None:
        """Hold the marker back until something follows."""
        self._empty = [marker]

    def text(self, text: str) -> None:
        """Emit a piece of it."""
        if self._empty is not None and not text.strip():
            self._empty.append(text)
            return
        self.unclosed()
        self.emitter.text(text)

    def unclosed(self) -> None:
        """Emit what was held back."""
        held, self._empty = self._empty, None
        if held is not None:
            self.emitter.text("".join(held))

    def ends(self, marker: str) -> None:
        """Emit the marker; a line begins behind it."""
        if self._empty is not None:
            self._empty = None
            self.emitter.markup()
        else:
            self.repeated_closer(marker)

    def unopened_closer(self, marker: str) -> None:
        """Emit the marker, or leave it out where nothing came before it."""
        if self.emitter.has_text:
            self.repeated_closer(marker)
        else:
            self.emitter.markup()

    def repeated_closer(self, marker: str) -> None:
        """Emit the marker."""
        self.emitter.text(marker)
        self.emitter.blank = True


ReasoningSink = SeparateReasoning | InlineReasoning
_FENCE = "```"


class ReasoningSyntax:
    """What some reasoning markers come to, made once for each set of formats.

    ``calls``: the markers that open calls. ``messages``: those that begin the next message, and so end the reasoning that the
    prompt opened. ``named``: ``reasoning_markers`` are those of the one format that the text is known to be in. ``stops``:
    special tokens, no part of the reasoning where the text ends behind them.
    """

    def __init__(
        self,
        reasoning_markers: Sequence[ReasoningMarkers],
        *,
        calls: Iterable[str],
        messages: Iterable[str],
        stops: Iterable[str],
        named: bool,
    ) -> None:
        self.calls = frozenset(calls)
        self.messages = frozenset(messages)
        self.by_opener = {opener: thought for thought in reversed(reasoning_markers) for opener in thought.openers}
        self.named = named
        self.special = frozenset(closer for thought in reasoning_markers if thought.special for closer in thought.closers)
        self.alone = _closers(thought for thought in reasoning_markers if thought.alone)
        self.ends = _closers(thought for thought in reasoning_markers if named or thought.alone or thought.special)
        self.stops = marker_set(tuple(sorted({*stops} - self.calls - self.messages)))


class ReasoningReader:
    """Reads what ``reasoning_markers`` mark.

    ``call``: the reader of a marker that opens calls; ``message``: that of markers that begin messages. ``prefilled``: the prompt
    opened the reasoning (None: found out from the text). ``sink``: where the reasoning goes.
    """

    def __init__(
        self,
        context: Context,
        reasoning_markers: ReasoningSyntax,
        call: Callable[[str], Region],
        message: Callable[[], Region],
        *,
        prefilled: bool | None,
        sink: ReasoningSink,
    ) -> None:
        self.source = context.source
        self.emitter = context.emitter
        self.fences = context.fences
        self.sink = sink
        self.prefilled = prefilled
        self.reasoning_markers = reasoning_markers
        self._call = call
        self._message = message
        self._seen = False
        self._unclosed = False
        self._mentioned = False
        self._no_closer = False
        self._spent = 0

    def begin(self) -> Steps[None]:
        """Read the reasoning that the prompt opened."""
        self.sink.begins("")
        yield from self._read(self.reasoning_markers.ends, closer_due=False, prefilled=True)

    def open(self, marker: str) -> Steps[bool]:
        """Read from an opener on."""
        source, emitter = self.source, self.emitter
        thought = self.reasoning_markers.by_opener[marker]
        if emitter.opens_code or not (thought.special or (emitter.blank and not emitter.quoted and not self._unclosed)):
            self._mentioned |= not thought.needs_closer
            return False
        if thought.needs_closer and emitter.has_text:
            return False
        closer_due = (emitter.has_text and not thought.special) or (thought.needs_closer and not self.reasoning_markers.named)
        size = yield from extent(source, marker)
        written = source.buf[source.pos : source.pos + size]
        source.pos += size
        if not size:
            return False
        if closer_due:
            begin = source.offset
            emitter.muted = True
            closed = yield from self._skip_to_closer(thought.closers)
            emitter.muted = False
            source.rewind_to(begin)
            if not closed:
                self._unclosed = not thought.needs_closer
                emitter.blank = True
                return False
        source.release()
        self.sink.begins(written)
        yield from self._read(thought.closers, closer_due=closer_due)
        return True

    def _skip_to_closer(self, closers: tuple[str, ...]) -> Steps[bool]:
        return bool((yield from self.source.read_to(marker_set(closers), len)))

    def _read(self, closers: tuple[str, ...], *, closer_due: bool, prefilled: bool = False) -> Steps[None]:
        """Read up to and with the closer, or to the end of the text."""
        source, reasoning_markers = self.source, self.reasoning_markers
        self._seen = True
        wanted = marker_set(closers) if closer_due else _wanted(reasoning_markers, closers, prefilled)
        while True:
            marker = yield from source.read_to(wanted, self.sink.text)
            if marker in closers:
                size = yield from extent(source, marker)
                source.pos += size
                if size:
                    self.sink.ends(source.buf[source.pos - size : source.pos])
                    return
                self.sink.text(marker)
                source.pos += len(marker)
                continue
            if prefilled and marker in reasoning_markers.messages:
                self.sink.unclosed()
                source.mark()
                if (yield from self._message()(marker)):
                    source.release()
                    return
                source.pos += len(marker)
                self.sink.text(source.take())
            elif marker in reasoning_markers.stops.literals:
                if (yield from self._stopped()):
                    return
            elif marker:
                self.sink.unclosed()
                if (yield from self._draft(marker, closers)):
                    return
            else:
                self.sink.unclosed()
                return

    def _stopped(self) -> Steps[bool]:
        """Read special tokens and the white space behind them: dropped, and True, if the text ends there; else they are text."""
        source = self.source
        source.mark()
        while token := (yield from self.reasoning_markers.stops.at(source)):
            size = yield from extent(source, token)
            source.pos += size or len(token)
            yield from source.space()
        over = not (yield from source.peek())
        text = source.take()
        if over:
            self.sink.unclosed()
        else:
            self.sink.text(text)
        return over

    def _draft(self, marker: str, closers: tuple[str, ...]) -> Steps[bool]:
        """At a call inside reasoning: True if it is a call after all, and the reasoning is over."""
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
        if begin >= self._spent and (yield from self._call(marker)(marker)):
            self._unclosed = True
            source.release()
            return True
        self._spent = max(self._spent, source.offset)
        source.rewind_to(begin + len(marker))
        self.sink.text(source.take())
        return False

    def _is_call_block(self) -> Steps[bool]:
        """Read a fence's run; whether the fence is one of calls."""
        at_line_start = self.emitter.blank
        yield from self.fences.run("`")
        label = yield from self.fences.peek_label()
        return at_line_start and self.fences.is_tag(label)

    def unexpected_closer(self, marker: str) -> Steps[bool]:
        """A closer outside of reasoning: what came before it was reasoning, if nothing speaks against it.

        A special token is dropped.
        """
        emitter = self.emitter
        size = yield from extent(self.source, marker)
        if emitter.opens_code or not size:
            return False
        special = marker in self.reasoning_markers.special
        # Where the prompt is said to have opened nothing, a tag may be prose: but no special token, nor what a reply begins with.
        word = self.prefilled is False and not special and emitter.has_text
        if self._seen or self._mentioned or emitter.has_calls or word:
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
def _wanted(reasoning_markers: ReasoningSyntax, closers: tuple[str, ...], prefilled: bool) -> MarkerSet:  # noqa: FBT001 - positional for the cache
    """What reasoning is read up to where its closer is not known to follow."""
    messages = reasoning_markers.messages if prefilled else ()
    return marker_set(tuple(sorted({*closers, *reasoning_markers.calls, _FENCE, *messages, *reasoning_markers.stops.literals})))


def _closers(reasoning_markers: Iterable[ReasoningMarkers]) -> tuple[str, ...]:
    return tuple(sorted({closer for thought in reasoning_markers for closer in thought.closers}))
