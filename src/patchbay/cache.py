"""A thread-safe cache that is bounded by the size of its values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SizedCache(Generic[Key, Value]):
    """An LRU cache of at most ``most`` values with ``most_bytes`` together."""

    def __init__(self, *, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return the value of ``key``, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Set the value of ``key``, which takes ``size`` bytes; one that is too large is not stored."""
        with self._lock:
            self._drop(key)
            if size > self._most_bytes:
                return
            self._entries[key] = value, size
            self._size += size
            while self._size > self._most_bytes or len(self._entries) > self._most:
                self._drop(next(iter(self._entries)))

    def pop(self, key: Key) -> Value | None:
        """Remove ``key`` and return its value, or None."""
        with self._lock:
            entry = self._entries.get(key)
            self._drop(key)
            return None if entry is None else entry[0]

    def _drop(self, key: Key) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._size -= entry[1]
