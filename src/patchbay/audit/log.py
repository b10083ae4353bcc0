"""The log of the audit: takes records without waiting, and writes them in batches from a thread of its own.

What lives here: the queue between whoever makes calls and the database. What does not: rows and queries (``tables``).

A thread and not a task: a record must not depend on the event loop it was made in, which may end with the call (``run_sync``),
nor wait for one that is busy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from patchbay.audit.entries import AuditPage, AuditQuery
from patchbay.audit.tables import VERSION, audit, forget, metadata, read_page, row_of, row_of_loss
from patchbay.errors import ConfigurationError
from patchbay.hooks import CallRecord
from patchbay.store import Store
from patchbay.tools.threads import start_in_thread

DEFAULT_URL: Final = "sqlite:///audit.db"

MOST_WAITING: Final = 10_000
"""How many records wait to be written; what comes then is counted, and the count is written in its place."""

LINGER: Final = 0.05
"""Seconds that a record waits for others, so that a batch is one transaction."""

_BATCH: Final = 500
_AGAIN: Final = (0.5, 1.0, 2.0, 5.0, 15.0)
_FORGET_EVERY: Final = 600.0
_FORGET_MOST: Final = 2000  # at once: what else is in the database waits for that transaction
_CLOSING: Final = 10.0
_BETWEEN: Final = 0.25

# An advisory lock of the database: writers of PostgreSQL come one after the other, so that ids are in the order of the commits.
_WRITING: Final = 0x7061746368617564

_logger = logging.getLogger(__name__)


class _Lost:
    """Stands in the queue where records were too many."""

    __slots__ = ("count", "time")

    def __init__(self) -> None:
        self.time = time.time()
        self.count = 0


class AuditLog:
    """The audit in the database at ``url`` (as ``patchbay.store.Store`` reads it): a Recorder, and what is asked of it later.

    Put it among a manager's ``recorders``: ``hooks.recorders.append(log)``. It takes a record in a microsecond, in any thread,
    and never waits. What ``flush`` has returned for is committed, and outlives a process that is killed; what came later may be
    lost with it, at most about ``LINGER`` seconds and one transaction's worth while the database answers. While it does not,
    records wait, and are written as soon as it does. If more than ``most_waiting`` wait, the next ones are lost: one warning is
    logged, they are counted, and an entry with the count stands in their place. ``lost`` is the count of this log.

    Nothing that was written is changed or deleted, unless ``keep`` is given: then this log forgets entries that are older than so
    many seconds. It does that as it writes, every ten minutes or sooner, so they are gone that much later, and where no calls are
    made, with the next one. Several processes may write into one database. Raises ConfigurationError.
    """

    def __init__(
        self, url: str | os.PathLike[str] = DEFAULT_URL, *, keep: float | None = None, most_waiting: int = MOST_WAITING
    ) -> None:
        if keep is not None and not keep > 0:
            raise ConfigurationError(f"An audit keeps entries for a positive number of seconds, not {keep!r}.")
        if most_waiting < 1:
            raise ConfigurationError(f"At least one record must be able to wait, not {most_waiting!r}.")
        self._store = Store(url, metadata, name="audit", version=VERSION)
        self._insert = (postgresql.insert if self._store.is_postgres else sqlite.insert)(audit).on_conflict_do_nothing()
        self._keep = keep
        self._forget_at = 0.0
        self._most = most_waiting
        self._begin()
        _logs.add(self)

    def _begin(self) -> None:
        """Begin with nothing: at first, and in a forked child, whose parent writes what it had."""
        self._guard = threading.Lock()
        self._hurry = threading.Event()
        self._writer = uuid.uuid4().hex
        self._waiting: list[CallRecord | _Lost] = []
        self._under_way = 0
        self._is_writing = False
        self._taken = 0  # how many were ever taken from the queue
        self._written = 0
        self._waiters: list[tuple[int, Future[None]]] = []
        self.lost = 0

    @property
    def is_in_memory(self) -> bool:
        """Whether it is gone with this object."""
        return not self._store.is_postgres and self._store.file is None

    @property
    def is_missing(self) -> bool:
        """Whether it is a file, and there is none yet: the first record, or the first query, makes it."""
        file = self._store.file
        return file is not None and not file.exists()

    def __call__(self, record: CallRecord) -> None:
        """Take a record. Never waits, and raises nothing."""
        with self._guard:
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
        """Return when all that was taken by now is committed. Raises what the database does; the records wait on all the same."""
        with self._guard:
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
        """Return what is asked for, of what is committed."""
        wanted = query if query is not None else AuditQuery()
        return await self._store.read(lambda connection: read_page(connection, wanted))

    async def aclose(self) -> None:
        """Write what waits, for a few seconds at most, and close the database.

        What could not be written by then is told in the log, and tried again for as long as the process lives.
        """
        until = time.monotonic() + _CLOSING
        while True:
            error = await self._last_flush(until)
            if error is None or time.monotonic() + _BETWEEN > until:
                break
            await asyncio.sleep(_BETWEEN)
        if error is not None:
            with self._guard:
                left = len(self._waiting) + self._under_way
            why = str(error) or "the database does not answer"
            _logger.error("%d records of the audit could not be written: %s: %s", left, type(error).__name__, why)
        await self._store.close()

    async def _last_flush(self, until: float) -> Exception | None:
        try:
            async with asyncio.timeout(until - time.monotonic()):
                await self.flush()
        except Exception as error:  # noqa: BLE001  (whatever the database says: it is closed all the same)
            return error
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    def _lose(self) -> None:
        """Count a record that is one too many, at its place; the guard is held."""
        last = self._waiting[-1] if self._waiting else None
        if not isinstance(last, _Lost):
            last = _Lost()
            self._waiting.append(last)
        last.count += 1
        if self.lost == 0:
            _logger.warning("The audit is not written as fast as calls are made: records are lost (told once; they are counted)")
        self.lost += 1

    def _start(self) -> None:
        try:
            start_in_thread(self._write_all)
        except RuntimeError as error:  # no thread to be had: the next record tries again
            with self._guard:
                self._is_writing = False
                waiters, self._waiters = self._waiters, []
            _answer(waiters, error)

    def _write_all(self) -> None:
        """Write until nothing waits. Runs in a thread; one at a time."""
        while True:
            self._hurry.wait(LINGER)
            while True:
                if not (batch := self._next_batch()):
                    return
                self._write_batch(batch)
                if len(batch) < _BATCH:
                    break

    def _write_batch(self, batch: Sequence[tuple[int, CallRecord | _Lost]]) -> None:
        """Write a batch, however often it takes."""
        tries = 0
        while (error := self._written_down(batch)) is not None:
            if tries == 0:
                _logger.error("The audit cannot be written, and is tried again: %s: %s", type(error).__name__, error)
            with self._guard:
                waiters, self._waiters = self._waiters, []
                self._hurry.clear()
            _answer(waiters, error)
            self._hurry.wait(_AGAIN[min(tries, len(_AGAIN) - 1)])
            tries += 1
        if tries:
            _logger.warning("The audit is written again")
        with self._guard:
            self._written += len(batch)
            self._under_way = 0
            done = [each for each in self._waiters if each[0] <= self._written]
            self._waiters = [each for each in self._waiters if each[0] > self._written]
            if not self._waiters:
                self._hurry.clear()
        _answer(done, None)

    def _next_batch(self) -> list[tuple[int, CallRecord | _Lost]]:
        """Take what is to be written next, with its numbers; where there is nothing, the writing is over."""
        with self._guard:
            taken, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            first = self._taken + 1
            self._taken += len(taken)
            self._under_way = len(taken)
            if not taken:
                self._is_writing = False
            return list(enumerate(taken, first))

    def _written_down(self, batch: Sequence[tuple[int, CallRecord | _Lost]]) -> Exception | None:
        """Write a batch, whole or not at all; return what hindered it."""
        try:
            rows = [{**_row(each), "writer": self._writer, "number": number} for number, each in batch]
            self._store.write_from_thread(lambda connection: self._write(connection, rows))
        except Exception as error:  # noqa: BLE001  (it is tried again, and told)
            return _without_statement(error)
        return None

    def _write(self, connection: Connection, rows: list[dict[str, Any]]) -> None:
        if self._store.is_postgres:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITING})")
        connection.execute(self._insert, rows)
        if self._keep is None or time.monotonic() < self._forget_at:
            return
        if forget(connection, before=time.time() - self._keep, most=_FORGET_MOST) < _FORGET_MOST:
            self._forget_at = time.monotonic() + min(_FORGET_EVERY, self._keep)


def _row(each: CallRecord | _Lost) -> dict[str, Any]:
    if isinstance(each, _Lost):
        return row_of_loss(each.time, each.count)
    try:
        return row_of(each)
    except Exception:  # a program's own object that cannot be written: it must not hold up all that come after it
        _logger.exception("A record of the audit cannot be written down: it is counted as lost")
        return row_of_loss(each.time, 1)


def _answer(waiters: Sequence[tuple[int, Future[None]]], error: Exception | None) -> None:
    for _, each in waiters:
        if each.set_running_or_notify_cancel():
            each.set_exception(error) if error is not None else each.set_result(None)


def _without_statement(error: Exception) -> Exception:
    """A database's complaint quotes the statement and all its values: what it says itself is enough."""
    return RuntimeError(f"{error.orig}") if isinstance(error, SQLAlchemyError) and hasattr(error, "orig") else error


_logs: weakref.WeakSet[AuditLog] = weakref.WeakSet()


def _begin_in_child() -> None:
    for log in list(_logs):
        log._begin()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
