"""Calls as Gemma 4 and FunctionGemma write them: ``call:f{city:<|"|>Rome<|"|>}``. The brackets are read by ``gemmavalues``."""

from __future__ import annotations

import re

from patchbay.formats.engine.marks import Marks
from patchbay.formats.engine.source import BrokenOff, CutOff, NotACall, NotOffered, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.rows import Wrapper
from patchbay.formats.shapes.bracketarguments import BracketArguments
from patchbay.formats.values.gemmavalues import GemmaValues

CLOSERS = frozenset({"<tool_call|>", "<end_function_call>"})
"""The closers of the wrappers in which a call needs no word before its name."""

_WORD = "call:"
_NAME = re.compile(r"[\w./:\\-]*")
_MAX_NAME = 256
_BLANKS = " \t\r\n"


class GemmaCalls:
    """Reads one call. ``ends``: all markers and special tokens, any of which ends a call outside of its strings."""

    def __init__(self, parts: Parts, ends: Marks) -> None:
        self.source = parts.source
        self.calls = parts.calls
        self.rules = parts.rules
        self._json = parts.json
        self._ends = ends
        self._brackets = BracketArguments(parts)

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:  # noqa: ARG002 - the word, or the wrapper, says that it is a call
        """Read one call; 1."""
        said = yield from self._said()
        if not said and CLOSERS.isdisjoint(wrapper.closers):
            raise NotACall
        written = yield from self._name()
        char = yield from self._space()
        name = self.rules.resolve(written) if written else None
        if not char and (not written or self.rules.begins_name(written) or name is not None):
            self.calls.name = name or ""
            raise CutOff
        if not written or (not said and char != "{"):
            raise NotACall
        if name is None:
            if char == "{":
                yield from self._pass_over(wrapper)
            raise NotOffered
        self.calls.name = name
        if char == "(":
            yield from self._brackets.read(name)
            return 1
        if char == "{":
            types = self.rules.types(name)
            yield from GemmaValues(self._json, wrapper.closers, self._ends, types).read(self.calls.start(name))
        elif (yield from self._ends.at(self.source)) and self.rules.offered(name) is not None:
            self.calls.start(name).append("{}")
        else:
            raise NotACall
        self.calls.end()
        return 1

    def name(self) -> Steps[str]:
        """Read the word, if it is there, and the name; what it is. Raises NotACall, CutOff."""
        yield from self._said()
        return (yield from self._name())

    def _pass_over(self, wrapper: Wrapper) -> Steps[None]:
        try:
            yield from GemmaValues(self._json, wrapper.closers, self._ends, self.rules.types("")).read([])
        except (BrokenOff, CutOff):
            pass
        self.calls.passed = self.source.offset

    def _said(self) -> Steps[bool]:
        """Read the word before a name, if it is there."""
        source = self.source
        while not source.ended and len(source.buf) - source.pos < len(_WORD) and _WORD.startswith(source.buf[source.pos :]):
            yield
        rest = source.buf[source.pos : source.pos + len(_WORD)]
        if source.ended and rest and rest != _WORD and _WORD.startswith(rest):
            source.pos = len(source.buf)
            raise CutOff
        source.pos += len(_WORD) if rest == _WORD else 0
        return rest == _WORD

    def _name(self) -> Steps[str]:
        source = self.source
        yield from self._space()
        while True:
            found = _NAME.match(source.buf, source.pos)
            assert found is not None
            if found.end() - source.pos > _MAX_NAME:
                raise NotACall
            if found.end() < len(source.buf) or source.ended:
                source.pos = found.end()
                return found.group().lstrip(":")
            yield

    def _space(self) -> Steps[str]:
        source = self.source
        while True:
            char = yield from source.peek()
            if not char or char not in _BLANKS:
                return char
            source.pos += 1
