"""Approval requests, decisions and session approvals as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Literal, Self, TypeAlias

from patchbay.errors import InvalidRequestError
from patchbay.hooks.events import digest_of
from patchbay.schema import SchemaValidator

LISTED_CHARS: Final = 4_000
"""Characters of arguments in a list of requests."""

MAX_ARGUMENTS: Final = 256 * 1024
"""Characters that the arguments may have: a person cannot review more."""

_POLICY: Final = "policy ("

Verdict: TypeAlias = Literal["approve", "deny", "approve_session", "approve_always"]


class State(StrEnum):
    """State of a request. All but ``PENDING`` are final; ``WITHDRAWN`` means that its run was stopped."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Answer:
    """A person's decision about a request."""

    verdict: Verdict
    reason: str = ""
    by: str = ""
    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A tool call that waits for approval, or did. The descriptions of its members are those of ``/openapi.json``."""

    id: str
    created: float = field(metadata={"description": "Seconds since 1970."})
    deadline: float = field(metadata={"description": "When `at_deadline` decides, in seconds since 1970."})
    tool: str
    arguments: str = field(metadata={"description": "The arguments as JSON text."})
    digest: str = field(metadata={"description": "Of tool, arguments and facts. The call that runs has this digest."})
    facts: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={"description": "What the tool found out about the call. It runs only if they are still so."},
    )
    source: str = field(default="", metadata={"description": "Who registered the tool; empty for the server's own tools."})
    endpoint: str = field(default="", metadata={"description": "URL that calls are sent to; empty for the server's own tools."})
    call_id: str = ""
    role: str = field(default="", metadata={"description": "The role of the turn."})
    agent: str = ""
    session_key: str = ""
    turn: str = ""
    parent_turn: str = field(default="", metadata={"description": "The turn that a sub-agent works for."})
    rule: str = field(default="", metadata={"description": "The policy's rule that asks."})
    why: str = field(
        default="", metadata={"description": "The hooks that want a person to decide, and why; empty if only the policy asks."}
    )
    who: tuple[str, ...] = field(default=(), metadata={"description": "Who may decide."})
    session: Literal["tool", "call", "never"] = field(
        default="never", metadata={"description": "The scope of an approval for the session."}
    )
    always: Literal["tool", "call", "never"] = field(
        default="never",
        metadata={
            "description": "The scope of a standing permission: calls of the tool as the person chooses, this call, or none."
        },
    )
    at_deadline: Literal["deny", "allow"] = field(default="deny", metadata={"description": "The outcome without a decision."})
    meta: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] | None = field(
        default=None, metadata={"description": "JSON Schema of the arguments; null if it is too long."}
    )
    state: State = State.PENDING
    decided: float | None = None
    by: str = ""
    reason: str = ""
    for_session: bool = False
    for_always: bool = field(default=False, metadata={"description": "Whether it was approved with a standing permission."})
    edited: Mapping[str, Any] | None = field(
        default=None, metadata={"description": "The arguments that the call was approved with, if they were edited."}
    )
    used: float | None = field(default=None, metadata={"description": "When a run used the decision; null if none did."})
    awaited: bool = field(
        default=False,
        compare=False,
        metadata={"description": "Whether a run waits for it. If not, the decision is for the same call of the session."},
    )

    @property
    def is_genuine(self) -> bool:
        """False if the stored request was changed: its digest is not that of its tool, arguments and facts."""
        try:
            arguments = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return False
        return isinstance(arguments, dict) and digest_of(self.tool, arguments, self.facts) == self.digest

    def check_edited(self, arguments: Any) -> None:
        """Raise InvalidRequestError if the call cannot be approved with these arguments."""
        if self.parameters is None:
            raise InvalidRequestError("The arguments of this call cannot be edited: the schema of its tool is not kept.")
        try:
            text = json.dumps(arguments, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"The edited arguments are not JSON: {error}.", param="arguments") from None
        if not isinstance(arguments, Mapping) or len(text) > MAX_ARGUMENTS:
            limit = f"The edited arguments must be an object of at most {MAX_ARGUMENTS} characters."
            raise InvalidRequestError(limit, param="arguments")
        if complaints := SchemaValidator(self.tool, self.parameters).error_messages(arguments):
            raise InvalidRequestError(
                f"The edited arguments do not fit {self.tool!r:.99}: {'; '.join(complaints):.500}.", param="arguments"
            )

    def as_json(self, *, whole: bool = False) -> dict[str, Any]:
        """Return the request as a JSON object. Long arguments are cut, and ``arguments`` is None then, unless ``whole``."""
        left = len(self.arguments) - LISTED_CHARS
        is_cut = not whole and left > 0
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "who": list(self.who),
            "state": str(self.state),
            "arguments": None if is_cut else json.loads(self.arguments),
            "arguments_text": f"{self.arguments[:LISTED_CHARS]}... [{left} more characters]" if is_cut else self.arguments,
            "is_cut": is_cut,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read the result of ``as_json``. Raises ValueError."""
        known = {each.name: body[each.name] for each in fields(cls) if each.name in body}
        if not isinstance(known.get("facts", {}), Mapping):
            raise ValueError("invalid approval request: facts must be an object")  # noqa: TRY004  (as for all invalid ones)
        try:
            return cls(**{**known, "arguments": body["arguments_text"], "who": tuple(body["who"]), "state": State(body["state"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"invalid approval request: {error}") from error


@dataclass(frozen=True, slots=True)
class SessionGrant:
    """An approval for the session in force: its request, and when it ends (``until``, in seconds since 1970)."""

    request: ApprovalRequest
    until: float

    def as_json(self) -> dict[str, Any]:
        """Return the members of the request, and ``until``."""
        return {**self.request.as_json(), "until": self.until}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read the result of ``as_json``. Raises ValueError."""
        until = body.get("until")
        if isinstance(until, bool) or not isinstance(until, int | float):
            raise ValueError("invalid approval for the session: until must be a time")  # noqa: TRY004  (as for all invalid ones)
        return cls(ApprovalRequest.from_json(body), until)


def policy_decider(rule: str) -> str:
    """Return who decides (``by``) where a rule does, or its deadline."""
    return f"{_POLICY}{rule})"


def is_policy(by: str) -> bool:
    """Return whether a rule or its deadline decided, and not a person."""
    return by.startswith(_POLICY)
