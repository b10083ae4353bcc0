"""Sessions in a database, with their long results: SQLite or PostgreSQL, by URL.

The state has one row per key, changed in the transaction that appends an event. This begins by incrementing the session's last
number, which locks its row until the commit: so concurrent writers of one session get one order, and a killed process leaves
either the whole event or nothing. Bodies, values and state keys are JSON text, since PostgreSQL's text cannot hold every string.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy import Column, Connection, Float, ForeignKey, Index, Integer, LargeBinary, MetaData, Table, Text, UniqueConstraint
from sqlalchemy.dialects import postgresql, sqlite
from typing_extensions import override

from patchbay.agents.content import Event, new_id
from patchbay.agents.sessions.base import BaseSessionService, check_names, initial_state, storable
from patchbay.agents.sessions.log import APP_PREFIX, USER_PREFIX, EventLog, Record, Session
from patchbay.agents.sessions.process_locks import AdvisoryLocks, FileLocks, lock_number
from patchbay.database import Database
from patchbay.database_tables import Tables
from patchbay.errors import SessionExistsError, SessionNotFoundError
from patchbay.tools.result_store import KEPT_CHARS, ResultStore

metadata = MetaData()
TABLES: Final = Tables("sessions", 1, metadata)

sessions = Table(
    "patchbay_sessions",
    metadata,
    Column("pk", Integer, primary_key=True, autoincrement=True),
    Column("app_name", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("agent_name", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("last_agent", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("last_seq", Integer, nullable=False),  # incrementing it locks the row
    UniqueConstraint("app_name", "user_id", "id", name="uq_patchbay_sessions"),
    Index("ix_patchbay_sessions_updated", "app_name", "user_id", "updated_at"),
    sqlite_autoincrement=True,  # a deleted session's number is not reused
)

events = Table(
    "patchbay_events",
    metadata,
    Column("session_pk", Integer, ForeignKey(sessions.c.pk, ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("event_id", Text, nullable=False),
    Column("body", Text, nullable=False),
    UniqueConstraint("session_pk", "event_id", name="uq_patchbay_events"),  # an event is stored once
)

session_state = Table(
    "patchbay_session_state",
    metadata,
    Column("session_pk", Integer, ForeignKey(sessions.c.pk, ondelete="CASCADE"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

shared_state = Table(
    "patchbay_shared_state",
    metadata,
    Column("app_name", Text, primary_key=True),
    Column("user_id", Text, primary_key=True),  # "" for the keys of the application; the keys' prefixes keep them apart
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

results = Table(
    "patchbay_results",
    metadata,
    Column("session_pk", Integer, ForeignKey(sessions.c.pk, ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary, nullable=False),
    Column("size", Integer, nullable=False),  # in characters
    # UTF-8. Last, so that SQLite need not read it for the other columns.
    Column("text", LargeBinary, nullable=False),
    UniqueConstraint("session_pk", "digest", name="uq_patchbay_results"),  # a text is stored once
)


_ID: Final = re.compile(r"result_([1-9][0-9]{0,8})", re.ASCII)
_UTF8: Final = ("utf-8", "surrogatepass")

HAS_RESULTS: Final = sa.exists().where(results.c.session_pk == sessions.c.pk).correlate(sessions).label("has_results")
"""A column of a query of ``sessions``: whether there are texts of the session."""


class DatabaseResults:
    """The texts of ``session`` in ``store``, at most ``max_chars`` characters: the oldest go first, the newest always stays.

    Storing a text locks the session's row first, so texts from several processes get one order, and unique numbers.
    """

    __slots__ = ("_max_chars", "_session", "_store")

    def __init__(self, store: Database, session: Session, *, max_chars: int = KEPT_CHARS) -> None:
        self._store = store
        self._session = session
        self._max_chars = max_chars

    async def keep(self, text: str) -> str:
        """Store ``text`` and return its id, the same for the same text. Raises SessionNotFoundError."""
        number = await self._store.write(lambda connection: self._put(connection, text))
        self._session.has_results = True
        return f"result_{number}"

    async def read(self, result_id: str) -> str | None:
        """Return the text, or None if it is not stored."""
        if (found := _ID.fullmatch(result_id)) is None:
            return None
        query = (
            sa.select(results.c.text)
            .join(sessions, results.c.session_pk == sessions.c.pk)
            .where(self._is_session(), results.c.number == int(found[1]))
        )
        data: bytes | None = await self._store.read(lambda connection: connection.scalar(query))
        return None if data is None else data.decode(*_UTF8)

    def _is_session(self) -> sa.ColumnElement[bool]:
        return _session_row(self._session.app_name, self._session.user_id, self._session.id)

    def _put(self, connection: Connection, text: str) -> int:
        pk = connection.scalar(sa.select(sessions.c.pk).where(self._is_session()).with_for_update())
        if pk is None:
            raise SessionNotFoundError(self._session.id)
        of_session = results.c.session_pk == pk
        data = text.encode(*_UTF8)
        digest = hashlib.sha256(data).digest()
        known: int | None = connection.scalar(sa.select(results.c.number).where(of_session, results.c.digest == digest))
        if known is not None:
            return known
        counted = sa.select(sa.func.coalesce(sa.func.max(results.c.number), 0), sa.func.coalesce(sa.func.sum(results.c.size), 0))
        last, size = connection.execute(counted.where(of_session)).one()
        number = int(last) + 1  # the last one always stays, so no number is reused
        row = {"session_pk": pk, "number": number, "digest": digest, "size": len(text), "text": data}
        connection.execute(results.insert().values(row))
        if size + len(text) > self._max_chars:
            self._drop_oldest(connection, pk, number)
        return number

    def _drop_oldest(self, connection: Connection, pk: int, newest: int) -> None:
        of_session = results.c.session_pk == pk
        sizes = sa.select(results.c.number, results.c.size).where(of_session).order_by(results.c.number.desc())
        size = 0
        for number, chars in connection.execute(sizes).all():
            size += chars
            if size > self._max_chars and number != newest:
                connection.execute(sa.delete(results).where(of_session, results.c.number <= number))
                return


DEFAULT_URL = "sqlite:///sessions.db"

_TAIL = 128
"""The number of events that a run loads at first: more than the usual window of ``RunConfig.max_history_events``."""

_COLUMNS = tuple(
    sessions.c[name] for name in ("id", "app_name", "user_id", "agent_name", "title", "last_agent", "created_at", "updated_at")
)
"""Those of a Session, in the order of its fields."""


def _session_row(app_name: str, user_id: str, session_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(sessions.c.app_name == app_name, sessions.c.user_id == user_id, sessions.c.id == session_id)


class DatabaseSessionService(BaseSessionService):
    """Stores sessions in the database at ``url``: ``sqlite:///FILE``, the path of a SQLite file, or ``postgresql://HOST/NAME``.

    Missing tables are created. Appended events survive a crash of the process; a power cut may lose SQLite's last moments, but
    tears nothing. Several processes may use one database, and locks (``lock``) hold among all of them; a PostgreSQL lock is lost
    with its connection. Raises ConfigurationError for another kind of URL, and on first use if the database cannot be opened.
    """

    def __init__(self, url: str | os.PathLike[str] = DEFAULT_URL) -> None:
        super().__init__()
        self._store = Database(url, TABLES)
        self._insert = postgresql.insert if self._store.is_postgres else sqlite.insert
        self._process_locks: AdvisoryLocks | FileLocks | None = None
        if self._store.is_postgres:
            self._process_locks = AdvisoryLocks(self._store)
        elif self._store.file is not None:
            self._process_locks = FileLocks(self._store.file)

    @override
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
        session_id = new_id() if session_id is None else session_id
        check_names(app_name, user_id, session_id, agent_name)
        now = time.time()
        row = {
            "app_name": app_name,
            "user_id": user_id,
            "id": session_id,
            "agent_name": agent_name,
            "title": storable(title or ""),
            "last_agent": agent_name,
            "created_at": now,
            "updated_at": now,
            "last_seq": 0,
        }
        begin = self._insert(sessions).values(row).on_conflict_do_nothing().returning(sessions.c.pk)
        initial = initial_state(state)

        def work(connection: Connection) -> Session:
            pk = connection.scalar(begin)
            if pk is None:
                raise SessionExistsError(session_id)
            self._change(connection, pk, app_name, user_id, initial)
            return self._load(connection, app_name, user_id, session_id)

        return await self._store.write(work)

    @override
    async def get_session(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        return await self._read(app_name, user_id, session_id)

    async def get_session_for_run(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """Return the session with the end of its log; the rest is loaded, blocking the caller, when it is accessed."""
        return await self._read(app_name, user_id, session_id, tail=_TAIL)

    async def _read(self, app_name: str, user_id: str, session_id: str, *, tail: int | None = None) -> Session | None:
        check_names(app_name, user_id, session_id)
        try:
            return await self._store.read(lambda connection: self._load(connection, app_name, user_id, session_id, tail=tail))
        except SessionNotFoundError:
            return None

    @override
    async def list_all_sessions(self, app_name: str, user_id: str) -> list[Session]:
        check_names(app_name, user_id)
        query = (
            sa.select(*_COLUMNS)
            .where(sessions.c.app_name == app_name, sessions.c.user_id == user_id)
            .order_by(sessions.c.updated_at.desc(), sessions.c.pk.desc())
        )
        return await self._store.read(lambda connection: [_session(row) for row in connection.execute(query)])

    async def _delete(self, app_name: str, user_id: str, session_id: str) -> None:
        check_names(app_name, user_id, session_id)
        delete = sa.delete(sessions).where(_session_row(app_name, user_id, session_id))
        await self._store.write(lambda connection: connection.execute(delete))

    @override
    async def update_title(self, app_name: str, user_id: str, session_id: str, title: str) -> None:
        await self._update(app_name, user_id, session_id, title=storable(title))

    @override
    async def update_last_agent(self, app_name: str, user_id: str, session_id: str, agent_name: str) -> None:
        await self._update(app_name, user_id, session_id, last_agent=storable(agent_name))

    @override
    def results(self, session: Session) -> ResultStore:
        return DatabaseResults(self._store, session)

    def lock(self, app_name: str, user_id: str, session_id: str) -> AbstractAsyncContextManager[None]:
        """Return the lock of a session's runs, among all processes that use this database."""
        if self._process_locks is None:
            return super().lock(app_name, user_id, session_id)
        return self._process_locks.hold(lock_number(app_name, user_id, session_id))

    async def close(self) -> None:
        """Close the database. The service may be used again."""
        if self._process_locks is not None:
            await self._process_locks.close()
        await self._store.close()

    async def _update(self, app_name: str, user_id: str, session_id: str, **values: str) -> None:
        check_names(app_name, user_id, session_id)
        change = sa.update(sessions).where(_session_row(app_name, user_id, session_id)).values(**values)
        if not await self._store.write(lambda connection: connection.execute(change).rowcount):
            raise SessionNotFoundError(session_id)

    async def _append(self, session: Session, entry: Record) -> list[tuple[int, bytes | str | Event]]:
        known = session.seq

        def work(connection: Connection) -> list[tuple[int, bytes | str | Event]]:
            pk, seq = self._next_place(connection, session)
            place = {"session_pk": pk, "seq": seq, "event_id": entry.event.id, "body": entry.body.decode()}
            put = self._insert(events).values(place).on_conflict_do_nothing().returning(events.c.seq)
            if connection.scalar(put) is None:
                raise _AlreadyStoredError(pk)
            self._change(connection, pk, session.app_name, session.user_id, entry.event.actions.state_delta)
            missed = _between(connection, pk, known, seq) if seq > known + 1 else []
            return [*missed, (seq, entry.event)]

        try:
            return await self._store.write(work)
        except _AlreadyStoredError as known_event:
            pk = known_event.session_pk
            return await self._store.read(lambda connection: _between(connection, pk, known, None))

    def _next_place(self, connection: Connection, session: Session) -> tuple[int, int]:
        increment = (
            sa.update(sessions)
            .where(_session_row(session.app_name, session.user_id, session.id))
            .values(last_seq=sessions.c.last_seq + 1, updated_at=time.time())
            .returning(sessions.c.pk, sessions.c.last_seq)
        )
        row = connection.execute(increment).one_or_none()
        if row is None:
            raise SessionNotFoundError(session.id)
        return int(row[0]), int(row[1])

    def _change(self, connection: Connection, pk: int, app_name: str, user_id: str, delta: Mapping[str, Any]) -> None:
        # In one order everywhere, so that transactions cannot deadlock.
        for key in sorted(delta):
            value = delta[key]
            if key.startswith((APP_PREFIX, USER_PREFIX)):
                table = shared_state
                place: dict[str, Any] = {"app_name": app_name, "user_id": user_id if key.startswith(USER_PREFIX) else ""}
            else:
                table, place = session_state, {"session_pk": pk}
            place["key"] = _json(key)
            if value is None:
                connection.execute(sa.delete(table).where(*(table.c[name] == part for name, part in place.items())))
            else:
                connection.execute(self._upsert(table, list(place)), {**place, "value": _json(value)})

    def _upsert(self, table: sa.Table, key: list[str]) -> sa.Executable:
        insert = self._insert(table)
        return insert.on_conflict_do_update(index_elements=key, set_={"value": insert.excluded.value})

    def _load(self, connection: Connection, app_name: str, user_id: str, session_id: str, *, tail: int | None = None) -> Session:
        query = sa.select(*_COLUMNS, sessions.c.pk, sessions.c.last_seq, HAS_RESULTS).where(
            _session_row(app_name, user_id, session_id)
        )
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
        visible = [
            item for item in connection.execute(shared) if item.user_id == user_id or item.key.startswith(f'"{APP_PREFIX}')
        ]
        session.state = {**_state(visible), **_state(connection.execute(own))}
        return session

    def _read_older(self, pk: int, count: int, session_id: str) -> list[bytes | str | Event]:
        """Return the first ``count`` events of a log. Raises SessionNotFoundError for a deleted session."""
        entries = self._store.read_from_thread(lambda connection: _between(connection, pk, 0, count + 1))
        if len(entries) != count:
            raise SessionNotFoundError(session_id)
        return [body for _, body in entries]


class _AlreadyStoredError(Exception):
    """The event is stored already, by an append whose response was lost."""

    def __init__(self, session_pk: int) -> None:
        super().__init__(session_pk)
        self.session_pk = session_pk


def _between(connection: Connection, pk: int, after: int, before: int | None) -> list[tuple[int, bytes | str | Event]]:
    """Return the entries of the log with numbers between the two, in order."""
    query = sa.select(events.c.seq, events.c.body).where(events.c.session_pk == pk, events.c.seq > after).order_by(events.c.seq)
    if before is not None:
        query = query.where(events.c.seq < before)
    return [(seq, body) for seq, body in connection.execute(query)]


def _session(row: Any) -> Session:
    return Session(*row[: len(_COLUMNS)])


def _state(rows: Iterable[Any]) -> dict[str, Any]:
    return {msgspec.json.decode(row.key): msgspec.json.decode(row.value) for row in rows}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
