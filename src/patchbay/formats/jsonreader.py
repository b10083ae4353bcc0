"""One pass over JSON as models write it: valid JSON comes out as it went in, the rest comes out as valid JSON.

``JsonReader`` reads one value at a time from a Source, by the character, in memory for the value's nesting only, and appends the
text it makes to a list. Its values cannot fail: whatever stands where a value should be is read as the nearest JSON, and each
such place is noted. Only the end of the text stops it (``CutOff``). A run of fence characters outside a string ends the value
and closes what is open: that is how a block says it is over. While ``guarded``, which is until a call is committed, a fence line
inside a string or comment raises ``NotACall`` instead, so that no text is ever read twice by readers that gave up.

What a value means (a call, a list of calls) is not known here: see ``callreader``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from patchbay.formats.source import CutOff, NotACall, Source, Steps

_SPACE = re.compile(r"[ \t\r\n]+")
_QUOTED_SPACE = re.compile(r"[ \t\r\n>]+")
_DOUBLE = re.compile(r'[^"\\\x00-\x1f]+')
_SINGLE = re.compile(r"""[^'"\\\x00-\x1f]+""")
_BARE = re.compile(r"[^\s,:{}\[\]\"'`~]+")
_BARE_VALUE = re.compile(r"[^,{}\[\]\"\n`~]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CONSTANTS = {"true": "true", "false": "false", "null": "null"}
_FOREIGN = {
    "True": "true",
    "False": "false",
    "None": "null",
    "undefined": "null",
    "NaN": "null",
    "Infinity": "null",
    "-Infinity": "null",
}
_ESCAPES = frozenset('"\\/bfnrt')
_CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_AFTER_STRING = frozenset(",:}]\n\r")
FENCES = frozenset("`~")


class JsonReader:
    """Reads values from ``source``. ``quoted`` says that the text is a blockquote: ``>`` counts as white space."""

    def __init__(self, source: Source, note: Callable[[str], None]) -> None:
        self.source = source
        self.note = note
        self.quoted = False
        self.guarded = False
        self.live_string = False
        """True while the reader waits inside a double-quoted string whose text passes through as it is."""

    def space(self, sink: list[str] | None = None, *, comments: bool = True) -> Steps[str]:
        """Read white space and comments; the next character, or "" at the end. White space goes to ``sink``, comments do not."""
        source = self.source
        pattern = _QUOTED_SPACE if self.quoted else _SPACE
        while True:
            found = pattern.match(source.buf, source.pos)
            if found:
                if sink is not None:
                    sink.append(found.group().replace(">", "") if self.quoted else found.group())
                source.pos = found.end()
            char = yield from source.peek()
            if char == "/" and comments:
                if not (yield from self._comment()):
                    return char
            elif not char or (char not in " \t\r\n" and not (self.quoted and char == ">")):
                return char

    def _comment(self) -> Steps[bool]:
        source = self.source
        while len(source.buf) - source.pos < 2 and not source.ended:
            yield
        opener = source.buf[source.pos : source.pos + 2]
        if opener not in ("//", "/*"):
            return False
        self.note("comment")
        closer = "\n" if opener == "//" else "*/"
        start = source.offset
        source.pos += 2
        while True:
            end = source.buf.find(closer, source.pos)
            if self.guarded and source.buf.find("```", source.pos, end if end >= 0 else len(source.buf)) >= 0:
                source.rewind_to(start)
                raise NotACall
            if end >= 0:
                break
            if source.ended:
                source.pos = len(source.buf)
                return True
            source.pos = max(source.pos, len(source.buf) - 2)  # closer and fence may be split over chunks
            yield
        source.pos = end + (len(closer) if closer == "*/" else 0)
        return True

    def value(self, sink: list[str]) -> Steps[None]:
        """Read one value, appending its JSON text to ``sink``; raises CutOff at the end of the text."""
        source = self.source
        open_: list[str] = []  # the closers that are due
        state = "value"
        gap: list[str] = []  # white space (and a comma) that the next token brings out
        comma = False
        while True:
            char = yield from self.space(gap)
            if not char:
                raise CutOff
            if char in FENCES and (yield from self.at_fence()):
                # The block is over: a value that is due is null, what is open is closed.
                self.note("unclosed_bracket" if open_ else "missing_value")
                if state == "value" and not comma:
                    sink.append("null")
                elif state == ":":
                    sink.append(":null")
                sink.extend(reversed(open_))
                return
            if state == "," and open_:
                if char == ",":
                    source.pos += 1
                    comma = True
                    state = "key" if open_[-1] == "}" else "value"
                    if gap:
                        sink.extend(gap)
                        gap.clear()
                    continue
                if char not in "}]":
                    if char == ";" or (char == ":" and open_[-1] == "]"):
                        source.pos += 1
                        self.note("stray_character")
                        continue
                    self.note("missing_comma")
                    comma = True
                    state = "key" if open_[-1] == "}" else "value"
                    continue
            if char in "}]":
                if state == "value" and not comma and (not sink or not open_ or open_[-1] == "}"):
                    if not open_:
                        self.note("missing_value")
                        sink.append("null")
                        return
                    self.note("missing_value")
                    sink.append("null")
                elif state == ":":
                    self.note("missing_value")
                    sink.append(":null")
                if comma:
                    self.note("trailing_comma")
                    comma = False
                source.pos += 1
                if char != open_[-1]:
                    if char not in open_:
                        self.note("stray_bracket")
                        if state in ("value", ":"):
                            state = ","
                        continue
                    self.note("unclosed_bracket")
                    while open_[-1] != char:
                        sink.append(open_.pop())
                sink.extend(gap)
                gap.clear()
                sink.append(open_.pop())
                if not open_:
                    return
                state = ","
                continue
            if state == "key":
                if char in "{[,":
                    source.pos += 1
                    self.note("stray_character")
                    continue
                if char == ":":
                    source.pos += 1
                    self.note("stray_character")
                    continue
                if comma:
                    sink.append(",")
                    comma = False
                sink.extend(gap)
                gap.clear()
                yield from self.key(sink)
                state = ":"
                continue
            if state == ":":
                if char == ":":
                    source.pos += 1
                else:
                    self.note("missing_colon")
                sink.extend(gap)
                gap.clear()
                sink.append(":")
                state = "value"
                continue
            # a value is due
            if char == "," or char == ":":
                source.pos += 1
                self.note("stray_character")
                continue
            if comma:
                sink.append(",")
                comma = False
            sink.extend(gap)
            gap.clear()
            if char == "{":
                source.pos += 1
                sink.append(char)
                open_.append("}")
                state = "key"
                continue
            if char == "[":
                source.pos += 1
                sink.append(char)
                open_.append("]")
                state = "value"
                # an empty array closes at once: "value" with nothing due
                if (yield from self.space(gap)) == "]":
                    source.pos += 1
                    sink.extend(gap)
                    gap.clear()
                    sink.append(open_.pop())
                    if not open_:
                        return
                    state = ","
                continue
            if char == '"' or char == "'":
                yield from self.string(sink)
            else:
                yield from self._word(sink)
            if not open_:
                return
            state = ","

    def at_fence(self) -> Steps[bool]:
        """Whether three fence characters stand at ``pos``."""
        source = self.source
        while len(source.buf) - source.pos < 3 and not source.ended:
            yield
        return source.buf[source.pos : source.pos + 3] in ("```", "~~~")

    def key(self, sink: list[str]) -> Steps[None]:
        """Read a key: a string in any quotes, or a bare word."""
        char = yield from self.space()
        if char in ('"', "'"):
            yield from self.string(sink)
            return
        word = yield from self._run(_BARE)
        if not word:
            word = self.source.buf[self.source.pos]
            self.source.pos += 1
        self.note("unquoted_key")
        sink.append(json.dumps(word))

    def text(self) -> Steps[str]:
        """Read a string and return what it says, not its JSON."""
        sink: list[str] = []
        yield from self.string(sink)
        return str(json.loads("".join(sink)))

    def string(self, sink: list[str]) -> Steps[None]:
        """Read a string in single or double quotes; raises CutOff."""
        source = self.source
        quote = source.buf[source.pos]
        plain = _DOUBLE if quote == '"' else _SINGLE
        source.pos += 1
        if quote == "'":
            self.note("single_quotes")
        sink.append('"')
        if (yield from self._is_triple(quote)):
            yield from self._triple(sink, quote)
            return
        while True:
            found = plain.match(source.buf, source.pos)
            if found:
                sink.append(found.group())
                source.pos = found.end()
            if source.pos >= len(source.buf):
                if source.ended:
                    raise CutOff
                self.live_string = quote == '"'
                yield
                self.live_string = False
                continue
            char = source.buf[source.pos]
            if char == quote:
                closes = yield from self._closes()
                source.pos += 1
                if closes:
                    sink.append('"')
                    return
                self.note("unescaped_quote")
                sink.append("'" if quote == "'" else '\\"')
            elif char == "\\":
                yield from self._escape(sink)
            elif char == '"':
                source.pos += 1
                sink.append('\\"')
            else:
                yield from self._control(sink, char)

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
                raise CutOff
        self.note("invalid_escape")
        # \_ and \' are escapes that other languages know; before anything else the backslash was meant.
        if char in "_'":
            source.pos += 2
            sink.append(char)
        else:
            source.pos += 1
            sink.append("\\\\")

    def _run(self, pattern: re.Pattern[str]) -> Steps[str]:
        source = self.source
        parts: list[str] = []
        while True:
            found = pattern.match(source.buf, source.pos)
            if found:
                parts.append(found.group())
                source.pos = found.end()
            if source.pos < len(source.buf) or source.ended:
                return "".join(parts)
            yield

    def _word(self, sink: list[str]) -> Steps[None]:
        """Read a number, a constant, or bare text, which becomes a string."""
        word = yield from self._run(_BARE)
        known = _CONSTANTS.get(word)
        if known or _NUMBER.fullmatch(word):
            if self.source.ended and self.source.pos >= len(self.source.buf):
                raise CutOff  # a number may have had more digits to come
            sink.append(word)
            return
        if word in _FOREIGN:
            self.note("foreign_constant")
            sink.append(_FOREIGN[word])
            return
        number = _as_number(word)
        if number is not None:
            self.note("foreign_number")
            sink.append(number)
            return
        rest = yield from self._run(_BARE_VALUE)
        text = (word + rest).strip()
        if not text:
            text = self.source.buf[self.source.pos : self.source.pos + 1]
            self.source.pos += 1
        self.note("unquoted_string")
        sink.append(json.dumps(text))


def _as_number(word: str) -> str | None:
    """JSON for a number that Python or JavaScript would read (+5, .5, 5., 1_000, 0x1f), or None."""
    if not word or word[0] not in "+-.0123456789" or len(word) > 64:
        return None
    for read in (int, float):
        try:
            value = read(word)
        except ValueError:
            continue
        text = json.dumps(value)
        return text if text[-1].isdigit() else None
    try:
        return json.dumps(int(word, 16)) if word.lower().lstrip("+-").startswith("0x") else None
    except ValueError:
        return None
