"""Text: untrusted text escaped and cut to one line for logs and terminals, or decoded as a JSON object; numbers with nouns."""

from __future__ import annotations

import json
from typing import Any, Final

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(9), *range(10, 32), *range(127, 160))}


def printable(text: str) -> str:
    """Return a text with every character that is not printable replaced by its escape."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def escape_controls(text: str) -> str:
    """Return a text with its control characters, except tabs, replaced by their escapes."""
    return text.translate(_CONTROLS)


def one_line(text: str, most: int) -> str:
    """Return a text on one line of at most ``most`` characters; control characters stay. Reads only the head of a long text."""
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def plural(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 call``, ``2 calls``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def json_object(text: str) -> dict[str, Any] | None:
    """Decode a JSON object; None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
