"""Sessions in a database: SQLite or PostgreSQL, by URL.

An event is appended in one transaction, together with the rows of the state that it changes. It begins by counting up the
session's last number, which holds that row until the commit: so writers of one session, in whatever processes, get one order, and
a process that is killed leaves either the whole event or nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from patchbay.agents.content import Event, new_id
from patchbay.agents.sessions import scopes
from patchbay.agents.sessions.base import BaseSessionService, initial_state, readable, shown
from patchbay.agents.sessions.encoding import EventLog, Record
from patchbay.agents.sessions.processlocks import AdvisoryLocks, FileLocks, ProcessLocks, lock_number
from patchbay.agents.sessions.results import HAS_RESULTS, DatabaseResults
from patchbay.agents.sessions.session import Session
from patchbay.agents.sessions.tables import VERSION, events, metadata, session_state, sessions, shared_state
from patchbay.errors import SessionExistsError, SessionNotFoundError
from patchbay.store import Store
from patchbay.tools.kept import ResultStore

DEFAULT_URL = "sqlite:///sessions.db"

_TAIL = 128
"""How many events of a log a run begins with: more than the window of ``RunConfig.max_history_events`` usually has."""

_COLUMNS = (
    sessions.c.id,
    sessions.c.app_name,
    sessions.c.user_id,
    sessions.c.agent_name,
    sessions.c.title,
    sessions.c.last_agent,
    sessions.c.created_at,
    sessions.c.updated_at,
)


def _this(app_name: str, user_id: str, session_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(sessions.c.app_name == app_name, sessions.c.user_id == user_id, sessions.c.id == session_id)


class DatabaseSessionService(BaseSessionService):
    """Keeps sessions in the database at ``url``: ``sqlite:///FILE``, the path of a SQLite file, or ``postgresql://HOST/NAME``.

    The tables are made where they are missing. What has been appended outlives the process, however that ends; in SQLite the last
    moments before a power cut may be lost, but nothing is torn. Several processes may use one database, and a lock (``lock``)
    holds among all of them; over PostgreSQL it is lost when the connection that keeps it breaks. Raises ConfigurationError for a
    URL of another kind, and on first use where the database cannot be opened.
    """

    def __init__(self, url: str | os.PathLike[str] = DEFAULT_URL) -> None:
        super().__init__()
        self._store = Store(url, metadata, name="sessions", version=VERSION)
        self._insert = postgresql.insert if self._store.is_postgres else sqlite.insert
        self._among_processes: ProcessLocks | None = None
        if self._store.is_postgres:
            self._among_processes = AdvisoryLocks(self._store)
        elif self._store.file is not None:
            self._among_processes = FileLocks(self._store.file)

    async def create_session(
        self,
        app_name: str,
        user_id: str,
        *,
        agent_name: str = "",
        session_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        title: str | None = None,
    ) -> Session:
        """Begin a session, as the base class says."""
        session_id = new_id() if session_id is None else session_id
        readable(app_name, user_id, session_id, agent_name)
        now = time.time()
        row = {
            "app_name": app_name,
            "user_id": user_id,
            "id": session_id,
            "agent_name": agent_name,
            "title": shown(title or ""),
            "last_agent": agent_name,
            "created_at": now,
            "updated_at": now,
            "last_seq": 0,
        }
        begin = self._insert(sessions).values(row).on_conflict_do_nothing().returning(sessions.c.pk)
        first = initial_state(state)

        def work(connection: Connection) -> Session:
            pk = connection.scalar(begin)
            if pk is None:
                raise SessionExistsError(session_id)
            self._change(connection, pk, app_name, user_id, first)
            return self._load(connection, app_name, user_id, session_id)

        return await self._store.write(work)

    async def get_session(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """Return the session as it is now, or None."""
        readable(app_name, user_id, session_id)
        try:
            return await self._store.read(lambda connection: self._load(connection, app_name, user_id, session_id))
        except SessionNotFoundError:
            return None

    async def get_session_for_run(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """Return the session with the end of its log; the rest is read, blocking the caller, when an event of it is looked at."""
        readable(app_name, user_id, session_id)
        try:
            return await self._store.read(lambda connection: self._load(connection, app_name, user_id, session_id, tail=_TAIL))
        except SessionNotFoundError:
            return None

    async def list_all_sessions(self, app_name: str, user_id: str) -> list[Session]:
        """Return a user's sessions, the one used last first."""
        readable(app_name, user_id)
        mine = (
            sa.select(*_COLUMNS)
            .where(sessions.c.app_name == app_name, sessions.c.user_id == user_id)
            .order_by(sessions.c.updated_at.desc(), sessions.c.pk.desc())
        )
        return await self._store.read(lambda connection: [_session(row) for row in connection.execute(mine)])

    async def _delete(self, app_name: str, user_id: str, session_id: str) -> None:
        readable(app_name, user_id, session_id)
        away = sa.delete(sessions).where(_this(app_name, user_id, session_id))
        await self._store.write(lambda connection: connection.execute(away))

    async def update_title(self, app_name: str, user_id: str, session_id: str, title: str) -> None:
        """Set the title."""
        await self._update(app_name, user_id, session_id, title=shown(title))

    async def update_last_agent(self, app_name: str, user_id: str, session_id: str, agent_name: str) -> None:
        """Set which agent spoke last."""
        await self._update(app_name, user_id, session_id, last_agent=shown(agent_name))

    def results(self, session: Session) -> ResultStore:
        """Return what keeps the session's long results."""
        return DatabaseResults(self._store, session)

    def lock(self, app_name: str, user_id: str, session_id: str) -> AbstractAsyncContextManager[None]:
        """Return the lock that a run holds, among all processes that use this database."""
        if self._among_processes is None:
            return super().lock(app_name, user_id, session_id)
        return self._among_processes.hold(lock_number(app_name, user_id, session_id))

    async def close(self) -> None:
        """Close the database. The service may be used again."""
        if self._among_processes is not None:
            await self._among_processes.close()
        await self._store.close()

    async def _update(self, app_name: str, user_id: str, session_id: str, **values: str) -> None:
        readable(app_name, user_id, session_id)
        change = sa.update(sessions).where(_this(app_name, user_id, session_id)).values(**values)
        if not await self._store.write(lambda connection: connection.execute(change).rowcount):
            raise SessionNotFoundError(session_id)

    async def _append(self, session: Session, entry: Record) -> list[tuple[int, bytes | str | Event]]:
        known = session.seq

        def work(connection: Connection) -> list[tuple[int, bytes | str | Event]]:
            pk, seq = self._next_place(connection, session)
            place = {"session_pk": pk, "seq": seq, "event_id": entry.id, "body": entry.body.decode()}
            put = self._insert(events).values(place).on_conflict_do_nothing().returning(events.c.seq)
            if connection.scalar(put) is None:
                raise _KeptAlreadyError(pk)
            self._change(connection, pk, session.app_name, session.user_id, entry.delta)
            missed = _between(connection, pk, known, seq) if seq > known + 1 else []
            return [*missed, (seq, entry.event)]

        try:
            return await self._store.write(work)
        except _KeptAlreadyError as kept:
            pk = kept.session_pk
            return await self._store.read(lambda connection: _between(connection, pk, known, None))

    def _next_place(self, connection: Connection, session: Session) -> tuple[int, int]:
        count_up = (
            sa.update(sessions)
            .where(_this(session.app_name, session.user_id, session.id))
            .values(last_seq=sessions.c.last_seq + 1, updated_at=time.time())
            .returning(sessions.c.pk, sessions.c.last_seq)
        )
        row = connection.execute(count_up).one_or_none()
        if row is None:
            raise SessionNotFoundError(session.id)
        return int(row[0]), int(row[1])

    def _change(self, connection: Connection, pk: int, app_name: str, user_id: str, delta: Mapping[str, Any]) -> None:
        # In one order everywhere, so that two transactions never wait for each other's rows crosswise.
        for key in sorted(delta):
            value = delta[key]
            if key.startswith((scopes.APP, scopes.USER)):
                table = shared_state
                home: dict[str, Any] = {"app_name": app_name, "user_id": user_id if key.startswith(scopes.USER) else ""}
            else:
                table, home = session_state, {"session_pk": pk}
            home["key"] = _json(key)
            if value is None:
                connection.execute(sa.delete(table).where(*(table.c[name] == part for name, part in home.items())))
            else:
                connection.execute(self._upsert(table, list(home)), {**home, "value": _json(value)})

    def _upsert(self, table: sa.Table, key: list[str]) -> sa.Executable:
        insert = self._insert(table)
        return insert.on_conflict_do_update(index_elements=key, set_={"value": insert.excluded.value})

    def _load(self, connection: Connection, app_name: str, user_id: str, session_id: str, *, tail: int | None = None) -> Session:
        query = sa.select(*_COLUMNS, sessions.c.pk, sessions.c.last_seq, HAS_RESULTS).where(_this(app_name, user_id, session_id))
        row = connection.execute(query).one_or_none()
        if row is None:
            raise SessionNotFoundError(session_id)
        session = _session(row)
        session.has_results = bool(row.has_results)
        session.seq = row.last_seq
        older = 0 if tail is None else max(0, session.seq - tail)
        entries = _between(connection, row.pk, older, None)
        bodies = [body for _, body in entries]
        session.events = EventLog(bodies, older=older, load=lambda: self._read_older(row.pk, older, session_id))
        shared = (
            sa.select(shared_state)
            .where(shared_state.c.app_name == app_name, shared_state.c.user_id.in_(("", user_id)))
            .order_by(shared_state.c.key)
        )
        own = sa.select(session_state).where(session_state.c.session_pk == row.pk).order_by(session_state.c.key)
        theirs = [item for item in connection.execute(shared) if item.user_id == user_id or item.key.startswith(f'"{scopes.APP}')]
        session.state = {**_state(theirs), **_state(connection.execute(own))}
        return session

    def _read_older(self, pk: int, count: int, session_id: str) -> list[bytes | str | Event]:
        """The first ``count`` events of a log. Raises SessionNotFoundError where it is not there any more."""
        entries = self._store.read_from_thread(lambda connection: _between(connection, pk, 0, count + 1))
        if len(entries) != count:
            raise SessionNotFoundError(session_id)
        return [body for _, body in entries]


class _KeptAlreadyError(Exception):
    """The event was appended before: an append whose answer had been lost is made again."""

    def __init__(self, session_pk: int) -> None:
        super().__init__(session_pk)
        self.session_pk = session_pk


def _between(connection: Connection, pk: int, after: int, before: int | None) -> list[tuple[int, bytes | str | Event]]:
    """The entries of the log with numbers between the two, in order."""
    query = sa.select(events.c.seq, events.c.body).where(events.c.session_pk == pk, events.c.seq > after).order_by(events.c.seq)
    if before is not None:
        query = query.where(events.c.seq < before)
    return [(seq, body) for seq, body in connection.execute(query)]


def _session(row: Any) -> Session:
    return Session(row.id, row.app_name, row.user_id, row.agent_name, row.title, row.last_agent, row.created_at, row.updated_at)


def _state(rows: Iterable[Any]) -> dict[str, Any]:
    return {msgspec.json.decode(row.key): msgspec.json.decode(row.value) for row in rows}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
