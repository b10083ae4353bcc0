"""Harmony without its special tokens, as a server leaves it that strips them.

    analysisI should look.assistantcommentary to=functions.get_weather json{"city": "Rome"}

Nothing but words is left, so these count only where they are glued as nobody writes them: at the very start of the text, and from
there on. Unless the format was named, reasoning needs a second such word later in the text; a call needs an offered tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from patchbay.formats.channelrows import Kind
from patchbay.formats.engine.marks import marks
from patchbay.formats.engine.source import CutOff, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.shapes.jsonarguments import JsonArguments

_KINDS = {"analysis": Kind.REASONING, "commentary": Kind.CONTENT, "final": Kind.CONTENT}
_CHANNELS = tuple(_KINDS)
_NEXT = (*(f"assistant{channel}" for channel in _CHANNELS), "assistant to=")
_BEGINNINGS = (*_CHANNELS, *_NEXT, "to=", " to=")
_FIRST = marks(_BEGINNINGS)
_FOLLOWING = marks(_NEXT)
_TO = marks((" to=", "to="))
_TYPE = marks((" json", "json", " code", "code"))
_NAME_ROOM = 128
_NAME = re.compile(rf"[\w.:-]{{1,{_NAME_ROOM}}}")
_OPENING = "\"'“(*"


@dataclass(frozen=True)
class _Header:
    """``name``: the tool of a call. ``start``: where it began."""

    kind: Kind
    start: int
    name: str = ""


class StrippedHarmony:
    """Reads a whole reply, from its first character on."""

    words: ClassVar[tuple[str, ...]] = tuple(word.lstrip() for word in _BEGINNINGS)

    def __init__(self, parts: Parts) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.rules = parts.rules
        self.calls = parts.calls
        self.named = parts.named
        self.reasoning = parts.reasoning
        self._arguments = JsonArguments(parts)
        self._answered = False

    def read(self) -> Steps[bool]:
        """Read the reply; False, with nothing read, if it does not begin as such replies do."""
        source = self.source
        source.mark()
        begin = source.offset
        header = yield from self._header((yield from _FIRST.at(source)))
        if header is None or not (yield from self._is_sure(header)):
            source.rewind_to(begin)
            source.release()
            return False
        while header is not None:
            header = yield from self._message(header)
        source.release()
        return True

    def _is_sure(self, header: _Header) -> Steps[bool]:
        """Whether the text is no prose that happens to begin so; nothing is read."""
        source = self.source
        if header.name:
            return True
        char = yield from source.peek()
        if not (char.isdigit() or (char.isalpha() and not char.islower()) or char in _OPENING) or not char:
            return False
        if self.named:
            return True
        begin = source.offset
        while True:
            source.pos, found = _FOLLOWING.next(source, source.pos)
            if found or source.ended:
                source.rewind_to(begin)
                return bool(found)
            yield

    def _header(self, word: str) -> Steps[_Header | None]:
        """Read a header that begins with ``word``; None, with nothing read, if it is none."""
        source = self.source
        start = source.offset
        if not word:
            return None
        source.pos += len(word)
        channel = word.removeprefix("assistant")
        if channel in _KINDS:
            to = yield from _TO.at(source)
            if not to:
                return _Header(_KINDS[channel], start)
            source.pos += len(to)
        name = yield from self._recipient()
        kind = yield from _TYPE.at(source)
        source.pos += len(kind)
        if name is not None and (yield from source.peek()) == "{":
            return _Header(Kind.NAMED, start, name)
        source.rewind_to(start)
        return None

    def _recipient(self) -> Steps[str | None]:
        """Read a tool's name, and a channel that is glued to it; the offered tool."""
        source = self.source
        while True:
            found = _NAME.match(source.buf, source.pos)
            end = found.end() if found else source.pos
            if end < len(source.buf) or source.ended or end - source.pos == _NAME_ROOM:
                break
            yield
        written = source.buf[source.pos : end]
        source.pos = end
        for channel in ("", *_CHANNELS):
            name = self.rules.offered(written.removesuffix(channel)) if written.endswith(channel) else None
            if name is not None:
                return name
        return None

    def _message(self, header: _Header) -> Steps[_Header | None]:
        """Read a message; the next one's header, None at the end of the text."""
        source, emitter = self.source, self.emitter
        if header.name:
            try:
                yield from self._arguments.read(header.name)
            except CutOff:
                source.pos = len(source.buf)
                self.calls.name = header.name
                self.calls.cut(source.since(header.start))
                return None
            tell: Callable[[str], None] = emitter.text
        elif header.kind is Kind.CONTENT:
            if self._answered:
                emitter.message_begins()
            self._answered = True
            tell = emitter.text
        elif self.reasoning:
            emitter.thought_begins()
            tell = emitter.thought
        else:
            tell = emitter.text
            tell(source.since(header.start))
        source.release()
        following = yield from self._body(tell)
        if tell == emitter.thought:
            emitter.thought_ends()
        return following

    def _body(self, tell: Callable[[str], None]) -> Steps[_Header | None]:
        source = self.source
        while True:
            end, word = _FOLLOWING.next(source, source.pos)
            tell(source.buf[source.pos : end])
            source.pos = end
            if word:
                source.mark()
                header = yield from self._header(word)
                if header is not None:
                    return header
                source.release()
                source.pos += len(word)
                tell(word)
            elif source.ended:
                return None
            else:
                yield
