"""What a hook's process is: its command and surroundings, what it is asked, and how much patience it is met with. Data only.

All times are in seconds, all sizes in bytes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

MODES: Final = ("observe", "llm", "tool", "approve")
"""What a hook can be for, in the order in which it is told of it."""

METHODS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "observe": ("on_runtime_event",),
    "llm": ("before_llm", "after_llm"),
    "tool": ("before_tool", "after_tool"),
    "approve": ("approve_tool",),
}
"""What each mode is asked: one that is for tools is asked before and after each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """How much a process may say, and how long things may take.

    ``line`` is the longest line that is read as a reply, ``queued`` how much may wait for the process to read it. ``hello`` is
    how long it has to answer the first request. One that somebody has given up and that reads nothing for ``stuck_after`` is
    ended. To end it its standard input is closed; after ``eof_grace`` its group gets SIGTERM, and ``term_grace`` later SIGKILL.

    One that ends by itself is started again after ``backoff_first``, doubled each time up to ``backoff_most``, until it has
    failed more than ``restarts`` times in a row (0: never again); one that had run for ``healthy_after`` begins a new row.
    """

    line: int = 1024 * 1024
    queued: int = 32 * 1024 * 1024
    hello: float = 5.0
    stuck_after: float = 10.0
    eof_grace: float = 2.0
    term_grace: float = 1.0
    backoff_first: float = 0.2
    backoff_most: float = 30.0
    restarts: int = 5
    healthy_after: float = 10.0

    def restart_delay(self, failures: int) -> float:
        """Return how long to wait before the restart after so many failures in a row (at least 1); a bit different each time."""
        longest: float = min(self.backoff_most, self.backoff_first * 2 ** min(failures - 1, 30))
        return longest * random.uniform(0.75, 1.0)  # noqa: S311  (no secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One hook that is a process.

    ``command`` is its argv, ``folder`` where it runs (None: where we do). ``env`` is put over our environment, of which it gets
    all, or only the variables in ``inherit`` (names, or patterns as ``LC_*``). ``modes`` are of MODES; ``kinds`` the events that
    it is told of (None: all). With ``fail_closed`` it fails closed (``HookManager.mount``), also where
    something that it meant was not understood. With ``strict`` all that is odd about a reply makes it a failure; with
    ``flat_context`` it is told ``channel`` and ``chat_id`` as old hosts told them. ``media_folder`` is where it may leave files
    for the user or the model.
    """

    name: str
    command: tuple[str, ...]
    folder: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold secrets
    inherit: tuple[str, ...] | None = None
    modes: frozenset[str] = frozenset(("llm", "tool"))
    kinds: frozenset[str] | None = None
    fail_closed: bool = False
    strict: bool = False
    flat_context: bool = False
    media_folder: Path | None = None
    limits: ProcessLimits = field(default_factory=ProcessLimits)

    def environment(self) -> dict[str, str]:
        """Return the environment that the process gets."""
        mine: Mapping[str, str] = os.environ
        if self.inherit is not None:
            mine = {name: value for name, value in mine.items() if any(fnmatchcase(name, each) for each in self.inherit)}
        return {**mine, **self.env}

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that it is asked."""
        return tuple(method for mode in MODES if mode in self.modes for method in METHODS_OF[mode])
