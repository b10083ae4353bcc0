"""Arguments taken apart and spelled anew: for families that do not write them as one JSON object.

Numbers keep the digits they were written in, whatever their size.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

_DECODER = json.JSONDecoder()
_BLANKS = " \t\n\r"


class Number(str):
    """A number, as it was written."""

    __slots__ = ()


def quoted(text: str) -> str:
    """A text as a JSON string."""
    return encode_basestring(text)


def json_arguments(raw: str) -> str:
    """Arguments for a family that writes them as JSON: those that are JSON as they are, others as a string, none as ``{}``."""
    try:
        json.loads(raw)
        return raw.strip()
    except (ValueError, RecursionError):
        return quoted(raw) if raw.strip() else "{}"


def members(raw: str) -> dict[str, str]:
    """The members of a JSON object, each value as the JSON text it was written in.

    What is no JSON object cannot be taken apart: it comes as one member, ``arguments``, that holds the text.
    """
    if not raw.strip():
        return {}
    try:
        return dict(_members(raw.strip(_BLANKS)))
    except (ValueError, IndexError, RecursionError):
        return {"arguments": quoted(raw)}


def _members(text: str) -> list[tuple[str, str]]:
    """Read an object to its end; raises ValueError, IndexError or RecursionError for anything else."""
    found: list[tuple[str, str]] = []
    at = _expect(text, 0, "{")
    if text[at] == "}":
        _only(text, at + 1)
        return found
    while True:
        if text[at] != '"':
            raise ValueError(f"no key at {at}")
        key, at = _DECODER.raw_decode(text, at)
        begin = _expect(text, _skip(text, at), ":")
        _, end = _DECODER.raw_decode(text, begin)
        found.append((key, text[begin:end]))
        at = _skip(text, end)
        if text[at] == "}":
            _only(text, at + 1)
            return found
        at = _expect(text, at, ",")


def _expect(text: str, at: int, mark: str) -> int:
    """Pass ``mark`` and the blanks behind it."""
    if text[at] != mark:
        raise ValueError(f"no {mark} at {at}")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at] in _BLANKS:
        at += 1
    return at


def _only(text: str, end: int) -> None:
    if end != len(text):
        raise ValueError(f"more than an object: {len(text) - end} characters")


def read_value(raw: str) -> Any:
    """A JSON text read, its numbers as ``Number``. Raises ValueError, RecursionError."""
    return json.loads(raw, parse_int=Number, parse_float=Number, parse_constant=Number)


@dataclass(frozen=True)
class Spelling:
    """How values are written: the three words, a text, a key, and what stands between members and after a key."""

    true: str
    false: str
    null: str
    text: Callable[[str], str]
    key: Callable[[str], str]
    comma: str = ", "
    colon: str = ": "

    def spell(self, value: Any) -> str:
        """A value that ``read_value`` read, in this spelling. Raises RecursionError for one that is nested too deeply."""
        if value is None:
            return self.null
        if value is True:
            return self.true
        if value is False:
            return self.false
        if isinstance(value, Number):
            return str(value)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return "{" + self.comma.join(f"{self.key(key)}{self.colon}{self.spell(item)}" for key, item in value.items()) + "}"
        return "[" + self.comma.join(map(self.spell, value)) + "]"

    def respell(self, raw: str) -> str:
        """A JSON text in this spelling; what cannot be read, or is nested too deeply, as a text."""
        try:
            return self.spell(read_value(raw))
        except (ValueError, RecursionError):
            return self.text(raw)


PYTHON = Spelling("True", "False", "None", text=repr, key=repr)
PYTHON_WITH_JSON_WORDS = Spelling("true", "false", "null", text=quoted, key=quoted)
PYTHON_IN_DOUBLE_QUOTES = Spelling("True", "False", "None", text=quoted, key=quoted)
