"""Calls whose name stands before the arguments, ``name<separator>{...}``, and arguments in other notations.

brave_search.call(query="tides")                                                  Llama's built-in tools
print(1 + 1)                                                                      code, for a tool that runs code
<|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>      Kimi K3
<parameter name="city">Rome</parameter>                                           Beam, Muse
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from patchbay.formats.codecs.json import JsonArguments, emit_call_text
from patchbay.formats.codecs.xml import CALLS, TAGS, TagContext, XmlBody
from patchbay.formats.context import Context, Reader
from patchbay.formats.source import MarkerSet, NoMatch, Source, Steps, Truncated, UnknownTool, marker_set
from patchbay.formats.spec import Wrapper
from patchbay.formats.values.json_strict import escaped
from patchbay.formats.values.python_reader import PythonReader
from patchbay.formats.values.python_values import arguments_json
from patchbay.formats.values.raw_text import (
    Boundary,
    QuotedCalls,
    UntypedArguments,
    end_text_call,
    read_text,
    start_text_call,
    verbatim,
)


class BracketArguments(Reader):
    """Reads arguments as in a Python call, in parentheses."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._values = PythonReader(context.source, context.emitter.note)

    def fits(self) -> Steps[bool]:
        """True if a parenthesis opens at ``pos``."""
        return (yield from self.source.peek()) == "("

    def read(self, name: str) -> Steps[None]:
        """Read to the closing parenthesis and emit the call. Raises NoMatch, Truncated."""
        arguments = yield from self._values.arguments()
        self.calls.start(name).append(arguments_json(arguments, self.rules.types(name)))
        self.calls.end()


_METHOD = re.compile(r"\w+\.call\(")
_METHOD_LOOKAHEAD = 80


class CodeCalls(Reader):
    """Reads code up to one of ``ends`` or the end of the text, if a tool that runs code was offered."""

    def __init__(self, context: Context, ends: MarkerSet) -> None:
        super().__init__(context)
        self._ends = ends

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:
        """Read the code and return 1."""
        source = self.source
        found = self._tool(wrapper) if first else None
        if found is None or (yield from self._is_call()):
            raise NoMatch
        name, key = found
        pieces = start_text_call(self.calls, name, key)
        yield from source.read_to(self._ends, lambda text: pieces.append(escaped(text)), self._fast_chunk)
        end_text_call(self.calls, pieces)
        return 1

    def _tool(self, wrapper: Wrapper) -> tuple[str, str] | None:
        """Return the offered tool that takes code and its parameter for it, if there is exactly one such tool."""
        names = {name for written in wrapper.code_tools if (name := self.rules.offered(written)) is not None}
        if len(names) != 1:
            return None
        name = names.pop()
        keys = self.rules.types(name).keys or ()
        key = "code" if "code" in keys or not keys else keys[0]
        return (name, key) if len(keys) <= 1 or key == "code" else None

    def _is_call(self) -> Steps[bool]:
        """True if a call in another notation stands at ``pos``: text that looks like a call is not run as code."""
        source = self.source
        if (yield from source.peek()) in ("{", "[", ""):
            return True
        while len(source.buf) - source.pos < _METHOD_LOOKAHEAD and not source.ended and "\n" not in source.buf[source.pos :]:
            yield
        return _METHOD.match(source.buf, source.pos) is not None

    def _fast_chunk(self, chunk: str) -> str | None:
        return None if any(char in chunk for char in self._ends.first) else escaped(chunk)


_NAME_PART = re.compile(r"""[^\s({<\[\]>)}"'`|=,;]+""")
_MAX_HEADER = 512
_BLANKS = " \t\r\n"


class ArgumentCodec(Protocol):
    """One notation for the arguments of a call whose name is known."""

    def fits(self) -> Steps[bool]:
        """True if arguments in this notation stand at ``pos``; nothing is read."""

    def read(self, name: str) -> Steps[None]:
        """Read them and emit the call. Raises NoMatch while it was not emitted, Truncated."""


