"""Three clocks for one call, each a little ahead of the next, so that it is always the innermost that says what happened.

The tool is stopped first (in the plugin), then the host stops waiting for the plugin, then the server for the host. With equal
limits it would be a matter of luck which of three errors a model is told.
"""

from __future__ import annotations

from typing import Final

CANCEL_GRACE: Final = 0.2
"""Seconds that a tool which was stopped is waited for; within what is between the first two clocks of a call of 5 s or more."""

MAX_TIMEOUT: Final = 300.0
"""The longest that a call may take, in seconds."""

DEFAULT_TIMEOUT: Final = 30.0
"""How long a call may take where nobody said."""


def for_tool(timeout: float) -> float:
    """Return after how many seconds the plugin stops the tool."""
    return timeout - min(0.5, timeout / 10)


def for_host(timeout: float) -> float:
    """Return after how many seconds the host answers for a plugin that has not."""
    return timeout - min(0.25, timeout / 20)
