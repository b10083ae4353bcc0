"""Time that does not count: while a person is asked about a call, the clocks that run meanwhile stand still.

What lives here: a tool's timer, and which clocks are to stand still for a call: its run's, and where a tool has begun that run,
those of the call that this is for. What does not: the run's own clock (``budget``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Clock(Protocol):
    """Something that ends after a time, and can be made to stand still any number of times at once."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it belongs to; None for one that has not been started."""

    def pause(self) -> None:
        """Stand still until ``go_on`` has been called as often as this."""

    def go_on(self) -> None:
        """Take one pause back."""


# The clocks of the calls that the current code is part of.
_around: ContextVar[tuple[Clock, ...]] = ContextVar("_around", default=())


class Alarm:
    """Calls ``then`` after ``seconds``; for tools' limits."""

    __slots__ = ("_handle", "_left", "_pauses", "_then", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, then: Callable[[], None]) -> None:
        self.loop: asyncio.AbstractEventLoop | None = loop
        self._then = then
        self._left = 0.0
        self._pauses = 0
        self._handle: asyncio.TimerHandle | None = loop.call_later(seconds, then)

    def pause(self) -> None:
        """Stand still until ``go_on`` has been called as often as this."""
        self._pauses += 1
        if self._pauses == 1 and self.loop is not None and self._handle is not None:
            self._left = self._handle.when() - self.loop.time()
            self._handle.cancel()

    def go_on(self) -> None:
        """Take one pause back."""
        self._pauses -= 1
        if not self._pauses and self.loop is not None and self._handle is not None:
            self._handle = self.loop.call_later(self._left, self._then)

    def cancel(self) -> None:
        """Never call it."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def within(*clocks: Clock) -> None:
    """Say that what the current task does from now on is within the time of these."""
    _around.set((*_around.get(), *clocks))


@contextmanager
def standing_still(clock: Clock) -> Iterator[None]:
    """Let ``clock`` stand still, and all that the current task is within."""
    clocks = (*_around.get(), clock)
    for each in clocks:
        _in_its_loop(each, each.pause)
    try:
        yield
    finally:
        for each in clocks:
            _in_its_loop(each, each.go_on)


def _in_its_loop(clock: Clock, what: Callable[[], None]) -> None:
    # A tool in a thread may have begun a run of its own, in another loop.
    if clock.loop is None or clock.loop is asyncio.get_running_loop():
        what()
        return
    try:
        clock.loop.call_soon_threadsafe(what)
    except RuntimeError:  # that loop is closed, and nothing in it has a limit any more
        pass
