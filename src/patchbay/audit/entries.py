"""Audit entries and queries as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from patchbay.errors import InvalidRequestError

MAX_PAGE: Final = 1000
"""Entries of one page."""


@dataclass(frozen=True, slots=True)
class AuditDecision:
    """The decision of one hook or approver about a call, and the hook point."""

    by: str
    point: str
    decision: str


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One finished tool call, or a count of lost ones."""

    # The descriptions are those of /openapi.json.

    id: int = field(metadata={"description": "Grows with every entry of a database."})
    writer: str = field(metadata={"description": "The log that wrote it."})
    number: int = field(metadata={"description": "The writer's count, from 1 without a gap."})
    time: float = field(metadata={"description": "When the call finished, in seconds since 1970."})
    agent: str = ""
    session_key: str = ""
    turn: str = ""
    parent_turn: str = field(default="", metadata={"description": "The turn that a sub-agent works for."})
    round: int = 0
    channel: str = ""
    sender: str = ""
    call_id: str = ""
    tool: str = ""
    source: str = field(default="", metadata={"description": "Where the tool is from; empty for the server's own."})
    digest: str = field(default="", metadata={"description": "Of tool and arguments: the one that an approval is bound to."})
    decisions: tuple[AuditDecision, ...] = ()
    responded_by: str = field(default="", metadata={"description": "The hook that answered instead of the tool."})
    is_error: bool = False
    code: str = ""
    result_chars: int = 0
    seconds: float = field(default=0.0, metadata={"description": "How long the tool ran; 0 if it did not."})
    prompt_tokens: int = field(
        default=0, metadata={"description": "Of the answer that has the call, the same for each of its calls; 0 if not counted."}
    )
    completion_tokens: int = field(default=0, metadata={"description": "Likewise."})
    lost: int = field(
        default=0, metadata={"description": "Not 0: no call, but the number of calls that could not be recorded here."}
    )

    def as_json(self) -> dict[str, Any]:
        """Return the entry as a JSON object."""
        body = {name: getattr(self, name) for name in self.__slots__}  # asdict takes ten times as long
        body["decisions"] = [{"by": each.by, "point": each.point, "decision": each.decision} for each in self.decisions]
        return body

    @classmethod
    def from_json(cls, body: Any) -> Self:
        """Read the result of ``as_json``; unknown members are ignored. Raises TypeError."""
        if not isinstance(body, Mapping):
            raise TypeError("an audit entry must be an object")
        members = {each.name: body[each.name] for each in fields(cls) if each.name in body}
        decisions = members.get("decisions", ())
        if not isinstance(decisions, list | tuple) or not all(isinstance(each, Mapping) for each in decisions):
            raise TypeError("decisions must be a list of objects")
        members["decisions"] = tuple(AuditDecision(**each) for each in decisions)
        return cls(**members)


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """A filter of entries, newest first; all criteria must match.

    ``since`` and ``until`` (exclusive) are in seconds since 1970. ``tools`` are names or patterns (``fs_*``, ``?``), one of which
    must match. ``turn`` includes calls of sub-agents of the turn. ``errors``: only failed calls; ``denied``: only those that a
    hook or approver refused. ``before`` is the cursor of a page (older entries), ``after`` an id (newer entries, oldest first).
    Counts of lost calls are always included. Raises InvalidRequestError.
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
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or not 1 <= self.limit <= MAX_PAGE:
            raise InvalidRequestError(
                f"The limit must be a whole number from 1 to {MAX_PAGE}, not {self.limit!r}.", param="limit"
            )
        for name in ("since", "until"):
            seconds = getattr(self, name)
            if seconds is not None and not math.isfinite(seconds):
                raise InvalidRequestError(f"{name} must be a time, not {seconds!r}.", param=name)
        for name in ("before", "after"):
            number = getattr(self, name)
            if number is not None and not 0 <= number < 2**63:
                raise InvalidRequestError(f"{name} must be the id of an entry, not {number!r}.", param=name)

    def parameters(self) -> list[tuple[str, str]]:
        """Return the query as URL parameters of ``/api/audit``."""
        found: list[tuple[str, str]] = [("tool", pattern) for pattern in self.tools]
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "tools" and value is not None and value is not False:
                found.append((each.name, "true" if value is True else repr(value) if isinstance(value, float) else str(value)))
        return found


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Entries in the requested order; ``cursor`` is the ``before`` of the next page, or None."""

    entries: tuple[AuditEntry, ...]
    cursor: int | None
