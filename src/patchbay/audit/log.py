"""The audit log: every finished tool call in an append-only table, written in batches by a thread."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import MISSING, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from patchbay._backoff import Backoff
from patchbay.audit.entries import AuditDecision, AuditEntry, AuditPage, AuditQuery
from patchbay.database import Database, reason_of
from patchbay.database_tables import Tables
from patchbay.errors import ConfigurationError
from patchbay.hooks import CallRecord
from patchbay.tools import well_formed
from patchbay.tools.threads import start_in_thread

DEFAULT_URL: Final = "sqlite:///audit.db"

MAX_WAITING: Final = 10_000
"""Records that wait to be written; further ones are counted as lost."""

LINGER: Final = 0.05
"""Seconds that a record waits for others, to share a transaction."""

RETRY_FIRST: Final = 0.5
RETRY_LONGEST: Final = 15.0
"""Seconds between attempts to write a batch, doubled each time."""

DELETE_LIMIT: Final = 2000
"""Old entries that one transaction deletes: other writers wait for it."""

CLOSE_TIMEOUT: Final = 10.0
"""Seconds that ``aclose`` waits for a database that fails."""

_BATCH: Final = 500
_DELETE_INTERVAL: Final = 600.0
_CLOSE_RETRY: Final = 0.25

_logger = logging.getLogger(__name__)


DENIED: Final = ("tool_denied", "hook_abort")
"""Error codes of refused calls."""

MAX_DECISIONS: Final = 64
"""Decisions of one call that are recorded."""

MAX_TEXT: Final = 1000
"""Characters of a name, an id or a reason that are recorded."""

_METADATA: Final = sa.MetaData()
TABLES: Final = Tables("audit", 1, _METADATA)

_number = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # only an INTEGER primary key is assigned

_COLUMN_TYPES: Final[dict[str, Any]] = {
    "int": _number, "float": sa.Double, "str": sa.Text, "bool": sa.Boolean, "tuple[AuditDecision, ...]": sa.Text,
}  # fmt: skip
_INDEXED: Final = ("time", "session_key", "turn", "parent_turn")
_ADDED: Final = ("prompt_tokens", "completion_tokens")
"""Columns that older databases do not have yet, and older versions do not write."""

audit = sa.Table(
    "patchbay_audit",
    _METADATA,
    sa.Column("id", _number, primary_key=True),
    *(
        sa.Column(
            each.name,
            _COLUMN_TYPES[str(each.type)],
            nullable=False,
            index=each.name in _INDEXED,
            server_default="0" if each.name in _ADDED else None,
        )
        for each in fields(AuditEntry)
        if each.name != "id"
    ),
    # A batch whose commit was not confirmed is written again, and stored once.
    sa.UniqueConstraint("writer", "number"),
    sqlite_autoincrement=True,  # ids of deleted entries are not used again
)
_is_loss = audit.c.lost > 0
sa.Index("ix_patchbay_audit_lost", audit.c.id, sqlite_where=_is_loss, postgresql_where=_is_loss)

_MESSAGE: Final = "the audit is append-only"
_GUARD: Final = "CREATE TRIGGER patchbay_audit_is_append_only BEFORE UPDATE ON patchbay_audit"
_REFUSE: Final = f"RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '{_MESSAGE}'; END $$"
_GUARDS: Final = (
    ("sqlite", f"{_GUARD} BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END"),
    ("postgresql", f"CREATE OR REPLACE FUNCTION patchbay_audit_refuse() {_REFUSE}"),
    ("postgresql", f"{_GUARD} FOR EACH ROW EXECUTE FUNCTION patchbay_audit_refuse()"),
)
for _dialect, _statement in _GUARDS:
    _ddl = sa.DDL(_statement)  # type: ignore[no-untyped-call]
    sa.event.listen(audit, "after_create", _ddl.execute_if(dialect=_dialect))

_NO_CALL: Final = {each.name: each.default for each in fields(AuditEntry) if each.default is not MISSING} | {"decisions": "[]"}


class _Lost:
    """A count of lost records, in their place in the queue."""

    __slots__ = ("count", "time")

    def __init__(self) -> None:
        self.time = time.time()
        self.count = 0


class AuditLog:
    """An audit of tool calls in the database at ``url`` (see ``patchbay.database.Database``): a Recorder, and its queries.

    Append it to a manager's recorders: ``hooks.recorders.append(log)``. It takes a record in a microsecond, in any thread, and
    never blocks; a thread writes them in batches. A thread and not a task, since the event loop of a call may end with it
    (``run_sync``). Records before a ``flush`` that returned are committed; later ones may be lost if the process is killed, at
    most those of about ``LINGER`` seconds and one transaction. While the database fails, records wait. If more than
    ``most_waiting`` wait, further ones are lost: a warning is logged once, and an entry with their count takes their place.
    ``lost`` is the count of this log.

    Entries are never changed, and deleted only if ``keep`` is given: entries older than that many seconds, while the log writes
    and at most every ten minutes. Several processes can write into one database. Raises ConfigurationError.
    """

    def __init__(
        self, url: str | os.PathLike[str] = DEFAULT_URL, *, keep: float | None = None, most_waiting: int = MAX_WAITING
    ) -> None:
        if keep is not None and not keep > 0:
            raise ConfigurationError(f"An audit keeps entries for a positive number of seconds, not {keep!r}.")
        if most_waiting < 1:
            raise ConfigurationError(f"At least one record must be able to wait, not {most_waiting!r}.")
        self._store = Database(url, TABLES)
        self._insert = (postgresql.insert if self._store.is_postgres else sqlite.insert)(audit).on_conflict_do_nothing()
        self._keep = keep
        self._delete_at = 0.0
        self._most = most_waiting
        self._begin()
        _logs.add(self)

    @property
    def file(self) -> Path | None:
        """The SQLite file, None for other databases."""
        return self._store.file

    def _begin(self) -> None:
        """Reset the queue: at first, and in a forked child, whose parent writes the records."""
        self._lock = threading.Lock()
        self._hurry = threading.Event()
        self._writer = uuid.uuid4().hex
        self._waiting: list[CallRecord | _Lost] = []
        self._under_way = 0
        self._is_writing = False
        self._taken = 0
        self._written = 0
        self._waiters: list[tuple[int, Future[None]]] = []
        self.lost = 0

    @property
    def is_in_memory(self) -> bool:
        """True if the audit is in memory."""
        return not self._store.is_postgres and self._store.file is None

    @property
    def is_missing(self) -> bool:
        """True if the database is a file that does not exist yet; the first record or query creates it."""
        file = self._store.file
        return file is not None and not file.exists()

    @property
    def waiting(self) -> int:
        """Number of records that are not written yet."""
        return len(self._waiting) + self._under_way

    def __call__(self, record: CallRecord) -> None:
        """Queue a record. Never blocks or raises."""
        with self._lock:
            waiting = self._waiting
            if len(waiting) + self._under_way >= self._most:
                self._lose()
                return
            waiting.append(record)
            if self._is_writing:
                return
            self._is_writing = True
        self._start()

    async def flush(self) -> None:
        """Wait until all queued records are committed. Raises an error of the database; the records stay queued."""
        with self._lock:
            until = self._taken + len(self._waiting)
            if self._written >= until:
                return
            done: Future[None] = Future()
            self._waiters.append((until, done))
            starts = not self._is_writing
            self._is_writing = True
            self._hurry.set()
        if starts:
            self._start()
        await asyncio.wrap_future(done)

    async def query(self, query: AuditQuery | None = None) -> AuditPage:
        """Return a page of committed entries."""
        wanted = query if query is not None else AuditQuery()
        return await self._store.read(lambda connection: read_page(connection, wanted))

    async def aclose(self) -> None:
        """Write the queued records within a few seconds, and close the database.

        Later failures are logged, and retried while the process lives.
        """
        until = time.monotonic() + CLOSE_TIMEOUT
        while True:
            error = await self._try_flush(until)
            if error is None or time.monotonic() + _CLOSE_RETRY > until:
                break
            await asyncio.sleep(_CLOSE_RETRY)
        if error is not None:
            with self._lock:
                left = len(self._waiting) + self._under_way
            why = str(error) or "the database does not answer"
            _logger.error("%d records of the audit could not be written: %s: %s", left, type(error).__name__, why)
        await self._store.close()

    async def _try_flush(self, until: float) -> Exception | None:
        try:
            async with asyncio.timeout(until - time.monotonic()):
                await self.flush()
        except Exception as error:  # noqa: BLE001  (logged by aclose)
            return error
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    def _lose(self) -> None:
        """Count a record as lost; with the lock held."""
        last = self._waiting[-1] if self._waiting else None
        if not isinstance(last, _Lost):
            last = _Lost()
            self._waiting.append(last)
        last.count += 1
        if self.lost == 0:
            _logger.warning("The audit queue is full: records are lost (logged once; they are counted)")
        self.lost += 1

    def _start(self) -> None:
        try:
            start_in_thread(self._write_all)
        except RuntimeError as error:  # no thread available: the next record retries
            with self._lock:
                self._is_writing = False
                waiters, self._waiters = self._waiters, []
            _resolve(waiters, error)

    def _write_all(self) -> None:
        """Write until the queue is empty; in a thread, one at a time."""
        while True:
            self._hurry.wait(LINGER)
            while True:
                if not (batch := self._next_batch()):
                    return
                self._write_batch(batch)
                if len(batch) < _BATCH:
                    break

    def _write_batch(self, batch: Sequence[tuple[int, CallRecord | _Lost]]) -> None:
        """Write a batch, with retries until it succeeds."""
        backoff = Backoff(RETRY_FIRST, RETRY_LONGEST)
        while (error := self._try_write(batch)) is not None:
            if backoff.failures == 0:
                _logger.error("Could not write the audit, retrying: %s: %s", type(error).__name__, error)
            with self._lock:
                waiters, self._waiters = self._waiters, []
                self._hurry.clear()
            _resolve(waiters, error)
            self._hurry.wait(backoff.fail())
        if backoff.failures:
            _logger.warning("Writing the audit works again")
        with self._lock:
            self._written += len(batch)
            self._under_way = 0
            done = [each for each in self._waiters if each[0] <= self._written]
            self._waiters = [each for each in self._waiters if each[0] > self._written]
            if not self._waiters:
                self._hurry.clear()
        _resolve(done, None)

    def _next_batch(self) -> list[tuple[int, CallRecord | _Lost]]:
        """Take the next batch with its numbers; an empty one ends the writing."""
        with self._lock:
            taken, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            first = self._taken + 1
            self._taken += len(taken)
            self._under_way = len(taken)
            if not taken:
                self._is_writing = False
            return list(enumerate(taken, first))

    def _try_write(self, batch: Sequence[tuple[int, CallRecord | _Lost]]) -> Exception | None:
        """Write a batch in one transaction; return the error, if any."""
        try:
            rows = [{**_row_or_loss(each), "writer": self._writer, "number": number} for number, each in batch]
            self._store.write_from_thread(lambda connection: self._write(connection, rows), exclusive=True)
        except Exception as error:  # noqa: BLE001  (retried and logged)
            return _without_statement(error)
        return None

    def _write(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
        connection.execute(self._insert, rows)
        if self._keep is None or time.monotonic() < self._delete_at:
            return
        if _delete_before(connection, time.time() - self._keep, limit=DELETE_LIMIT) < DELETE_LIMIT:
            self._delete_at = time.monotonic() + min(_DELETE_INTERVAL, self._keep)


def _row_or_loss(each: CallRecord | _Lost) -> dict[str, Any]:
    if isinstance(each, _Lost):
        return _loss_row(each.time, each.count)
    try:
        return _row(each)
    except Exception:  # of an object in the call's context: it must not block other records
        _logger.exception("An audit record cannot be converted: it is counted as lost")
        return _loss_row(each.time, 1)


def _resolve(waiters: Sequence[tuple[int, Future[None]]], error: Exception | None) -> None:
    for _, each in waiters:
        if each.set_running_or_notify_cancel():
            each.set_exception(error) if error is not None else each.set_result(None)


def _without_statement(error: Exception) -> Exception:
    """Return a database error without the statement and its values."""
    return RuntimeError(reason_of(error)) if isinstance(error, SQLAlchemyError) else error


def _row(record: CallRecord) -> dict[str, Any]:
    """Return the row of a call, without writer and number. Raises what an object in the call's context raises."""
    meta = record.meta
    inbound = record.context.get("inbound")
    inbound = inbound if isinstance(inbound, Mapping) else {}
    return {
        "time": record.time,
        "agent": _text(meta.agent_id),
        "session_key": _text(meta.session_key),
        "turn": _text(meta.turn_id),
        "parent_turn": _text(meta.parent_turn_id),
        "round": meta.iteration,
        "channel": _text(inbound.get("channel")),
        "sender": _text(inbound.get("sender_id")),
        "call_id": _text(record.call_id),
        "tool": _text(record.tool),
        "source": _text(record.source),
        "digest": _text(record.digest),
        "decisions": json.dumps([[_text(part) for part in each] for each in record.decisions[:MAX_DECISIONS]])
        if record.decisions
        else "[]",
        "responded_by": _text(record.responded_by),
        "is_error": record.is_error,
        "code": _text(record.code),
        "result_chars": record.result_chars,
        "seconds": record.seconds,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "lost": 0,
    }


