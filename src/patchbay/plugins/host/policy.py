"""Every limit and every number of seconds of the host, in one place.

What lives here: data. What does not: what is done with it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HostPolicy:
    """How patient the host is. All times are in seconds.

    Starting: ``hello_timeout`` for the process to come up and connect; ``startup_margin`` on top of the plugin's own
    startup timeout before it counts as hung; ``starting_at_once`` processes come up at a time.

    Restarting: a plugin that ends by itself is started again after ``backoff_first``, doubled each time up to ``backoff_most``,
    and given up after ``failures_most`` in a row. One that had run for ``healthy_after`` begins a new row.

    Stopping: calls under way have ``drain`` to end, hooks ``grace`` after that, and the process ``exit_margin`` to be gone.

    ``ping_interval``: how often a plugin has to show that it reads; one that has not for ``stuck_after`` is ended and restarted.

    The server: asked each ``poll_interval`` (``poll_retry`` first, when it was not there, and never later than the interval);
    ``server_timeout`` for each request; a refused tool is tried again after ``refused_retry`` or when the list of tools changes;
    ``clear_timeout`` for taking back a plugin's tools before it is stopped.

    Bounds of one plugin: ``calls_most`` calls under way, ``call_bytes_most`` bytes of their arguments, ``tools_most`` tools. Of
    calls with an idempotency key that are over, the last ``answers_most`` are known again for ``answers_kept``, with
    ``answer_bytes_most`` bytes of their answers.
    """

    hello_timeout: float = 30.0
    startup_margin: float = 5.0
    starting_at_once: int = 8
    backoff_first: float = 0.1
    backoff_most: float = 30.0
    failures_most: int = 10
    healthy_after: float = 2.0
    drain: float = 5.0
    grace: float = 5.0
    exit_margin: float = 5.0
    ping_interval: float = 5.0
    stuck_after: float = 60.0
    poll_interval: float = 2.0
    poll_retry: float = 0.1
    server_timeout: float = 5.0
    refused_retry: float = 30.0
    clear_timeout: float = 3.0
    calls_most: int = 256
    call_bytes_most: int = 64 * 1024 * 1024
    tools_most: int = 1000
    answers_most: int = 4096
    answers_kept: float = 600.0
    answer_bytes_most: int = 4 * 1024 * 1024

    def restart_delay(self, failures: int) -> float:
        """Return how long to wait before the restart after so many failures in a row (at least 1); a different time each time."""
        return spread(min(self.backoff_most, self.backoff_first * 2 ** min(failures - 1, 30)))

    def poll_delay(self, failures: int) -> float:
        """Return how long to wait before the server is asked again, after so many requests in a row that failed (0: none)."""
        if failures == 0:
            return spread(self.poll_interval)
        return spread(min(self.poll_interval, self.poll_retry * 2 ** min(failures - 1, 30)))


def spread(seconds: float) -> float:
    """Return between three quarters of the time and all of it, so that many that wait do not all come at once."""
    return seconds * random.uniform(0.75, 1.0)  # noqa: S311  (no secret)
