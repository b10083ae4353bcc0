"""JSON strings as models write them: any quotes, Python's long strings, raw line breaks, escapes that are none.

A string comes out as valid JSON; one that is valid comes out as it went in, piece by piece while it arrives. Numbers, brackets
and what holds them together are read in ``jsonreader``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from patchbay.formats.engine.marks import Marks
from patchbay.formats.engine.source import BrokenOff, CutOff, NotACall, Source, Steps

_DOUBLE = re.compile(r'[^"\\\x00-\x1f]+')
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*').fullmatch
_SINGLE = re.compile(r"""[^'"\\\x00-\x1f]+""")
_TYPOGRAPHIC = re.compile(r"""[^“”„‘’"\\\x00-\x1f]+""")
_CLOSING = {'"': '"', "'": "'", **dict.fromkeys("“”„", "“”"), **dict.fromkeys("‘’", "’")}
"""What ends a string, by what opens it."""
QUOTES = frozenset(_CLOSING)
_ESCAPES = frozenset('"\\/bfnrt')
_CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_AFTER_STRING = frozenset(",:}]\n\r")


def _nothing(_chunk: str) -> None:
    return None


class StringReader:
    """Reads strings from ``source``. ``note`` is told of each repair.

    ``guarded``: a fence line inside a string raises NotACall instead of being part of it.
    ``stops``: the markers that end the block around the value. A string may hold one, but only if it ends behind it without any
    repair: else it ends before the marker, and the value is no JSON (``BrokenOff``). ``fenced``: so does a fence line.
    """

    def __init__(self, source: Source, note: Callable[[str], None]) -> None:
        self.source = source
        self.note = note
        self.guarded = False
        self.fenced = False
        self._stops: Marks | None = None
        self._begins_stop: Callable[[str], object] = _nothing
        self._clear = (0, 0)
        """From where up to where no stop begins."""

    @property
    def stops(self) -> Marks | None:
        """The markers that end the block around the value."""
        return self._stops

    @stops.setter
    def stops(self, stops: Marks | None) -> None:
        self._stops = stops
        self._begins_stop = _nothing if stops is None else stops.first_in
        self._clear = (0, 0)

    def text(self) -> Steps[str]:
        """Read a string and return what it says, not its JSON."""
        sink: list[str] = []
        yield from self.string(sink, told=False)
        return str(json.loads("".join(sink)))

    def string(self, sink: list[str], *, told: bool = True) -> Steps[None]:
        """Read a string in single or double quotes; raises CutOff.

        ``told``: ``sink`` may be a call's, and grow by other means.
        """
        source = self.source
        quote = source.buf[source.pos]
        plain = _DOUBLE if quote == '"' else _SINGLE if quote == "'" else _TYPOGRAPHIC
        closing = _CLOSING[quote]
        source.pos += 1
        if quote == "'":
            self.note("single_quotes")
        elif quote != '"':
            self.note("typographic_quotes")
        sink.append('"')
        if quote in "\"'" and (yield from self._is_triple(quote)):
            yield from self._triple(sink, quote)
            return
        held: list[str] | None = None
        out = sink
        while True:
            found = plain.match(source.buf, source.pos)
            if found:
                end = found.end() if held is not None else self._before_stop(found.end())
                if end > source.pos:
                    out.append(source.buf[source.pos : end])
                    source.pos = end
                if end < found.end():
                    if (yield from self._at_stop()):
                        stop = source.offset
                        out = held = []
                    out.append(source.buf[source.pos])
                    source.pos += 1
                    continue
            if source.pos >= len(source.buf):
                if source.ended:
                    break
                if quote == '"' and told and held is None:
                    source.live = self._passes
                yield
                source.live = None
                continue
            char = source.buf[source.pos]
            if char in closing:
                closes = yield from self._closes()
                if held is not None and not closes:
                    break
                source.pos += 1
                if closes:
                    sink.extend(held or ())
                    sink.append('"')
                    return
                self.note("unescaped_quote")
                out.append('\\"' if char == '"' else char)
            elif char == "\\":
                try:
                    yield from self._escape(out)
                except CutOff:
                    break
            elif char == '"':
                source.pos += 1
                out.append('\\"')
            elif char in QUOTES:
                source.pos += 1
                out.append(char)
            else:
                if char == "\n" and self.fenced and held is None and not self.guarded and (yield from self._fence_line()):
                    stop = source.offset
                    out = held = []
                yield from self._control(out, char)
        if held is None:
            raise CutOff
        source.rewind_to(stop)
        raise BrokenOff

    def _passes(self, chunk: str) -> str | None:
        return chunk if _PLAIN(chunk) and self._begins_stop(chunk) is None else None

    def _before_stop(self, end: int) -> int:
        """How far before ``end`` there surely is no stop."""
        if self._stops is None:
            return end
        source = self.source
        begin, clear = self._clear
        if not begin <= source.offset < clear:
            clear = self._stops.next(source, source.pos)[0] + source.base
            self._clear = (source.offset, clear)
        return min(end, clear - source.base)

    def _at_stop(self) -> Steps[bool]:
        """Whether a stop stands at ``pos``."""
        return self._stops is not None and bool((yield from self._stops.at(self.source)))

    def _fence_line(self) -> Steps[bool]:
        """Whether the line after the newline at ``pos`` is a fence."""
        source = self.source
        while True:
            ahead = source.buf[source.pos + 1 : source.pos + 68].lstrip(" \t>")
            if len(ahead) >= 3 or source.ended or len(source.buf) - source.pos >= 68:
                return ahead.startswith(("```", "~~~"))
            yield

    def _is_triple(self, quote: str) -> Steps[bool]:
        """Whether two more quotes follow the one that was read: no JSON begins so, Python's long strings do."""
        source = self.source
        while not source.ended:
            if not quote.startswith(source.buf[source.pos : source.pos + 1]):
                return False
            if len(source.buf) - source.pos >= 2:
                break
            yield
        return source.buf[source.pos : source.pos + 2] == quote * 2

    def _triple(self, sink: list[str], quote: str) -> Steps[None]:
        """Read the rest of a string in triple quotes."""
        source = self.source
        source.pos += 2
        self.note("triple_quotes")
        while True:
            found = _SINGLE.match(source.buf, source.pos)
            if found:
                sink.append(found.group())
                source.pos = found.end()
            while len(source.buf) - source.pos < 3 and not source.ended:
                yield
            if source.pos >= len(source.buf):
                raise CutOff
            char = source.buf[source.pos]
            if source.buf[source.pos : source.pos + 3] == quote * 3:
                source.pos += 3
                sink.append('"')
                return
            if char == "\\":
                yield from self._escape(sink)
            elif char in "'\"":
                source.pos += 1
                sink.append('\\"' if char == '"' else char)
            elif not _SINGLE.match(char):
                yield from self._control(sink, char)

    def _control(self, sink: list[str], char: str) -> Steps[None]:
        if self.guarded and char == "\n" and (yield from self._fence_line()):
            raise NotACall
        self.source.pos += 1
        self.note("control_character")
        sink.append(_CONTROL.get(char) or f"\\u{ord(char):04x}")

    def _closes(self) -> Steps[bool]:
        """Whether the quote at ``pos`` ends its string: a word or a number cannot follow one, so before those it does not."""
        source = self.source
        ahead = source.pos + 1
        while True:
            while ahead < len(source.buf) and source.buf[ahead] in " \t" and ahead - source.pos < 64:
                ahead += 1
            if ahead < len(source.buf) or source.ended:
                break
            offset = ahead - source.pos
            yield
            ahead = source.pos + offset
        if ahead >= len(source.buf):
            return True
        following = source.buf[ahead]
        return following in _AFTER_STRING or (source.buf[source.pos] == '"' and not following.isalnum())

    def _escape(self, sink: list[str]) -> Steps[None]:
        source = self.source
        while len(source.buf) - source.pos < 2:
            if source.ended:
                source.pos = len(source.buf)
                raise CutOff
            yield
        char = source.buf[source.pos + 1]
        if char in _ESCAPES:
            sink.append(source.buf[source.pos : source.pos + 2])
            source.pos += 2
            return
        if char == "u":
            while len(source.buf) - source.pos < 6 and not source.ended:
                yield
            digits = source.buf[source.pos + 2 : source.pos + 6]
            if len(digits) == 4 and all(digit in "0123456789abcdefABCDEF" for digit in digits):
                sink.append("\\u" + digits)
                source.pos += 6
                return
            if source.ended and len(digits) < 4:
                source.pos = len(source.buf)
                raise CutOff
        self.note("invalid_escape")
        # \_ and \' are escapes that other languages know; before anything else the backslash was meant.
        if char in "_'":
            source.pos += 2
            sink.append(char)
        else:
            source.pos += 1
            sink.append("\\\\")
