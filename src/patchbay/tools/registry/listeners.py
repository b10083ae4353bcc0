"""Who is told of changes: each of all of them, in their order, whatever threads they are made in."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from patchbay.tools.registry.change import Change

_logger = logging.getLogger(__name__)


class Listeners:
    """The listeners, and the changes that they have not been told of yet."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._listeners: tuple[Callable[[Change], object], ...] = ()
        self._untold: deque[Change] = deque()
        self._telling = threading.Lock()
        self._teller: int | None = None

    def add(self, listener: Callable[[Change], object]) -> Callable[[], None]:
        """Tell ``listener`` too; what is returned ends that."""

        def told(change: Change) -> None:
            listener(change)

        def end() -> None:
            with self._guard:
                self._listeners = tuple(each for each in self._listeners if each is not told)

        with self._guard:
            self._listeners = (*self._listeners, told)
        return end

    def queue(self, change: Change) -> None:
        """Put a change behind those before it; the caller holds the lock that puts changes in order."""
        self._untold.append(change)

    def tell(self) -> None:
        """Return when all that was queued has been told; what a listener changes itself is told after that."""
        if self._teller == threading.get_ident():
            return
        with self._telling:
            self._teller = threading.get_ident()
            try:
                while self._untold:
                    self._tell(self._untold.popleft())
            finally:
                self._teller = None

    def _tell(self, change: Change) -> None:
        for listener in self._listeners:
            try:
                listener(change)
            except Exception:
                _logger.exception("A listener of the registry failed")
