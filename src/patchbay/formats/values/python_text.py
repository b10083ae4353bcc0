"""Python's strings and numbers, as models write them, to JSON."""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from patchbay.formats.source import MalformedCall, MarkerSet, Source, Steps, Truncated
from patchbay.formats.values.json_strict import JSON_INTEGER, JSON_NUMBER, JSON_WORDS, PYTHON_WORDS, json_text

_LONG_INTEGER = re.compile(r"[+-]?[1-9][0-9_]*[0-9]")
_NUMBER_START = re.compile(r"[+-]?\.?[0-9]")
_CURRENCIES = "$€£¥₹"
_AMOUNT = re.compile(r"(?:0|[1-9][0-9]*|[1-9][0-9]{0,2}(?:,[0-9][0-9][0-9])+)(?:\.[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|[0-9]{1,2}/[0-9]{1,2}/[0-9]{2,4}")
_ARITHMETIC = re.compile(
    r"(?:[ \t\r\n]*+(?:(?:[0-9][0-9_]*+\.?+[0-9_]*+|\.[0-9][0-9_]*+)(?:[eE][-+]?[0-9]++)?+"
    r"|(?:math|np|numpy)\.(?:pi|e)(?!\w)|[-+*/%()]))++"
)
"""Numbers, constants and operators; possessive, so that no text is matched in more than one way."""
_CONSTANTS = {**PYTHON_WORDS, **{word: word for word in JSON_WORDS}}
_MAX_NUMBER = 64
_MAX_EXPRESSION = 200
_MAX_BITS = 4096

Number = int | float


def constant_json(text: str) -> str | None:
    """Return JSON for Python's and JSON's constants, or None."""
    return _CONSTANTS.get(text)


def number_of(text: str) -> str | None:
    """Return JSON for a number that Python reads (``1_000``, ``.5``, ``0x1f``, ``+5``), or None. JSON stays unchanged."""
    if JSON_NUMBER.fullmatch(text):
        return text if JSON_INTEGER.fullmatch(text) or math.isfinite(float(text)) else None
    if _LONG_INTEGER.fullmatch(text):
        return None if "__" in text else text.lstrip("+").replace("_", "")
    value = _small_number(text)
    return None if value is None or not math.isfinite(value) else repr(value)


def _small_number(text: str) -> Number | None:
    if len(text) > _MAX_NUMBER or not text.isascii() or not _NUMBER_START.match(text):
        return None
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text) if set(text) & set(".eE") else None
    except ValueError:
        return None


def amount_json(text: str) -> str | None:
    """Return JSON for an amount of money, or a number with thousands separators (``$5,000``), or None."""
    digits = text.lstrip(_CURRENCIES).lstrip(" ")
    if digits == text and "," not in text:
        return None
    return digits.replace(",", "") if _AMOUNT.fullmatch(digits) else None


def arithmetic_json(text: str) -> str | None:
    """Return JSON for the result of arithmetic (``2*math.pi``, ``(1 + 0.05) ** 4``), or None. A date is not a difference."""
    if len(text) > _MAX_EXPRESSION or _DATE.fullmatch(text) or not _ARITHMETIC.fullmatch(text):
        return None
    try:
        result = _compute(ast.parse(" ".join(text.split()), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError):
        return None
    if isinstance(result, int):
        return str(result) if result.bit_length() <= _MAX_BITS else None
    return repr(result) if math.isfinite(result) else None


def _compute(node: ast.expr) -> Number:
    """Compute an expression of numbers and operators; raises ValueError for anything else, ArithmeticError."""
    if (
        isinstance(node, ast.Constant)
        and type(node.value) in (int, float)
        and (node.end_col_offset or 0) - node.col_offset <= _MAX_NUMBER
    ):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.Attribute):
        return math.pi if node.attr == "pi" else math.e
    if isinstance(node, ast.UnaryOp):
        operand = _compute(node.operand)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp):
        left, right = _compute(node.left), _compute(node.right)
        return _power(left, right) if isinstance(node.op, ast.Pow) else _OPERATIONS[type(node.op)](left, right)
    raise ValueError("not arithmetic")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MAX_BITS:
        raise ValueError
    result = base**exponent
    if isinstance(result, (int, float)):
        return result
    raise ValueError  # a complex number