class NamedCalls(Reader):
    """Reads a name, then the arguments with the first of ``arguments`` that fits; a name alone is a call without arguments."""

    def __init__(self, context: Context, arguments: Sequence[ArgumentCodec], closers: tuple[str, ...]) -> None:
        super().__init__(context)
        self._json = context.json
        self.arguments = arguments
        self._objects = JsonArguments(context)
        self._closers = marker_set(closers)

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:
        """Read one call and return 1."""
        if wrapper.body_prefix_len or (not first and not wrapper.closers):
            raise NoMatch  # a word behind the last call need not be a name
        written = wrapper.name((yield from self._header(wrapper))).removesuffix(":")
        name = self.rules.resolve(written)
        if written.isdecimal() and self.rules.offered(written) is None:
            return (yield from self._numbered_call())
        if name is None:
            yield from self._objects.skip()
            self.calls.skipped_to = self.source.offset
            raise UnknownTool
        self.calls.name = name
        for codec in self.arguments:
            if (yield from codec.fits()):
                yield from codec.read(name)
                return 1
        closer = yield from self._closers.at(self.source)
        alone = self._may_stand_alone(wrapper, name) and (not (yield from self.source.peek()) or (yield from self._json.at_end()))
        if not closer and not alone:
            if self._closers.is_cut_off(self.source) and self.rules.offered(name) is not None:
                raise Truncated
            raise NoMatch
        self.calls.start(name).append("{}")
        self.calls.end()
        return 1

    def _may_stand_alone(self, wrapper: Wrapper, name: str) -> bool:
        """True if a name alone may be a whole call, behind an opener that has no closer: the tool must need no arguments."""
        bare = bool(wrapper.separators) and not wrapper.closers
        return bare and self.rules.offered(name) == name and not self.rules.types(name).required

    def _numbered_call(self) -> Steps[int]:
        """Read a call with a number for a name: its parameters identify the tool, if exactly one takes them."""
        if (yield from self.source.peek()) != "{":
            raise NoMatch
        sink: list[str] = []
        yield from self._json.value(sink)
        arguments = "".join(sink)
        name = self.rules.tool_with_parameters(json.loads(arguments))
        if name is None:
            raise NoMatch
        self.note("no_name")
        emit_call_text(self.calls, self.rules, name, arguments, self.note)
        return 1

    def _header(self, wrapper: Wrapper) -> Steps[str]:
        """Read up to the arguments; return the text before them, with separators as line breaks."""
        source, separators = self.source, marker_set(wrapper.separators)
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
            found = _NAME_PART.match(source.buf, source.pos)
            if not found:
                header = "".join(pieces).strip()
                name, in_name = wrapper.name(header), not char and pieces[-1:] != ["\n"]
                if char or "\n" in pieces or not (self._may_stand_alone(wrapper, name) and self.rules.is_whole(name)):
                    self._cut(name, in_name=in_name, separators=separators)
                return header
            pieces.append(found.group())
            source.pos = found.end()
        raise NoMatch

    def _cut(self, name: str, *, in_name: bool, separators: MarkerSet) -> None:
        """Raise Truncated if the text ends in a call's name, or between it and the arguments."""
        source = self.source
        if in_name and not name.endswith(":") and self.rules.begins_name(name):
            raise Truncated
        known = self.rules.resolve(name.removesuffix(":"))
        if known is not None and (source.pos == len(source.buf) or separators.is_cut_off(source)):
            source.pos = len(source.buf)
            self.calls.name = known
            raise Truncated


OPEN, CLOSE, SEP = "<|open|>", "<|close|>", "<|sep|>"
_ATTRIBUTE = re.compile(r'([\w.-]+)=["“”„]([^"“”]*)["“”]')
_MAX_TAG = 512
_TAGS = marker_set((OPEN, CLOSE))
_FIRST_TAGS = marker_set((f"{OPEN}argument", CLOSE))
_SEP = marker_set((SEP,))
_VALUE_END = f"{CLOSE}argument{SEP}"
_CALL_END = f"{CLOSE}call{SEP}"
_CALL_OPENERS = {f"{OPEN}call ": _CALL_END, f"{OPEN}tools{SEP}": f"{CLOSE}tools{SEP}"}
"""Openers of calls, and of markup around calls, with their closers."""
_ARGUMENT = f"{OPEN}argument "
_IN_VALUE = marker_set((_VALUE_END, _ARGUMENT, *_CALL_OPENERS, *_CALL_OPENERS.values()))


def attributes(tag: str) -> dict[str, str]:
    """Parse the attributes of a tag; ``&quot;`` and ``&amp;`` are the only escapes in them."""
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(tag)}


