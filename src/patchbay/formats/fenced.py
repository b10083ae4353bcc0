"""The fenced format: blocks that hold calls, labelled with the contract's tag or not labelled at all.

A tagged block is read leniently: other words on its lines are prose, JSON is repaired, closers may be missing or stand in odd
places. A block labelled ``json``, or without a label, holds calls only when the whole of it is calls of offered tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from patchbay.formats.callreader import CallReader
from patchbay.formats.emitter import Emitter
from patchbay.formats.fencemarks import LABEL, FenceMarks
from patchbay.formats.jsonreader import FENCES, JsonReader
from patchbay.formats.parts import Parts
from patchbay.formats.source import CutOff, NotACall, Steps

_LINE_ROOM = 200


class _Staged:
    """Calls of a block that is not accepted yet."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def start(self, name: str) -> list[str]:
        pieces: list[str] = []
        self.calls.append((name, pieces))
        return pieces

    def end(self) -> None:
        pass

    def passed_over(self, text: str) -> None:
        pass  # such a block is not accepted


class _Told:
    """Tells calls as they are read; prose that came before the first one in its block goes first."""

    def __init__(self, emitter: Emitter, reader: JsonReader) -> None:
        self.emitter = emitter
        self.reader = reader
        self.before: list[str] = []
        self.begun = False
        """A call of this block was told."""

    def start(self, name: str) -> list[str]:
        self.begun = True
        if self.before:
            self.emitter.text("".join(self.before).lstrip("\r\n"))
            self.before.clear()
        self.reader.guarded = False
        return self.emitter.start(name)

    def end(self) -> None:
        self.emitter.end()

    def passed_over(self, text: str) -> None:
        if self.begun:
            self.emitter.text(text)
        else:
            self.before.append(text)


class BlockReader:
    """Reads the blocks that hold calls, from behind their opening run; the source is marked before it."""

    def __init__(self, parts: Parts, marks: FenceMarks) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.marks = marks
        self._rules = rules = parts.rules
        self._json = JsonReader(parts.source, parts.emitter.note)
        self._told = _Told(parts.emitter, self._json)
        self._calls = CallReader(
            parts.source,
            self._json,
            self._told,
            is_tool=rules.is_tool,
            schema_keys=rules.schema_keys,
            note=parts.emitter.note,
        )

    @property
    def live_string(self) -> bool:
        """Waiting inside a string of a call's arguments."""
        return self._json.live_string and self.emitter.in_call

    def tagged(self, *, line_start: bool) -> Steps[bool]:
        """Read a block whose label is the tag; False, with the source rewound to the mark, if it holds no call."""
        self._json.quoted = self.emitter.quoted
        self._json.guarded = True
        self._told.before.clear()
        self._told.begun = False
        try:
            opened = yield from self._opener(line_start=line_start)
            read = opened and (yield from self._block())
        except NotACall:
            read = False
        finally:
            self._json.guarded = False
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
                except CutOff:
                    self.emitter.cut(source.since(start) if count else source.take(), self._calls.name)
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
        if (yield from self._is_opener()):
            source.rewind()
            if length >= 6:  # a closer and an opener, glued
                source.pos += 3
            return
        source.take()

    def _is_opener(self) -> Steps[bool]:
        """Whether the label after the run at ``pos`` opens a block: the tag, or a word that is all of the line."""
        source = self.source
        label = yield from self.marks.peek_label()
        if self.marks.is_tag(label):
            return True
        if not label or not source.buf.startswith(label, source.pos):
            return False
        while True:
            rest = source.buf[source.pos + len(label) : source.pos + len(label) + 2].lstrip(" \t")
            if rest or source.ended:
                return rest[:1] in ("\n", "\r")
            yield

    def unmarked(self) -> Steps[bool]:
        """Read a fence labelled ``json`` or not at all: calls if it holds nothing but calls. Else rewound to the mark."""
        source, reader = self.source, self._json
        staged = _Staged()
        self._calls.calls, self._calls.strict, self._calls.is_tool = staged, True, self._rules.is_offered
        reader.guarded = True
        try:
            found = LABEL.match(source.buf, source.pos)
            assert found is not None
            source.pos = found.end()
            accepted = yield from self._only_calls()
        except (NotACall, CutOff):
            accepted = False
        finally:
            self._calls.calls, self._calls.strict, self._calls.is_tool = self._told, False, self._rules.is_tool
            reader.guarded = False
        if not accepted or any(self._echoes_schema(name, "".join(pieces)) for name, pieces in staged.calls):
            source.rewind()
            return False
        source.take()
        for name, pieces in staged.calls:
            self.emitter.start(name).extend(pieces)
            self.emitter.end()
        return True

    def _only_calls(self) -> Steps[bool]:
        source, reader = self.source, self._json
        count = 0
        while True:
            char = yield from reader.space()
            if char and char in "{[":
                read = yield from self._calls.read()
                if not read:
                    return False
                count += read
            elif char and char in ",;" and count:
                source.pos += 1
            elif not char:
                return count > 0
            elif char in FENCES and count and (yield from reader.at_fence()):
                yield from self.marks.run(char)
                return not (yield from self._is_opener())
            else:
                return False

    def _echoes_schema(self, name: str, arguments: str) -> bool:
        """A tool's own schema shown as an example has the shape of a call: its arguments are a JSON Schema."""
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return False
        if not isinstance(value, dict) or not {"type", "properties"} <= value.keys():
            return False
        keys = self._rules.schema_keys(name)
        return keys is None or not {"type", "properties"} <= keys
