"""The shapes that calls have inside of wrappers, made for one text: every wrapper may hold any of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from patchbay.formats.engine.marks import Marks, marks
from patchbay.formats.engine.source import BrokenOff, CutOff, NotACall, NotOffered, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.regions.wrapped import Shape
from patchbay.formats.rows import Wrapper
from patchbay.formats.shapes.bracketarguments import BracketArguments
from patchbay.formats.shapes.callreader import CallReader
from patchbay.formats.shapes.codecalls import CodeCalls
from patchbay.formats.shapes.gemmacalls import GemmaCalls
from patchbay.formats.shapes.jsonarguments import JsonArguments, fence_line
from patchbay.formats.shapes.keyvalues import KeyValueCalls
from patchbay.formats.shapes.namedcalls import ArgumentShape, NamedCalls
from patchbay.formats.shapes.nestedcalls import NestedCalls
from patchbay.formats.shapes.pycalls import PythonCalls
from patchbay.formats.shapes.xmlcalls import XmlCalls


class JsonCalls:
    """Objects and arrays of objects, in a fence or not: see ``callreader``."""

    def __init__(self, parts: Parts) -> None:
        self.source = parts.source
        self.json = parts.json
        self.rules = parts.rules
        self.telling = parts.calls
        self.calls = CallReader(parts.source, parts.json, parts.calls, parts.rules, note=parts.emitter.note)
        self.calls.resolve = self._resolve

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:
        """Read one value; how many calls it held."""
        char = yield from self.source.peek()
        fenced = char == "`" and (yield from self.json.at_fence())
        if fenced:
            yield from fence_line(self.source)
            char = yield from self.json.space()
        if char not in ("{", "["):
            raise NotACall
        self.calls.keyed = wrapper.keyed
        self.telling.idle = tuple(name for name in wrapper.idle if self.rules.offered(name) is None)
        begin = self.source.offset
        self.json.guarded = True
        try:
            told = yield from self.calls.read()
        except NotOffered:
            self.source.rewind_to(begin)
            yield from self._pass_over()
            raise
        except (BrokenOff, CutOff) as error:
            if type(error) is BrokenOff and not first and not self.calls.name:
                raise NotACall from None  # behind a call, braces that name no tool are prose
            self.telling.name = self.calls.name
            raise
        except NotACall:
            self.source.rewind_to(begin)
            if first and (yield from self._is_object(char)) and (yield from self.json.breaks_off()):
                raise BrokenOff from None
            raise
        finally:
            self.json.guarded = False
        if fenced and (yield from self.json.space()) == "`" and (yield from self.json.at_fence()):
            self.source.pos += 3
        return told

    def _is_object(self, char: str) -> Steps[bool]:
        """Whether an object begins at ``pos``, or a list of them: a list of anything else may be Python."""
        begin = self.source.offset
        if char == "[":
            self.source.pos += 1
            char = yield from self.json.space()
            self.source.rewind_to(begin)
        return char == "{"

    def _pass_over(self) -> Steps[None]:
        self.json.guarded = False
        try:
            yield from self.json.value([])
        except (BrokenOff, CutOff):
            pass
        self.telling.passed = self.source.offset

    def _resolve(self, name: str) -> str | None:
        return name if name in self.telling.idle else self.rules.resolve(name)


class Shapes:
    """All shapes of calls, in the order in which they are tried; each is made when the ones before it did not fit.

    ``closers``: the markers that end wrappers. ``ends``: all markers and tokens that cannot be a part of a call.
    """

    def __init__(self, parts: Parts, closers: tuple[str, ...], ends: Marks) -> None:
        self._made: list[Shape] = []
        self._others = _shapes(parts, closers, ends)

    def __iter__(self) -> Iterator[Shape]:
        yield from self._made
        for shape in self._others:
            self._made.append(shape)
            yield shape


def _shapes(parts: Parts, closers: tuple[str, ...], ends: Marks) -> Iterator[Shape]:
    yield JsonCalls(parts)
    yield XmlCalls(parts, closers, ends)
    yield NestedCalls(parts)
    yield KeyValueCalls(parts, closers, ends)
    yield GemmaCalls(parts, ends)
    yield PythonCalls(parts, parts.source, parts.calls, lambda name: _noted(parts, name))
    arguments: tuple[ArgumentShape, ...] = (JsonArguments(parts), BracketArguments(parts))
    yield NamedCalls(parts, arguments, closers)
    yield CodeCalls(parts, _tags(ends))


def _noted(parts: Parts, name: str) -> str | None:
    """The tool that a name means, noted in case that the call is cut off."""
    found = parts.rules.resolve(name)
    parts.calls.name = found or ""
    return found


@lru_cache(maxsize=64)
def _tags(ends: Marks) -> Marks:
    return marks(tuple(literal for literal in ends.literals if literal[0] == "<"))
