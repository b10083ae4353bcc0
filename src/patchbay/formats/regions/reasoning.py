"""Reasoning between markers: where it counts, and what becomes of a call that is drafted in it.

An opening tag counts at the start of the reply and at the start of a line; in the middle of a line it is a word about the tag. At
the start of the reply it needs no closer (the reply may have been cut off); later it does, and is held back until the closer is
seen. A special token (``Thought.loud``) counts anywhere. A closer without an opener means that the prompt opened the reasoning. A
call inside is a draft if the closer follows; if the text ends without one, the model forgot to close and really called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from patchbay.formats.engine.marks import Marks, extent, marks
from patchbay.formats.engine.scanner import Region
from patchbay.formats.engine.source import Steps
from patchbay.formats.parts import Parts
from patchbay.formats.regions.thoughts import Thoughts
from patchbay.formats.rows import Thought

_FENCE = "```"


class ThoughtMarks:
    """What some reasoning markers come to, made once for each set of formats.

    ``calls``: the markers that open calls. ``messages``: those that begin the next message, and so end the reasoning that the
    prompt opened. ``named``: ``thoughts`` are those of the one format that the text is known to be in. ``stops``: special tokens,
    no part of the reasoning where the text ends behind them.
    """

    def __init__(
        self, thoughts: Sequence[Thought], *, calls: Iterable[str], messages: Iterable[str], stops: Iterable[str], named: bool
    ) -> None:
        self.calls = frozenset(calls)
        self.messages = frozenset(messages)
        self.by_opener = {opener: thought for thought in reversed(thoughts) for opener in thought.openers}
        self.named = named
        self.loud = frozenset(closer for thought in thoughts if thought.loud for closer in thought.closers)
        self.alone = _closers(thought for thought in thoughts if thought.alone)
        self.ends = _closers(thought for thought in thoughts if named or thought.alone or thought.loud)
        self.stops = marks(tuple(sorted({*stops} - self.calls - self.messages)))


class ReasoningReader:
    """Reads what ``thoughts`` mark.

    ``call``: the reader of a marker that opens calls; ``message``: that of markers that begin messages. ``prefilled``: the prompt
    opened the reasoning (None: found out from the text). ``told``: where the reasoning goes.
    """

    def __init__(
        self,
        parts: Parts,
        thoughts: ThoughtMarks,
        call: Callable[[str], Region],
        message: Callable[[], Region],
        *,
        prefilled: bool | None,
        told: Thoughts,
    ) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.fences = parts.fences
        self.told = told
        self.prefilled = prefilled
        self.thoughts = thoughts
        self._call = call
        self._message = message
        self._seen = False
        self._unclosed = False
        self._mentioned = False
        self._no_closer = False
        self._spent = 0

    def begin(self) -> Steps[None]:
        """Read the reasoning that the prompt opened."""
        self.told.begins("")
        yield from self._read(self.thoughts.ends, closer_due=False, prefilled=True)

    def open(self, marker: str) -> Steps[bool]:
        """Read from an opener on."""
        source, emitter = self.source, self.emitter
        thought = self.thoughts.by_opener[marker]
        if emitter.opens_code or not (thought.loud or (emitter.blank and not emitter.quoted and not self._unclosed)):
            self._mentioned |= not thought.paired
            return False
        if thought.paired and emitter.has_text:
            return False
        closer_due = (emitter.has_text and not thought.loud) or (thought.paired and not self.thoughts.named)
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

    def _read(self, closers: tuple[str, ...], *, closer_due: bool, prefilled: bool = False) -> Steps[None]:
        """Read up to and with the closer, or to the end of the text."""
        source, thoughts = self.source, self.thoughts
        self._seen = True
        wanted = marks(closers) if closer_due else _wanted(thoughts, closers, prefilled)
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
            if prefilled and marker in thoughts.messages:
                self.told.stays_open()
                source.mark()
                if (yield from self._message()(marker)):
                    source.release()
                    return
                source.pos += len(marker)
                self.told.text(source.take())
            elif marker in thoughts.stops.literals:
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
        while token := (yield from self.thoughts.stops.at(source)):
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
        if begin >= self._spent and (yield from self._call(marker)(marker)):
            self._unclosed = True
            source.release()
            return True
        self._spent = max(self._spent, source.offset)
        source.rewind_to(begin + len(marker))
        self.told.text(source.take())
        return False

    def _is_call_block(self) -> Steps[bool]:
        """Read a fence's run; whether the fence is one of calls."""
        at_line_start = self.emitter.blank
        yield from self.fences.run("`")
        label = yield from self.fences.peek_label()
        return at_line_start and self.fences.is_tag(label)

    def stray(self, marker: str) -> Steps[bool]:
        """A closer outside of reasoning: what came before it was reasoning, if nothing speaks against it.

        A special token is dropped.
        """
        emitter = self.emitter
        size = yield from extent(self.source, marker)
        if emitter.opens_code or not size:
            return False
        loud = marker in self.thoughts.loud
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


@lru_cache(maxsize=256)
def _wanted(thoughts: ThoughtMarks, closers: tuple[str, ...], prefilled: bool) -> Marks:  # noqa: FBT001 - positional for the cache
    """What reasoning is read up to where its closer is not known to follow."""
    messages = thoughts.messages if prefilled else ()
    return marks(tuple(sorted({*closers, *thoughts.calls, _FENCE, *messages, *thoughts.stops.literals})))


def _closers(thoughts: Iterable[Thought]) -> tuple[str, ...]:
    return tuple(sorted({closer for thought in thoughts for closer in thought.closers}))
