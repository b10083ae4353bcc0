"""Requests for approval in a database: SQLite or PostgreSQL, by URL. A request is kept before anybody is asked.

What lives here: the rows, and the changes that must be whole: one decision for a request, one run for a decision. What does not:
who may decide, and whoever waits (``desk``). Each method is one transaction, so two processes may use one database.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from patchbay.approvals.request import ApprovalRequest, State
from patchbay.approvals.tables import (
    METADATA,
    REQUESTS,
    SESSIONS,
    VERSION,
    WAITS,
    covered_by,
    request_of,
    row_of,
    same_call,
)
from patchbay.store import Store

HISTORY: Final = 7 * 24 * 3600.0
"""Seconds after which a request that is over is forgotten."""

ABSENT: Final = 5.0
"""Seconds after which a program that has not said that it waits for a request does not."""

T = TypeVar("T")

# An advisory lock of the database: PostgreSQL's writers come one after the other, as SQLite's do.
_WRITING: Final = 0x7061746368617070


class ApprovalStore:
    """Keeps requests in the database at ``url`` (as ``patchbay.store.Store`` reads it); without one, in memory.

    A SQLite file is made for its owner's eyes only, since the arguments of calls are in it. Raises ConfigurationError for a URL
    of another kind, and on first use where the database cannot be opened.
    """

    def __init__(self, url: str | os.PathLike[str] = "sqlite://") -> None:
        self._store = Store(url, METADATA, name="approvals", version=VERSION)
        self._program = secrets.token_hex(8)
        self._made = time.monotonic()

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
        others = frozenset(waited_for)

        def work(connection: Connection) -> ApprovalRequest:
            self._forget(connection, now, session_since)
            found = (
                self._covered(connection, request, now)
                or self._same(connection, request, now, decided_since, others)
                or self._new(connection, request)
            )
            if found.state is State.PENDING:
                self._begin_to_wait(connection, found.id)
            return found

        return await self._write(work)

    async def get(self, request_id: str) -> ApprovalRequest | None:
        """Return a request by its id, None where there is none."""
        found = await self._listed(sa.select(REQUESTS).where(REQUESTS.c.id == request_id))
        return found[0] if found else None

    async def pending(self, *, now: float) -> list[ApprovalRequest]:
        """Return what waits to be decided, the oldest first."""
        query = sa.select(REQUESTS).where(REQUESTS.c.state == State.PENDING, REQUESTS.c.deadline > now)
        return await self._listed(query.order_by(REQUESTS.c.created, REQUESTS.c.id))

    async def recent(self, limit: int) -> list[ApprovalRequest]:
        """Return the last requests, whatever became of them, the newest first."""
        return await self._listed(sa.select(REQUESTS).order_by(REQUESTS.c.created.desc(), REQUESTS.c.id.desc()).limit(limit))

    async def decide(self, request: ApprovalRequest, *, now: float) -> bool:
        """Keep a decision (``state``, ``by``, ``reason``, ``edited``, ``for_session``) of a pending request; else return False.

        One for the session decides all other pending requests that it covers.
        """
        return await self._write(lambda connection: self._decided(connection, request, now))

    async def expire(self, request_id: str, *, now: float) -> None:
        """End a request that nobody has decided in time. A decision that is there stands."""
        change = REQUESTS.update().where(REQUESTS.c.id == request_id, REQUESTS.c.state == State.PENDING)
        await self._write(lambda connection: connection.execute(change.values(state=State.EXPIRED, decided=now)))

    async def withdraw(self, request_id: str, *, now: float) -> None:
        """End a request whose run was stopped. A decision that is there stands, and is for no other run."""
        mine = REQUESTS.c.id == request_id

        def work(connection: Connection) -> None:
            pending = REQUESTS.update().where(mine, REQUESTS.c.state == State.PENDING)
            connection.execute(pending.values(state=State.WITHDRAWN, decided=now))
            connection.execute(REQUESTS.update().where(mine, REQUESTS.c.used.is_(None)).values(used=now))
            self._wait_no_more(connection, request_id)

        await self._write(work)

    async def take(self, request_id: str, *, now: float) -> bool:
        """Use the decision of a request, for one run of its call; False where another run has."""
        change = REQUESTS.update().where(
            REQUESTS.c.id == request_id, REQUESTS.c.used.is_(None), REQUESTS.c.state != State.PENDING
        )

        def work(connection: Connection) -> bool:
            self._wait_no_more(connection, request_id)
            return connection.execute(change.values(used=now)).rowcount == 1

        return await self._write(work)

    async def still_waiting(self, request_ids: Collection[str]) -> None:
        """Say that runs of this program wait for these requests: to be said every second, or others take it that none does."""
        mine = WAITS.update().where(WAITS.c.program == self._program, WAITS.c.request.in_(tuple(request_ids)))
        await self._write(lambda connection: connection.execute(mine.values(seen=self._moment(connection))))

    async def granted(self, *, session_since: float) -> list[ApprovalRequest]:
        """Return the requests whose yes for the session holds, if it was given after ``session_since``; the oldest yes first."""

        def work(connection: Connection) -> list[ApprovalRequest]:
            held = sa.select(SESSIONS).where(SESSIONS.c.created > session_since).order_by(SESSIONS.c.created, SESSIONS.c.covers)
            ids = [json.loads(row.decision).get("request", "") for row in connection.execute(held)]
            rows = connection.execute(sa.select(REQUESTS).where(REQUESTS.c.id.in_(ids))).all()
            by_id = {row.id: request_of(row) for row in rows}
            return [by_id[each] for each in ids if each in by_id]

        return await self._read(work)

    async def revoke(self, request: ApprovalRequest) -> bool:
        """End the yes for the session that this request was given; False where it does not hold any more."""

        def work(connection: Connection) -> bool:
            mine = SESSIONS.c.covers == covered_by(request)
            found = connection.execute(sa.select(SESSIONS.c.decision).where(mine)).scalar()
            if found is None or json.loads(found).get("request") != request.id:
                return False
            connection.execute(SESSIONS.delete().where(mine))
            return True

        return await self._write(work)

    async def close(self) -> None:
        """Finish what is under way and close the database."""
        await self._store.close()

    def _forget(self, connection: Connection, now: float, session_since: float) -> None:
        connection.execute(SESSIONS.delete().where(SESSIONS.c.created <= session_since))
        over = (REQUESTS.c.created < now - HISTORY, REQUESTS.c.deadline < now - HISTORY)
        held = REQUESTS.c.covers.in_(sa.select(SESSIONS.c.covers))  # whose yes still holds, is told by its request
        connection.execute(REQUESTS.delete().where(*over, ~held))

    def _covered(self, connection: Connection, request: ApprovalRequest, now: float) -> ApprovalRequest | None:
        if not (covers := covered_by(request)):
            return None
        found = connection.execute(sa.select(SESSIONS.c.decision).where(SESSIONS.c.covers == covers)).scalar()
        if found is None:
            return None
        decision = json.loads(found)
        return replace(request, id=decision.pop("request", ""), state=State.APPROVED, decided=now, used=now, **decision)

    def _same(
        self, connection: Connection, request: ApprovalRequest, now: float, decided_since: float, waited_for: frozenset[str]
    ) -> ApprovalRequest | None:
        if not (same := same_call(request)):
            return None
        decided = sa.and_(
            REQUESTS.c.state.in_([State.APPROVED, State.DENIED]),
            REQUESTS.c.used.is_(None),
            REQUESTS.c.decided > decided_since,
        )
        waits = sa.and_(REQUESTS.c.state == State.PENDING, REQUESTS.c.deadline > now)
        query = sa.select(REQUESTS).where(REQUESTS.c.same == same, decided | waits).order_by(REQUESTS.c.created)
        return next((request_of(row) for row in connection.execute(query) if row.id not in waited_for), None)

    def _new(self, connection: Connection, request: ApprovalRequest) -> ApprovalRequest:
        connection.execute(REQUESTS.insert().values(row_of(request)))
        return request

    def _decided(self, connection: Connection, request: ApprovalRequest, now: float) -> bool:
        decision = {"by": request.by, "reason": request.reason, "for_session": request.for_session}
        own = decision if request.edited is None else {**decision, "edited": request.edited}
        decided = {"state": request.state, "decided": now, "decision": json.dumps(own)}
        open_still = (REQUESTS.c.state == State.PENDING, REQUESTS.c.deadline > now)
        if connection.execute(REQUESTS.update().where(REQUESTS.c.id == request.id, *open_still).values(decided)).rowcount != 1:
            return False
        covers = covered_by(request)
        if request.for_session and covers:
            connection.execute(SESSIONS.delete().where(SESSIONS.c.covers == covers))
            held = json.dumps({**decision, "request": request.id})
            connection.execute(SESSIONS.insert().values(covers=covers, created=now, decision=held))
            connection.execute(REQUESTS.update().where(REQUESTS.c.covers == covers, *open_still).values(decided))
        return True

    # Who waits: in a database that others use, each program says every second for which requests it has runs that do.

    def _begin_to_wait(self, connection: Connection, request_id: str) -> None:
        if not self.is_shared:
            return
        moment = self._moment(connection)
        connection.execute(WAITS.delete().where(WAITS.c.seen < moment - 100 * ABSENT))  # of programs that are long gone
        self._wait_no_more(connection, request_id)
        connection.execute(WAITS.insert().values(request=request_id, program=self._program, seen=moment))

    def _wait_no_more(self, connection: Connection, request_id: str) -> None:
        connection.execute(WAITS.delete().where(WAITS.c.request == request_id, WAITS.c.program == self._program))

    def _waited_for(self, connection: Connection) -> frozenset[str]:
        """Return the requests that runs wait for, of this program or another.

        What was said before this store was made proves nothing: it may be what this program has left, that was killed.
        """
        if not self.is_shared:
            return frozenset()
        since = self._moment(connection) - min(ABSENT, time.monotonic() - self._made)
        return frozenset(connection.execute(sa.select(WAITS.c.request).where(WAITS.c.seen > since)).scalars())

    def _moment(self, connection: Connection) -> float:
        """Return the time by a clock that all who use the database share."""
        if not self._store.is_postgres:
            return time.time()
        return float(connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    async def _listed(self, query: sa.Select[Any]) -> list[ApprovalRequest]:
        def work(connection: Connection) -> list[ApprovalRequest]:
            requests = [request_of(row) for row in connection.execute(query)]
            waited_for = self._waited_for(connection) if requests else frozenset()
            return [replace(each, awaited=each.id in waited_for) for each in requests]

        return await self._read(work)

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._store.read(work)

    async def _write(self, work: Callable[[Connection], T]) -> T:

        def alone(connection: Connection) -> T:
            if self._store.is_postgres:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_WRITING)))
            return work(connection)

        return await self._store.write(alone)