_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


_PLAIN = re.compile(r"""[^'"\\\x00-\x1f\ud800-\udfff]+""")
_PLAIN_IN = {"'": _PLAIN, '"': re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]+')}
BLANKS = re.compile(r"[ \t\r\n]*")
NAME = re.compile(r"[\w.$\\-]*")
_WORDS = re.compile(r"""[^'"=()\[\]{}\n]*""")
_BRACKETS = re.compile(r"[)\]} \t]*")
_AFTER_MISSING_QUOTE = re.compile(r",[ \t\r\n]*(?P<key>[^\W\d]\w*)=|\)[\])]?[ \t]*,[ \t\r\n]*(?P<tool>[^\W\d][\w.]*)\(")
"""The text behind a string whose closing quote was left out: the next argument of the call, or the next call."""
_HEX = re.compile(r"[0-9a-fA-F]*")
_OCTAL = re.compile(r"[0-7]*")
_QUOTES = frozenset("'\"")
CLOSERS = frozenset(")]}")
_AFTER_STRING = CLOSERS | {","}
_PREFIXES = frozenset(
    case(prefix)
    for prefix in ("r", "b", "f", "u", "rb", "br", "rf", "fr", "Rb", "Br", "Rf", "Fr", "\\", "\\\\", "\\\\\\")
    for case in (str, str.upper, str.swapcase)
)
_ESCAPES = {
    "\\": "\\\\", "'": "'", '"': '\\"', "/": "/", "\n": "", "a": "\\u0007", "b": "\\b", "f": "\\f", "n": "\\n", "r": "\\r",
    "t": "\\t", "v": "\\u000b",
}  # fmt: skip
_CODES = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True)
class Place:
    """The syntactic position of a value, which decides what may follow it.

    ``ends``: what ends a string besides a comma. ``in_call``: ``name=`` may follow although a comma is missing. ``is_key``: a
    colon or an equals sign ends a bare word. ``is_line``: the end of the line ends a value.
    """

    ends: frozenset[str] = CLOSERS
    in_call: bool = False
    is_key: bool = False
    is_line: bool = False


def json_char(code: int) -> str:
    """Encode a character for a JSON string."""
    return f"\\u{code:04x}" if 0xD800 <= code <= 0xDFFF else json.dumps(chr(code), ensure_ascii=False)[1:-1]


