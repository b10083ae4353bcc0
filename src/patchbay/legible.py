"""Text of others on its way to a person: none of it plays with a terminal, and none takes the place of what we say ourselves.

What lives here: how characters are spelled out, and how a text is cut to a line. It is on the lowest floor, since whatever has a
log or a terminal needs it. What does not: how many lines there may be (``valve``), and output whose colours stay
(``cli.harmless``).
"""

from __future__ import annotations

from typing import Final

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(9), *range(10, 32), *range(127, 160))}


def printable(text: str) -> str:
    """Return a text of which a terminal shows every character, and obeys none: what it would obey is shown by its number."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def legible(text: str) -> str:
    """Return a text without control characters, but for tabs: they are spelled out."""
    return text.translate(_CONTROLS)


def one_line(text: str, most: int) -> str:
    """Return a text on one line, of at most ``most`` characters; of one that is very long no more is read than may be shown.

    What a terminal would obey stays in it.
    """
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
