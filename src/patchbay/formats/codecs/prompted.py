"""Calls behind plain words: as a prompt asked for, or because the server stripped special tokens.

Action: get_weather⏎Action Input: {"city": "Rome"}⏎Observation:                     ReAct
✿FUNCTION✿: get_weather⏎✿ARGS✿: {"city": "Rome"}⏎✿RESULT✿                          Qwen-Agent
get_weather⏎{"city": "Rome"}                                                        GLM-4-9B
call:get_weather{city:<|"|>Rome<|"|>}                                               Gemma 4, stripped
Call: get_weather(city="Rome")<bot_end>                                             NexusRaven
analysisI should look.assistantcommentary to=functions.get_weather json{"city": "Rome"}   Harmony, stripped
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from patchbay.formats.codecs.gemma import CLOSERS, GemmaCalls, read_name
from patchbay.formats.codecs.json import JsonArguments
from patchbay.formats.codecs.named import BracketArguments
from patchbay.formats.codecs.python import PythonCalls
from patchbay.formats.context import Context, Reader
from patchbay.formats.scanner import RegionReader
from patchbay.formats.source import MalformedCall, NoMatch, Steps, Truncated, discard, marker_set
from patchbay.formats.spec import Kind, Wrapper
from patchbay.formats.values.json_strict import json_string


@dataclass(frozen=True)
class PromptWords:
    """The words before a call's name, before its arguments and behind them; each with its spellings, the longest first.

    ``special``: they are not words of a language and count anywhere; others count only at a line's beginning, before the name of
    an offered tool.
    """

    markers: tuple[str, ...]
    inputs: tuple[str, ...]
    ends: tuple[str, ...]
    special: bool = False

    def __call__(self, context: Context) -> RegionReader:
        """Return the reader of such calls."""
        return PromptedCalls(context, self).read


class PromptedCalls(Reader):
    """Reads calls that are marked by ``words``."""

    def __init__(self, context: Context, words: PromptWords) -> None:
        super().__init__(context)
        self.words = words
        self._objects = JsonArguments(context)
        self._brackets = BracketArguments(context)
        self._inputs = marker_set(words.inputs)
        self._ends = marker_set(words.ends)
        self._bounds = marker_set((*words.markers, *words.ends))
        self._stops = self._ends if words.special else marker_set(tuple(f"\n{end}" for end in words.ends))

    def read(self, marker: str) -> Steps[bool]:
        """Read one call from the word before its name on, and the word behind it."""
        source, emitter = self.source, self.emitter
        if (
            emitter.turn_ended
            or emitter.next_is_mention
            or not (self.words.special or (emitter.at_line_start and not emitter.in_blockquote))
        ):
            return False
        begin = source.offset
        source.pos += len(marker)
        self.calls.name = ""
        try:
            yield from self._call()
        except Truncated:
            if not self.calls.name:
                return False
            source.pos = len(source.buf)
            self.calls.cut(source.since(begin))
            return True
        except MalformedCall:
            yield from source.read_to(self._bounds, discard)
            self.calls.cut(source.since(begin))
        except NoMatch:
            return False
        behind = source.offset
        yield from source.space()
        end = yield from self._ends.at(source)
        if end:
            source.pos += len(end)
            emitter.turn_ended = True
        if not end or (not self.words.special and (yield from source.space())):
            source.rewind_to(behind)  # the text of an invented result stays in the answer
        return True

    def _call(self) -> Steps[None]:
        source = self.source
        yield from source.space()
        written = yield from read_name(source)
        name = (self.rules.resolve if self.words.special else self.rules.offered)(written) if written else None
        if name is None:
            raise NoMatch
        self.calls.name = name
        if (yield from self._brackets.fits()):
            bracket = source.offset
            if not (yield from self._empty_brackets()) or not (yield from self._has_object()):
                source.rewind_to(bracket)
                yield from self._brackets.read(name)
                return
        char = yield from source.space()
        word = yield from self._inputs.at(source)
        if not word:
            if not char or self._inputs.is_cut_off(source):
                raise Truncated
            raise NoMatch
        source.pos += len(word)
        if not (yield from source.space()):
            raise Truncated
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
        """Read an empty pair of parentheses behind a name; return whether there is one."""
        self.source.pos += 1
        found = (yield from self.source.space()) == ")"
        self.source.pos += found
        return found

    def _has_object(self) -> Steps[bool]:
        """True if arguments follow as an object; nothing is read."""
        source = self.source
        begin = source.offset
        yield from source.space()
        word = yield from self._inputs.at(source)
        source.pos += len(word)
        yield from source.space()
        fits = bool(word) and (yield from self._objects.fits())
        source.rewind_to(begin)
        return fits

    def _text(self, name: str) -> Steps[None]:
        """Read arguments that are plain text: the value of the tool's only parameter."""
        types = self.rules.types(name)
        wanted = types.required if len(types.required) == 1 else types.keys or ()
        if len(wanted) != 1:
            raise NoMatch
        source = self.source
        begin = source.offset
        yield from source.read_to(self._stops, discard)
        text = source.since(begin).strip()
        self.calls.start(name).append(f"{{{json_string(wanted[0])}: {types.json(wanted[0], text)}}}")
        self.calls.end()


