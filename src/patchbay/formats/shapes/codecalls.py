"""Code behind a code interpreter's marker: all that stands there is the one argument of the tool that runs code."""

from __future__ import annotations

import json
import re

from patchbay.formats.engine.marks import Marks
from patchbay.formats.engine.source import NotACall, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.rows import Wrapper

_METHOD = re.compile(r"\w+\.call\(")
_METHOD_ROOM = 80


class CodeCalls:
    """Reads code up to one of ``ends`` or the end of the text, where a tool that runs code was offered."""

    def __init__(self, parts: Parts, ends: Marks) -> None:
        self.source = parts.source
        self.calls = parts.calls
        self.rules = parts.rules
        self._ends = ends

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:
        """Read the code; 1."""
        source = self.source
        found = self._tool(wrapper) if first else None
        if found is None or (yield from self._is_call()):
            raise NotACall
        name, key = found
        pieces = self.calls.start(name)
        pieces.append(f'{{{json.dumps(key, ensure_ascii=False)}: "')
        while True:
            end, mark = self._ends.next(source, source.pos)
            pieces.append(_escaped(source.buf[source.pos : end]))
            source.pos = end
            if mark or source.ended:
                break
            source.live = self._passes
            yield
            source.live = None
        pieces.append('"}')
        self.calls.end()
        return 1

    def _tool(self, wrapper: Wrapper) -> tuple[str, str] | None:
        """The offered tool that takes code and its parameter for it, if there is exactly one such tool."""
        names = {name for written in wrapper.code if (name := self.rules.offered(written)) is not None}
        if len(names) != 1:
            return None
        name = names.pop()
        keys = self.rules.types(name).keys or ()
        key = "code" if "code" in keys or not keys else keys[0]
        return (name, key) if len(keys) <= 1 or key == "code" else None

    def _is_call(self) -> Steps[bool]:
        """Whether a call of another kind stands at ``pos``: what looks like one is not run as code."""
        source = self.source
        if (yield from source.peek()) in ("{", "[", ""):
            return True
        while len(source.buf) - source.pos < _METHOD_ROOM and not source.ended and "\n" not in source.buf[source.pos :]:
            yield
        return _METHOD.match(source.buf, source.pos) is not None

    def _passes(self, chunk: str) -> str | None:
        return None if any(char in chunk for char in self._ends.first) else _escaped(chunk)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
