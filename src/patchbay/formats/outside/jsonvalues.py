"""JSON values between two texts: numbers are written again as the model wrote them, and no value makes invalid JSON.

For places where a text must be read as a whole before it is told. What streams is read by ``jsonreader``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn


class _Digits(float):
    """A number that remembers how it was written."""

    text: str


def _digits(text: str) -> _Digits:
    number = _Digits(text)
    number.text = text
    return number


def read_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError where it is none, or is nested too deep."""
    try:
        return json.loads(text, parse_float=_digits, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def as_json(value: Any) -> str:
    """A value that was read as JSON text. Raises ValueError where it is nested too deep."""
    try:
        return _as_json(value)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _as_json(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{quoted(key)}: {_as_json(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_as_json, value)) + "]"
    if isinstance(value, str):
        return quoted(value)
    return value.text if isinstance(value, _Digits) else json.dumps(value)


def quoted(text: str) -> str:
    """A JSON string. Half a surrogate pair stays an escape: it could not be sent."""
    return json.dumps(text, ensure_ascii=any("\ud800" <= char <= "\udfff" for char in text))