class PythonStrings:
    """Reads strings from ``source``.

    ``note`` is called for each repair.

    ``stops``: markers that end the block around the call. A string may hold one only if it then ends without a repair.
    """

    def __init__(self, source: Source, note: Callable[[str], None]) -> None:
        self.source = source
        self.note = note
        self.stops: MarkerSet | None = None
        self.keys: Collection[str] = ()
        """Parameters of the call being read, if known."""
        self.is_tool: Callable[[str], object] = _unknown
        """True if a name is an offered tool's."""

    def argument_name_at(self, at: int, separators: str = "=") -> Steps[bool]:
        """True if a name and one of ``separators`` stand ``at`` places behind ``pos``: an argument begins there."""
        first = yield from self.source.char(at)
        if not (first.isalpha() or first in ("_", "\\")):
            return False
        end = yield from self.source.run(at, NAME)
        end = yield from self.source.run(end, BLANKS)
        separator = yield from self.source.char(end)
        if separator not in separators or not separator:
            return False
        return separator == ":" or (yield from self.source.char(end + 1)) != "="

    def opener(self) -> Steps[str]:
        """Return the prefix and the quote of the string that begins at ``pos``, "" if none does.

        Backslashes count as a prefix.
        """
        head = ""
        while len(head) < 4:
            char = yield from self.source.char(len(head))
            head += char
            if char in _QUOTES:
                return head
            if not char or head not in _PREFIXES:
                return ""
        return ""

    def read_string(self, sink: list[str], opener: str, place: Place) -> Steps[None]:
        """Read a string from its opener to its closing quote, appending the inside of its JSON to ``sink``.

        Raises Truncated, or MalformedCall (with ``pos`` at the marker) if a broken string contains one of ``stops``.
        """
        source = self.source
        source.pos += len(opener)
        begin = source.offset
        try:
            repaired = yield from self._read_string(sink, opener, place)
        except Truncated:
            self._raise_at_stop(begin)
            raise
        if repaired:
            self._raise_at_stop(begin)

    def _raise_at_stop(self, begin: int) -> None:
        """Raise MalformedCall if one of ``stops`` was read since ``begin``."""
        if self.stops is not None and (found := self.stops.find(self.source.since(begin))) is not None:
            self.source.rewind_to(begin + found)
            raise MalformedCall

    def _read_string(self, sink: list[str], opener: str, place: Place) -> Steps[bool]:
        """Read the rest of a string; return whether it needed a repair."""
        source = self.source
        quote = opener[-1]
        if opener[0] == "\\":
            yield from self._read_to_closer(sink, opener)
        elif (yield from self.source.char(0)) == quote and (yield from self.source.char(1)) == quote:
            source.pos += 2
            yield from self._read_to_closer(sink, quote * 3, raw="r" in opener.lower())
        else:
            return (yield from self._single_quoted(sink, quote, place, raw="r" in opener.lower()))
        return False

    def _single_quoted(self, sink: list[str], quote: str, place: Place, *, raw: bool) -> Steps[bool]:
        """Read the rest of a string with one quote on each side; return whether it needed a repair."""
        source = self.source
        plain = _PLAIN_IN[quote]
        quotes = False
        begin, before = source.offset, len(sink)
        while True:
            found = plain.match(source.buf, source.pos)
            if found:
                sink.append(found.group())
                source.pos = found.end()
            if source.pos >= len(source.buf):
                if source.ended:
                    raise Truncated
                yield
                continue
            char = source.buf[source.pos]
            if char != quote:
                yield from self._read_special(sink, char, raw=raw)
                continue
            closes = yield from self._closes(quote, place, quotes=quotes)
            if not closes and not quotes and place.in_call and (end := self._missing_close(source.since(begin))) >= 0:
                self.note("unclosed_string")
                sink[before:] = [json_text(source.since(begin)[:end])[1:-1]]
                source.rewind_to(begin + end)
                return True
            source.pos += 1
            if closes:
                return quotes or (self.stops is not None and (yield from self.opener()) != "")
            quotes = True
            self.note("unescaped_quote")
            sink.append(json_char(ord(quote)))

    def _missing_close(self, text: str) -> int:
        """Return where a string without closing quote ends, before the argument that the next quote belongs to; else -1."""
        if text[-1:] != "=" or "\\" in text:
            return -1
        for found in _AFTER_MISSING_QUOTE.finditer(text):
            if found.group("tool") is None:
                if found.group("key") in self.keys:
                    return found.start()
            elif self.is_tool(found.group("tool")):
                return found.start()
        return -1

    def _read_to_closer(self, sink: list[str], closer: str, *, raw: bool = False) -> Steps[None]:
        """Read the rest of a string that only ``closer`` ends: three quotes, or a quote behind backslashes."""
        source = self.source
        while True:
            found = _PLAIN.match(source.buf, source.pos)
            if found:
                sink.append(found.group())
                source.pos = found.end()
            if source.pos < len(source.buf) and source.buf[source.pos] == closer[0]:
                yield from self.source.char(len(closer) - 1)
                if source.buf.startswith(closer, source.pos):
                    source.pos += len(closer)
                    return
            if source.pos < len(source.buf):
                yield from self._read_special(sink, source.buf[source.pos], raw=raw)
            elif source.ended:
                raise Truncated
            else:
                yield

    def _read_special(self, sink: list[str], char: str, *, raw: bool) -> Steps[None]:
        """Read a character that a JSON string cannot hold unchanged."""
        source = self.source
        if char == "\\":
            yield from (self._backslash(sink) if raw else self._escape(sink))
            return
        source.pos += 1
        sink.append(json_char(ord(char)))

    def _backslash(self, sink: list[str]) -> Steps[None]:
        """Read a backslash of a raw string: it stays, and so does a quote or backslash behind it."""
        sink.append("\\\\")
        following = yield from self.source.char(1)
        self.source.pos += 1
        if following in ("'", '"', "\\"):
            self.source.pos += 1
            sink.append(json_char(ord(following)))

    def _escape(self, sink: list[str]) -> Steps[None]:
        source = self.source
        char = yield from self.source.char(1)
        if not char:
            raise Truncated
        if char in _ESCAPES:
            source.pos += 2
            sink.append(_ESCAPES[char])
            return
        digits = ""
        if char in "01234567":
            end = min((yield from self.source.run(1, _OCTAL)), 4)
            code = int(source.buf[source.pos + 1 : source.pos + end], 8)
            source.pos += end
            sink.append(json_char(code))
            return
        if char in _CODES:
            end = min((yield from self.source.run(2, _HEX)), 2 + _CODES[char])
            digits = source.buf[source.pos + 2 : source.pos + end]
            if len(digits) == _CODES[char] and int(digits, 16) <= 0x10FFFF:
                source.pos += end
                sink.append(json_char(int(digits, 16)))
                return
        self.note("invalid_escape")
        # \_ is what Markdown makes of an underscore; before anything else the backslash was meant.
        source.pos += 2 if char == "_" else 1
        sink.append("_" if char == "_" else "\\\\")

    def _closes(self, quote: str, place: Place, *, quotes: bool) -> Steps[bool]:
        """True if the quote at ``pos`` ends its string, by what follows: before a word it is an apostrophe or was not escaped.

        ``quotes``: another such quote in the string did not end it.
        """
        source = self.source
        after = yield from self.source.run(1, BLANKS)
        char = yield from self.source.char(after)
        blank = after > 1
        if char and char in place.ends:
            return not (quotes and (yield from self._in_quoted_code(after, quote)))
        if not char or char in " \t\r\n`<":
            return True
        if place.is_line and "\n" in source.buf[source.pos : source.pos + after]:
            return True
        if char == ",":
            return not (yield from self._comma_in_string(after + 1, quote))
        if char in _QUOTES:
            return blank or char != quote or not (yield from self._second_quote_closes())
        following = yield from self.source.char(after + 1)
        if char == "#":
            return blank
        if char == "\\":
            return following in CLOSERS
        if char == "+":
            return True
        if char in "%*":
            return blank and following in (" ", "(")
        if char == ".":
            return not blank and following.isalpha()
        return blank and (
            (char in _PREFIXES and following in _QUOTES) or (place.in_call and (yield from self.argument_name_at(after)))
        )

    def _comma_in_string(self, at: int, quote: str) -> Steps[bool]:
        """True if the comma before ``at`` is in a string: words follow, up to a quote that ends it (``'New York', NY',``)."""
        end = yield from self.source.run(at, _WORDS)
        if (yield from self.source.char(end)) != quote:
            return False
        last = self.source.buf[self.source.pos + end - 1]
        if not (last.isalnum() or last in ".!?"):
            return False
        after = yield from self.source.run(end + 1, BLANKS)
        return (yield from self.source.char(after)) in _AFTER_STRING

    def _in_quoted_code(self, at: int, quote: str) -> Steps[bool]:
        """True if the brackets from ``at`` on belong to code that the string quotes: ``'python -c "f(g('a'))"')``.

        Then the other quote follows them, and this string ends behind it.
        """
        end = yield from self.source.run(at, _BRACKETS)
        other = yield from self.source.char(end)
        if other not in _QUOTES or other == quote or (yield from self.source.char(end + 1)) != quote:
            return False
        after = yield from self.source.run(end + 2, BLANKS)
        return (yield from self.source.char(after)) in _AFTER_STRING

    def _second_quote_closes(self) -> Steps[bool]:
        """True if the second of two quotes ends the string (``"5'10""``): then the first is part of it."""
        after = yield from self.source.run(2, BLANKS)
        return (yield from self.source.char(after)) in _AFTER_STRING


def _unknown(_name: str) -> bool:
    return False
