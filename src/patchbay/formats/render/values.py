"""Values of a call's arguments: their JSON texts taken apart, and written in another notation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

_DECODER = json.JSONDecoder()
_KEY = re.compile(r'[\s{,]*+"(?:[^"\\]|\\.)*+"\s*+:\s*+')
"""The text before a member's value."""


class NumberText(str):
    """A number, as it was written."""

    __slots__ = ()


def quoted(text: str) -> str:
    """Encode a text as a JSON string."""
    return encode_basestring(text)


def json_arguments(raw: str) -> str:
    """Return arguments for a family that writes them as JSON: JSON unchanged, other text as a string, none as ``{}``."""
    try:
        json.loads(raw)
        return raw.strip()
    except (ValueError, RecursionError):
        return quoted(raw) if raw.strip() else "{}"


def members(raw: str) -> dict[str, str]:
    """Return the members of a JSON object, each value as its JSON text.

    Anything but a JSON object cannot be taken apart: it becomes one member, ``arguments``, that holds the text.
    """
    if not raw.strip():
        return {}
    found: dict[str, str] = {}
    at = 0
    try:
        pairs = json.loads(raw, object_pairs_hook=tuple)
        if not isinstance(pairs, tuple):
            return {"arguments": quoted(raw)}
        for key, _ in pairs:
            before = _KEY.match(raw, at)
            assert before is not None  # raw is an object
            _, at = _DECODER.raw_decode(raw, before.end())
            found[key] = raw[before.end() : at]
    except (ValueError, RecursionError):
        return {"arguments": quoted(raw)}
    return found


def read_value(raw: str) -> Any:
    """Decode a JSON text, its numbers as ``NumberText``. Raises ValueError, RecursionError."""
    return json.loads(raw, parse_int=NumberText, parse_float=NumberText, parse_constant=NumberText)


@dataclass(frozen=True)
class Notation:
    """Notation of values: true, false and null, strings, keys, and the separators of members and after a key."""

    true: str
    false: str
    null: str
    text: Callable[[str], str]
    key: Callable[[str], str]
    comma: str = ", "
    colon: str = ": "

    def encode(self, value: Any) -> str:
        """Encode a value from ``read_value`` in this notation. Raises RecursionError if it is nested too deeply."""
        if value is None:
            return self.null
        if value is True:
            return self.true
        if value is False:
            return self.false
        if isinstance(value, NumberText):
            return str(value)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return "{" + self.comma.join(f"{self.key(key)}{self.colon}{self.encode(item)}" for key, item in value.items()) + "}"
        return "[" + self.comma.join(map(self.encode, value)) + "]"

    def convert(self, raw: str) -> str:
        """Convert a JSON text to this notation; text that cannot be read, or is nested too deeply, becomes a text."""
        try:
            return self.encode(read_value(raw))
        except (ValueError, RecursionError):
            return self.text(raw)
