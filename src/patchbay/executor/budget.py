"""What one run may use up: rounds, calls, time. Shared by all who work in the same run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from patchbay.errors import ConfigurationError
from patchbay.tools.base import checked_timeout


class Budget:
    """The rounds, calls and seconds of one run; None for no limit. Raises ConfigurationError for a limit that cannot be kept.

    Agents that run side by side in one run share one Budget, so their number does not multiply it. Calls that fail count too.
    The clock starts with ``start()``. ``exceeded`` names the first limit that was met: "max_iterations", "max_calls" or
    "max_seconds", the words that a run's end says it with. The clock stands still while a person is asked (``paused``).
    """

    def __init__(
        self, *, max_iterations: int | None = None, max_calls: int | None = None, max_seconds: float | None = None
    ) -> None:
        self.max_iterations = checked_count(max_iterations, "max_iterations") if max_iterations is not None else None
        self.max_calls = checked_count(max_calls, "max_calls") if max_calls is not None else None
        self.max_seconds = checked_timeout(max_seconds, "max_seconds") if max_seconds is not None else None
        self.iterations = 0
        self.calls = 0
        self.exceeded: str | None = None
        self.ends: float | None = None
        """The end of the time, by the event loop's clock; None before ``start()``, without a limit, and during a pause."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop by whose clock it goes; None before ``start()`` and without a limit."""
        self._left = 0.0
        self._pauses = 0
        self._watchers: set[Callable[[float | None], None]] = set()

    def start(self) -> None:
        """Start the clock, if it is not running already."""
        if self.max_seconds is not None and self.loop is None:
            self.loop = asyncio.get_running_loop()
            self._left = self.max_seconds
            if not self._pauses:
                self._set(self.loop.time() + self._left)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock meanwhile. Any number may do so at once: it goes on when the last of them has ended."""
        self.pause()
        try:
            yield
        finally:
            self.go_on()

    def pause(self) -> None:
        """Stop the clock until ``go_on`` has been called as often as this."""
        self._pauses += 1
        if self._pauses == 1 and self.loop is not None and self.ends is not None:
            self._left = self.ends - self.loop.time()
            self._set(None)

    def go_on(self) -> None:
        """Take one pause back."""
        self._pauses -= 1
        if not self._pauses and self.loop is not None:
            self._set(self.loop.time() + self._left)

    def time_left(self) -> TimeLeft:
        """Return the rest of the time as a scope, to be entered with ``async with``."""
        return TimeLeft(self)

    def watch(self, moved: Callable[[float | None], None]) -> None:
        """Call ``moved`` with ``ends`` whenever that is another one."""
        self._watchers.add(moved)

    def unwatch(self, moved: Callable[[float | None], None]) -> None:
        """Call it no more."""
        self._watchers.discard(moved)

    def take_iteration(self) -> bool:
        """Use one round; False if there was none left, or no time for it."""
        if self.max_iterations is not None and self.iterations >= self.max_iterations:
            self.exceeded = self.exceeded or "max_iterations"
            return False
        if self.ends is not None and asyncio.get_running_loop().time() >= self.ends:
            self.out_of_time()
            return False
        self.iterations += 1
        return True

    def take_call(self) -> bool:
        """Use one call; False if there was none left."""
        if self.max_calls is not None and self.calls >= self.max_calls:
            self.exceeded = self.exceeded or "max_calls"
            return False
        self.calls += 1
        return True

    def out_of_time(self) -> None:
        """Take note that the time was up before the work was done."""
        self.exceeded = self.exceeded or "max_seconds"

    def _set(self, ends: float | None) -> None:
        self.ends = ends
        for moved in list(self._watchers):
            moved(ends)


class TimeLeft:
    """What is left of a budget's time: as ``asyncio.timeout_at()``, but it moves along where the clock stands still meanwhile."""

    __slots__ = ("_budget", "_timeout")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._timeout = asyncio.timeout_at(None)

    async def __aenter__(self) -> asyncio.Timeout:
        """Return the timeout, which can be asked whether it has expired."""
        timeout = self._timeout = asyncio.timeout_at(self._budget.ends)
        await timeout.__aenter__()
        self._budget.watch(self._move)
        return timeout

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Raise TimeoutError where the time was up."""
        self._budget.unwatch(self._move)
        await self._timeout.__aexit__(kind, error, trace)

    def _move(self, ends: float | None) -> None:
        if not self._timeout.expired():
            self._timeout.reschedule(ends)


def checked_count(count: int | None, what: str) -> int | None:
    """Return ``count``, or raise ConfigurationError for a number that limits nothing."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ConfigurationError(f"{what} must be a whole number of at least 1, or None for no limit; not {count!r}.")
    return count
