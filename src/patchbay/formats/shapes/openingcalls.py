"""Calls that a text begins with, behind a word that is no special token.

    call:get_weather{city:<|"|>Rome<|"|>}     Gemma 4, its tokens removed by the server
    Call: get_weather(city="Rome")<bot_end>   NexusRaven

Only offered tools count, and anywhere else the words are words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from patchbay.formats.engine.marks import marks
from patchbay.formats.engine.source import BrokenOff, CutOff, NotACall, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.rows import Wrapper
from patchbay.formats.shapes.gemmacalls import CLOSERS, GemmaCalls
from patchbay.formats.shapes.pycalls import PythonCalls

_GEMMA = Wrapper(openers=("call:",), closers=tuple(sorted(CLOSERS)))
_NEXUS_END = marks(("<bot_end>",))


class _Opening(ABC):
    """Reads the one word of ``words`` and the calls behind it."""

    words: ClassVar[tuple[str, ...]]

    def __init__(self, parts: Parts) -> None:
        self.source = parts.source
        self.calls = parts.calls
        self.rules = parts.rules
        self.emitter = parts.emitter

    def read(self) -> Steps[bool]:
        """Read from the text's first character on; False, with nothing read, where no call stands there."""
        source = self.source
        source.mark()
        told = False
        try:
            told = (yield from self._at_word()) and (yield from self._read())
        except CutOff:
            if self.calls.name and self.rules.offered(self.calls.name) is not None:
                source.pos = len(source.buf)
                self.calls.cut(source.take())
                return True
        except NotACall:
            pass
        if not told:
            self.calls.name = ""
            source.rewind()
            return False
        source.release()
        self.emitter.markup()
        return True

    def _at_word(self) -> Steps[bool]:
        """Whether the word stands there; white space before it is read."""
        source = self.source
        while (char := (yield from source.peek())) and char in " \t\r\n":
            source.pos += 1
        (word,) = self.words
        while not source.ended and len(source.buf) - source.pos < len(word) and word.startswith(source.buf[source.pos :]):
            yield
        return source.buf.startswith(word, source.pos)

    @abstractmethod
    def _read(self) -> Steps[bool]:
        """Read from the word on; whether a call was told. Raises NotACall, CutOff."""


class GemmaAtStart(_Opening):
    """``call:f{...}``; its closer is read like any that stands behind calls."""

    words: ClassVar[tuple[str, ...]] = ("call:",)

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._one = GemmaCalls(parts, marks(_GEMMA.closers))
        self._json = parts.json

    def _read(self) -> Steps[bool]:
        begin = self.source.offset
        name = yield from self._one.name()
        if self.rules.offered(name) is None:
            return False
        self.source.rewind_to(begin)
        try:
            yield from self._one.read(_GEMMA, first=True)
        except BrokenOff:
            yield from self._json.skip_to_end()
            self.calls.cut(self.source.since(begin))
        return True


class NexusAtStart(_Opening):
    """``Call: f(...); g(...)<bot_end>``."""

    words: ClassVar[tuple[str, ...]] = ("Call:",)

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._python = PythonCalls(parts, parts.source, parts.calls, self._offered)

    def _offered(self, name: str) -> str | None:
        self.calls.name = self.rules.offered(name) or ""
        return self.calls.name or None

    def _read(self) -> Steps[bool]:
        source, told = self.source, 0
        source.pos += len(self.words[0])
        while True:
            end = source.offset
            yield from self._python.space(" \t\r\n;,")
            try:
                told += yield from self._python.one()
            except (NotACall, CutOff) as signal:
                if isinstance(signal, CutOff) and (self.calls.name or not told):
                    raise
                source.rewind_to(end)
                break
        yield from self._python.space(" \t\r\n")
        token = yield from _NEXUS_END.at(source)
        source.pos += len(token)
        return told > 0
