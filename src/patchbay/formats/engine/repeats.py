"""Which calls an answer has made already: a model that goes astray makes them again."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Sequence

from patchbay.types import ToolCall


class Repeats:
    """The arguments of earlier calls of one tool, looked up by what has arrived of a further call's."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[str]] = {}
        self._seen = 0
        self._earlier: list[str] = []

    def may_come(self, name: str, calls: Sequence[ToolCall]) -> bool:
        """Whether a call of ``name`` that begins now can repeat one of ``calls``."""
        for call in calls[self._seen :]:
            insort(self._by_name.setdefault(call.name, []), call.raw_arguments)
        self._seen = len(calls)
        self._earlier = self._by_name.get(name, [])
        return bool(self._earlier)

    def may_become(self, arguments: str) -> bool:
        """Whether an earlier call's arguments begin so."""
        at = bisect_left(self._earlier, arguments)
        return at < len(self._earlier) and self._earlier[at].startswith(arguments)

    def has(self, arguments: str) -> bool:
        """Whether an earlier call's arguments are these."""
        at = bisect_left(self._earlier, arguments)
        return at < len(self._earlier) and self._earlier[at] == arguments


def call_key(name: str, arguments: str) -> str:
    """The same text for calls that say the same."""
    try:
        return json.dumps([name, json.loads(arguments)], sort_keys=True)
    except (ValueError, RecursionError):
        return name + arguments
