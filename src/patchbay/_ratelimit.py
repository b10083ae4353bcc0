"""Token bucket for log lines from untrusted sources, such as hook processes and clients of a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

BURST: Final = 20
PER_SECOND: Final = 5.0
"""Maximum lines at once, and per second in the long run."""


class LogRateLimiter:
    """Passes lines to ``log`` up to the rate, and the number of dropped ones before the next line that passes.

    ``count_dropped`` makes the line that says how many were dropped.
    """

    def __init__(
        self,
        log: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
        *,
        count_dropped: Callable[[int], str] = "... ({} lines left out)".format,
    ) -> None:
        self._log = log
        self._count_dropped = count_dropped
        self._clock = clock
        self._tokens = float(BURST)
        self._since = clock()
        self._dropped = 0

    def log(self, line: str) -> None:
        """Log a line, or count it as dropped."""
        now = self._clock()
        self._tokens = min(float(BURST), self._tokens + (now - self._since) * PER_SECOND)
        self._since = now
        if self._tokens < 1:
            self._dropped += 1
            return
        self.flush()
        self._tokens -= 1
        self._log(line)

    def flush(self) -> None:
        """Log the number of lines dropped since the last one that passed, if any."""
        if self._dropped:
            self._log(self._count_dropped(self._dropped))
            self._dropped = 0
