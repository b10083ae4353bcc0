"""What one run may use up: rounds, calls, time. Shared by all who work in the same run."""

from __future__ import annotations

import asyncio

from patchbay.errors import ConfigurationError
from patchbay.tools.base import checked_timeout


class Budget:
    """The rounds, calls and seconds of one run; None for no limit. Raises ConfigurationError for a limit that cannot be kept.

    Agents that run side by side in one run share one Budget, so their number does not multiply it. Calls that fail count too.
    The clock starts with ``start()``. ``exceeded`` names the first limit that was met: "max_iterations", "max_calls" or
    "max_seconds", the words that a run's end says it with.
    """

    def __init__(
        self, *, max_iterations: int | None = None, max_calls: int | None = None, max_seconds: float | None = None
    ) -> None:
        self.max_iterations = checked_count(max_iterations, "max_iterations")
        self.max_calls = checked_count(max_calls, "max_calls")
        self.max_seconds = checked_timeout(max_seconds, "max_seconds")
        self.iterations = 0
        self.calls = 0
        self.exceeded: str | None = None
        self.ends: float | None = None
        """The end of the time, by the event loop's clock; None before ``start()`` and without a limit."""

    def start(self) -> None:
        """Start the clock, if it is not running already."""
        if self.max_seconds is not None and self.ends is None:
            self.ends = asyncio.get_running_loop().time() + self.max_seconds

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


def checked_count(count: int | None, what: str) -> int | None:
    """Return ``count``, or raise ConfigurationError for a number that limits nothing."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ConfigurationError(f"{what} must be a whole number of at least 1, or None for no limit; not {count!r}.")
    return count
