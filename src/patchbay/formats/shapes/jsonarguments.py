"""Arguments written as JSON behind a call's name: an object, an object in a fence, or a string that holds one."""

from __future__ import annotations

import re

from patchbay.formats.engine.source import BrokenOff, CutOff, NotACall, Source, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.shapes.jsonmembers import object_text, tell_object, tell_text

_LABEL = re.compile(r"[ \t]*[\w+.-]*")
_LABEL_ROOM = 32
_STRING = re.compile(r'"\s{0,32}([{"])?')
_STRING_ROOM = 34


class JsonArguments:
    """Reads one JSON object, fenced, quoted or bare."""

    def __init__(self, parts: Parts) -> None:
        self.source = parts.source
        self.calls = parts.calls
        self.rules = parts.rules
        self.json = parts.json
        self.note = parts.emitter.note

    def fits(self) -> Steps[bool]:
        """Whether an object, a fence or a string that begins with an object stands at ``pos``."""
        char = yield from self.source.peek()
        if char == '"':
            return (yield from self._holds_object())
        return char == "{" or (char == "`" and (yield from self.json.at_fence()))

    def read(self, name: str) -> Steps[None]:
        """Read them and tell the call. Raises NotACall while it was not told, CutOff."""
        if self.source.buf[self.source.pos] == '"':
            arguments = object_text((yield from self.json.text()), self.note) or "{}"
            if arguments[0] != "{":
                raise NotACall
            tell_text(self.calls, self.rules, name, arguments, self.note)
            return
        fenced = yield from self._opened()
        self.json.guarded = False
        yield from tell_object(self.json, self.calls, self.rules, name)
        if fenced:
            yield from self._closed()

    def skip(self) -> Steps[None]:
        """Read them and tell nothing. Raises NotACall if there are none."""
        if not (yield from self.fits()):
            raise NotACall
        try:
            fenced = self.source.buf[self.source.pos] != '"' and (yield from self._opened())
            yield from self.json.value([])
            if fenced:
                yield from self._closed()
        except (BrokenOff, CutOff):
            pass

    def _opened(self) -> Steps[bool]:
        """Read a fence up to the object in it; whether there is one."""
        fenced = self.source.buf[self.source.pos] == "`"
        if fenced:
            yield from fence_line(self.source)
            if (yield from self.json.space()) != "{":
                raise NotACall
        return fenced

    def _closed(self) -> Steps[None]:
        if (yield from self.json.space()) == "`" and (yield from self.json.at_fence()):
            self.source.pos += 3

    def _holds_object(self) -> Steps[bool]:
        """Whether the string at ``pos`` begins with an object, or is empty."""
        source = self.source
        while True:
            found = _STRING.match(source.buf, source.pos)
            assert found is not None
            if found.end() < len(source.buf) or found[1] or source.ended or found.end() - source.pos >= _STRING_ROOM:
                return found[1] is not None
            yield


def fence_line(source: Source) -> Steps[None]:
    """Read a fence of three and its label; raises NotACall if what follows is too long for one."""
    source.pos += 3
    while True:
        found = _LABEL.match(source.buf, source.pos)
        assert found is not None
        if found.end() - source.pos > _LABEL_ROOM:
            raise NotACall
        if found.end() < len(source.buf) or source.ended:
            source.pos = found.end()
            return
        yield
