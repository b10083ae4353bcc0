"""Strict JSON as text: numbers, words, strings, values with numbers as they were written, readers without NaN."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn


def no_constant(name: str) -> NoReturn:
    """Reject the constants that Python reads although JSON lacks them: NaN, Infinity."""
    raise ValueError(f"{name} is not JSON")


JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
JSON_INTEGER = re.compile(r"-?[0-9]++")
JSON_WORDS = frozenset({"true", "false", "null"})
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Python's constants, in JSON."""

json_string = json.JSONEncoder(ensure_ascii=False).encode
"""Encode a text as a JSON string, with no needless escapes."""
strict_json: Callable[[str], object] = json.JSONDecoder(parse_constant=no_constant, parse_int=str).decode
"""Decode a JSON text, integers as their text; raises ValueError, RecursionError."""


def escaped(text: str) -> str:
    """Return the inside of the JSON string for ``text``."""
    return json_string(text)[1:-1]


def json_text(text: str) -> str:
    """Return a JSON string that can be encoded as UTF-8: lone surrogates are escaped."""
    return json.dumps(text, ensure_ascii=any("\ud800" <= char <= "\udfff" for char in text))


class _FloatWithText(float):
    """A float that keeps its original text."""

    text: str


def _float_with_text(text: str) -> _FloatWithText:
    number = _FloatWithText(text)
    number.text = text
    return number


def read_json(text: str) -> Any:
    """Decode a JSON text. Raises ValueError, also if it is nested too deeply."""
    try:
        return json.loads(text, parse_float=_float_with_text, parse_constant=no_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def as_json(value: Any) -> str:
    """Encode a value from ``read_json``. Raises ValueError if it is nested too deeply."""
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
    return value.text if isinstance(value, _FloatWithText) else json.dumps(value)
