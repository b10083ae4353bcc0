"""What hooks may do, and how long they may take. Data only."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, get_args

from patchbay.errors import ConfigurationError

ToolInjection = Literal["additive", "off", "full"]
RespondApproval = Literal["foreign", "seed", "always"]


@dataclass(frozen=True, slots=True)
class HookPolicy:
    """What hooks may do.

    ``tool_injection``: "additive" lets a hook offer tools of its own and touch no others, "off" lets it offer none, "full" lets
    it change what is offered as it likes. ``respond_approval``: whether the approvers are asked before a hook answers a call:
    "foreign" for tools that are not its own, "always", or "seed" (never); None says nothing of it, which is "foreign" unless an
    approval policy needs "always" (``patchbay.approvals``). ``protected`` are the names of tools (or patterns, as
    ``fs_*``) that no hook may answer for, whatever else is said. ``edit_system`` lets hooks change system messages.
    Raises ConfigurationError.
    """

    tool_injection: ToolInjection = "additive"
    respond_approval: RespondApproval | None = None
    protected: frozenset[str] = frozenset()
    edit_system: bool = False

    def __post_init__(self) -> None:
        for name, given, kind in (
            ("tool_injection", self.tool_injection, ToolInjection),
            ("respond_approval", self.respond_approval, RespondApproval),
        ):
            if given not in get_args(kind) and (given is not None or name == "tool_injection"):
                raise ConfigurationError(f"hooks.policy.{name} is {given!r}: use one of {', '.join(get_args(kind))}.")
        object.__setattr__(self, "protected", frozenset(_names(self.protected)))

    def protects(self, tool: str) -> bool:
        """Whether no hook may answer for this tool."""
        return any(fnmatchcase(tool, pattern) for pattern in self.protected)


@dataclass(frozen=True, slots=True)
class HookTimeouts:
    """How long a hook may take, in seconds: to be told of an event, to be asked, to approve; and for a tool of its own."""

    observer: float = 0.5
    interceptor: float = 5.0
    approval: float = 60.0
    tool: float | None = field(default=None)
    """None: as ``interceptor``."""

    def __post_init__(self) -> None:
        for name in ("observer", "interceptor", "approval", "tool"):
            seconds = getattr(self, name)
            if seconds is None and name == "tool":
                continue
            number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not number or not math.isfinite(seconds) or seconds <= 0:
                raise ConfigurationError(f"A hook's {name} timeout must be a positive number of seconds, not {seconds!r}.")

    @property
    def own_tool(self) -> float:
        """How long a tool of the hook's own may take."""
        return self.interceptor if self.tool is None else self.tool


def _names(given: Collection[str]) -> Collection[str]:
    if isinstance(given, str) or not all(isinstance(name, str) and name for name in given):
        raise ConfigurationError(f"hooks.policy.protected must be a list of names, not {given!r}.")
    return given
