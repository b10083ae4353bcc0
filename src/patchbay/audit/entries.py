"""What is read of an audit, and what is asked of it. Data only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from patchbay.errors import InvalidRequestError

MOST: Final = 1000
"""How many entries are returned at once."""

LONGEST: Final = 1000
"""How many characters of a name, an id or a reason are kept."""


@dataclass(frozen=True, slots=True)
class AuditDecision:
    """What one hook or approver decided of a call, and at which point."""

    by: str
    point: str
    decision: str


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One call that has settled; or, where ``lost`` is not 0, how many calls could not be written down at that place.

    ``id`` grows with every entry of a database; ``writer`` and ``number`` are the log that wrote it and its count, from 1 without
    a gap. ``time`` is when the call settled, in seconds since 1970, ``seconds`` how long its tool ran (0: it did not). ``agent``,
    ``session_key``, ``turn`` and ``parent_turn`` are whose call it was, ``round`` the round of the turn; ``channel`` and
    ``sender`` where the turn's message came from, and who wrote it. ``source`` is where the tool is from, "" for a program's own,
    ``digest`` that of tool and arguments: the one that an approval is bound to. ``responded_by`` is the hook that answered in the
    tool's place, ``code`` how the call failed (``patchbay.errors``), ``result_chars`` how much the model was shown.
    """

    id: int
    writer: str
    number: int
    time: float
    agent: str = ""
    session_key: str = ""
    turn: str = ""
    parent_turn: str = ""
    round: int = 0
    channel: str = ""
    sender: str = ""
    call_id: str = ""
    tool: str = ""
    source: str = ""
    digest: str = ""
    decisions: tuple[AuditDecision, ...] = ()
    responded_by: str = ""
    is_error: bool = False
    code: str = ""
    result_chars: int = 0
    seconds: float = 0.0
    lost: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON knows it, with all members."""
        told = {name: getattr(self, name) for name in self.__slots__}  # asdict takes ten times as long
        told["decisions"] = [{"by": each.by, "point": each.point, "decision": each.decision} for each in self.decisions]
        return told

    @classmethod
    def from_json(cls, told: Any) -> Self:
        """Read what ``as_json`` wrote; members that are not known are passed over. Raises TypeError."""
        if not isinstance(told, Mapping):
            raise TypeError("an entry is an object")
        known = {each.name for each in fields(cls)}
        members = {str(name): value for name, value in told.items() if name in known}
        decisions = members.get("decisions", ())
        if not isinstance(decisions, list | tuple) or not all(isinstance(each, Mapping) for each in decisions):
            raise TypeError("decisions are a list of objects")
        members["decisions"] = tuple(AuditDecision(**each) for each in decisions)
        return cls(**members)


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which entries are wanted; all that is said must hold. The newest come first.

    ``since`` and ``until`` (not included) are in seconds since 1970. ``tools`` are names or patterns (``fs_*``, ``?``), of which
    one must fit. ``turn`` finds the calls of sub-agents that worked for the turn too. ``errors``: calls that failed, in whatever
    way; ``denied``: those that a hook or an approver refused. ``before`` is the cursor of a page: older entries; ``after`` an id:
    newer ones, and then the oldest come first. How many calls were lost is told whatever else is asked for.
    Raises InvalidRequestError.
    """

    since: float | None = None
    until: float | None = None
    tools: tuple[str, ...] = ()
    source: str | None = None
    agent: str | None = None
    session: str | None = None
    turn: str | None = None
    errors: bool = False
    denied: bool = False
    limit: int = 100
    before: int | None = None
    after: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or not 1 <= self.limit <= MOST:
            raise InvalidRequestError(f"The limit must be a whole number from 1 to {MOST}, not {self.limit!r}.", param="limit")
        for name in ("since", "until"):
            seconds = getattr(self, name)
            if seconds is not None and not math.isfinite(seconds):
                raise InvalidRequestError(f"{name} must be a time, not {seconds!r}.", param=name)
        for name in ("before", "after"):
            number = getattr(self, name)
            if number is not None and not 0 <= number < 2**63:
                raise InvalidRequestError(f"{name} must be the id of an entry, not {number!r}.", param=name)


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Entries in the order that was asked for. ``cursor`` is the ``before`` of the next page, None where there is none."""

    entries: tuple[AuditEntry, ...]
    cursor: int | None
