"""A guard against a model that calls and calls: so many calls may begin in any so many seconds. Pure."""

from __future__ import annotations

import json
from collections import deque
from typing import Final

from patchbay.errors import ToolError

STOP: Final = json.dumps(
    {"stop": True, "warning": "Too many tool calls in a short time: this one did not run. Answer without tools."}
)
"""What the model is told in the place of a result."""


class FloodError(ToolError, RuntimeError):
    """A call that did not run, because too many had begun shortly before."""

    code = "rate_limited"

    def __init__(self, tool_name: str) -> None:
        super().__init__("tool-call rate limit reached", tool_name=tool_name)

    @property
    def for_model(self) -> str:
        """The words of the contract."""
        return STOP


class FloodGuard:
    """At most ``most`` calls begin in any ``seconds``; those that are refused do not count."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._begun: deque[float] = deque(maxlen=most)

    def take(self, now: float) -> bool:
        """Begin a call at this time; False where it may not."""
        if len(self._begun) == self._most and now - self._begun[0] < self._seconds:
            return False
        self._begun.append(now)
        return True

    def reset(self) -> None:
        """Begin anew."""
        self._begun.clear()
