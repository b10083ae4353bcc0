"""Objects and arrays in a text that is all there: JSON, or the same as Python writes it, to JSON text.

What is JSON already comes out as it stands, digits, white space and all. Of Python's own there are tuples, quotes of either kind,
True, False and None, trailing commas, and keys that are no strings. This is strict: whatever else stands in the text makes it no
literal. Values that are written with slips, or not all there yet, are read by ``jsonreader`` and by the readers of Python calls.

One pass by the token, without recursion; the depth is bounded, since a value that is nested deeper is one that nobody can read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from patchbay.formats.values.expected import Expected

MAX_DEPTH: Final = 128
"""How deeply a literal may be nested; the validator (``patchbay.schema``) refuses arguments that are nested deeper."""
MAX_DIGITS: Final = 4300
"""How many digits an integer may have: Python's own readers, which the arguments go to, refuse more."""

Retype = Callable[[str, Expected, int], str | None]
"""From a string's text, what is expected there and how deep it may be nested, to what it stands for, or None: it is a string."""

_TOKEN = re.compile(
    r"""[ \t\r\n]*+(?:(?P<opens>[\[{(])|(?P<closes>[\]})])|(?P<comma>,)|(?P<colon>:)|(?P<quote>["'])"""
    r"""|(?P<constant>(?:true|True|false|False|null|None)\b)|(?P<number>[-+.0-9][-+.\w]*+))"""
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
_INTEGER = re.compile(r"-?[0-9]++")
_FOREIGN_NUMBER = re.compile(r"[-+.0-9eE_]{1,64}")
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]*+'), "'": re.compile(r"""[^'"\\\x00-\x1f]*+""")}
_ESCAPE = re.compile(
    r"""\\(?:(?P<json>["\\/bfnrt]|u[0-9a-fA-F]{4})|(?P<hex>x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8})|(?P<octal>[0-7]{1,3})"""
    r"""|(?P<bell>[av])|(?P<itself>['_])|(?P<line>\n))"""
)
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_LARGEST_EXACT = 2**53

# What may come next in a container.
_VALUE = "value"
_ELEMENT = "element or end"
_KEY = "key or end"
_COLON = "colon"
_COMMA = "comma or end"

json_string = json.JSONEncoder(ensure_ascii=False).encode
"""A text as JSON: a string, with nothing escaped that need not be."""


def number_json(text: str, *, json_only: bool = False) -> str | None:
    """JSON for a number, None for anything else: as it stands if it is JSON, else what Python reads (``+5``, ``007``, ``5.``).

    ``json_only`` takes the first kind only. NaN, infinity and what overflows to it are no numbers.
    """
    if _NUMBER.fullmatch(text):
        whole = _INTEGER.fullmatch(text)
        readable = len(text) <= MAX_DIGITS if whole else math.isfinite(float(text))
        return text if readable else None
    if json_only or not _FOREIGN_NUMBER.fullmatch(text):
        return None
    for read in (int, float):
        try:
            return _written(read(text))
        except ValueError:
            continue
    return None


def integer_json(text: str, *, json_only: bool = False) -> str | None:
    """JSON for a number without a fraction, written without one; None for anything else. ``json_only`` as in ``number_json``."""
    number = number_json(text, json_only=json_only)
    if number is None or _INTEGER.fullmatch(number):
        return number
    written = _written(float(number))
    return written if written is not None and _INTEGER.fullmatch(written) else None


def _written(value: float) -> str | None:
    if not math.isfinite(value):
        return None
    return str(int(value)) if isinstance(value, int) or (value.is_integer() and abs(value) <= _LARGEST_EXACT) else repr(value)


def container_json(text: str, expected: Expected, retype: Retype, *, room: int = MAX_DEPTH) -> str | None:
    """JSON for an object or array that is all of ``text``; None if it is none.

    ``retype`` is asked about each string in it where ``expected`` wants none.
    """
    return _Container(text, retype, room).read(expected)


@dataclass(slots=True)
class _Open:
    """A container that is being read: how it ends, what is expected of it and of its next member, how many values it has."""

    closer: str
    expected: Expected
    count: int
    below: Expected


class _Container:
    """One pass over a text. ``out`` is the JSON so far."""

    __slots__ = ("_due", "_open", "_out", "_pos", "_retype", "_room", "_text")

    def __init__(self, text: str, retype: Retype, room: int) -> None:
        self._text = text
        self._retype = retype
        self._room = room
        self._pos = 0
        self._out: list[str] = []
        self._open: list[_Open] = []
        self._due = _VALUE

    def read(self, expected: Expected) -> str | None:
        text, steps = self._text, self._steps()
        found = _TOKEN.match(text)
        if found is None or found.lastgroup != "opens" or self._room < 1:
            return None
        self._push(found, expected)
        while self._open:
            found = _TOKEN.match(text, self._pos)
            if found is None or not steps[found.lastgroup or ""](found):
                return None
        return "".join(self._out) if not text[self._pos :].strip() else None

    def _steps(self) -> dict[str, Callable[[re.Match[str]], bool]]:
        return {
            "opens": self._opens,
            "closes": self._closes,
            "comma": self._comma,
            "colon": self._colon,
            "quote": self._string,
            "constant": self._constant,
            "number": self._number,
        }

    def _pass(self, found: re.Match[str], token: str) -> None:
        """Write ``token`` for what was found, with the white space before it."""
        self._out += (self._text[self._pos : found.start(found.lastgroup or 0)], token)
        self._pos = found.end()

    def _push(self, found: re.Match[str], expected: Expected) -> None:
        opener = found["opens"]
        self._pass(found, "{" if opener == "{" else "[")
        self._open.append(_Open(_CLOSERS[opener], expected, 0, expected))
        self._due = _KEY if opener == "{" else _ELEMENT

    def _next(self) -> Expected | None:
        """What is expected of the value that may stand here; None where none may."""
        top = self._open[-1]
        if self._due == _VALUE:
            return top.below
        return top.expected.element(top.count) if self._due == _ELEMENT else None

    def _opens(self, found: re.Match[str]) -> bool:
        expected = self._next()
        if expected is None or len(self._open) >= self._room:
            return False
        self._push(found, expected)
        return True

    def _closes(self, found: re.Match[str]) -> bool:
        top = self._open[-1]
        if found["closes"] != top.closer or self._due in (_VALUE, _COLON):
            return False
        if self._due == _COMMA:
            if top.closer == ")" and top.count == 1:
                return False  # brackets around one value are no tuple
        elif top.count:
            self._out.pop()  # the comma behind the last value
        self._pass(found, "}" if top.closer == "}" else "]")
        self._open.pop()
        if self._open:
            self._value_read()
        return True

    def _value_read(self) -> None:
        self._open[-1].count += 1
        self._due = _COMMA

    def _comma(self, found: re.Match[str]) -> bool:
        if self._due != _COMMA:
            return False
        self._pass(found, ",")
        self._due = _KEY if self._open[-1].closer == "}" else _ELEMENT
        return True

    def _colon(self, found: re.Match[str]) -> bool:
        if self._due != _COLON:
            return False
        self._pass(found, ":")
        self._due = _VALUE
        return True

    def _constant(self, found: re.Match[str]) -> bool:
        word = found["constant"]
        return self._scalar(found, _CONSTANTS.get(word, word))

    def _number(self, found: re.Match[str]) -> bool:
        number = number_json(found["number"])
        return number is not None and self._scalar(found, number)

    def _scalar(self, found: re.Match[str], token: str) -> bool:
        if self._due == _KEY:
            self._key(found, f'"{token}"')
        elif self._due in (_VALUE, _ELEMENT):
            self._pass(found, token)
            self._value_read()
        else:
            return False
        return True

    def _key(self, found: re.Match[str], token: str) -> None:
        top = self._open[-1]
        if not top.expected.says_nothing:
            top.below = top.expected.member(json.loads(token))
        self._pass(found, token)
        self._due = _COLON

    def _string(self, found: re.Match[str]) -> bool:
        if self._due in (_COLON, _COMMA):
            return False
        token, end = _string_json(self._text, found.end() - 1)
        if token is None:
            return False
        if self._due == _KEY:
            self._key(found, token)
        else:
            expected = self._next()
            if expected is not None and "string" not in expected.types:
                token = self._retype(json.loads(token), expected, self._room - len(self._open)) or token
            self._pass(found, token)
            self._value_read()
        self._pos = end
        return True


def _string_json(text: str, pos: int) -> tuple[str | None, int]:
    """JSON for the string whose opening quote stands at ``pos``, and where it ends; None for one that does not end."""
    quote = text[pos]
    plain = _PLAIN[quote]
    pieces = ['"']
    pos += 1
    while True:
        found = plain.match(text, pos)
        if found:
            pieces.append(found.group())
            pos = found.end()
        char = text[pos : pos + 1]
        if char in ("", quote):
            pieces.append('"')
            return "".join(pieces) if char else None, pos + 1
        if char == "\\":
            piece, pos = _escape_json(text, pos)
            pieces.append(piece)
        else:
            pieces.append(json_string(char)[1:-1])
            pos += 1


def _escape_json(text: str, pos: int) -> tuple[str, int]:
    """JSON for the escape at ``pos``, and where it ends. One that is none is a backslash, as in Python."""
    found = _ESCAPE.match(text, pos)
    if found is None:
        return "\\\\", pos + 1
    kind, end = found.lastgroup, found.end()
    if kind == "json":
        return found.group(), end
    if kind == "line":
        return "", end
    if kind == "itself":
        return found["itself"], end
    if kind == "bell":
        return "\\u0007" if found["bell"] == "a" else "\\u000b", end
    code = int(found["octal"], 8) if kind == "octal" else int(found["hex"][1:], 16)
    if code > 0x10FFFF:
        return "\\\\", pos + 1
    return json_string(chr(code))[1:-1], end
