"""Calls in words that a prompt asked for: ReAct's, Qwen-Agent's, and GLM-4-9B's bare name on a line.

    Action: get_weather⏎Action Input: {"city": "Rome"}⏎Observation:
    ✿FUNCTION✿: get_weather⏎✿ARGS✿: {"city": "Rome"}⏎✿RESULT✿
    get_weather⏎{"city": "Rome"}

The model is to stop at the last word. What it writes behind that it made up, and no call in it is one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from patchbay.formats.engine.marks import marks
from patchbay.formats.engine.scanner import Region
from patchbay.formats.engine.source import BrokenOff, CutOff, NotACall, Source, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.shapes.bracketarguments import BracketArguments
from patchbay.formats.shapes.jsonarguments import JsonArguments
from patchbay.formats.values.literals import json_string

_NAME = re.compile(r"[\w./:\\-]*")
_MAX_NAME = 256
_BLANKS = " \t\r\n"


@dataclass(frozen=True)
class Words:
    """The words before a call's name, before its arguments and behind them; each with its spellings, the longest first.

    ``loud``: they are no words of any language, and count wherever they stand; others only at a line's beginning, before the name
    of an offered tool.
    """

    markers: tuple[str, ...]
    inputs: tuple[str, ...]
    ends: tuple[str, ...]
    loud: bool = False

    def __call__(self, parts: Parts) -> Region:
        """The reader of such calls."""
        return PromptedCalls(parts, self).read


class PromptedCalls:
    """Reads calls that ``words`` mark."""

    def __init__(self, parts: Parts, words: Words) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.calls = parts.calls
        self.rules = parts.rules
        self.words = words
        self._objects = JsonArguments(parts)
        self._brackets = BracketArguments(parts)
        self._inputs = marks(words.inputs)
        self._ends = marks(words.ends)
        self._bounds = marks((*words.markers, *words.ends))
        self._stops = self._ends if words.loud else marks(tuple(f"\n{end}" for end in words.ends))

    def read(self, marker: str) -> Steps[bool]:
        """Read one call from the word before its name on, and the word behind it."""
        source, emitter = self.source, self.emitter
        if emitter.over or emitter.opens_code or not (self.words.loud or (emitter.blank and not emitter.quoted)):
            return False
        begin = source.offset
        source.pos += len(marker)
        self.calls.name = ""
        try:
            yield from self._call()
        except CutOff:
            if not self.calls.name:
                return False
            source.pos = len(source.buf)
            self.calls.cut(source.since(begin))
            return True
        except BrokenOff:
            while True:
                source.pos, bound = self._bounds.next(source, source.pos)
                if bound or source.ended:
                    break
                yield
            self.calls.cut(source.since(begin))
        except NotACall:
            return False
        behind = source.offset
        yield from _space(source)
        end = yield from self._ends.at(source)
        if end:
            source.pos += len(end)
            emitter.over = True
        if not end or (not self.words.loud and (yield from _space(source))):
            source.rewind_to(behind)  # a result that the model made up is told as one
        return True

    def _call(self) -> Steps[None]:
        source = self.source
        yield from _space(source)
        written = yield from name_at(source)
        name = (self.rules.resolve if self.words.loud else self.rules.offered)(written) if written else None
        if name is None:
            raise NotACall
        self.calls.name = name
        if (yield from self._brackets.fits()):
            bracket = source.offset
            if not (yield from self._empty_brackets()) or not (yield from self._has_object()):
                source.rewind_to(bracket)
                yield from self._brackets.read(name)
                return
        char = yield from _space(source)
        word = yield from self._inputs.at(source)
        if not word:
            if not char or self._inputs.begun(source):
                raise CutOff
            raise NotACall
        source.pos += len(word)
        if not (yield from _space(source)):
            raise CutOff
        if (yield from self._objects.fits()):
            json = self._objects.json
            json.stops = self._bounds
            try:
                yield from self._objects.read(name)
            finally:
                json.stops = None
        else:
            yield from self._text(name)

    def _empty_brackets(self) -> Steps[bool]:
        """Read brackets with nothing in them, which stand behind a name for nothing; whether they are such."""
        self.source.pos += 1
        found = (yield from _space(self.source)) == ")"
        self.source.pos += found
        return found

    def _has_object(self) -> Steps[bool]:
        """Whether arguments follow as an object; nothing is read."""
        source = self.source
        begin = source.offset
        yield from _space(source)
        word = yield from self._inputs.at(source)
        source.pos += len(word)
        yield from _space(source)
        fits = bool(word) and (yield from self._objects.fits())
        source.rewind_to(begin)
        return fits

    def _text(self, name: str) -> Steps[None]:
        """Read arguments that are a plain text: the value of the tool's only parameter."""
        types = self.rules.types(name)
        wanted = types.required if len(types.required) == 1 else types.keys or ()
        if len(wanted) != 1:
            raise NotACall
        source = self.source
        begin = source.offset
        while True:
            source.pos, end = self._stops.next(source, source.pos)
            if end or source.ended:
                break
            yield
        if not end:
            source.pos = len(source.buf)
        text = source.since(begin).strip()
        self.calls.start(name).append(f"{{{json_string(wanted[0])}: {types.json(wanted[0], text)}}}")
        self.calls.end()


class NameOnLine:
    """Reads, at the beginning of a text, an offered tool's name that is all of its line, and the object on the next line."""

    words: ClassVar[tuple[str, ...]] = ()

    def __init__(self, parts: Parts) -> None:
        self.source = parts.source
        self.calls = parts.calls
        self.rules = parts.rules
        self._objects = JsonArguments(parts)

    def read(self) -> Steps[bool]:
        """Read one call; False, with nothing read, where there is none."""
        source = self.source
        source.mark()
        yield from _space(source)
        try:
            name = self.rules.offered((yield from name_at(source)))
        except NotACall:
            name = None
        line = source.offset
        char = yield from _space(source)
        if name is None or char != "{" or "\n" not in source.since(line):
            source.rewind()
            return False
        self.calls.name = name
        try:
            yield from self._objects.read(name)
        except CutOff:
            source.pos = len(source.buf)
            self.calls.cut(source.take())
            return True
        source.release()
        return True


def name_at(source: Source) -> Steps[str]:
    """Read what may be a tool's name; "" if nothing may. Raises NotACall where it is too long for one."""
    while True:
        found = _NAME.match(source.buf, source.pos)
        assert found is not None
        if found.end() - source.pos > _MAX_NAME:
            raise NotACall
        if found.end() < len(source.buf) or source.ended:
            source.pos = found.end()
            return found.group()
        yield


def _space(source: Source) -> Steps[str]:
    """Read white space; the next character, "" at the end of the text."""
    while True:
        char = yield from source.peek()
        if not char or char not in _BLANKS:
            return char
        source.pos += 1
