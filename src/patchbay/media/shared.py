"""The media store of a program that has made none: one for the process, made when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from patchbay.media.store import MediaStore

_lock = threading.Lock()
_store: MediaStore | None = None


def shared_store() -> MediaStore:
    """Return the process's own store. It is deleted when the program ends."""
    global _store  # noqa: PLW0603  (one per process is what it is)
    with _lock:
        if _store is None:
            _store = MediaStore()
        return _store


def stores_in_use(more: Iterable[MediaStore] = ()) -> list[MediaStore]:
    """Return those of ``more``, and the process's own if there is one, that hold anything."""
    with _lock:
        own = _store
    return [store for store in {*more, *([own] if own is not None else [])} if store.count]
