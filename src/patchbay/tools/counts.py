"""Numbers that remember where in the state they were read, so that adding to one is told from putting another in its place.

What lives here: ``state["n"] += 1`` made visible. Python reads the number, adds to it and assigns the sum: what is assigned has
to know that it is a sum. What does not: what becomes of that (``state``, ``actions``).
"""

from __future__ import annotations

from typing import Any


class _Counted:
    """What both kinds add to ``int`` and ``float``. All but ``+`` and ``-`` is theirs, and gives plain numbers."""

    key: str
    found: Any

    def __add__(self, other: Any) -> Any:
        return counted(plain(self) + plain(other), self.key, self.found)

    def __radd__(self, other: Any) -> Any:
        return counted(plain(other) + plain(self), self.key, self.found)

    def __sub__(self, other: Any) -> Any:
        return counted(plain(self) - plain(other), self.key, self.found)

    def __reduce__(self) -> tuple[Any, ...]:  # a copy is a plain number
        return type(plain(self)), (plain(self),)


class _CountedInt(_Counted, int):
    pass


class _CountedFloat(_Counted, float):
    pass


_KINDS: dict[type, Any] = {int: _CountedInt, float: _CountedFloat}


def counted(value: Any, key: str, found: Any) -> Any:
    """Return an int or float that remembers that it began as ``found`` under ``key``; other values as they are."""
    kind = _KINDS.get(type(value))
    if kind is None:
        return value
    made = kind(value)
    made.key, made.found = key, found
    return made


def plain(value: Any) -> Any:
    """Return the number without its memory; other values as they are."""
    if not isinstance(value, _Counted):
        return value
    return int(value) if isinstance(value, int) else float(value)  # type: ignore[arg-type]


def origin_of(value: Any, key: str) -> Any:
    """Return the number that ``value`` began as under ``key``; None if it is no such number."""
    return value.found if isinstance(value, _Counted) and value.key == key else None
