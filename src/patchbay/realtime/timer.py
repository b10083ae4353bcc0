"""One moment that is waited for, at most. Of the event loop that it is set in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """Calls ``then`` once when its time has come."""

    __slots__ = ("_handle", "_then")

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        """Whether it is waited for."""
        return self._handle is not None

    def set(self, seconds: float) -> None:
        """Wait so many seconds from now, and no longer for what was waited for before."""
        self.cancel()
        self._handle = asyncio.get_running_loop().call_later(seconds, self._rings)

    def set_by(self, when: float) -> None:
        """Wait until ``when``, by the loop's clock, unless it rings before that anyway."""
        if self._handle is None or self._handle.when() > when:
            self.cancel()
            self._handle = asyncio.get_running_loop().call_at(when, self._rings)

    def cancel(self) -> None:
        """Wait for nothing."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _rings(self) -> None:
        self._handle = None
        self._then()
