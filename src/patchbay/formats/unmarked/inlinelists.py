"""Lists of Python calls in the middle of a line: ``Let me see: [get_weather(city="Paris")]``.

Only where the text is known to be in a format that writes its calls so and marks them with nothing else: then the bracket is the
marker, wherever a word may stand. In any other text a list counts at the beginning of a line, which ``loose`` reads; whatever
begins one is handed on to it.
"""

from __future__ import annotations

from patchbay.formats.engine.scanner import LineStart
from patchbay.formats.engine.source import CutOff, NotACall, Steps
from patchbay.formats.engine.telling import Staged
from patchbay.formats.parts import Parts
from patchbay.formats.shapes.pycalls import PythonCalls

OPENER = "["
_BEFORE = frozenset(("", " ", "\t", ":", ".", "!", "?"))
"""What the prose before a list ends in: behind a letter a bracket is an index, behind a quote or a bracket an example."""


class InlineLists:
    """Reads such lists of offered tools. ``lines``: the reader of what stands at the beginning of a line."""

    def __init__(self, parts: Parts, lines: LineStart | None) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.calls = parts.calls
        self._lines = lines if parts.rules.has_tools else None
        self._staged = Staged()
        self._python = PythonCalls(parts, parts.source, self._staged, parts.rules.offered)
        self._python.strict = True
        self._staged.ended = self._forget_name

    def read(self, _marker: str) -> Steps[bool]:
        """Read a list, and tell its calls when it was read to its end."""
        emitter, lines = self.emitter, self._lines
        if lines is None:
            return False
        if emitter.blank or lines.led:
            return not emitter.quoted and lines.looks_at(OPENER) and (yield from lines.read())
        if emitter.over or emitter.last not in _BEFORE:
            return False
        begin = self.source.offset
        self._staged.clear()
        self._forget_name()
        cut = False
        try:
            yield from self._python.several()
        except NotACall:
            return False
        except CutOff:
            cut = True
            if not (self._python.called or self._staged.calls):
                return False
        self._staged.tell(self.calls)
        if cut:
            emitter.cut(self.source.since(begin), self._python.called)
        return True

    def _forget_name(self) -> None:
        self._python.called = ""
