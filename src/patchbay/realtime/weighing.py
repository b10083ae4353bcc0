"""About how much memory a tool's values take. Pure.

What is looked into is plain data: texts, bytes, and containers of such. Of anything else nobody knows what it holds, and what of
that it shares with others: it counts little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from sys import getsizeof
from typing import Any, Final

MOST_MEMBERS: Final = 64
"""Of so many members of one container each is looked at; of more, the first so many stand for all."""

MOST_LOOKED_AT: Final = MOST_MEMBERS**2
"""How many are looked at in all; what containers hold that are reached behind these does not count."""

_ANYTHING: Final = 48  # bytes
_TEXTS: Final = (str, bytes, bytearray)
_PLAIN: Final = (list, tuple, set, frozenset, deque)
_CONTAINERS: Final = (dict, *_PLAIN)


def weigh(values: Iterable[Any]) -> int:
    """Return about how many bytes the values hold, each counted once, in a time that does not grow with them."""
    size, room = 0.0, MOST_LOOKED_AT
    seen = set[int]()
    left: deque[tuple[Any, float]] = deque([(tuple(values), 1.0)])  # containers, and for how many of their kind they stand
    while left and room:
        container, times = left.popleft()
        count, members = _members(container)
        some = list(islice(members, min(MOST_MEMBERS, room)))  # at one go: a tool's thread may be changing it
        room -= len(some)
        times *= max(count / len(some), 1.0) if some else 1.0
        for each in some:
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, _TEXTS):
                size += times * getsizeof(each)
            elif isinstance(each, _CONTAINERS):
                size += times * getsizeof(each)
                left.append((each, times))
            else:
                size += times * _ANYTHING
    return int(size)


def _members(container: Any) -> tuple[int, Iterator[Any]]:
    """How many members a container has, and these; as plain ones of its kind have them, whatever is made of it."""
    if isinstance(container, dict):
        return 2 * dict.__len__(container), chain.from_iterable(dict.items(container))
    kind = next(each for each in _PLAIN if isinstance(container, each))
    return kind.__len__(container), kind.__iter__(container)
