"""Arguments between ``<|open|>`` and ``<|close|>`` tags: each has its key and its type in the tag, and a string stands as it is.

<|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>
"""

from __future__ import annotations

import json
import re

from patchbay.formats.engine.marks import marks
from patchbay.formats.engine.source import CutOff, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.values.names import ToolTypes

OPEN, CLOSE, SEP = "<|open|>", "<|close|>", "<|sep|>"
_ATTRIBUTE = re.compile(r'([\w.-]+)="([^"]*)"')
_TAG_ROOM = 512
_TAGS = marks((OPEN, CLOSE))
_BEGINS = marks((f"{OPEN}argument", CLOSE))
_SEP = marks((SEP,))
_VALUE_END = f"{CLOSE}argument{SEP}"
_CALL_END = f"{CLOSE}call{SEP}"
_ENDS = marks((_VALUE_END, _CALL_END, f"{CLOSE}tools{SEP}", f"{OPEN}argument ", f"{OPEN}call "))
"""What ends a value: its own end, or what can only follow it where that was left out."""


def attributes(tag: str) -> dict[str, str]:
    """The attributes of a tag; ``&quot;`` and ``&amp;`` are all that is escaped in them."""
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(tag)}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_strict_json = json.JSONDecoder(parse_constant=_no_constant).decode


class TagArguments:
    """Reads arguments up to the call's end, or to what can only follow it."""

    def __init__(self, parts: Parts) -> None:
        self.source = parts.source
        self.calls = parts.calls
        self.rules = parts.rules

    def fits(self) -> Steps[bool]:
        """Whether a tag of arguments stands at ``pos``."""
        return bool((yield from _BEGINS.at(self.source)))

    def read(self, name: str) -> Steps[None]:
        """Read them and tell the call. Raises CutOff."""
        source, pieces = self.source, self.calls.start(name)
        pieces.append("{")
        types, separator = self.rules.types(name), ""
        while True:
            while (char := (yield from source.peek())) and char in " \t\r\n":
                source.pos += 1
            if not char:
                raise CutOff  # another argument may have been about to come
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
                    pieces.append(_typed(types, key, (yield from self._raw())))
            elif tag != _VALUE_END:
                if tag != _CALL_END:
                    source.rewind_to(begin)
                break
        pieces.append("}")
        self.calls.end()

    def _tag(self) -> Steps[str]:
        """Read a tag with its separator; "" if none stands here."""
        source = self.source
        if not (yield from _TAGS.at(source)):
            if _TAGS.begun(source):
                raise CutOff
            return ""
        while True:
            end, found = _SEP.next(source, source.pos)
            if found and end - source.pos <= _TAG_ROOM:
                tag = source.buf[source.pos : end + len(SEP)]
                source.pos = end + len(SEP)
                return tag
            if found or end - source.pos > _TAG_ROOM:
                return ""
            if source.ended:
                raise CutOff
            yield

    def _text(self, pieces: list[str]) -> Steps[None]:
        """Read a string, told while it arrives."""
        source = self.source
        pieces.append('"')
        while True:
            end, mark = _ENDS.next(source, source.pos)
            pieces.append(_escaped(source.buf[source.pos : end]))
            source.pos = end
            if mark:
                break
            if source.ended:
                raise CutOff
            source.live = _passes
            yield
            source.live = None
        pieces.append('"')
        self._value_end(mark)

    def _raw(self) -> Steps[str]:
        """Read a value that can only be understood as a whole."""
        source, read = self.source, list[str]()
        while True:
            end, mark = _ENDS.next(source, source.pos)
            read.append(source.buf[source.pos : end])
            source.pos = end
            if mark:
                self._value_end(mark)
                return "".join(read)
            if source.ended:
                raise CutOff
            yield

    def _value_end(self, mark: str) -> None:
        if mark == _VALUE_END:
            self.source.pos += len(mark)


def _typed(types: ToolTypes, key: str, text: str) -> str:
    """JSON for a value that is no string: as it is if it is JSON, else by the tool's schema."""
    try:
        _strict_json(text)
    except (ValueError, RecursionError):
        return types.json(key, text)
    return text.strip()


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _passes(chunk: str) -> str | None:
    return None if "<" in chunk else _escaped(chunk)
