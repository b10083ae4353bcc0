"""Reasoning between markers: where it counts, and what becomes of a call that is drafted in it.

An opening tag counts at the start of the reply and at the start of a line; in the middle of a line it is a word about the tag. At
the start of the reply it needs no closer (the reply may have been cut off); later it does, and is held back until the closer is
seen. A special token (``Thought.loud``) counts anywhere. A closer without an opener means that the prompt opened the reasoning. A
call inside is a draft if the closer follows; if the text ends without one, the model forgot to close and really called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.marks import extent, marks
from patchbay.formats.engine.scanner import Region
from patchbay.formats.engine.source import Source, Steps
from patchbay.formats.fences.reader import FenceReader
from patchbay.formats.regions.thoughts import TakenOut, Thoughts
from patchbay.formats.rows import Thought

_FENCE = "```"


class ReasoningReader:
    """Reads what ``thoughts`` mark.

    ``calls``: the markers that open calls. ``messages``: those that begin the next message, and so end the reasoning that the
    prompt opened. ``prefilled``: the prompt opened the reasoning (None: found out from the text). ``named``: ``thoughts`` are
    those of the one format that the text is known to be in. ``told``: where the reasoning goes. ``stops``: special tokens,
    no part of the reasoning where the text ends behind them.
    """

    def __init__(
        self,
        source: Source,
        emitter: Emitter,
        thoughts: Sequence[Thought],
        *,
        fences: FenceReader | None = None,
        calls: Mapping[str, Region] | None = None,
        messages: Mapping[str, Region] | None = None,
        prefilled: bool | None = None,
        named: bool = False,
        told: Thoughts | None = None,
        stops: tuple[str, ...] = (),
    ) -> None:
        self.source = source
        self.emitter = emitter
        self.told = told or TakenOut(emitter)
        self.fences = fences
        self.prefilled = prefilled
        self._calls = calls or {}
        self._messages = messages or {}
        self._thoughts = {opener: thought for thought in reversed(thoughts) for opener in thought.openers}
        self._named = named
        self._loud = frozenset(closer for thought in thoughts if thought.loud for closer in thought.closers)
        self._alone = _closers(thought for thought in thoughts if thought.alone)
        self._ends = _closers(thought for thought in thoughts if named or thought.alone or thought.loud)
        self._drafts = (*self._calls, _FENCE) if fences else tuple(self._calls)
        self._stops = marks(tuple(token for token in stops if token not in self._calls and token not in self._messages))
        self._seen = False
        self._unclosed = False
        self._mentioned = False
        self._no_closer = False
        self._spent = 0

    def regions(self) -> Mapping[str, Region]:
        """What the scanner hands over."""
        return dict.fromkeys(self._alone, self.stray) | dict.fromkeys(self._thoughts, self.open)

    def begin(self) -> Steps[None]:
        """Read the reasoning that the prompt opened."""
        self.told.begins("")
        yield from self._read(self._ends, closer_due=False, messages=tuple(self._messages))

    def open(self, marker: str) -> Steps[bool]:
        """Read from an opener on."""
        source, emitter = self.source, self.emitter
        thought = self._thoughts[marker]
        if emitter.opens_code or not (thought.loud or (emitter.blank and not emitter.quoted and not self._unclosed)):
            self._mentioned |= not thought.paired
            return False
        if thought.paired and emitter.has_text:
            return False
        closer_due = (emitter.has_text and not thought.loud) or (thought.paired and not self._named)
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
                self._unclosed = not thought.paired
                emitter.blank = True
                return False
        source.release()
        self.told.begins(written)
        yield from self._read(thought.closers, closer_due=closer_due)
        return True

    def _skip_to_closer(self, closers: tuple[str, ...]) -> Steps[bool]:
        source, wanted = self.source, marks(closers)
        while True:
            source.pos, marker = wanted.next(source, source.pos)
            if marker or source.ended:
                return bool(marker)
            yield

    def _read(self, closers: tuple[str, ...], *, closer_due: bool, messages: tuple[str, ...] = ()) -> Steps[None]:
        """Read up to and with the closer, or to the end of the text."""
        source = self.source
        self._seen = True
        wanted = marks(closers if closer_due else (*closers, *self._drafts, *messages, *self._stops.literals))
        while True:
            end, marker = wanted.next(source, source.pos)
            self.told.text(source.buf[source.pos : end])
            source.pos = end
            if marker in closers:
                size = yield from extent(source, marker)
                source.pos += size
                if size:
                    self.told.ends(source.buf[source.pos - size : source.pos])
                    return
                self.told.text(marker)
                source.pos += len(marker)
                continue
            if marker in messages:
                self.told.stays_open()
                source.mark()
                if (yield from self._messages[marker](marker)):
                    source.release()
                    return
                source.pos += len(marker)
                self.told.text(source.take())
            elif marker in self._stops.literals:
                if (yield from self._stopped()):
                    return
            elif marker:
                self.told.stays_open()
                if (yield from self._draft(marker, closers)):
                    return
            elif source.ended:
                self.told.stays_open()
                return
            else:
                yield

    def _stopped(self) -> Steps[bool]:
        """Read special tokens and the white space behind them: dropped, and True, if the text ends there; else they are text."""
        source = self.source
        source.mark()
        while token := (yield from self._stops.at(source)):
            size = yield from extent(source, token)
            source.pos += size or len(token)
            while (char := (yield from source.peek())) and char in " \t\r\n":
                source.pos += 1
        over = not (yield from source.peek())
        text = source.take()
        if over:
            self.told.stays_open()
        else:
            self.told.text(text)
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
            self.told.text(source.take())
            return False
        self._no_closer = True
        source.rewind_to(begin)
        if marker == _FENCE:
            self.told.ends("")
            self._unclosed = True
            source.release()
            return True
        if begin >= self._spent and (yield from self._calls[marker](marker)):
            self._unclosed = True
            source.release()
            return True
        self._spent = max(self._spent, source.offset)
        source.rewind_to(begin + len(marker))
        self.told.text(source.take())
        return False

    def _is_call_block(self) -> Steps[bool]:
        """Read a fence's run; whether the fence is one of calls."""
        assert self.fences is not None
        at_line_start = self.emitter.blank
        yield from self.fences.marks.run("`")
        label = yield from self.fences.marks.peek_label()
        return at_line_start and self.fences.marks.is_tag(label)

    def stray(self, marker: str) -> Steps[bool]:
        """A closer outside of reasoning: what came before it was reasoning, if nothing speaks against it.

        A special token is dropped.
        """
        emitter = self.emitter
        size = yield from extent(self.source, marker)
        if emitter.opens_code or not size:
            return False
        loud = marker in self._loud
        # Where the prompt is said to have opened nothing, a tag may be prose: but no special token, nor what a reply begins with.
        word = self.prefilled is False and not loud and emitter.has_text
        if self._seen or self._mentioned or emitter.has_calls or word:
            if not loud:
                return False
            tell = self.told.said_twice
        else:
            tell = self.told.was_before
        self._seen = True
        self.source.pos += size
        tell(self.source.buf[self.source.pos - size : self.source.pos])
        return True


def _closers(thoughts: Iterable[Thought]) -> tuple[str, ...]:
    return tuple(sorted({closer for thought in thoughts for closer in thought.closers}))
