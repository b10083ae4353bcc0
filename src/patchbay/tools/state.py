"""The state that one call sees: what the session holds, with the call's own changes laid over it.

What lives here: the overlay. What does not: putting the changes of several calls together (``actions``), and what the prefixes
``app:``, ``user:`` and ``temp:`` mean for keeping them (the session service's business; here they are parts of the keys).

A call's changes are its own until it has succeeded: the overlay writes into a delta and never into what it reads from, so a call
that fails leaves nothing behind and no sibling sees half of its work.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final

_MISSING: Final = object()
_CONTAINERS: Final = (dict, list, set)


class State(MutableMapping[str, Any]):
    """A mapping over ``base`` that keeps every change in ``delta``; ``base`` is only read.

    Deleting a key and assigning None are the same: the delta says None, and the key is gone. Containers (dict, list, set) are
    handed out as copies, and a copy that was changed in place counts as written: ``state["cart"].append(item)`` is kept.

    Made for one call and one thread of control: it is not locked.
    """

    __slots__ = ("_base", "_borrowed", "_read", "_written")

    def __init__(self, base: Mapping[str, Any] | None = None) -> None:
        self._base: Mapping[str, Any] = {} if base is None else base
        self._written: dict[str, Any] = {}
        # key -> (the base's own value, the copy that was handed out)
        self._borrowed: dict[str, tuple[Any, Any]] = {}
        self._read: dict[str, Any] = {}

    @property
    def delta(self) -> dict[str, Any]:
        """The changes so far, in the order they were made; None where a key was deleted. A new dict each time."""
        changed = {key: mine for key, (original, mine) in self._borrowed.items() if _differ(original, mine)}
        return {**changed, **self._written}

    @property
    def read(self) -> Mapping[str, Any]:
        """What this call found under the keys that it read before it wrote them (``actions.merge_actions`` needs it)."""
        return self._read

    def __getitem__(self, key: str) -> Any:
        value = self._find(key)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default``, which then counts as what was there: ``get("n", 0) + 1`` adds one."""
        value = self._find(key)
        if value is not _MISSING:
            return value
        if default is not None and key not in self._written:
            self._read.setdefault(key, _own_copy(default))
        return default

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``; where there is none, write ``default`` first."""
        value = self._find(key)
        if value is not _MISSING:
            return value
        self._read.setdefault(key, _own_copy(default))
        self._written[key] = default
        return default

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(f"A key of the state must be a str, not {type(key).__name__}.")
        self._borrowed.pop(key, None)
        self._written[key] = value

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self[key] = None

    def __contains__(self, key: object) -> bool:
        # Not by __getitem__: to ask whether a key is there is not to read its value.
        written = self._written.get(key, _MISSING)  # type: ignore[call-overload]
        if written is _MISSING:
            return self._base.get(key) is not None  # type: ignore[call-overload]
        return written is not None

    def __iter__(self) -> Iterator[str]:
        yield from (key for key, value in self._base.items() if value is not None and self._written.get(key, value) is not None)
        yield from (key for key, value in self._written.items() if value is not None and self._base.get(key) is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"State({self.to_dict()!r})"

    def to_dict(self) -> dict[str, Any]:
        """Return all that this call sees, as a plain dict of its own."""
        return {key: _own_copy(self[key]) for key in self}

    def _find(self, key: str) -> Any:
        if key in self._written:
            value = self._written[key]
            return _MISSING if value is None else value
        if key in self._borrowed:
            return self._borrowed[key][1]
        value = self._base.get(key)
        if value is None:
            return _MISSING
        self._read.setdefault(key, value)
        if not isinstance(value, _CONTAINERS):
            return value
        mine = _own_copy(value)
        self._borrowed[key] = (value, mine)
        return mine


def _own_copy(value: Any) -> Any:
    """Return a container that may be changed without anyone else noticing; what cannot be copied is handed out as it is."""
    if not isinstance(value, _CONTAINERS):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  (a lock, a connection: whatever it holds may refuse, in any way)
        return value


def _differ(original: Any, mine: Any) -> bool:
    if original is mine:
        return False
    try:
        return bool(original != mine)
    except Exception:  # noqa: BLE001  (values of unknown types compare as they like)
        return True
