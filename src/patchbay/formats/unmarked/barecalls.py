"""Calls of offered tools that nothing marks, one at a time: JSON, Python, a list of them, strings that say them.

Nothing is told here: what is read is staged, and ``loose`` decides whether it counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from patchbay.formats.engine.source import NotACall, Steps
from patchbay.formats.engine.telling import Staged
from patchbay.formats.parts import Parts
from patchbay.formats.shapes.callreader import CallReader
from patchbay.formats.shapes.pycalls import PythonCalls
from patchbay.formats.unmarked.gluedcalls import GluedCalls
from patchbay.formats.unmarked.mixedlists import MixedLists
from patchbay.formats.values.pyvalues import PythonValue

_LEAD = re.compile(
    r"(?:return|await|print[ \t]*(?=\()|[^\W\d]\w*(?:[ \t]*,[ \t]*[^\W\d]\w*)*[ \t]*=(?!=)"
    r"|[A-Za-z_' ]{1,40}:|[0-9]{1,2}[.)])[ \t]*"
)
_LEAD_LINE = re.compile(r"[\w ,]{0,64}(?:=(?!=)|:)?[ \t]*(?=[^\s\w,=:])")
_LEAD_ROOM = 80
_FIRST_LEADS = ("return ", "await ", "print(")
_NUMBER = re.compile(r"[0-9]{1,2}[.)]?")
_ENDS = frozenset("\r\n;,#`)+o")


class BareCalls:
    """Reads to ``staged``."""

    def __init__(self, parts: Parts, staged: Staged) -> None:
        self.source = parts.source
        self.staged = staged
        self._json = parts.json
        resolve = parts.rules.resolve if parts.rules.any_name else parts.rules.offered
        self._objects = CallReader(parts.source, parts.json, staged, parts.rules, note=parts.emitter.note)
        self._objects.resolve = resolve
        self._python = PythonCalls(parts, parts.source, staged, parts.rules.offered)
        self._python.strict = True
        self._glued = GluedCalls(parts, staged)
        self._mixed = MixedLists(parts, staged, self._object)
        staged.ended = self._forget_name
        self.began = self.before = 0
        """Where the last item began, and how many calls and pieces of prose stood before it."""

    def begin(self) -> None:
        """Forget what was staged."""
        self.staged.clear()
        self.before = 0
        self._forget_name()

    @property
    def names(self) -> Mapping[str, PythonValue | None]:
        """What names stand for in Python calls; None: for nothing that is known."""
        return self._python.names

    @names.setter
    def names(self, names: Mapping[str, PythonValue | None]) -> None:
        self._python.names = names

    def _forget_name(self) -> None:
        self._objects.name = self._python.called = self._glued.called = ""

    def cut(self) -> str:
        """The text ended: take what was staged of a call that is not complete back; its name, "" if it is not known."""
        return self.staged.cut() or self._objects.name or self._python.called or self._glued.called

    def item(self) -> Steps[bool]:
        """Read one call or list of calls in the first shape that fits; False, with nothing staged or read, if none does."""
        source, staged = self.source, self.staged
        begin, before = source.offset, len(staged.items)
        self.began, self.before = begin, before
        char = yield from source.peek()
        escaped = char == "\\"  # Markdown's, before a bracket
        if escaped:
            source.pos += 1
            char = yield from source.peek()
        shapes: tuple[Callable[[], Steps[int]], ...]
        if char == "{":
            shapes = (self._object,)
        elif char == "[":
            shapes = (self._object, self._python.several, *(() if self.names else (self._mixed.read,)))
        elif char in ('"', "'"):
            shapes = (self._mixed.string,)
        elif char == "(":
            shapes = () if self.names else (self._mixed.read,)
        else:
            shapes = (self._statement, *(() if self.names else (self._glued.read,)))
        for shape in shapes:
            try:
                if (yield from shape()):
                    return True
            except NotACall:
                pass
            del staged.items[before:]
            source.rewind_to(begin + escaped)
        source.rewind_to(begin)
        return False

    def _object(self) -> Steps[int]:
        self._objects.strict = True
        self._json.guarded = True
        try:
            return (yield from self._objects.read())
        finally:
            self._json.guarded = False

    def _statement(self) -> Steps[int]:
        """Read ``f(...)`` that is all of its statement."""
        told = yield from self._python.one()
        yield from self._python.picked()
        char = yield from self._python.space(" \t")
        if char and char not in _ENDS:
            raise NotACall
        return told

    def lead(self) -> Steps[str]:
        """Read what leads to a call in a program, or numbers it: ``return``, ``x =``, ``print(``. "" if there is nothing."""
        source = self.source
        while True:
            rest = source.buf[source.pos : source.pos + _LEAD_ROOM]
            line = rest.partition("\n")[0]
            if len(line) < len(rest) or len(rest) == _LEAD_ROOM or source.ended or _LEAD_LINE.match(line):
                break
            yield
        found = _LEAD.match(line)
        if found is None or (found.end() == len(line) and found.group()[-1:] != ":"):
            return ""
        source.pos += found.end()
        return found.group()

    def first_lead(self) -> Steps[str]:
        """Read a lead that the first word says to be one; waits only while it may be one. "" if there is none."""
        source = self.source
        while True:
            rest = source.buf[source.pos : source.pos + 8]
            found = next((lead for lead in _FIRST_LEADS if rest.startswith(lead)), "")
            number = _NUMBER.match(rest)
            if number is not None and number.group()[-1] in ".)":
                found = number.group()
            if found:
                source.pos += len(found)
                yield from self._python.space(" \t")
                return found
            may_grow = number.end() == len(rest) if number else any(lead.startswith(rest) for lead in _FIRST_LEADS)
            if not may_grow or source.ended:
                return ""
            yield
