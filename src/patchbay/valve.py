"""Lines of others on their way into the log: as many as a person can read.

What lives here: how many are let through. It knows no clock and no log of its own, and is on the lowest floor, since hooks'
processes and servers have such lines. What does not: where lines come from, and which characters they keep (``legible``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BURST: Final = 20
PER_SECOND: Final = 5.0
"""So many lines at once, and so many per second in the long run."""


class Valve:
    """``put`` lines in; ``log`` is called with those that get through, and with how many did not."""

    def __init__(self, log: Callable[[str], object], clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._room = float(BURST)
        self._since = clock()
        self._left_out = 0

    def put(self, line: str) -> None:
        """Log a line, or count it."""
        now = self._clock()
        self._room = min(float(BURST), self._room + (now - self._since) * PER_SECOND)
        self._since = now
        if self._room < 1:
            self._left_out += 1
            return
        self.close()
        self._room -= 1
        self._log(line)

    def close(self) -> None:
        """Say how many lines were left out since the last one that was not."""
        if self._left_out:
            self._log(f"... ({self._left_out} lines left out)")
            self._left_out = 0
