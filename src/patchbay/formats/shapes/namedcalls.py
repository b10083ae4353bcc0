"""Calls whose name stands before the arguments: ``name<separator>{...}``, in any of the ways the arguments can be written."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Protocol

from patchbay.formats.engine.marks import Marks, marks
from patchbay.formats.engine.source import CutOff, NotACall, NotOffered, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.rows import Wrapper
from patchbay.formats.shapes.jsonarguments import JsonArguments
from patchbay.formats.shapes.jsonmembers import tell_text

_PLAIN = re.compile(r"""[^\s({<\[\]>)}"'`|=,;]+""")
_MAX_HEADER = 512
_BLANKS = " \t\r\n"


class ArgumentShape(Protocol):
    """One way of writing the arguments of a call whose name is known."""

    def fits(self) -> Steps[bool]:
        """Whether such arguments stand at ``pos``; nothing is read."""

    def read(self, name: str) -> Steps[None]:
        """Read them and tell the call. Raises NotACall while it was not told, CutOff."""


class NamedCalls:
    """Reads a name, then the arguments in the first of ``arguments`` that fits; a name with nothing behind it takes none."""

    def __init__(self, parts: Parts, arguments: Sequence[ArgumentShape], closers: tuple[str, ...]) -> None:
        self.source = parts.source
        self.calls = parts.calls
        self.rules = parts.rules
        self._json = parts.json
        self._note = parts.emitter.note
        self.arguments = arguments
        self._objects = JsonArguments(parts)
        self._closers = marks(closers)

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:
        """Read one call; 1."""
        if wrapper.keeps or (not first and not wrapper.closers):
            raise NotACall  # nothing says that a word behind the last call is a name
        written = wrapper.name((yield from self._header(wrapper))).removesuffix(":")
        name = self.rules.resolve(written)
        if written.isdecimal() and self.rules.offered(written) is None:
            return (yield from self._counted())
        if name is None:
            yield from self._objects.skip()
            self.calls.passed = self.source.offset
            raise NotOffered
        self.calls.name = name
        for shape in self.arguments:
            if (yield from shape.fits()):
                yield from shape.read(name)
                return 1
        closer = yield from self._closers.at(self.source)
        alone = self._may_stand_alone(wrapper, name) and (not (yield from self.source.peek()) or (yield from self._json.at_end()))
        if not closer and not alone:
            if self._closers.begun(self.source) and self.rules.offered(name) is not None:
                raise CutOff
            raise NotACall
        self.calls.start(name).append("{}")
        self.calls.end()
        return 1

    def _may_stand_alone(self, wrapper: Wrapper, name: str) -> bool:
        """Whether a name behind an opener that has no closer may be all of a call: the tool must need no arguments."""
        bare = bool(wrapper.separators) and not wrapper.closers
        return bare and self.rules.offered(name) == name and not self.rules.types(name).required

    def _counted(self) -> Steps[int]:
        """Read a call with a number for a name: its parameters tell the tool, if there is just one that takes them."""
        if (yield from self.source.peek()) != "{":
            raise NotACall
        sink: list[str] = []
        yield from self._json.value(sink)
        arguments = "".join(sink)
        name = self.rules.fitting(json.loads(arguments))
        if name is None:
            raise NotACall
        self._note("no_name")
        tell_text(self.calls, self.rules, name, arguments, self._note)
        return 1

    def _header(self, wrapper: Wrapper) -> Steps[str]:
        """Read up to the arguments; what stood there, its separators as line breaks."""
        source, separators = self.source, marks(wrapper.separators)
        begin = source.offset
        pieces: list[str] = []
        while source.offset - begin < _MAX_HEADER:
            char = yield from source.peek()
            separator = (yield from separators.at(source)) if char and char not in _BLANKS else ""
            if separator:
                source.pos += len(separator)
                pieces.append("\n")
                continue
            if char and char in _BLANKS:
                source.pos += 1
                pieces.append(" ")
                continue
            found = _PLAIN.match(source.buf, source.pos)
            if not found:
                header = "".join(pieces).strip()
                name, in_name = wrapper.name(header), not char and pieces[-1:] != ["\n"]
                if char or "\n" in pieces or not (self._may_stand_alone(wrapper, name) and self.rules.is_whole(name)):
                    self._cut(name, in_name=in_name, separators=separators)
                return header
            pieces.append(found.group())
            source.pos = found.end()
        raise NotACall

    def _cut(self, name: str, *, in_name: bool, separators: Marks) -> None:
        """Raise CutOff if the text ends in a call's name, or between it and the arguments."""
        source = self.source
        if in_name and not name.endswith(":") and self.rules.begins_name(name):
            raise CutOff
        known = self.rules.resolve(name.removesuffix(":"))
        if known is not None and (source.pos == len(source.buf) or separators.begun(source)):
            source.pos = len(source.buf)
            self.calls.name = known
            raise CutOff
