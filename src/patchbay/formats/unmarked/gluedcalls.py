"""Calls that lost the markers in front of them: ``functions.f:0{…}``, ``f[ARGS]{…}``, ``f{…}``, ``f`` above a fence.

Servers that strip special tokens leave the name and its arguments glued together, as nobody writes them otherwise; models leave
the first marker out and write the second. Where such a call may stand, and whether it counts, is for ``loose`` to say.
"""

from __future__ import annotations

import re

from patchbay.formats.engine.marks import marks
from patchbay.formats.engine.source import CutOff, NotACall, Steps
from patchbay.formats.engine.telling import CallSink
from patchbay.formats.parts import Parts
from patchbay.formats.shapes.jsonmembers import tell_text
from patchbay.formats.shapes.pycalls import has_ended
from patchbay.formats.unmarked.nameline import NameLineCalls

_NAME = re.compile(r"[^\W\d](?:[\w./:-]|\\_)*")
_INDEX = re.compile(r":\d{0,9}$")
_ID = re.compile(r"\w{0,40}")
_SEPARATORS = marks(("[ARGS]", "[CALL_ID]", "<|tool_call_argument_begin|>"))
_MAX_NAME = 256


class GluedCalls:
    """Reads one such call of an offered tool and tells it to ``sink``."""

    def __init__(self, parts: Parts, sink: CallSink) -> None:
        self.source = parts.source
        self.rules = parts.rules
        self.sink = sink
        self.called = ""
        """The name of the call being read, as far as it is known: for a call that is cut off."""
        self._json = parts.json
        self._below = NameLineCalls(parts, sink)

    def read(self) -> Steps[int]:
        """Read a call; 1. Raises NotACall, CutOff."""
        name = self.rules.offered((yield from self._name()))
        if name is None:
            raise NotACall
        if (yield from self._below.fits()):
            self.called = name
            yield from self._below.read(name)
            return 1
        marked = yield from self._separators()
        if (yield from self.source.peek()) != "{":
            raise NotACall
        if not (marked or (yield from self._is_json())):
            raise NotACall
        self.called = name
        written: list[str] = []
        self._json.guarded = True
        try:
            yield from self._json.value(written)
        finally:
            self._json.guarded = False
        tell_text(self.sink, self.rules, name, "".join(written))
        return 1

    def _name(self) -> Steps[str]:
        """Read a name and the index behind it; the name."""
        source = self.source
        while True:
            found = _NAME.match(source.buf, source.pos)
            if found is None:
                raise NotACall
            name = _INDEX.sub("", found.group())
            if found.end() < len(source.buf) and has_ended(source, found.end()):
                break
            if source.ended or len(name) > _MAX_NAME or not self.rules.begins_name(name):
                raise NotACall
            yield
        source.pos = found.end()
        return name

    def _separators(self) -> Steps[bool]:
        """Read the markers between name and arguments, and the id in them; whether there were any."""
        source = self.source
        begin = source.offset
        while True:
            while (char := (yield from source.peek())) and char in " \t\n" and source.offset > begin:
                source.pos += 1
            separator = yield from _SEPARATORS.at(source)
            if not separator:
                return source.offset > begin
            source.pos += len(separator)
            if separator == "[CALL_ID]":
                while True:
                    found = _ID.match(source.buf, source.pos)
                    assert found is not None
                    source.pos = found.end()
                    if source.pos < len(source.buf) or source.ended:
                        break
                    yield

    def _is_json(self) -> Steps[bool]:
        """Whether what the bracket at ``pos`` opens is an object as JSON writes it: with nothing else to say so, this has to."""
        source = self.source
        begin = source.offset
        source.pos += 1
        char = yield from self._json.space(comments=False)
        source.rewind_to(begin)
        if not char:
            raise CutOff
        return char in '"}'
