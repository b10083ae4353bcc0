"""Lenient streaming JSON reader: valid JSON is forwarded unchanged, anything else is repaired to valid JSON.

``JsonReader`` reads one value at a time from a Source, by the character, using memory for the value's nesting only, and appends
its JSON to a list. Anything in the place of a value is read as the nearest JSON, and each repair is recorded. Only the end of the
text stops it (``Truncated``), and what can only be repaired by inventing something: a key, a value, the end of a string
(``MalformedCall``). A fence or a marker outside a string ends the value and closes open brackets. While ``guarded``, which is
until a call is committed, a fence line inside a string or comment raises ``NoMatch`` instead, so that no text is read twice by
readers that gave up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from patchbay.formats.source import BrokenValue, MalformedCall, MarkerSet, NoMatch, Source, Steps, Truncated, discard, marker_set
from patchbay.formats.values.json_strict import JSON_NUMBER, JSON_WORDS, PYTHON_WORDS, json_string
from patchbay.formats.values.python_values import number_of
from patchbay.formats.values.tool_names import ToolTypes

VALUE = "value"
FIRST = "first value"
KEY = "key"
COLON = "colon"
COMMA = "comma"
"""States of ``Nesting.due``: what comes next."""


class Nesting:
    """The open brackets of one value. ``gap``: white space to write before the next token."""

    def __init__(self, sink: list[str], note: Callable[[str], None]) -> None:
        self.sink = sink
        self.note = note
        self.gap: list[str] = []
        self.due = VALUE
        self.complete = False
        self._closers: list[str] = []
        self._comma = False

    @property
    def depth(self) -> int:
        """Number of open brackets."""
        return len(self._closers)

    @property
    def in_object(self) -> bool:
        """True if the innermost open bracket is an object's."""
        return self._closers[-1:] == ["}"]

    @property
    def lacks_value(self) -> bool:
        """True if a value must follow."""
        return not self._comma and self.due in (VALUE, COLON)

    def write_gap(self) -> None:
        """Write the comma and the white space that precede a token."""
        if self._comma:
            self.sink.append(",")
            self._comma = False
        self.sink.extend(self.gap)
        self.gap.clear()

    def open(self, char: str) -> None:
        """Open an object or array."""
        self.write_gap()
        self.sink.append(char)
        self._closers.append("}" if char == "{" else "]")
        self.due = KEY if char == "{" else FIRST

    def end_value(self) -> None:
        """Complete a value."""
        self.due = COMMA
        self.complete = not self._closers

    def consume(self, char: str) -> bool:
        """Handle a character between values; return True if it is consumed, False if a key or a value begins with it."""
        if self.due == COMMA:
            return self._consume_between(char)
        if self.due == COLON:
            if char != ":":
                self.note("missing_colon")
            self.write_gap()
            self.sink.append(":")
            self.due = VALUE
            return char == ":"
        if char in ",:" or (self.due == KEY and char in "{["):
            self.note("stray_character")
            return True
        return False

    def _consume_between(self, char: str) -> bool:
        inside_array = self._closers[-1] == "]"
        if char == ";" or (char == ":" and inside_array):
            self.note("stray_character")
            return True
        if char == ",":
            self.sink.extend(self.gap)
            self.gap.clear()
        else:
            self.note("missing_comma")
        self._comma = True
        self.due = VALUE if inside_array else KEY
        return char == ","

    def close(self, char: str) -> bool:
        """Handle a closing bracket; return False if it does not belong to this value and is left to other readers."""
        if not self._closers:
            self.complete = True
            return False
        if self._comma:
            self.note("trailing_comma")
            self._comma = False
        if char not in self._closers:
            self.note("stray_bracket")
            return True
        if char != self._closers[-1]:
            self.note("unclosed_bracket")
            while self._closers[-1] != char:
                self.sink.append(self._closers.pop())
        self.sink.extend(self.gap)
        self.gap.clear()
        self.sink.append(self._closers.pop())
        self.end_value()
        return True

    def end(self) -> None:
        """End the value where its block ends: close what is open."""
        self.note("unclosed_bracket")
        self.sink.extend(reversed(self._closers))
        self.complete = True