def _loss_row(time: float, count: int) -> dict[str, Any]:
    """Return the row for ``count`` lost calls."""
    return {**_NO_CALL, "time": time, "lost": count}


def _text(value: Any) -> str:
    """Return a value as text that every database can store, cut if it is long."""
    if not value:
        return ""
    text = value if isinstance(value, str) else str(value)
    text = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
    if text.isascii() and "\x00" not in text:
        return text
    return well_formed(text).replace("\x00", "\ufffd")


def _delete_before(connection: sa.Connection, before: float, *, limit: int) -> int:
    """Delete the oldest entries before a time, and return their number."""
    oldest = sa.select(audit.c.id).where(audit.c.time < before).order_by(audit.c.time).limit(limit)
    return connection.execute(audit.delete().where(audit.c.id.in_(oldest))).rowcount


def read_page(connection: sa.Connection, query: AuditQuery) -> AuditPage:
    """Return a page. Lost calls are a separate query: a common one would scan every row."""
    criteria = _call_criteria(connection, query)
    parts = [[*criteria, audit.c.lost == 0], [_is_loss]] if criteria else [[]]
    ascends = query.after is not None
    bounds = _row_criteria(query)
    order = audit.c.id.asc() if ascends else audit.c.id.desc()
    queries = (sa.select(audit).where(*part, *bounds).order_by(order).limit(query.limit + 1) for part in parts)
    rows = [row for each in queries for row in connection.execute(each)]
    rows.sort(key=lambda row: int(row.id), reverse=not ascends)
    entries = tuple(_entry(row._mapping) for row in rows[: query.limit])  # noqa: SLF001  (its public name)
    more = len(rows) > query.limit and not ascends
    return AuditPage(entries, entries[-1].id if more else None)


