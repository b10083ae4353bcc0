"""JSON as text, strictly: numbers, words, strings, values whose numbers stay as they were written, readers without NaN."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn


def no_constant(name: str) -> NoReturn:
    """Refuse what Python would read and JSON does not know: NaN, Infinity."""
    raise ValueError(f"{name} is not JSON")


JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
JSON_INTEGER = re.compile(r"-?[0-9]++")
JSON_WORDS = frozenset({"true", "false", "null"})
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Python's words for JSON's."""

json_string = json.JSONEncoder(ensure_ascii=False).encode
"""A text as JSON: a string, with nothing escaped that need not be."""
strict_json: Callable[[str], object] = json.JSONDecoder(parse_constant=no_constant, parse_int=str).decode
"""The value of a JSON text, its integers as they are written; raises ValueError, RecursionError."""


def escaped(text: str) -> str:
    """The inside of the JSON string for ``text``."""
    return json_string(text)[1:-1]


def json_text(text: str) -> str:
    """A JSON string that can be encoded: half a surrogate pair stays an escape."""
    return json.dumps(text, ensure_ascii=any("\ud800" <= char <= "\udfff" for char in text))


class _Digits(float):
    """A number that remembers how it was written."""

    text: str


def _digits(text: str) -> _Digits:
    number = _Digits(text)
    number.text = text
    return number


def read_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, also where it is nested too deep."""
    try:
        return json.loads(text, parse_float=_digits, parse_constant=no_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def as_json(value: Any) -> str:
    """A value of ``read_json`` as JSON text. Raises ValueError where it is nested too deep."""
    try:
        return _as_json(value)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _as_json(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json_text(key)}: {_as_json(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_as_json, value)) + "]"
    if isinstance(value, str):
        return json_text(value)
    return value.text if isinstance(value, _Digits) else json.dumps(value)
