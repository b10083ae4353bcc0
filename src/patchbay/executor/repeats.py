"""A model that makes the same call again and again, and learns nothing from it."""

from __future__ import annotations

import json

from patchbay.types import ToolCall


class Repeats:
    """Counts, for one run, how often a call gave the same result, as long as no call of the run gives anything new.

    Tests that are run again after each edit are no repetition, since each edit is a call that was not there before; two calls
    that take turns are. Counted is what earlier replies asked for: ``next_reply`` says that another one begins. What is kept of
    each call is two numbers.
    """

    def __init__(self) -> None:
        self._fresh: list[tuple[ToolCall, str]] = []
        self._seen: set[int] = set()
        self._counts: dict[int, tuple[int, int]] = {}  # call -> (its last result, how often it came in a row)

    def add(self, call: ToolCall, content: str) -> None:
        """Take note of a call that was carried out, and of its result."""
        self._fresh.append((call, content))

    def next_reply(self) -> None:
        """Count what was added: only now, since most turns have no second reply with calls."""
        if not self._fresh:
            return
        # Equal calls of one reply are one: each was made before the others' results were known.
        for key, result in dict.fromkeys((_key(call), hash(content)) for call, content in self._fresh):
            self._count(key, result)
        self._fresh.clear()

    def times(self, call: ToolCall) -> int:
        """Return how often this call gave the same result, the last times that it was made."""
        return self._counts.get(_key(call), (0, 0))[1] if self._counts else 0

    def _count(self, key: int, result: int) -> None:
        pair = hash((key, result))
        if pair not in self._seen:
            self._seen.add(pair)
            self._counts.clear()
        last, times = self._counts.get(key, (result, 0))
        self._counts[key] = (result, times + 1 if last == result else 1)


def _key(call: ToolCall) -> int:
    """The same number for the same call, however its arguments are spaced and ordered."""
    # Of the text, since Python's numbers are not told apart by their hash: -1 and -2 have the same.
    try:
        return hash((call.name, json.dumps(call.arguments, sort_keys=True) if call.arguments else call.raw_arguments.strip()))
    except RecursionError:
        return hash((call.name, call.raw_arguments))
