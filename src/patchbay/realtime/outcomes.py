"""What has become of calls whose result could not wait: told to the model as lines, when nothing else is going on. Pure.

They were told as still running, or their connection is gone.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import Final

from patchbay.executor import ToolExecution
from patchbay.realtime.dialect import Line
from patchbay.types import ToolCall

MOST_OUTCOMES: Final = 64
"""How many wait to be told; then the oldest go."""


class Outcomes:
    """Those that wait."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[ToolExecution, str, bool]] = deque()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._waiting)

    @property
    def ask(self) -> bool:
        """Whether the model is to answer to any of them."""
        return any(asks for _, _, asks in self._waiting)

    def add(self, execution: ToolExecution, text: str, *, asks: bool = True) -> ToolExecution | None:
        """Add one, told as ``text`` and to be answered where it ``asks``; return the one that goes, if there are too many."""
        self._waiting.append((execution, text, asks))
        return self._waiting.popleft()[0] if len(self._waiting) > MOST_OUTCOMES else None

    def take(self) -> Sequence[Line]:
        """Return all as lines; they wait no longer."""
        lines = [Line("user", text) for _, text, _ in self._waiting]
        self._waiting.clear()
        return lines

    def clear(self) -> Sequence[ToolExecution]:
        """Return all that are told to nobody; they wait no longer."""
        executions = [execution for execution, _, _ in self._waiting]
        self._waiting.clear()
        return executions


def outcome(call: ToolCall, text: str) -> str:
    """Return the line that tells what has become of a call whose result could not wait. It stands in quotes, as data."""
    return f"[Result of the tool {call.name} that was still running] {json.dumps(text, ensure_ascii=False)}"
