"""The fenced format: blocks that hold calls, labelled with the contract's tag.

A tagged block is read leniently: other words on its lines are prose, JSON is repaired, closers may be missing or stand in odd
places. Blocks without the tag that hold nothing but calls are read in ``loose``.
"""

from __future__ import annotations

from collections.abc import Callable

from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.source import BrokenOff, CutOff, NotACall, Steps
from patchbay.formats.engine.telling import CallSink
from patchbay.formats.fences.fencemarks import LABEL, FenceMarks
from patchbay.formats.parts import Parts
from patchbay.formats.shapes.callreader import CallReader
from patchbay.formats.values.jsonreader import FENCES

_LINE_ROOM = 200


class _Told:
    """Tells calls as they are read; prose that came before the first one in its block goes first."""

    def __init__(self, emitter: Emitter, calls: CallSink) -> None:
        self.emitter = emitter
        self.calls = calls
        self.before: list[str] = []
        self.begun = False
        """A call of this block was told."""

    def start(self, name: str) -> list[str]:
        self.begun = True
        if self.before:
            self.emitter.text("".join(self.before).lstrip("\r\n"))
            self.before.clear()
        return self.calls.start(name)

    def end(self) -> None:
        self.calls.end()

    def passed_over(self, text: str) -> None:
        if self.begun:
            self.emitter.text(text)
        else:
            self.before.append(text)


def _leave_out(_text: str) -> None:
    pass


class BlockReader:
    """Reads the blocks that hold calls, from behind their opening run; the source is marked before it."""

    def __init__(self, parts: Parts, marks: FenceMarks) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.marks = marks
        self._rules = rules = parts.rules
        self._json = parts.json
        self._telling = parts.calls
        self._told = _Told(parts.emitter, parts.calls)
        self._calls = CallReader(parts.source, parts.json, self._told, rules, note=parts.emitter.note)

    def tagged(self, *, line_start: bool) -> Steps[bool]:
        """Read a block whose label is the tag; False, with the source rewound to the mark, if it holds no call."""
        self._json.quoted = self.emitter.quoted
        self._json.guarded = self._json.fenced = True
        self._told.before.clear()
        self._told.begun = False
        try:
            opened = yield from self._opener(line_start=line_start)
            read = opened and (yield from self._block())
        except NotACall:
            read = False
        finally:
            self._json.guarded = self._json.fenced = False
        if not read:
            self.source.rewind()
        return read

    def _opener(self, *, line_start: bool) -> Steps[bool]:
        """Read the label and what else stands on the opener's line; whether a value may follow."""
        source = self.source
        found = LABEL.match(source.buf, source.pos)
        assert found is not None
        source.pos = found.end()
        glued = True
        while True:
            char = yield from source.peek()
            if char in ("\n", "\r", "[") or not char:
                return bool(char)
            if char == "{":
                while len(source.buf) - source.pos < 2 and not source.ended:
                    yield
                following = source.buf[source.pos + 1 : source.pos + 2]
                if not (glued and following.isalpha()):
                    return True
            elif char in " \t":
                source.pos += 1
                glued = False
                continue
            # other words on the line (tool_call:json, tool_call{x}, tool_call id=1): passed over, if it is a fence's line at all
            while source.find("\n", source.pos) < 0 and not source.ended:
                if len(source.buf) - source.pos > _LINE_ROOM:
                    return False
                yield
            end = source.find("\n", source.pos)
            words = source.buf[source.pos : end] if end >= 0 else ""
            if not line_start or end < 0 or len(words) > _LINE_ROOM or FENCES & set(words):
                return False
            source.pos = end
            return True

    def _block(self) -> Steps[bool]:
        """Read a tagged block's body and its closer; whether a call was in it."""
        source, reader, told = self.source, self._json, self._told
        count = 0
        after_value = False
        while True:
            blanks: list[str] = []
            char = yield from reader.space(blanks, comments=False)
            if not char:
                if count:
                    source.take()
                return count > 0
            if char in FENCES and (yield from reader.at_fence()):
                if count:
                    yield from self._closer(char)
                return count > 0
            if char in "{[":
                start = source.offset
                reader.guarded = True
                try:
                    read = yield from self._calls.read()
                except NotACall:
                    source.rewind_to(start)
                    told.passed_over("".join(blanks))
                    told.passed_over((yield from self._calls.skip_value()))
                    after_value = False
                except BrokenOff:
                    while (char := (yield from source.peek())) and not (char in FENCES and (yield from reader.at_fence())):
                        yield from self._prose(_leave_out)
                    self._telling.name = self._calls.name
                    self._telling.cut(source.since(start))
                    count += 1
                except CutOff:
                    self._telling.name = self._calls.name
                    self._telling.cut(source.since(start) if count else source.take())
                    return True
                else:
                    count += read
                    after_value = True
            elif after_value and char in ",;}]":
                source.pos += 1
                if char in "}]":
                    self.emitter.note("stray_bracket")
            else:
                after_value = False
                told.passed_over("".join(blanks))
                yield from self._prose(told.passed_over)

    def _prose(self, tell: Callable[[str], None]) -> Steps[None]:
        """Read words in a block, up to a line's end, a value or a fence."""
        source = self.source
        first = True
        while True:
            buf, pos = source.buf, source.pos
            end = source.find("\n", pos + first)
            limit = end if end >= 0 else len(buf)
            ends = [at for at in (source.find(mark, pos + first) for mark in ("{", "```", "~~~")) if 0 <= at < limit]
            if ends:
                end = min(ends)
            elif end >= 0:
                end += 1
                ends.append(end)
            elif source.ended:
                end = len(buf)
            else:
                end = max(pos, len(buf) - 2)
            if end > pos:
                tell(buf[pos:end])
                source.pos = end
                first = False
            if ends or source.ended:
                return
            yield

    def _closer(self, char: str) -> Steps[None]:
        """Read the fence that ends a block with calls; an opener that stands in its place is left to be read as one."""
        source = self.source
        source.take()
        source.mark()
        length = yield from self.marks.run(char)
        if (yield from self.marks.is_opener()):
            source.rewind()
            if length >= 6:  # a closer and an opener, glued
                source.pos += 3
            return
        source.take()
