"""How long to wait before another attempt, and when to give up."""

from __future__ import annotations

import math
import random
from typing import Final

_random: Final = random.Random()  # noqa: S311  (not a secret; its own, since tools may seed the module's)


class Backoff:
    """The delays (seconds) between attempts that fail in a row: ``first``, doubled each time up to ``longest``, with jitter.

    It is exhausted by more than ``retries`` failures in a row (None: never). An attempt that lasted for ``healthy_after`` seconds
    starts the count anew.
    """

    def __init__(self, first: float, longest: float, *, retries: int | None = None, healthy_after: float = math.inf) -> None:
        self.failures = 0
        """Failures in a row."""
        self._first = first
        self._longest = longest
        self._retries = retries
        self._healthy_after = healthy_after

    def reset(self) -> None:
        """Start the count anew, after a success."""
        self.failures = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether to give up."""
        return self._retries is not None and self.failures > self._retries

    def fail(self, *, lasted: float = 0.0) -> float:
        """Count a failed attempt that ``lasted`` so many seconds; return the delay before the next one."""
        if lasted >= self._healthy_after:
            self.failures = 0
        self.failures += 1
        return with_jitter(min(self._longest, self._first * 2 ** min(self.failures - 1, 30)))


def with_jitter(seconds: float) -> float:
    """Return a little less, at random, so that many clients do not return at the same moment."""
    return seconds * _random.uniform(0.75, 1.0)
