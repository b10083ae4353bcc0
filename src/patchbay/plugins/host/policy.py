"""Every limit and timeout of the plugin host."""

from __future__ import annotations

from dataclasses import dataclass

from patchbay._backoff import Backoff


@dataclass(frozen=True, kw_only=True)
class HostPolicy:
    """Limits and timeouts of the host, in seconds."""

    hello_timeout: float = 30.0
    """For a process to start and connect."""
    startup_margin: float = 5.0
    """On top of a plugin's own startup timeout, before it counts as hung."""
    starting_at_once: int = 8
    """Processes that start at a time."""

    backoff_first: float = 0.1
    """Before the restart of a plugin that ended by itself; doubled each time."""
    backoff_most: float = 30.0
    """The longest delay of a restart."""
    failures_most: int = 10
    """A plugin that ended by itself so often in a row is given up."""
    healthy_after: float = 2.0
    """A plugin that has run for so long starts a new row."""

    drain: float = 5.0
    """For calls in flight when a plugin stops or is frozen."""
    grace: float = 5.0
    """For its hooks after that."""
    exit_margin: float = 5.0
    """For its process to exit."""

    ping_interval: float = 5.0
    """How often a plugin is pinged."""
    stuck_after: float = 60.0
    """A plugin that has not answered for so long is killed and restarted."""

    poll_interval: float = 2.0
    """How often the server's list is requested."""
    poll_retry: float = 0.1
    """Before the next request to a server that is away; doubled up to ``poll_interval``."""
    server_timeout: float = 5.0
    """For each request to the server."""
    refused_retry: float = 30.0
    """A refused tool is tried again after so long, or when the list of tools changes. Also the longest delay of a repetition."""
    clear_timeout: float = 3.0
    """For removing a plugin's tools before it is stopped."""

    calls_most: int = 256
    """Calls of one plugin in flight."""
    call_bytes_most: int = 64 * 1024 * 1024
    """Bytes of their arguments."""
    tools_most: int = 1000
    """Tools of one plugin."""
    answers_most: int = 4096
    """Calls of one plugin with an idempotency key that are remembered."""
    answers_kept: float = 600.0
    """For so long."""
    answer_bytes_most: int = 4 * 1024 * 1024
    """Bytes of their answers."""

    def restart_backoff(self) -> Backoff:
        """Return the delays between the starts of one plugin."""
        retries = self.failures_most - 1
        return Backoff(self.backoff_first, self.backoff_most, retries=retries, healthy_after=self.healthy_after)

    def server_backoff(self) -> Backoff:
        """Return the delays between requests to a server that is away."""
        return Backoff(self.poll_retry, self.poll_interval)
