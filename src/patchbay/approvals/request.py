"""A call that waits for somebody's yes, as data: what is asked, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Literal, Self, TypeAlias

from patchbay.errors import InvalidRequestError
from patchbay.hooks.digest import digest_of
from patchbay.schema import SchemaValidator

SHOWN: Final = 4_000
"""How many characters of the arguments are shown where there are many requests."""

MOST: Final = 256 * 1024
"""How many characters the arguments may have. Nobody can say yes to what is longer than anybody can read."""

Verdict: TypeAlias = Literal["approve", "deny", "approve_session"]


class State(StrEnum):
    """What became of a request. All but ``PENDING`` are final."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    """The run that asked was stopped, so there is nothing left to decide."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person says to a request."""

    verdict: Verdict
    reason: str = ""
    by: str = ""
    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """One call that waits, or did; what is asked never changes.

    ``arguments`` is the JSON text of what the tool will be given, ``facts`` what the tool has found out about the call,
    ``digest`` that of all three: a decision is for nothing else. ``source`` is who the tool is from, ``endpoint`` where its calls
    are sent to ("": nowhere, it is this program's own). Times are in seconds since 1970. ``role`` is that which the turn is for,
    "" where nobody says one. ``agent`` and ``parent_turn`` tell of a sub-agent's call whose it is and what it is for. ``meta`` is
    whatever else is known of the turn.
    ``rule`` is the policy's rule, ``who`` may decide, ``session`` is what a yes for the session would be for ("never": there is
    none). ``at_deadline`` says whether silence is a yes.

    ``why`` says which hooks want a person to decide, and for what reason; "" where the policy alone does.

    ``parameters`` is the JSON Schema of the arguments, None where it is too long to be kept.
    ``by`` and ``reason`` are the decision's; ``edited`` are the arguments that the call was approved with, where they are
    others; ``for_session`` says that it is for more than this call. ``used`` is when a run was given the decision, None while
    none was. ``awaited`` says whether a run waits for it now; of one that was decided just now,
    whether one did. Requests are equal whether or not.
    """

    id: str
    created: float
    deadline: float
    tool: str
    arguments: str
    digest: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    endpoint: str = ""
    call_id: str = ""
    role: str = ""
    agent: str = ""
    session_key: str = ""
    turn: str = ""
    parent_turn: str = ""
    rule: str = ""
    why: str = ""
    who: tuple[str, ...] = ()
    session: str = "never"
    at_deadline: str = "deny"
    meta: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] | None = None
    state: State = State.PENDING
    decided: float | None = None
    by: str = ""
    reason: str = ""
    for_session: bool = False
    edited: Mapping[str, Any] | None = None
    used: float | None = None
    awaited: bool = field(default=False, compare=False)

    @property
    def is_genuine(self) -> bool:
        """Whether the digest is that of what is shown: it is not where somebody has changed what is kept."""
        try:
            arguments = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return False
        return isinstance(arguments, dict) and digest_of(self.tool, arguments, self.facts) == self.digest

    def check_edited(self, arguments: Any) -> None:
        """Raise InvalidRequestError where the call cannot be approved with these arguments."""
        if self.parameters is None:
            raise InvalidRequestError("The arguments of this call cannot be edited: the schema of its tool is not kept.")
        try:
            text = json.dumps(arguments, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"The edited arguments are no JSON: {error}.", param="arguments") from None
        if not isinstance(arguments, Mapping) or len(text) > MOST:
            raise InvalidRequestError(f"The edited arguments must be an object of at most {MOST} characters.", param="arguments")
        if complaints := SchemaValidator(self.tool, self.parameters).complaints(arguments):
            raise InvalidRequestError(
                f"The edited arguments do not fit {self.tool!r:.99}: {'; '.join(complaints):.500}.", param="arguments"
            )

    def as_json(self, *, whole: bool = False) -> dict[str, Any]:
        """Return it as JSON knows it. Arguments that are long are cut, unless ``whole``: then ``arguments`` is None."""
        is_cut = not whole and len(self.arguments) > SHOWN
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "who": list(self.who),
            "state": str(self.state),
            "arguments": None if is_cut else json.loads(self.arguments),
            "arguments_text": cut(self.arguments) if is_cut else self.arguments,
            "is_cut": is_cut,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Return what ``as_json`` was made of; of arguments that were cut, what is left of their text. Raises ValueError."""
        known = {each.name: told[each.name] for each in fields(cls) if each.name in told}
        if not isinstance(known.get("facts", {}), Mapping):
            raise ValueError("no request for approval: its facts are none")  # noqa: TRY004  (as all that is unreadable)
        try:
            return cls(**{**known, "arguments": told["arguments_text"], "who": tuple(told["who"]), "state": State(told["state"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"no request for approval: {error}") from error


@dataclass(frozen=True, slots=True)
class SessionGrant:
    """A yes for the session that holds: that of ``request``, ``until`` when (in seconds since 1970)."""

    request: ApprovalRequest
    until: float

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON knows it: the members of the request, and ``until``."""
        return {**self.request.as_json(), "until": self.until}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Return what ``as_json`` was made of. Raises ValueError."""
        until = told.get("until")
        if isinstance(until, bool) or not isinstance(until, int | float):
            raise ValueError("no approval for the session: it does not say until when")  # noqa: TRY004  (as all that is unreadable)
        return cls(ApprovalRequest.from_json(told), until)


def cut(text: str) -> str:
    """Return a text of bounded length, which says what was left out."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... [{len(text) - SHOWN} more characters]"
