"""What a hook may decide. ``None`` is ``Continue()`` everywhere but for approvers, who must say yes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from patchbay.tools.output import ToolOutput


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on, nothing is changed."""


@dataclass(frozen=True, slots=True)
class Modify:
    """Go on with ``changes``: the view that the hook was given, changed; or a mapping of the members that are to be others.

    What is not said stays as it is. ``meta`` and ``context`` are the host's and cannot be changed.
    """

    changes: Any


@dataclass(frozen=True, slots=True)
class Respond:
    """For ``before_tool``: this is the call's result, and the tool does not run."""

    result: ToolOutput | str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DenyTool:
    """For ``before_tool``: the tool does not run, and the model is told why."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """For ``before_tool`` and ``approve_tool``: the call waits until a person has decided, who is shown the reason.

    Where no person can be asked, the call is denied.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class AbortTurn:
    """End the turn; what was said and done until now stays in the history."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class HardAbort:
    """End the turn, and let the history be as it was before it."""

    reason: str = ""


Decision: TypeAlias = Continue | Modify | Respond | DenyTool | Ask | AbortTurn | HardAbort


@dataclass(frozen=True, slots=True)
class Approval:
    """An approver's answer. ``by`` is who decided, for the record.

    ``arguments`` are those that the call is approved with, where they are to be others: they are checked, the other approvers are
    asked again, and the model is told.
    """

    approved: bool
    reason: str = ""
    by: str = ""
    arguments: Mapping[str, Any] | None = None
