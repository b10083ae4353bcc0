"""The thread that forgets what nobody uses any more; there while there is something that it could forget.

It holds no store: one that is dropped ends its thread.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Protocol

_logger = logging.getLogger(__name__)


class Swept(Protocol):
    """What is swept."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to sweep."""

    def sweep(self) -> int:
        """Sweep, and return how much went."""


class Sweeper:
    """Sweeps ``store`` every ``interval`` seconds from ``start`` on, until there is nothing left."""

    def __init__(self, store: Swept, interval: float) -> None:
        self._store = weakref.ref(store)
        self._interval = interval
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None

    def start(self) -> None:
        """Make sure that somebody sweeps."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="patchbay-media", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Sweep no more."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._interval) and self._swept():
            pass

    def _swept(self) -> bool:
        """Sweep once, and say whether there is anything left."""
        store = self._store()
        if store is None:
            return False
        try:
            store.sweep()
        except Exception:
            _logger.exception("The media store could not be swept")
        with self._lock:
            if store.is_idle:
                self._thread = None  # while nobody can start one: what comes now starts another
                return False
        return True