_DOUBLE = re.compile(r'[^"\\\x00-\x1f]+')
_VALID = re.compile(r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+').fullmatch
"""The inside of a valid JSON string; possessive, so that no text is slow to fail."""
_SINGLE = re.compile(r"""[^'"\\\x00-\x1f]+""")
_TYPOGRAPHIC = re.compile(r"""[^“”„‘’"\\\x00-\x1f]+""")
_CLOSING_QUOTES = {'"': '"', "'": "'", **dict.fromkeys("“”„", "“”"), **dict.fromkeys("‘’", "’")}
"""Closing quotes, by opening quote."""
QUOTES = frozenset(_CLOSING_QUOTES)
QUOTE_TOKENS = marker_set(('<|"|>', "<escape>"))
"""Gemma's tokens around a string, which other models write in JSON too."""
_ESCAPES = frozenset('"\\/bfnrt')
_CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_AFTER_VALUE = frozenset(",}])")
_AFTER_STRING = frozenset(",:}]\n\r")


class StringReader:
    """Reads strings from ``source``. ``note`` is called for each repair.

    ``guarded``: a fence line inside a string raises NoMatch instead of being part of it.
    ``stops``: markers that end the block around the value. A string may hold one, but only if it then ends without any repair;
    otherwise it ends before the marker, and the value is broken (``MalformedCall``). ``fenced``: the same for a fence line.
    """

    def __init__(self, source: Source, note: Callable[[str], None]) -> None:
        self.source = source
        self.note = note
        self.guarded = False
        self.fenced = False
        self._stops: MarkerSet | None = None
        self._begins_stop: Callable[[str], object] = discard
        self._stop_free_range = (0, 0)
        """Range of offsets in which no stop begins."""

    @property
    def stops(self) -> MarkerSet | None:
        """Markers that end the block around the value."""
        return self._stops

    @stops.setter
    def stops(self, stops: MarkerSet | None) -> None:
        self._stops = stops
        self._begins_stop = discard if stops is None else stops.first_in
        self._stop_free_range = (0, 0)

    def _broken(self) -> Exception:
        return BrokenValue() if self.guarded and not self.bounded else MalformedCall()

    @property
    def bounded(self) -> bool:
        """True if the end of the block around the value is known."""
        return self.fenced or self.stops is not None

    def text(self) -> Steps[str]:
        """Read a string and return its text, not its JSON."""
        sink: list[str] = []
        yield from self.string(sink, streamed=False)
        return str(json.loads("".join(sink)))

    def string(self, sink: list[str], *, streamed: bool = True) -> Steps[None]:
        """Read a string in any kind of quotes; raises Truncated.

        ``streamed``: ``sink`` may be a call's, so chunks may take the fast path.
        """
        source = self.source
        quote = source.buf[source.pos]
        if quote == "<":
            yield from self._between_tokens(sink)
            return
        plain = _DOUBLE if quote == '"' else _SINGLE if quote == "'" else _TYPOGRAPHIC
        closing = _CLOSING_QUOTES[quote]
        source.pos += 1
        if quote == "'":
            self.note("single_quotes")
        elif quote != '"':
            self.note("typographic_quotes")
        sink.append('"')
        may_be_triple = quote in "\"'" and source.buf[source.pos : source.pos + 1] in ("", quote)
        if may_be_triple and (yield from self._is_triple(quote)):
            yield from self._triple(sink, quote)
            return
        after_stop: list[str] | None = None
        out = sink
        while True:
            found = plain.match(source.buf, source.pos)
            if found:
                end = found.end() if after_stop is not None else self._before_stop(found.end())
                if end > source.pos:
                    out.append(source.buf[source.pos : end])
                    source.pos = end
                if end < found.end():
                    if (yield from self._at_stop()):
                        stop = source.offset
                        out = after_stop = []
                    out.append(source.buf[source.pos])
                    source.pos += 1
                    continue
            if source.pos >= len(source.buf):
                if source.ended:
                    break
                if quote == '"' and streamed and after_stop is None:
                    source.fast_argument = self._fast_chunk
                yield
                source.fast_argument = None
                continue
            char = source.buf[source.pos]
            if char in closing:
                following = source.buf[source.pos + 1 : source.pos + 2]
                closes = following in _AFTER_STRING or (yield from self._closes())
                if after_stop is not None and not closes:
                    break
                source.pos += 1
                if closes:
                    sink.extend(after_stop or ())
                    sink.append('"')
                    return
                self.note("unescaped_quote")
                out.append('\\"' if char == '"' else char)
            elif char == "\\":
                try:
                    yield from self._escape(out)
                except Truncated:
                    break
            elif char == '"':
                source.pos += 1
                out.append('\\"')
            elif char in QUOTES:
                source.pos += 1
                out.append(char)
            else:
                if char == "\n" and self.fenced and after_stop is None and not self.guarded and (yield from self._fence_line()):
                    stop = source.offset
                    out = after_stop = []
                yield from self._control(out, char)
        if after_stop is None:
            raise Truncated
        source.rewind_to(stop)
        raise MalformedCall

    def _between_tokens(self, sink: list[str]) -> Steps[None]:
        """Read a string between two of another notation's tokens; it ends before a stop or a fence line, and then is broken."""
        source = self.source
        token = yield from QUOTE_TOKENS.at(source)
        source.pos += len(token)
        self.note("quote_tokens")
        written: list[str] = []
        stops = self.stops.literals if self.stops else ()
        mark = yield from source.read_to(marker_set((token, "\n```", "\n~~~", *stops)), written.append)
        if not mark:
            raise Truncated
        if mark != token:
            raise self._broken()
        source.pos += len(token)
        text = "".join(written)
        sink.append(f'"{text}"' if _VALID(text) else json_string(text))

    def _fast_chunk(self, chunk: str) -> str | None:
        return chunk if _VALID(chunk) and self._begins_stop(chunk) is None else None

    def _before_stop(self, end: int) -> int:
        """Return up to where, at most ``end``, there surely is no stop."""
        if self._stops is None:
            return end
        source = self.source
        begin, clear = self._stop_free_range
        if not begin <= source.offset < clear:
            clear = self._stops.next(source, source.pos)[0] + source.base
            self._stop_free_range = (source.offset, clear)
        return min(end, clear - source.base)

    def _at_stop(self) -> Steps[bool]:
        """True if a stop stands at ``pos``."""
        return self._stops is not None and bool((yield from self._stops.at(self.source)))

    def _fence_line(self) -> Steps[bool]:
        """True if the line after the newline at ``pos`` is a fence."""
        source = self.source
        while True:
            ahead = source.buf[source.pos + 1 : source.pos + 68].lstrip(" \t>")
            if len(ahead) >= 3 or source.ended or len(source.buf) - source.pos >= 68:
                return ahead.startswith(("```", "~~~"))
            yield

    def _is_triple(self, quote: str) -> Steps[bool]:
        """True if two more quotes follow the one that was read, as in Python's long strings."""
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
            yield from source.ahead(3)
            if source.pos >= len(source.buf):
                raise Truncated
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
            raise NoMatch
        self.source.pos += 1
        self.note("control_character")
        sink.append(_CONTROL.get(char) or f"\\u{ord(char):04x}")

    def _closes(self) -> Steps[bool]:
        """True if the quote at ``pos`` ends its string: it does not if a word or a number follows."""
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
                raise Truncated
            yield
        char = source.buf[source.pos + 1]
        if char in _ESCAPES:
            sink.append(source.buf[source.pos : source.pos + 2])
            source.pos += 2
            return
        if char == "u":
            digits = (yield from source.ahead(6))[2:]
            if len(digits) == 4 and all(digit in "0123456789abcdefABCDEF" for digit in digits):
                sink.append("\\u" + digits)
                source.pos += 6
                return
            if source.ended and len(digits) < 4:
                source.pos = len(source.buf)
                raise Truncated
        self.note("invalid_escape")
        # \_ and \' are escapes in other languages; before anything else the backslash is literal.
        if char in "_'":
            source.pos += 2
            sink.append(char)
        else:
            source.pos += 1
            sink.append("\\\\")


_BLANK = frozenset(" \t\r\n>/\\")
"""First characters of white space and comments."""
_ESCAPED_SPACE = re.compile(r"\A(?:\\[nrt])+|(?:\\[nrt])+\Z")
"""White space that was written as in a string, around a word."""
_SPACE = re.compile(r"[ \t\r\n]+")
_QUOTED_SPACE = re.compile(r"[ \t\r\n>]+")
_BARE = re.compile(r"[^\s,:{}\[\]\"'`~<]+")
_BARE_VALUE = re.compile(r"[^,{}\[\]\"\n`~<]+")
_IN_TUPLE = re.compile(r"[^\s,:{}()\[\]\"'`~<]+")
_IN_TUPLE_VALUE = re.compile(r"[^,{}()\[\]\"\n`~<]+")
_FOREIGN = {**PYTHON_WORDS, "undefined": "null", "NaN": "null", "Infinity": "null", "-Infinity": "null"}


def _is_plain(word: str) -> bool:
    """True if a word is a number or a constant."""
    return word in JSON_WORDS or word in _FOREIGN or JSON_NUMBER.fullmatch(word) is not None


_OPERATOR = re.compile(r"[ \t]*(?:[*%]|/(?![/*])|[-+][ \t])")
_BEFORE_OPERATOR = frozenset(" \t*%/")
_INDEX = re.compile(r"[\[\]]+")
FENCES = frozenset("`~")
_ENDS = FENCES | frozenset("<[")


class JsonReader(StringReader):
    """Reads values from ``source``. ``ends``: markers that, like a fence, end a value where they stand outside its strings.

    ``in_blockquote``: the text is a blockquote, so ``>`` counts as white space.
    """

    def __init__(self, source: Source, note: Callable[[str], None], ends: MarkerSet | None = None) -> None:
        super().__init__(source, note)
        self.in_blockquote = False
        self._ends = ends

    def space(self, sink: list[str] | None = None, *, comments: bool = True) -> Steps[str]:
        """Read white space and comments; return the next character, "" at the end. White space is appended to ``sink``.

        White space that is written as in a string counts too.
        """
        source = self.source
        pattern = _QUOTED_SPACE if self.in_blockquote else _SPACE
        while True:
            if source.pos >= len(source.buf):
                if source.ended:
                    return ""
                yield
                continue
            char = source.buf[source.pos]
            if char not in _BLANK:
                return char
            if (found := pattern.match(source.buf, source.pos)) is not None:
                if sink is not None:
                    sink.append(found.group().replace(">", "") if self.in_blockquote else found.group())
                source.pos = found.end()
            elif char == "\\" and (yield from self._is_escaped_space()):
                self.note("escaped_space")
                source.pos += 2
            elif char != "/" or not comments or not (yield from self._comment()):
                return char

    def _is_escaped_space(self) -> Steps[bool]:
        """True if the backslash at ``pos`` and a letter stand for white space: no word follows that they could belong to."""
        return (yield from self.source.char(1)) in ("n", "r", "t") and not (yield from self.source.char(2)).isalpha()

    def _comment(self) -> Steps[bool]:
        source = self.source
        opener = yield from source.ahead(2)
        if opener not in ("//", "/*"):
            return False
        self.note("comment")
        closer = "\n" if opener == "//" else "*/"
        start = source.offset
        source.pos += 2
        while True:
            end = source.find(closer, source.pos)
            if self.guarded and 0 <= source.find("```", source.pos) < (end if end >= 0 else len(source.buf)):
                source.rewind_to(start)
                raise NoMatch
            if end >= 0:
                break
            if source.ended:
                source.pos = len(source.buf)
                return True
            source.pos = max(source.pos, len(source.buf) - 2)  # closer and fence may be split over chunks
            yield
        source.pos = end + (len(closer) if closer == "*/" else 0)
        return True

    def value(self, sink: list[str], types: ToolTypes | None = None) -> Steps[None]:
        """Read one value, appending its JSON to ``sink``; raises Truncated at the end of the text.

        If it can only be repaired by inventing something, it is read to its end, so that no marker in its strings is taken for
        one; then raises MalformedCall, or BrokenValue if the end of the block around it is not known (``stops``, ``fenced``) and
        no call is committed.

        ``types``: the value is the arguments of such a tool; members whose schema wants a list or an object may be strings that
        hold one.
        """
        source = self.source
        nesting = Nesting(sink, self.note)
        member = ""
        word = broken = False
        tuples: set[int] = set()  # the depths whose open bracket is a parenthesis
        while not nesting.complete:
            # Skip the generator where there is no white space: a value has many tokens.
            if source.pos >= len(source.buf) or (char := source.buf[source.pos]) in _BLANK:
                char = yield from self.space(nesting.gap)
                if not char:
                    raise Truncated
            ends = self._may_end(char) and (yield from self.at_end())
            is_word, word = word and nesting.due == COLON, False
            if (nesting.lacks_value and (ends or char in _AFTER_VALUE)) or (is_word and char not in ":="):
                if not nesting.depth:
                    raise self._broken()
                broken, nesting.due = True, COMMA
                nesting.sink = sink = []
            if ends:
                nesting.end()
            elif char == "<" and nesting.due == COMMA and (token := (yield from QUOTE_TOKENS.at(source))):
                self.note("stray_character")
                source.pos += len(token)
            elif char in "}])":
                source.pos += nesting.close("]" if char == ")" else char)
            elif nesting.consume(char):
                source.pos += 1
            elif nesting.due == KEY:
                nesting.write_gap()
                word = not (yield from self.at_quote())
                if types is not None and nesting.depth == 1:
                    member = yield from self._member_key(sink)
                else:
                    yield from self.key(sink, streamed=not broken)
                broken |= word and "\\" in sink[-1]
                nesting.due = COLON
            elif char in "{[(":
                source.pos += 1
                nesting.open("[" if char == "(" else char)
                tuples.discard(nesting.depth)
                if char == "(":
                    self.note("tuple")
                    tuples.add(nesting.depth)
            else:
                nesting.write_gap()
                if not (yield from self.at_quote()):
                    yield from self._word(sink, in_tuple=nesting.depth in tuples)
                elif types is not None and nesting.depth == 1 and member in types.unquoted:
                    yield from self._member_string(sink, member, types)
                else:
                    yield from self.string(sink, streamed=not broken)
                nesting.end_value()
        if broken:
            raise self._broken()

    def _member_key(self, sink: list[str]) -> Steps[str]:
        """Read a key; return its text."""
        written: list[str] = []
        yield from self.key(written, streamed=False)
        text = "".join(written)
        sink.append(text)
        return str(json.loads(text))

    def _member_string(self, sink: list[str], member: str, types: ToolTypes) -> Steps[None]:
        """Read a string that may hold the list or object that the schema wants."""
        written: list[str] = []
        yield from self.string(written, streamed=False)
        text = "".join(written)
        value = types.decoded(member, text)
        if value != text:
            self.note("json_in_string")
        sink.append(value)

    def breaks_off(self) -> Steps[bool]:
        """Read the value at ``pos``; return True if it is broken up to the end of its block."""
        try:
            yield from self.value([])
        except MalformedCall:
            return True
        except Truncated:
            pass
        return False

    def skip_to_end(self) -> Steps[None]:
        """Read up to the next marker, or to the end of the text."""
        if self._ends is not None:
            yield from self.source.read_to(self._ends, discard)

    def _may_end(self, char: str) -> bool:
        return char in _ENDS or (self.stops is not None and char in self.stops.first)

    def at_end(self) -> Steps[bool]:
        """True if a fence or a marker stands at ``pos``, which ends the value even if brackets are open."""
        if self.source.buf[self.source.pos] in FENCES:
            return (yield from self.at_fence())
        if self._ends is not None and (yield from self._ends.at(self.source)):
            return True
        return (yield from self._at_stop())

    def at_fence(self) -> Steps[bool]:
        """True if three fence characters stand at ``pos``."""
        return (yield from self.source.ahead(3)) in ("```", "~~~")

    def key(self, sink: list[str], *, streamed: bool = True) -> Steps[None]:
        """Read a key: a string in any quotes, or a bare word. ``streamed`` as in ``string``."""
        yield from self.space()
        if (yield from self.at_quote()):
            yield from self.string(sink, streamed=streamed)
            return
        word = yield from self._read_run(_BARE)
        if not word:
            word = self.source.buf[self.source.pos]
            self.source.pos += 1
        self.note("unquoted_key")
        sink.append(json.dumps(word))

    def _read_run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Read a run that matches ``pattern``, including angle brackets that begin no marker."""
        source = self.source
        parts: list[str] = []
        while True:
            found = pattern.match(source.buf, source.pos)
            end = self._before_stop(found.end()) if found else source.pos
            parts.append(source.buf[source.pos : end])
            source.pos = end
            if end < len(source.buf):
                if not (source.buf[end] == "<" or (found and end < found.end())) or (yield from self.at_end()):
                    return "".join(parts)
                parts.append(source.buf[source.pos])
                source.pos += 1
            elif source.ended:
                return "".join(parts)
            else:
                yield

    def _word(self, sink: list[str], *, in_tuple: bool) -> Steps[None]:
        """Read a number, a constant, or bare text, which becomes a string."""
        word = yield from self._read_run(_IN_TUPLE if in_tuple else _BARE)
        self._raise_if_at_end()
        if "\\" in word and _is_plain(bare := _ESCAPED_SPACE.sub("", word)):
            self.note("escaped_space")
            word = bare
        operand = False
        if word in JSON_WORDS or JSON_NUMBER.fullmatch(word):
            following = self.source.buf[self.source.pos]
            operand = following in _BEFORE_OPERATOR and word not in JSON_WORDS and (yield from self._is_operand())
            if not operand:
                sink.append(word)
                return
        if not operand and word in _FOREIGN:
            self.note("foreign_constant")
            sink.append(_FOREIGN[word])
            return
        number = None if operand else number_of(word)
        if number is not None:
            self.note("foreign_number")
            sink.append(number)
            return
        rest = yield from self._read_run(_IN_TUPLE_VALUE if in_tuple else _BARE_VALUE)
        self._raise_if_at_end()
        parts, brackets = [word, rest], 0
        while (brackets := brackets + parts[-1].count("(") - parts[-1].count(")")) > 0 and not in_tuple:
            bracket = yield from self._read_run(_INDEX)
            if not bracket:
                break
            parts.append(bracket + (yield from self._read_run(_BARE_VALUE)))
            self._raise_if_at_end()
        text = "".join(parts).strip()
        if not text:
            text = self.source.buf[self.source.pos : self.source.pos + 1]
            self.source.pos += 1
        self.note("unquoted_string")
        sink.append(json.dumps(text))

    def at_quote(self) -> Steps[bool]:
        """True if a string begins at ``pos``."""
        char = yield from self.source.peek()
        return char in QUOTES or (char == "<" and bool((yield from QUOTE_TOKENS.at(self.source))))

    def _is_operand(self) -> Steps[bool]:
        """True if an operator follows the number before ``pos``."""
        source = self.source
        while True:
            at = source.pos
            while at < len(source.buf) and source.buf[at] in " \t":
                at += 1
            if len(source.buf) - at > 1 or source.ended:
                return _OPERATOR.match(source.buf, source.pos) is not None
            yield

    def _raise_if_at_end(self) -> None:
        """Raise Truncated at the end of the text: the number may have had more digits, the word more letters."""
        if self.source.ended and self.source.pos >= len(self.source.buf):
            raise Truncated
