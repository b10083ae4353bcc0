"""Every limit and timeout of the plugin host."""

from __future__ import annotations

from dataclasses import dataclass

from patchbay._backoff import Backoff


@dataclass(frozen=True, kw_only=True)
class HostPolicy:
    """Limits and timeouts of the host, in seconds.

    Starting: ``hello_timeout`` for the process to start and connect; ``startup_margin`` on top of the plugin's own startup
    timeout before it counts as hung; ``starting_at_once`` processes start at a time.

    Restarting: a plugin that ends by itself is restarted after ``backoff_first``, doubled each time up to ``backoff_most``, and
    given up after ``failures_most`` in a row. One that has run for ``healthy_after`` starts a new row.

    Stopping: calls in flight have ``drain``, hooks ``grace`` after that, and the process ``exit_margin`` to exit.

    A plugin is pinged each ``ping_interval``; one that has not answered for ``stuck_after`` is killed and restarted.

    The server: polled each ``poll_interval`` (while it is away, after ``poll_retry``, doubled up to the interval);
    ``server_timeout`` for each request; a refused tool is tried again after ``refused_retry`` or when the list of tools changes;
    ``clear_timeout`` for removing a plugin's tools before it is stopped.

    Bounds of one plugin: ``calls_most`` calls in flight, ``call_bytes_most`` bytes of their arguments, ``tools_most`` tools. The
    last ``answers_most`` calls with an idempotency key are remembered for ``answers_kept``, with ``answer_bytes_most`` bytes of
    answers.
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

    def restart_backoff(self) -> Backoff:
        """Return the delays between the starts of one plugin."""
        retries = self.failures_most - 1
        return Backoff(self.backoff_first, self.backoff_most, retries=retries, healthy_after=self.healthy_after)

    def server_backoff(self) -> Backoff:
        """Return the delays between requests to a server that is away."""
        return Backoff(self.poll_retry, self.poll_interval)
