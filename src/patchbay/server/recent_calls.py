"""The last calls of each tool, for the console: ``patchbay.server.usage`` has the counts."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:  # a plain proxy has no hooks
    from patchbay.hooks.events import CallRecord

MAX_TOOLS: Final = 5000
"""Maximum tools whose calls are kept, of all roles: models call names that do not exist, too."""
MAX_RECENT: Final = 200
"""Maximum calls of a tool that are kept."""


class CallOutcome(NamedTuple):
    """One settled call. ``time`` is its end, in seconds since 1970; ``seconds`` is 0 if the tool did not run.

    ``code`` is that of its error, "" for success; ``source`` is where the tool is from.
    """

    time: float
    seconds: float
    code: str
    turn: str
    source: str


class RecentCalls:
    """The last calls by role and tool; the tools that were called longest ago are dropped first. ``add`` is a Recorder."""

    def __init__(self) -> None:
        self._recent: OrderedDict[tuple[str, str], deque[CallOutcome]] = OrderedDict()

    def add(self, call: CallRecord) -> None:
        """Keep a settled call."""
        key = call.meta.agent_id, call.tool
        recent = self._recent.get(key)
        if recent is None:
            recent = self._recent[key] = deque(maxlen=MAX_RECENT)
            if len(self._recent) > MAX_TOOLS:
                self._recent.popitem(last=False)
        self._recent.move_to_end(key)
        code = (call.code or "error") if call.is_error else ""
        recent.append(CallOutcome(call.time, call.seconds, code, call.meta.turn_id, call.source))

    def of(self, role: str, tool: str) -> tuple[CallOutcome, ...]:
        """Return the last calls of a role's tool, the newest at the end."""
        return tuple(self._recent.get((role, tool), ()))


def quantile(calls: Sequence[CallOutcome], share: float) -> float | None:
    """Return the seconds within which this share of the calls ended; None if no tool has run."""
    ran = sorted(each.seconds for each in calls if each.seconds)
    return ran[max(0, math.ceil(share * len(ran)) - 1)] if ran else None
