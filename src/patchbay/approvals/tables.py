"""The tables of requests for approval, and a row as a request. What lives here: columns. What does not: changes (``store``)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa

from patchbay.approvals.request import ApprovalRequest, State

VERSION: Final = 1

METADATA: Final = sa.MetaData()

# What others have written (names, reasons) is JSON text: PostgreSQL's own cannot hold every string that JSON can.
REQUESTS: Final = sa.Table(
    "patchbay_approvals",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("created", sa.Float, nullable=False, index=True),
    sa.Column("deadline", sa.Float, nullable=False),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("same", sa.Text, nullable=False, index=True),
    sa.Column("covers", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("decision", sa.Text, nullable=False),
    sa.Column("decided", sa.Float),
    sa.Column("used", sa.Float),
)

# The yeses for a session: of which request each was, is in its decision.
SESSIONS: Final = sa.Table(
    "patchbay_session_approvals",
    METADATA,
    sa.Column("covers", sa.Text, primary_key=True),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("decision", sa.Text, nullable=False),
)

# Which program has a run that waits for a request, and when it last said so, by the clock of the database's machine.
WAITS: Final = sa.Table(
    "patchbay_approval_waits",
    METADATA,
    sa.Column("request", sa.Text, primary_key=True),
    sa.Column("program", sa.Text, primary_key=True),
    sa.Column("seen", sa.Float, nullable=False, index=True),
)

BODY: Final = (
    "tool", "arguments", "digest", "facts", "source", "endpoint", "call_id", "role", "agent", "session_key", "turn",
    "parent_turn", "rule", "why", "who", "session", "at_deadline", "meta", "parameters",
)  # fmt: skip
"""What is kept of a request as it was asked. A row of before there were ``facts`` has none."""


def row_of(request: ApprovalRequest) -> dict[str, Any]:
    """Return the row of a request that is asked now."""
    return {
        "id": request.id,
        "created": request.created,
        "deadline": request.deadline,
        "state": State.PENDING,
        "same": same_call(request),
        "covers": covered_by(request),
        "body": json.dumps({name: getattr(request, name) for name in BODY}, default=str),
        "decision": "{}",
    }


def request_of(row: Any) -> ApprovalRequest:
    """Return the request of a row; nobody is said to wait for it."""
    body: dict[str, Any] = json.loads(row.body)
    request = ApprovalRequest(
        id=row.id,
        created=row.created,
        deadline=row.deadline,
        **{**body, "who": tuple(body["who"])},
        state=State(row.state),
        decided=row.decided,
        used=row.used,
    )
    return replace(request, **json.loads(row.decision))


def same_call(request: ApprovalRequest) -> str:
    """Return what is the same for the same call of the same session, "" where there is no session."""
    if not request.session_key:
        return ""
    return _key("same", *_whose(request), request.agent, request.digest)


def covered_by(request: ApprovalRequest) -> str:
    """Return what is the same for calls that one yes for the session is for, "" where it is for none."""
    if not request.session_key or request.session == "never":
        return ""
    digest = request.digest if request.session == "call" else ""
    # What a tool says its calls are really about is no smaller a difference than which tool it is.
    facts = (json.dumps(request.facts, sort_keys=True),) if request.facts else ()
    return _key("covers", *_whose(request), digest, *facts)


def _whose(request: ApprovalRequest) -> tuple[str, ...]:
    """Return what a decision that is for other calls too is never stretched beyond: neither another tool, nor another rule."""
    tool = (request.tool, request.source, request.endpoint)
    return (request.session_key, request.role, *tool, request.rule, ",".join(sorted(request.who)))


def _key(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