def _call_criteria(connection: sa.Connection, query: AuditQuery) -> list[sa.ColumnElement[bool]]:
    """Return the criteria that only calls must match."""
    column = audit.c
    criteria: list[sa.ColumnElement[bool]] = []
    if query.tools:
        is_sqlite = connection.dialect.name == "sqlite"
        criteria.append(sa.or_(*(_pattern(pattern, is_sqlite=is_sqlite) for pattern in query.tools)))
    for name, wanted in (("source", query.source), ("agent", query.agent), ("session_key", query.session)):
        if wanted is not None:
            criteria.append(column[name] == _text(wanted))
    if query.turn is not None:
        criteria.append(sa.or_(column.turn == _text(query.turn), column.parent_turn == _text(query.turn)))
    if query.errors:
        criteria.append(column.is_error)
    if query.denied:
        criteria.append(column.code.in_(DENIED))
    return criteria


def _row_criteria(query: AuditQuery) -> list[sa.ColumnElement[bool]]:
    """Return the criteria that every row must match."""
    column = audit.c
    bounds = (
        (query.since, column.time.__ge__),
        (query.until, column.time.__lt__),
        (query.before, column.id.__lt__),
        (query.after, column.id.__gt__),
    )
    return [compare(bound) for bound, compare in bounds if bound is not None]


def _pattern(pattern: str, *, is_sqlite: bool) -> sa.ColumnElement[bool]:
    """Match ``*`` and ``?``, case-sensitively in every database."""
    pattern = _text(pattern)
    if not any(each in pattern for each in "*?"):
        return audit.c.tool == pattern
    if is_sqlite:
        return audit.c.tool.op("GLOB", is_comparison=True)(pattern.replace("[", "[[]"))
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return audit.c.tool.like(escaped.replace("*", "%").replace("?", "_"), escape="\\")


def _entry(row: Mapping[Any, Any]) -> AuditEntry:
    members = dict(row)
    members["decisions"] = tuple(AuditDecision(*each) for each in json.loads(members["decisions"]))
    return AuditEntry(**members)


_logs: weakref.WeakSet[AuditLog] = weakref.WeakSet()


def _begin_in_child() -> None:
    for log in list(_logs):
        log._begin()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
