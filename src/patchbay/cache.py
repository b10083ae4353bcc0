"""A cache that is bounded by the size of what is in it. Any number of threads may use it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SizedCache(Generic[Key, Value]):
    """Keeps at most ``most`` values of ``most_bytes`` together; those that were used longest ago go first."""

    def __init__(self, *, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return what is kept under ``key``, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep ``value``, which takes ``size`` bytes, instead of what was there."""
        with self._lock:
            self._drop(key)
            if size > self._most_bytes:
                return
            self._entries[key] = value, size
            self._size += size
            while self._size > self._most_bytes or len(self._entries) > self._most:
                self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._size -= entry[1]
