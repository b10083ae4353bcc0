"""What was said in a session, as much of it as a new connection is to be told. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

from patchbay.realtime.dialect import Line
from patchbay.tools.excerpt import excerpt
from patchbay.types import Message

_SHORTEST: Final = 1000
"""Below this many characters the middle of a text cannot be left out (``patchbay.tools.excerpt``): its end is."""


def shortened(text: str, chars: int) -> str:
    """Return at most ``chars`` characters of a text."""
    if len(text) <= chars:
        return text
    return excerpt(text, chars) if chars >= _SHORTEST else text[:chars]


class Remembered:
    """The last ``items`` lines of together at most ``chars`` characters."""

    def __init__(self, items: int, chars: int) -> None:
        self._items = items
        self._chars = chars
        self._size = 0
        self._lines: deque[Line] = deque()

    def __len__(self) -> int:
        """How many lines there are."""
        return len(self._lines)

    def add(self, role: Literal["user", "assistant"], text: str, *, before: int = 0) -> None:
        """Take a line, ``before`` so many of the last; the oldest go."""
        if not text or not self._items:
            return
        text = shortened(text, self._chars)
        self._lines.insert(max(0, len(self._lines) - before), Line(role, text))
        self._size += len(text)
        while len(self._lines) > self._items or self._size > self._chars:
            self._size -= len(self._lines.popleft().text)

    def clear(self) -> None:
        """Forget all of it."""
        self._lines.clear()
        self._size = 0

    def lines(self) -> tuple[Line, ...]:
        """What there is, the oldest first."""
        return tuple(self._lines)

    def messages(self) -> list[Message]:
        """The same as messages, for tools that look at the conversation."""
        return [{"role": line.role, "content": line.text} for line in self._lines]
