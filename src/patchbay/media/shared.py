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


def release_session(session: str, stores: Iterable[MediaStore] = ()) -> int:
    """Forget the files of a session that has ended, in ``stores`` and, if there is one, the process's own; return how many."""
    with _lock:
        own = _store
    return sum(store.release_session(session) for store in {*stores, *([own] if own is not None else [])})
