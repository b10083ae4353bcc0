"""The session's state in one call; numbers read from it record their origin, so that ``+=`` merges as a delta."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final


class _Counted:
    """A number with the value that it was computed from by ``+`` and ``-``; all other operations return plain numbers."""

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
    """Return an int or float that records its origin, ``found`` under ``key``; other values unchanged."""
    kind = _KINDS.get(type(value))
    if kind is None:
        return value
    made = kind(value)
    made.key, made.found = key, found
    return made


def plain(value: Any) -> Any:
    """Return the number without its origin; other values unchanged."""
    if not isinstance(value, _Counted):
        return value
    return int(value) if isinstance(value, int) else float(value)  # type: ignore[arg-type]


def origin_of(value: Any, key: str) -> Any:
    """Return the origin of ``value`` under ``key``; None if it has none."""
    return value.found if isinstance(value, _Counted) and value.key == key else None


_MISSING: Final = object()
_CONTAINERS: Final = (dict, list, set)


class State(MutableMapping[str, Any]):
    """A mapping over ``base`` that records changes in ``delta``; ``base`` is only read.

    Deleting a key and assigning None are the same: the delta has None, and the key is gone. Containers (dict, list, set) are
    returned as copies, and changing a copy in place counts as a change: ``state["cart"].append(item)`` is recorded. ``found`` has
    the values that changes are based on. Not thread-safe.
    """

    __slots__ = ("_assigned", "_base", "_copies", "_defaults", "_found")

    def __init__(self, base: Mapping[str, Any] | None = None) -> None:
        self._base: Mapping[str, Any] = {} if base is None else base
        self._begin()

    def _begin(self) -> None:
        self._assigned: dict[str, Any] = {}
        # The previous value of those keys in _assigned whose new value was derived from it.
        self._found: dict[str, Any] = {}
        # key -> (the base's container, the copy that was returned), until something else is assigned
        self._copies: dict[str, tuple[Any, Any]] = {}
        # key -> (a copy, the container that was returned as the default), in case it is assigned after a change
        self._defaults: dict[str, tuple[Any, Any]] = {}

    @property
    def delta(self) -> dict[str, Any]:
        """The changes so far, None for a deleted key; a new dict each time."""
        return {**{key: mine for key, (_, mine) in self._changed()}, **self._assigned}

    @property
    def found(self) -> dict[str, Any]:
        """The previous values of the keys of ``delta`` whose value was changed: added to, or a container changed in place.

        All other keys were assigned (``merge_actions`` needs to know).
        """
        return {**{key: found for key, (found, _) in self._changed()}, **self._found}

    def take_delta(self) -> dict[str, Any]:
        """Return the changes so far and clear them: the caller applies them to the base."""
        delta = self.delta
        self._begin()
        return delta

    def __getitem__(self, key: str) -> Any:
        value = self._find(key)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default``, which then counts as the previous value: ``get("n", 0) + 1`` adds one."""
        value = self._find(key)
        if value is not _MISSING:
            return value
        if key in self._assigned:  # deleted by this call: a new value is not based on anything
            return default
        if isinstance(default, _CONTAINERS):
            self._defaults[key] = (_own_copy(default), default)
        return counted(default, key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``, after writing ``default`` if there is none."""
        if self._find(key) is _MISSING:
            self[key] = self.get(key, default)
        return self.get(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(f"A key of the state must be a str, not {type(key).__name__}.")
        if key in self._copies and value is self._copies[key][1]:
            return  # it was changed in place: ``state["log"] += [item]``
        found = origin_of(value, key)
        if key in self._defaults and value is self._defaults[key][1]:
            found = self._defaults[key][0]
        self._copies.pop(key, None)
        self._assigned[key] = plain(value)
        if found is None:
            self._found.pop(key, None)
        else:
            self._found[key] = found

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self[key] = None

    def __contains__(self, key: object) -> bool:
        # Not by __getitem__, which copies.
        assigned = self._assigned.get(key, _MISSING)  # type: ignore[call-overload]
        if assigned is _MISSING:
            return self._base.get(key) is not None  # type: ignore[call-overload]
        return assigned is not None

    def __iter__(self) -> Iterator[str]:
        yield from (key for key, value in self._base.items() if value is not None and self._assigned.get(key, value) is not None)
        yield from (key for key, value in self._assigned.items() if value is not None and self._base.get(key) is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"State({self.to_dict()!r})"

    def to_dict(self) -> dict[str, Any]:
        """Return all keys and values as a new plain dict."""
        return {key: _own_copy(plain(self[key])) for key in self}

    def _find(self, key: str) -> Any:
        if key in self._assigned:
            value = self._assigned[key]
            if value is None:
                return _MISSING
            return counted(value, key, self._found[key]) if key in self._found else value
        if key in self._copies:
            return self._copies[key][1]
        value = self._base.get(key)
        if value is None:
            return _MISSING
        if not isinstance(value, _CONTAINERS):
            return counted(value, key, value)
        mine = _own_copy(value)
        self._copies[key] = (value, mine)
        return mine

    def _changed(self) -> Iterator[tuple[str, tuple[Any, Any]]]:
        return ((key, lent) for key, lent in self._copies.items() if _differ(*lent))


def _own_copy(value: Any) -> Any:
    """Return a deep copy of a container; one that cannot be copied, and any other value, is returned unchanged."""
    if not isinstance(value, _CONTAINERS):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  (it may hold a lock or a connection, which refuse to be copied)
        return value


def _differ(original: Any, mine: Any) -> bool:
    if original is mine:
        return False
    try:
        return bool(original != mine)
    except Exception:  # noqa: BLE001  (values may raise anything when compared)
        return True