def _is_cut(source: Source, tags: MarkerSet) -> bool:
    """True if the text ends inside of a tag that begins at ``pos``, be it behind its first character."""
    return tags.is_cut_off(source) or (source.ended and source.buf[source.pos :] == "<")


class TagArguments(Reader):
    """Reads Kimi K3's arguments up to the call's end, or to what can only follow it.

    In a value, a tag is text if it belongs to a call that the value quotes. Otherwise it ends the value: as its closer, or
    because that was left out.
    """

    def fits(self) -> Steps[bool]:
        """True if a tag of an argument, or the beginning of one that the end of the text cut off, stands at ``pos``."""
        return bool((yield from _FIRST_TAGS.at(self.source))) or _is_cut(self.source, _FIRST_TAGS)

    def read(self, name: str) -> Steps[None]:
        """Read the arguments and emit the call. Raises Truncated."""
        source, pieces = self.source, self.calls.start(name)
        pieces.append("{")
        types, separator = self.rules.types(name), ""
        while True:
            char = yield from source.space()
            if not char:
                raise Truncated  # more arguments may be missing
            begin = source.offset
            tag = yield from self._tag()
            if tag.startswith(f"{OPEN}argument"):
                given = attributes(tag)
                key = given.get("key", "")
                pieces.append(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
                separator = ", "
                if given.get("type") == "string":
                    yield from self._text(pieces)
                else:
                    pieces.append(types.json_or_typed(key, (yield from self._raw())))
            elif tag != _VALUE_END:
                if tag != _CALL_END:
                    source.rewind_to(begin)
                break
        pieces.append("}")
        self.calls.end()

    def _tag(self) -> Steps[str]:
        """Read a tag with its separator; return "" if there is none."""
        source = self.source
        if not (yield from _TAGS.at(source)):
            if _is_cut(source, _TAGS):
                raise Truncated
            return ""
        while True:
            end, found = _SEP.next(source, source.pos)
            if found and end - source.pos <= _MAX_TAG:
                tag = source.buf[source.pos : end + len(SEP)]
                source.pos = end + len(SEP)
                return tag
            if found or end - source.pos > _MAX_TAG:
                return ""
            if source.ended:
                raise Truncated
            yield

    def _text(self, pieces: list[str]) -> Steps[None]:
        """Read a string and emit it while it arrives."""
        pieces.append('"')
        yield from self._value(pieces, escaped)
        pieces.append('"')

    def _raw(self) -> Steps[str]:
        """Read a value that must be complete to be understood."""
        pieces: list[str] = []
        yield from self._value(pieces, verbatim)
        return "".join(pieces)

    def _value(self, pieces: list[str], encode: Callable[[str], str]) -> Steps[None]:
        quoted = QuotedCalls()
        yield from read_text(self.source, pieces, lambda: self._end(quoted), encode=encode)

    def _end(self, quoted: QuotedCalls) -> Steps[Boundary]:
        """Classify ``pos`` in a value. ``quoted``: the calls that the value quotes."""
        mark = yield from _IN_VALUE.at(self.source)
        if mark in _CALL_OPENERS:
            quoted.open_call(_CALL_OPENERS[mark])
        elif mark == _VALUE_END:
            if not quoted.close_value():
                self.source.pos += len(mark)
                return Boundary.CLOSED
        elif mark and not (quoted.any_open if mark == _ARGUMENT else quoted.close_call(mark)):
            return Boundary.BROKEN
        elif mark == _ARGUMENT:
            quoted.open_value()
        return Boundary.NONE


class Parameters:
    """Reads parameter tags. ``ends``: all markers and special tokens, one of which may follow a value's closer."""

    def __init__(self, context: Context, ends: MarkerSet) -> None:
        self.context = context
        self.structure = TagContext(context.source, ends)

    def fits(self) -> Steps[bool]:
        """True if a parameter's tag stands at ``pos``."""
        tag = yield from TAGS.at(self.context.source)
        return tag is not None and not (tag.cut or tag.closes) and tag.word not in CALLS

    def read(self, name: str) -> Steps[None]:
        """Read them and emit the call. Raises NoMatch while it was not emitted, Truncated."""
        context = self.context
        arguments = UntypedArguments(context.calls, name, context.rules.types(name), context.emitter.note)
        body = XmlBody(context, self.structure, arguments, lines=False, buffered=False)
        yield from body.read()
        if not body.emitted:
            arguments.emit()
