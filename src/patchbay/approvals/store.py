"""Requests for approval in a database: SQLite or PostgreSQL, by URL. A request is kept before anybody is asked.

What lives here: the rows, and the changes that must be whole: one decision for a request, one run for a decision. What does not:
who may decide, and whoever waits (``desk``). Each method is one transaction, so two processes may use one database.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from patchbay.approvals.request import ApprovalRequest, State
from patchbay.store import Store

VERSION: Final = 1
HISTORY: Final = 7 * 24 * 3600.0
"""Seconds after which a request that is over is forgotten."""

T = TypeVar("T")

_logger = logging.getLogger(__name__)

# An advisory lock of the database: PostgreSQL's writers come one after the other, as SQLite's do.
_WRITING: Final = 0x7061746368617070

_metadata = sa.MetaData()

# What others have written (names, reasons) is JSON text: PostgreSQL's own cannot hold every string that JSON can.
_requests = sa.Table(
    "patchbay_approvals",
    _metadata,
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
_sessions = sa.Table(
    "patchbay_session_approvals",
    _metadata,
    sa.Column("covers", sa.Text, primary_key=True),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("decision", sa.Text, nullable=False),
)

_BODY: Final = (
    "tool", "arguments", "digest", "source", "endpoint", "call_id", "role", "agent", "session_key", "turn", "parent_turn", "rule",
    "who", "session", "at_deadline", "meta",
)  # fmt: skip


class ApprovalStore:
    """Keeps requests in the database at ``url`` (as ``patchbay.store.Store`` reads it); without one, in memory.

    A SQLite file is made for its owner's eyes only, since the arguments of calls are in it. Raises ConfigurationError for a URL
    of another kind, and on first use where the database cannot be opened.
    """

    def __init__(self, url: str | os.PathLike[str] = "sqlite://") -> None:
        self._store = Store(url, _metadata, name="approvals", version=VERSION)

    @property
    def is_shared(self) -> bool:
        """Whether other processes may change what is in it."""
        return self._store.is_postgres or self._store.file is not None

    async def open(
        self,
        request: ApprovalRequest,
        *,
        now: float,
        decided_since: float,
        session_since: float,
        waited_for: Collection[str] = (),
    ) -> ApprovalRequest:
        """Keep a request, and return it; or what there is for the same call already.

        That is an approval for the session, given after ``session_since`` (it is returned as used, and not kept); a request of an
        earlier run that is still pending and not among those that are ``waited_for``; or one that somebody has decided after
        ``decided_since``, and no run has used. A request of no session is never the same as another.
        """

        def work(connection: Connection) -> ApprovalRequest:
            forgotten = _requests.delete().where(_requests.c.created < now - HISTORY, _requests.c.deadline < now - HISTORY)
            connection.execute(forgotten)
            connection.execute(_sessions.delete().where(_sessions.c.created <= session_since))
            return (
                self._covered(connection, request, now)
                or self._same(connection, request, now, decided_since, frozenset(waited_for))
                or self._new(connection, request)
            )

        return await self._write(work)

    async def get(self, request_id: str) -> ApprovalRequest | None:
        """Return a request by its id, None where there is none."""
        query = sa.select(_requests).where(_requests.c.id == request_id)
        rows = await self._read(lambda connection: connection.execute(query).all())
        return _request(rows[0]) if rows else None

    async def pending(self, *, now: float) -> list[ApprovalRequest]:
        """Return what waits to be decided, the oldest first."""
        query = sa.select(_requests).where(_requests.c.state == State.PENDING, _requests.c.deadline > now)
        return await self._listed(query.order_by(_requests.c.created, _requests.c.id))

    async def recent(self, limit: int) -> list[ApprovalRequest]:
        """Return the last requests, whatever became of them, the newest first."""
        return await self._listed(sa.select(_requests).order_by(_requests.c.created.desc(), _requests.c.id.desc()).limit(limit))

    async def decide(self, request: ApprovalRequest, *, now: float) -> bool:
        """Keep a decision (``state``, ``by``, ``reason``, ``for_session``) of a pending request; False where there is one.

        One for the session decides all other pending requests that it covers.
        """
        return await self._write(lambda connection: self._decided(connection, request, now))

    async def expire(self, request_id: str, *, now: float) -> None:
        """End a request that nobody has decided in time. A decision that is there stands."""
        change = _requests.update().where(_requests.c.id == request_id, _requests.c.state == State.PENDING)
        await self._write(lambda connection: connection.execute(change.values(state=State.EXPIRED, decided=now)))

    async def withdraw(self, request_id: str, *, now: float) -> None:
        """End a request whose run was stopped. A decision that is there stands, and is for no other run."""
        mine = _requests.c.id == request_id

        def work(connection: Connection) -> None:
            pending = _requests.update().where(mine, _requests.c.state == State.PENDING)
            connection.execute(pending.values(state=State.WITHDRAWN, decided=now))
            connection.execute(_requests.update().where(mine, _requests.c.used.is_(None)).values(used=now))

        await self._write(work)

    async def take(self, request_id: str, *, now: float) -> bool:
        """Use the decision of a request, for one run of its call; False where another run has."""
        change = _requests.update().where(
            _requests.c.id == request_id, _requests.c.used.is_(None), _requests.c.state != State.PENDING
        )
        return await self._write(lambda connection: connection.execute(change.values(used=now)).rowcount == 1)

    async def close(self) -> None:
        """Finish what is under way and close the database."""
        await self._store.close()

    def _covered(self, connection: Connection, request: ApprovalRequest, now: float) -> ApprovalRequest | None:
        if not (covers := covered_by(request)):
            return None
        found = connection.execute(sa.select(_sessions.c.decision).where(_sessions.c.covers == covers)).scalar()
        return None if found is None else replace(request, state=State.APPROVED, decided=now, used=now, **json.loads(found))

    def _same(
        self, connection: Connection, request: ApprovalRequest, now: float, decided_since: float, waited_for: frozenset[str]
    ) -> ApprovalRequest | None:
        if not (same := same_call(request)):
            return None
        decided = sa.and_(
            _requests.c.state.in_([State.APPROVED, State.DENIED]),
            _requests.c.used.is_(None),
            _requests.c.decided > decided_since,
        )
        waits = sa.and_(_requests.c.state == State.PENDING, _requests.c.deadline > now)
        query = sa.select(_requests).where(_requests.c.same == same, decided | waits).order_by(_requests.c.created)
        return next((_request(row) for row in connection.execute(query) if row.id not in waited_for), None)

    def _new(self, connection: Connection, request: ApprovalRequest) -> ApprovalRequest:
        body = {name: getattr(request, name) for name in _BODY}
        connection.execute(
            _requests.insert().values(
                id=request.id,
                created=request.created,
                deadline=request.deadline,
                state=State.PENDING,
                same=same_call(request),
                covers=covered_by(request),
                body=json.dumps(body, default=str),
                decision="{}",
            )
        )
        return request

    def _decided(self, connection: Connection, request: ApprovalRequest, now: float) -> bool:
        decision = json.dumps({"by": request.by, "reason": request.reason, "for_session": request.for_session})
        decided = {"state": request.state, "decided": now, "decision": decision}
        open_still = (_requests.c.state == State.PENDING, _requests.c.deadline > now)
        if connection.execute(_requests.update().where(_requests.c.id == request.id, *open_still).values(decided)).rowcount != 1:
            return False
        covers = covered_by(request)
        if request.for_session and covers:
            connection.execute(_sessions.delete().where(_sessions.c.covers == covers))
            connection.execute(_sessions.insert().values(covers=covers, created=now, decision=decision))
            connection.execute(_requests.update().where(_requests.c.covers == covers, *open_still).values(decided))
        return True

    async def _listed(self, query: sa.Select[Any]) -> list[ApprovalRequest]:
        return [_request(row) for row in await self._read(lambda connection: connection.execute(query).all())]

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._store.read(work)

    async def _write(self, work: Callable[[Connection], T]) -> T:

        def alone(connection: Connection) -> T:
            if self._store.is_postgres:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_WRITING)))
            return work(connection)

        return await self._store.write(alone)


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
    return _key("covers", *_whose(request), digest)


def _whose(request: ApprovalRequest) -> tuple[str, ...]:
    """Return what a decision that is for other calls too is never stretched beyond: neither another tool, nor another rule."""
    tool = (request.tool, request.source, request.endpoint)
    return (request.session_key, request.role, *tool, request.rule, ",".join(sorted(request.who)))


def _key(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _request(row: Any) -> ApprovalRequest:
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