_GEMMA = Wrapper(openers=("call:",), closers=tuple(sorted(CLOSERS)))
_NEXUS_END = marker_set(("<bot_end>",))


class _Opening(ABC):
    """Base class: reads one of ``words``, if there are any, and the calls behind it."""

    words: ClassVar[tuple[str, ...]]

    def __init__(self, context: Context) -> None:
        self.source = context.source
        self.calls = context.calls
        self.rules = context.rules
        self.emitter = context.emitter

    def read(self) -> Steps[bool]:
        """Read from the text's first character on; return False, with nothing read, if there is no call."""
        source = self.source
        source.mark()
        emitted = False
        try:
            emitted = (yield from self._at_word()) and (yield from self._read())
        except Truncated:
            if self.calls.name and self.rules.offered(self.calls.name) is not None:
                source.pos = len(source.buf)
                self.calls.cut(source.take())
                return True
        except NoMatch:
            pass
        if not emitted:
            self.calls.name = ""
            source.rewind()
            return False
        source.release()
        self.emitter.markup()
        return True

    def _at_word(self) -> Steps[bool]:
        """Read white space; return whether the word follows."""
        source = self.source
        yield from source.space()
        return not self.words or bool((yield from marker_set(self.words).at(source)))

    @abstractmethod
    def _read(self) -> Steps[bool]:
        """Read from the word on; return whether a call was emitted. Raises NoMatch, Truncated."""


class NameOnLine(_Opening):
    """Reads an offered tool's name that fills its line, and the object on the next line."""

    words: ClassVar[tuple[str, ...]] = ()

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._objects = JsonArguments(context)

    def _read(self) -> Steps[bool]:
        source = self.source
        name = self.rules.offered((yield from read_name(source)))
        line = source.offset
        if (yield from source.space()) != "{" or name is None or "\n" not in source.since(line):
            return False
        self.calls.name = name
        yield from self._objects.read(name)
        return True


