"""Bodies that are calls: the arguments of the call that the header names, or calls with their names in them.

What a body holds says how it is read, not whose format it is: arguments in any of the ways there are, then calls in any of the
shapes that stand in wrappers, and code for a tool that takes code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from patchbay.formats.channelrows import Body, Channels, Kind
from patchbay.formats.channels.parameters import Parameters
from patchbay.formats.channels.xtml import TagArguments
from patchbay.formats.engine.marks import Marks, marks
from patchbay.formats.engine.source import CutOff, NotACall, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.regions.wrapped import Shape
from patchbay.formats.rows import Wrapper
from patchbay.formats.shapes.jsonarguments import JsonArguments, fence_line
from patchbay.formats.shapes.namedcalls import ArgumentShape

_BLANKS = " \t\r\n"
_BEGINNINGS = frozenset("{[<")


class ChannelCalls:
    """Reads bodies. ``shapes``: those of calls with their names. ``ends``: all markers and special tokens."""

    def __init__(self, parts: Parts, shapes: Iterable[Shape], ends: Marks) -> None:
        self.source = parts.source
        self.telling = parts.calls
        self.json = parts.json
        self.rules = parts.rules
        self.shapes = shapes
        self.arguments: tuple[ArgumentShape, ...] = (JsonArguments(parts), TagArguments(parts), Parameters(parts, ends))
        self.item = 0
        """Where the call begins that is being read; 0 for the first one, which begins with the header."""

    @property
    def name(self) -> str:
        """The name of the call being read, as far as it is known."""
        return self.telling.name

    def known(self, body: Body) -> bool:
        """Whether the header names an offered tool."""
        return self.rules.offered(body.name) is not None

    def read(self, body: Body, row: Channels) -> Steps[int]:
        """Read what stands at ``pos``, at most to one of the row's markers; how many calls were told.

        Raises NotACall, or returns 0, where it is none, and CutOff.
        """
        name = self.rules.resolve(body.name) if body.name else None
        self.telling.name, self.telling.ahead, self.telling.idle = name or "", "", ()
        self.item = 0
        if name is None and body.name:
            raise NotACall
        self.json.stops = marks(row.endings)
        try:
            if body.kind is Kind.CALLS:
                begin = self.source.offset
                told = yield from self._items(row)
                if told or name is None:
                    return told
                self.source.rewind_to(begin)
            return (yield from self._named(name, row)) if name is not None else 0
        finally:
            self.json.stops = None

    def look_like_one(self) -> Steps[bool]:
        """Whether what stands at ``pos`` begins as calls do; nothing but blanks is read."""
        return (yield from self._space()) in _BEGINNINGS

    def begin(self) -> Steps[bool]:
        """Whether a call's arguments begin at ``pos``, or the text ends there: blanks, and a fence's first line, are read."""
        char = yield from self._space()
        fits = not char
        for shape in self.arguments:
            fits = fits or (yield from shape.fits())
        if not fits or char != "`":
            return fits
        try:
            yield from fence_line(self.source)
        except NotACall:
            return False
        return (yield from self._space()) in ("{", "")

    def _named(self, name: str, row: Channels) -> Steps[int]:
        self.telling.name = name
        char = yield from self._space()
        if not char:
            raise CutOff
        for shape in self.arguments:
            if (yield from shape.fits()):
                yield from shape.read(name)
                return 1
        if not row.loud or not (yield from marks(row.endings).at(self.source)):
            raise NotACall
        self.telling.start(name).append("{}")
        self.telling.end()
        return 1

    def _items(self, row: Channels) -> Steps[int]:
        """Read calls, one after the other; 0 if what stands first is none."""
        source, ends, leads = self.source, marks(row.endings), marks(row.leads)
        wrapper = Wrapper(openers=(), closers=row.leads)
        told = 0
        while True:
            after = source.offset
            char = yield from self._space()
            lead = yield from leads.at(source)
            if lead:
                source.pos += len(lead)
            elif told and char and char in ",;":
                source.pos += 1
            elif not char and not told:
                raise CutOff
            elif char not in _BEGINNINGS or (yield from ends.at(source)):
                source.rewind_to(after)
                return told
            else:
                if told:
                    self.item = source.offset
                read = yield from self._shaped(wrapper, first=not told)
                if not read:
                    source.rewind_to(after)
                    return told
                told += read

    def _shaped(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:
        source = self.source
        start = source.offset
        for shape in self.shapes:
            try:
                return (yield from shape.read(wrapper, first=first))
            except NotACall:
                source.rewind_to(start)
        return 0

    def _space(self) -> Steps[str]:
        """Read white space; the next character, "" at the end of the text."""
        source = self.source
        while True:
            char = yield from source.peek()
            if not char or char not in _BLANKS:
                return char
            source.pos += 1

    # code

    def takes_code(self, body: Body) -> bool:
        """Whether the tool that the header names takes a text, whatever it says, as its one argument."""
        return self._code_key(body) is not None

    def runs_code(self, body: Body) -> bool:
        """Whether that text is a program: the parameter's name says so."""
        return self._code_key(body) == "code"

    def _code_key(self, body: Body) -> str | None:
        name = self.rules.resolve(body.name) if body.name else None
        if name is None:
            return None
        if self.rules.offered(name) is None:
            return "code" if name == "python" else None
        types = self.rules.types(name)
        keys = types.keys or ()
        key = "code" if "code" in keys else keys[0] if len(keys) == 1 else None
        return key if key is not None and types.is_text(key) else None

    def begin_code(self, body: Body) -> Callable[[str], None]:
        """Begin a call with code as its argument, which what is returned is told piece by piece."""
        name, key = self.rules.resolve(body.name), self._code_key(body)
        assert name is not None
        pieces = self.telling.start(name)
        pieces.append(f'{{{json.dumps(key, ensure_ascii=False)}: "')
        self._pieces = pieces
        return lambda text: pieces.append(json.dumps(text, ensure_ascii=False)[1:-1])

    def end_code(self) -> None:
        """The code is over, and the call."""
        self._pieces.append('"}')
        self.telling.end()
