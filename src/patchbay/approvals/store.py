"""Database of approval requests and session approvals (SQLite or PostgreSQL), safe for several processes.

Each method is one transaction: a request has one decision, and a decision is used by one run.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from patchbay.approvals.permissions import Permission
from patchbay.approvals.request import ApprovalRequest, State
from patchbay.database import Database
from patchbay.database_tables import Tables
from patchbay.errors import ApprovalConflictError

HISTORY: Final = 7 * 24 * 3600.0
"""Seconds that requests are kept after their end."""

MAX_PERMISSIONS: Final = 1000
"""Standing permissions of a store."""

ABSENT: Final = 5.0
"""Seconds after its last heartbeat when a run no longer counts as waiting."""

T = TypeVar("T")

_METADATA: Final = sa.MetaData()
TABLES: Final = Tables("approvals", 1, _METADATA)

# Names and reasons are JSON text: PostgreSQL's JSON type cannot hold every string that JSON can.
REQUESTS: Final = sa.Table(
    "patchbay_approvals",
    _METADATA,
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

# Session approvals; the id of the approved request is in ``decision``.
SESSIONS: Final = sa.Table(
    "patchbay_session_approvals",
    _METADATA,
    sa.Column("covers", sa.Text, primary_key=True),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("decision", sa.Text, nullable=False),
)

# Standing permissions, by the id of the request that was approved with them; the tool's name is JSON text, as all names are.
PERMISSIONS: Final = sa.Table(
    "patchbay_permissions",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("tool", sa.Text, nullable=False, index=True),
    sa.Column("body", sa.Text, nullable=False),
)

# Which process has a run that waits for a request, and its last heartbeat by the clock of the database's machine.
WAITS: Final = sa.Table(
    "patchbay_approval_waits",
    _METADATA,
    sa.Column("request", sa.Text, primary_key=True),
    sa.Column("program", sa.Text, primary_key=True),
    sa.Column("seen", sa.Float, nullable=False, index=True),
)

# Older rows have no ``facts``.
_BODY: Final = (
    "tool", "arguments", "digest", "facts", "source", "endpoint", "call_id", "role", "agent", "session_key", "turn",
    "parent_turn", "rule", "why", "who", "session", "always", "at_deadline", "meta", "parameters",
)  # fmt: skip


class ApprovalStore:
    """Approval requests in the database at ``url`` (see ``patchbay.database.Database``), by default in memory.

    A SQLite file is readable by its owner only, since it holds arguments of calls. Raises ConfigurationError for an unsupported
    URL, and on first use if the database cannot be opened.
    """

    def __init__(self, url: str | os.PathLike[str] = "sqlite://") -> None:
        self._store = Database(url, TABLES)
        self._program = secrets.token_hex(8)
        self._created = time.monotonic()

    @property
    def is_shared(self) -> bool:
        """True if other processes can change it."""
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
        """Insert a request, or return an existing one for the same call.

        That is: a session approval given after ``session_since`` or a standing permission (returned as used, without an insert);
        a pending request that no run waits for (not in ``waited_for``); or an unused decision made after ``decided_since``.
        Requests without a session are never the same.
        """

        def work(connection: Connection) -> ApprovalRequest:
            connection.execute(SESSIONS.delete().where(SESSIONS.c.created <= session_since))
            over = (REQUESTS.c.created < now - HISTORY, REQUESTS.c.deadline < now - HISTORY)
            in_force = REQUESTS.c.covers.in_(sa.select(SESSIONS.c.covers))
            connection.execute(REQUESTS.delete().where(*over, ~in_force))
            found = (
                self._session_approval(connection, request, now)
                or self._permitted(connection, request, now)
                or self._same(connection, request, now, decided_since, waited_for)
            )
            if found is None:
                found = request
                connection.execute(REQUESTS.insert().values(row_of(request)))
            if found.state is State.PENDING and self.is_shared:
                moment = self._moment(connection)
                connection.execute(WAITS.delete().where(WAITS.c.seen < moment - 100 * ABSENT))
                self._delete_wait(connection, found.id)
                connection.execute(WAITS.insert().values(request=found.id, program=self._program, seen=moment))
            return found

        return await self._write(work)

    async def get(self, request_id: str) -> ApprovalRequest | None:
        """Return a request by its id, or None."""
        found = await self._select(sa.select(REQUESTS).where(REQUESTS.c.id == request_id))
        return found[0] if found else None

    async def pending(self, *, now: float) -> list[ApprovalRequest]:
        """Return the pending requests, oldest first."""
        query = sa.select(REQUESTS).where(REQUESTS.c.state == State.PENDING, REQUESTS.c.deadline > now)
        return await self._select(query.order_by(REQUESTS.c.created, REQUESTS.c.id))

    async def recent(self, limit: int) -> list[ApprovalRequest]:
        """Return the last requests in any state, newest first."""
        return await self._select(sa.select(REQUESTS).order_by(REQUESTS.c.created.desc(), REQUESTS.c.id.desc()).limit(limit))

    async def decide(self, request: ApprovalRequest, permission: Permission | None = None, *, now: float) -> bool:
        """Store a decision (``state``, ``by``, ``reason``, ``edited``, ``for_session``); return False if it is not pending.

        A decision for the session, or with a permission, also decides the other pending requests that it covers. Raises
        ApprovalConflictError if there are too many permissions.
        """
        return await self._write(lambda connection: self._decide(connection, request, permission, now))

    async def expire(self, request_id: str, *, now: float) -> None:
        """Expire a request if it is pending."""
        change = REQUESTS.update().where(REQUESTS.c.id == request_id, REQUESTS.c.state == State.PENDING)
        await self._write(lambda connection: connection.execute(change.values(state=State.EXPIRED, decided=now)))

    async def withdraw(self, request_id: str, *, now: float) -> None:
        """End a request whose run was stopped. A decision stays, and no other run can use it."""
        own = REQUESTS.c.id == request_id

        def work(connection: Connection) -> None:
            pending = REQUESTS.update().where(own, REQUESTS.c.state == State.PENDING)
            connection.execute(pending.values(state=State.WITHDRAWN, decided=now))
            connection.execute(REQUESTS.update().where(own, REQUESTS.c.used.is_(None)).values(used=now))
            self._delete_wait(connection, request_id)

        await self._write(work)

    async def use_decision(self, request_id: str, *, now: float) -> bool:
        """Use the decision of a request for one run; return False if another run has used it."""
        change = REQUESTS.update().where(
            REQUESTS.c.id == request_id, REQUESTS.c.used.is_(None), REQUESTS.c.state != State.PENDING
        )

        def work(connection: Connection) -> bool:
            self._delete_wait(connection, request_id)
            return connection.execute(change.values(used=now)).rowcount == 1

        return await self._write(work)

    async def heartbeat(self, request_ids: Collection[str]) -> None:
        """Record that runs of this process wait for these requests; due every second."""
        own = WAITS.update().where(WAITS.c.program == self._program, WAITS.c.request.in_(tuple(request_ids)))
        await self._write(lambda connection: connection.execute(own.values(seen=self._moment(connection))))

    async def granted(self, *, session_since: float) -> list[ApprovalRequest]:
        """Return the requests that were approved for their session after ``session_since``, oldest approval first."""

        def work(connection: Connection) -> list[ApprovalRequest]:
            grants = sa.select(SESSIONS).where(SESSIONS.c.created > session_since).order_by(SESSIONS.c.created, SESSIONS.c.covers)
            ids = [json.loads(row.decision).get("request", "") for row in connection.execute(grants)]
            rows = connection.execute(sa.select(REQUESTS).where(REQUESTS.c.id.in_(ids))).all()
            by_id = {row.id: _request(row) for row in rows}
            return [by_id[each] for each in ids if each in by_id]

        return await self._store.read(work)

    async def revoke(self, request: ApprovalRequest) -> bool:
        """Revoke the session approval of a request; return False if it is not in force."""

        def work(connection: Connection) -> bool:
            own = SESSIONS.c.covers == grant_key(request)
            found = connection.execute(sa.select(SESSIONS.c.decision).where(own)).scalar()
            if found is None or json.loads(found).get("request") != request.id:
                return False
            connection.execute(SESSIONS.delete().where(own))
            return True

        return await self._write(work)

    async def permissions(self) -> list[Permission]:
        """Return the standing permissions, oldest first."""
        query = sa.select(PERMISSIONS.c.body).order_by(PERMISSIONS.c.created, PERMISSIONS.c.id)
        return await self._store.read(lambda connection: [_permission(each) for each in connection.execute(query).scalars()])

    async def revoke_permission(self, permission_id: str) -> Permission | None:
        """Revoke a standing permission, and return it; None if there is no such."""
        own = PERMISSIONS.c.id == permission_id

        def work(connection: Connection) -> Permission | None:
            found = connection.execute(sa.select(PERMISSIONS.c.body).where(own)).scalar()
            connection.execute(PERMISSIONS.delete().where(own))
            return None if found is None else _permission(found)

        return await self._write(work)

    async def close(self) -> None:
        """Finish pending work and close the database."""
        await self._store.close()

    def _session_approval(self, connection: Connection, request: ApprovalRequest, now: float) -> ApprovalRequest | None:
        if not (key := grant_key(request)):
            return None
        found = connection.execute(sa.select(SESSIONS.c.decision).where(SESSIONS.c.covers == key)).scalar()
        if found is None:
            return None
        decision = json.loads(found)
        return replace(request, id=decision.pop("request", ""), state=State.APPROVED, decided=now, used=now, **decision)

    def _permitted(self, connection: Connection, request: ApprovalRequest, now: float) -> ApprovalRequest | None:
        """Return the request as a standing permission approves it; None if none covers it."""
        if request.always == "never":
            return None
        query = (
            sa.select(PERMISSIONS.c.body).where(PERMISSIONS.c.tool == json.dumps(request.tool)).order_by(PERMISSIONS.c.created)
        )
        each = next((each for body in connection.execute(query).scalars() if (each := _permission(body)).covers(request)), None)
        if each is None:
            return None
        return replace(request, id=each.id, state=State.APPROVED, decided=now, used=now, by=each.by, for_always=True)

    def _same(
        self, connection: Connection, request: ApprovalRequest, now: float, decided_since: float, waited_for: Collection[str]
    ) -> ApprovalRequest | None:
        if not (key := call_key(request)):
            return None
        is_decided = REQUESTS.c.state.in_([State.APPROVED, State.DENIED])
        unused = sa.and_(is_decided, REQUESTS.c.used.is_(None), REQUESTS.c.decided > decided_since)
        pending = sa.and_(REQUESTS.c.state == State.PENDING, REQUESTS.c.deadline > now)
        query = sa.select(REQUESTS).where(REQUESTS.c.same == key, unused | pending).order_by(REQUESTS.c.created)
        return next((_request(row) for row in connection.execute(query) if row.id not in waited_for), None)

    def _decide(self, connection: Connection, request: ApprovalRequest, permission: Permission | None, now: float) -> bool:
        decision = {
            "by": request.by,
            "reason": request.reason,
            "for_session": request.for_session,
            "for_always": request.for_always,
        }
        own = decision if request.edited is None else {**decision, "edited": request.edited}
        decided = {"state": request.state, "decided": now, "decision": json.dumps(own)}
        is_open = (REQUESTS.c.state == State.PENDING, REQUESTS.c.deadline > now)
        if connection.execute(REQUESTS.update().where(REQUESTS.c.id == request.id, *is_open).values(decided)).rowcount != 1:
            return False
        key = grant_key(request)
        if request.for_session and key:
            connection.execute(SESSIONS.delete().where(SESSIONS.c.covers == key))
            grant = json.dumps({**decision, "request": request.id})
            connection.execute(SESSIONS.insert().values(covers=key, created=now, decision=grant))
            connection.execute(REQUESTS.update().where(REQUESTS.c.covers == key, *is_open).values(decided))
        if permission is not None:
            if connection.execute(sa.select(sa.func.count()).select_from(PERMISSIONS)).scalar_one() >= MAX_PERMISSIONS:
                raise ApprovalConflictError(f"There are {MAX_PERMISSIONS} standing permissions, which is the most: revoke some.")
            body = json.dumps({each.name: getattr(permission, each.name) for each in fields(permission)})
            connection.execute(
                PERMISSIONS.insert().values(id=permission.id, created=now, tool=json.dumps(permission.tool), body=body)
            )
            others = map(_request, connection.execute(sa.select(REQUESTS).where(*is_open)).all())
            covered = [each.id for each in others if each.is_genuine and permission.covers(each)]
            connection.execute(REQUESTS.update().where(REQUESTS.c.id.in_(covered), *is_open).values(decided))
        return True

    def _delete_wait(self, connection: Connection, request_id: str) -> None:
        connection.execute(WAITS.delete().where(WAITS.c.request == request_id, WAITS.c.program == self._program))

    def _waited_for(self, connection: Connection) -> frozenset[str]:
        """Return the requests that runs of any process wait for.

        Heartbeats from before this store existed are ignored: they may be of this program before it was killed.
        """
        if not self.is_shared:
            return frozenset()
        since = self._moment(connection) - min(ABSENT, time.monotonic() - self._created)
        return frozenset(connection.execute(sa.select(WAITS.c.request).where(WAITS.c.seen > since)).scalars())

    def _moment(self, connection: Connection) -> float:
        """Return the time by a clock that all processes on the database share."""
        if not self._store.is_postgres:
            return time.time()
        return float(connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    async def _select(self, query: sa.Select[Any]) -> list[ApprovalRequest]:
        def work(connection: Connection) -> list[ApprovalRequest]:
            requests = [_request(row) for row in connection.execute(query)]
            waited_for = self._waited_for(connection) if requests else frozenset()
            return [replace(each, awaited=each.id in waited_for) for each in requests]

        return await self._store.read(work)

    async def _write(self, work: Callable[[Connection], T]) -> T:
        return await self._store.write(work, exclusive=True)


def row_of(request: ApprovalRequest) -> dict[str, Any]:
    """Return the row of a new request."""
    return {
        "id": request.id,
        "created": request.created,
        "deadline": request.deadline,
        "state": State.PENDING,
        "same": call_key(request),
        "covers": grant_key(request),
        "body": json.dumps({name: getattr(request, name) for name in _BODY}, default=str),
        "decision": "{}",
    }


def _request(row: Any) -> ApprovalRequest:
    body: dict[str, Any] = json.loads(row.body)
    columns = {name: getattr(row, name) for name in ("id", "created", "deadline", "decided", "used")}
    changes = {"who": tuple(body["who"]), "state": State(row.state), **json.loads(row.decision)}
    return ApprovalRequest(**{**body, **columns, **changes})


def _permission(body: str) -> Permission:
    return Permission.from_json(json.loads(body))


def call_key(request: ApprovalRequest) -> str:
    """Return a key that is equal for equal calls of one session; "" without a session."""
    if not request.session_key:
        return ""
    return _key("same", *_scope(request), request.agent, request.digest)


def grant_key(request: ApprovalRequest) -> str:
    """Return a key that is equal for the calls that one session approval covers; "" if there can be none."""
    if not request.session_key or request.session == "never":
        return ""
    digest = request.digest if request.session == "call" else ""
    facts = (json.dumps(request.facts, sort_keys=True),) if request.facts else ()
    return _key("covers", *_scope(request), digest, *facts)


def _scope(request: ApprovalRequest) -> tuple[str, ...]:
    """Return what every decision for several calls is limited to: session, role, tool and rule."""
    tool = (request.tool, request.source, request.endpoint)
    return (request.session_key, request.role, *tool, request.rule, ",".join(sorted(request.who)))


def _key(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