class GemmaAtStart(_Opening):
    """Reads ``call:f{...}``; the closer is left to be read like any closer behind calls."""

    words: ClassVar[tuple[str, ...]] = ("call:",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._one = GemmaCalls(context, marker_set(_GEMMA.closers))
        self._json = context.json

    def _read(self) -> Steps[bool]:
        begin = self.source.offset
        name = yield from self._one.name()
        if self.rules.offered(name) is None:
            return False
        self.source.rewind_to(begin)
        try:
            yield from self._one.read(_GEMMA, first=True)
        except MalformedCall:
            yield from self._json.skip_to_end()
            self.calls.cut(self.source.since(begin))
        return True


class NexusAtStart(_Opening):
    """Reads ``Call: f(...); g(...)<bot_end>``."""

    words: ClassVar[tuple[str, ...]] = ("Call:",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._python = PythonCalls(context, context.source, context.calls, self._offered)

    def _offered(self, name: str) -> str | None:
        self.calls.name = self.rules.offered(name) or ""
        return self.calls.name or None

    def _read(self) -> Steps[bool]:
        source, emitted = self.source, 0
        source.pos += len(self.words[0])
        while True:
            end = source.offset
            yield from self.source.space(" \t\r\n;,")
            try:
                emitted += yield from self._python.read_call()
            except (NoMatch, Truncated) as signal:
                if isinstance(signal, Truncated) and (self.calls.name or not emitted):
                    raise
                source.rewind_to(end)
                break
        yield from self.source.space(" \t\r\n")
        token = yield from _NEXUS_END.at(source)
        source.pos += len(token)
        return emitted > 0


_CHANNEL_KINDS = {"analysis": Kind.REASONING, "commentary": Kind.CONTENT, "final": Kind.CONTENT}
_CHANNELS = tuple(_CHANNEL_KINDS)
_NEXT_HEADERS = (*(f"assistant{channel}" for channel in _CHANNELS), "assistant to=")
_HEADERS = (*_CHANNELS, *_NEXT_HEADERS, "to=", " to=")
_FIRST_HEADER = marker_set(_HEADERS)
_NEXT_HEADER = marker_set(_NEXT_HEADERS)
_TO = marker_set((" to=", "to="))
_TYPE = marker_set((" json", "json", " code", "code"))
_MAX_NAME = 128
_RECIPIENT = re.compile(rf"[\w.:-]{{1,{_MAX_NAME}}}")
_OPENING = "\"'“(*"


@dataclass(frozen=True)
class _Header:
    """A message's header. ``start``: its offset. ``name``: the tool of a call."""

    kind: Kind
    start: int
    name: str = ""


class StrippedHarmony(Reader):
    """Reads a whole Harmony reply without its special tokens, from its first character on."""

    words: ClassVar[tuple[str, ...]] = tuple(word.lstrip() for word in _HEADERS)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.named = context.named
        self.reasoning = context.reasoning
        self._arguments = JsonArguments(context)
        self._answered = False

    def read(self) -> Steps[bool]:
        """Read the reply; return False, with nothing read, if it does not begin like one."""
        source = self.source
        source.mark()
        begin = source.offset
        header = yield from self._header((yield from _FIRST_HEADER.at(source)))
        if header is None or not (yield from self._is_sure(header)):
            source.rewind_to(begin)
            source.release()
            return False
        while header is not None:
            header = yield from self._message(header)
        source.release()
        return True

    def _is_sure(self, header: _Header) -> Steps[bool]:
        """True if the text is not just prose that begins like a header; nothing is read."""
        source = self.source
        if header.name:
            return True
        char = yield from source.peek()
        if not (char.isdigit() or (char.isalpha() and not char.islower()) or char in _OPENING) or not char:
            return False
        if self.named:
            return True
        begin = source.offset
        found = yield from source.read_to(_NEXT_HEADER, discard)
        source.rewind_to(begin)
        return found != ""

    def _header(self, word: str) -> Steps[_Header | None]:
        """Read a header that begins with ``word``; return None, with nothing read, if it is not one."""
        source = self.source
        start = source.offset
        if not word:
            return None
        source.pos += len(word)
        channel = word.removeprefix("assistant")
        if channel in _CHANNEL_KINDS:
            to = yield from _TO.at(source)
            if not to:
                return _Header(_CHANNEL_KINDS[channel], start)
            source.pos += len(to)
        name = yield from self._recipient()
        kind = yield from _TYPE.at(source)
        source.pos += len(kind)
        if name is not None and (yield from source.peek()) == "{":
            return _Header(Kind.NAMED, start, name)
        source.rewind_to(start)
        return None

    def _recipient(self) -> Steps[str | None]:
        """Read a tool's name and a channel directly behind it; return the offered tool."""
        source = self.source
        size = yield from source.run(0, _RECIPIENT, _MAX_NAME)
        source.pos += size
        written = source.buf[source.pos - size : source.pos]
        for channel in ("", *_CHANNELS):
            name = self.rules.offered(written.removesuffix(channel)) if written.endswith(channel) else None
            if name is not None:
                return name
        return None

    def _message(self, header: _Header) -> Steps[_Header | None]:
        """Read a message; return the next one's header, None at the end of the text."""
        source, emitter = self.source, self.emitter
        if header.name:
            try:
                yield from self._arguments.read(header.name)
            except Truncated:
                source.pos = len(source.buf)
                self.calls.name = header.name
                self.calls.cut(source.since(header.start))
                return None
            emit: Callable[[str], None] = emitter.text
        elif header.kind is Kind.CONTENT:
            if self._answered:
                emitter.begin_message()
            self._answered = True
            emit = emitter.text
        elif self.reasoning:
            emitter.markup()
            emit = emitter.reasoning
        else:
            emit = emitter.text
            emit(source.since(header.start))
        source.release()
        following = yield from self._body(emit)
        if emit == emitter.reasoning:
            emitter.end_reasoning()
        return following

    def _body(self, emit: Callable[[str], None]) -> Steps[_Header | None]:
        source = self.source
        while word := (yield from source.read_to(_NEXT_HEADER, emit)):
            source.mark()
            header = yield from self._header(word)
            if header is not None:
                return header
            source.release()
            source.pos += len(word)
            emit(word)
        return None
