"""Escape untrusted text for a log or a terminal, and cut it to one line."""

from __future__ import annotations

from typing import Final

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(9), *range(10, 32), *range(127, 160))}


def printable(text: str) -> str:
    """Return a text with every character that is not printable escaped by its number, so that a terminal obeys none."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def legible(text: str) -> str:
    """Return a text with control characters escaped, except for tabs."""
    return text.translate(_CONTROLS)


def one_line(text: str, most: int) -> str:
    """Return a text on one line of at most ``most`` characters. Does not escape controls."""
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
