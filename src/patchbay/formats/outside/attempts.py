"""Matching a compiled pattern at a place in a growing text: in linear time, and never over a chunk's border.

``re`` can do neither: it has no "so far it fits", and some patterns take it exponential time. Here all threads of a pattern's
program are run side by side, once over the text (Thompson's construction, in the order of preference of a backtracking matcher).
Programs are made in ``patterns``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

MAX_MATCH = 1024
"""How many characters a marker may have; what would be longer is none."""

CHAR, MATCH, SPLIT, SAVE, JUMP, BEGIN, END = "char", "match", "split", "save", "jump", "begin", "end"
"""What a step of a program does: wants a character, is done, goes two ways (the better one first), notes its place, goes on
elsewhere, wants the text's beginning or its end."""


class Verdict(Enum):
    """Why there is no match: there is none, or more text is needed to know."""

    NONE = "none"
    MORE = "more"


@dataclass(frozen=True)
class Match:
    """Where a match ends in the text, and its named groups (those that took part)."""

    end: int
    groups: Mapping[str, str]


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern. ``names``: its groups. ``literals``: the texts it was made from, where it is no expression.

    ``starts``: texts that a match begins with, to be looked for. A match may also begin before one of them, in a part that may be
    missing (a name before the marker); such a part is not looked for, so that prose need not be held back for it.
    """

    text: str
    names: tuple[str, ...]
    starts: tuple[str, ...]
    literals: tuple[str, ...]
    program: tuple[tuple[Any, ...], ...] = field(compare=False, repr=False)

    def begin(self, *, first: bool = False) -> Attempt:
        """Begin to match at a place. ``first``: the whole text begins there."""
        return Attempt(self, first=first)

    def match(self, text: str, pos: int = 0, *, first: bool = False, ended: bool = True) -> Match | Verdict:
        """Match at ``pos``, all at once. ``ended``: no more text will come behind ``text``."""
        return self.begin(first=first).read(text, pos, ended=ended)


_Thread = tuple[int, tuple[int, ...]]
"""A place in the program, and where the named groups begin and end so far, counted from where the match begins."""


class Attempt:
    """One attempt to match at a place. It reads on where it stopped, so a text that comes in pieces is read once.

    ``seen``: how many characters it has looked at.
    """

    def __init__(self, pattern: Pattern, *, first: bool) -> None:
        self._pattern = pattern
        self._first = first
        self.seen = 0
        self._threads: list[_Thread] = [(0, (-1,) * (2 * len(pattern.names)))]
        self._best: tuple[int, tuple[int, ...]] | None = None

    def read(self, text: str, pos: int, *, ended: bool) -> Match | Verdict:
        """The match at ``pos`` of ``text``, which begins with what was there before. ``ended``: no more will come."""
        program = self._pattern.program
        while True:
            at = pos + self.seen
            ready, waits = self._reached(at_end=at == len(text))
            if waits and not ended:
                return Verdict.MORE
            if ready and program[ready[-1][0]][0] is MATCH:
                self._best = self.seen, ready.pop()[1]
            if not ready or self.seen == MAX_MATCH:
                return self._result(text, pos)
            if at == len(text):
                return self._result(text, pos) if ended else Verdict.MORE
            char = text[at]
            self._threads = [(place + 1, slots) for place, slots in ready if program[place][1](char)]
            self.seen += 1

    def _result(self, text: str, pos: int) -> Match | Verdict:
        if self._best is None:
            return Verdict.NONE
        length, slots = self._best
        spans = zip(self._pattern.names, slots[::2], slots[1::2], strict=True)
        return Match(pos + length, {name: text[pos + begin : pos + end] for name, begin, end in spans if begin >= 0})

    def _reached(self, *, at_end: bool) -> tuple[list[_Thread], bool]:
        """The threads that want a character, in order of preference, up to one that matches; all behind it is less wanted.

        Also whether the text's being at its end decides about one of them.
        """
        program, reached, waits = self._pattern.program, set[int](), False
        ready: list[_Thread] = []
        stack = self._threads[::-1]
        while stack:
            place, slots = stack.pop()
            if place in reached:
                continue
            reached.add(place)
            code = program[place]
            if code[0] is CHAR:
                ready.append((place, slots))
            elif code[0] is MATCH:
                ready.append((place, slots))
                break
            elif code[0] is SPLIT:
                stack += [(code[2], slots), (code[1], slots)]
            elif code[0] is SAVE:
                stack.append((place + 1, (*slots[: code[1]], self.seen, *slots[code[1] + 1 :])))
            elif code[0] is JUMP:
                stack.append((code[1], slots))
            elif code[0] is BEGIN:
                if self._first and self.seen == 0:
                    stack.append((place + 1, slots))
            elif at_end:
                waits = True
                stack.append((place + 1, slots))
        return ready, waits
