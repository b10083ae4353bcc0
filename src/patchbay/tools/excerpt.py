"""A long text cut down to its head and its tail."""

from __future__ import annotations

from collections.abc import Callable

_NEAR = 200
"""How far a cut is moved to stand at the end of a line."""


def excerpt(text: str, limit: int, *, how_to_read: Callable[[int], str] | None = None) -> str:
    """Return at most ``limit`` characters of a text: head and tail, and between them how much is missing.

    Two thirds are from the head; both are cut at the end of a line where one is near. ``limit`` is at least 1000.
    ``how_to_read`` is told where the missing part begins, in characters, and says how to get at it.
    """
    if len(text) <= limit:
        return text

    def note(begin: int, end: int) -> str:
        advice = f" {how_to_read(begin)}" if how_to_read is not None else ""
        return f"\n[... {end - begin} of {len(text)} characters are left out here, from {begin} to {end}.{advice} ...]\n"

    room = limit - len(note(len(text), 2 * len(text)))  # no number in it can be longer
    if room < limit // 2 and how_to_read is not None:
        return excerpt(text, limit)  # advice that leaves no room for what it is about
    head = _cut_behind_a_line(text, room * 2 // 3)
    tail = len(text) - (room - room * 2 // 3)
    if (newline := text.find("\n", tail, tail + _NEAR)) >= 0:
        tail = newline + 1
    return f"{text[:head]}{note(head, tail)}{text[tail:]}"


def _cut_behind_a_line(text: str, at: int) -> int:
    newline = text.rfind("\n", at - _NEAR, at)
    return at if newline < 0 else newline + 1
