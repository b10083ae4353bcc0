"""Turns that have ended, in a database (``--keep-turns``), for the console and ``/api/turns``."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import zlib
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from patchbay._backoff import Backoff
from patchbay.database import Database, reason_of
from patchbay.database_tables import Tables
from patchbay.server.turn_views import Json, TurnQuery, detail_of, encoded_for, summary_of, without_content
from patchbay.server.turns import MAX_TURN_BYTES, Turn
from patchbay.tools.threads import run_in_thread

MAX_ARCHIVE_BYTES: Final = 1024 * 1024 * 1024
"""Maximum bytes of all turns in the database; the oldest are deleted first."""
MAX_SEARCHED: Final = 2000
"""How many turns are searched for a text, at most."""

_BATCH: Final = 50
_PAGE: Final = 100
_DELETE_INTERVAL: Final = 60.0
_DELETE_LIMIT: Final = 500  # other writers wait for this transaction
_CLOSE_TIMEOUT: Final = 10.0
_RETRY_FIRST, _RETRY_LONGEST = 0.5, 15.0

_metadata = sa.MetaData()
TABLES: Final = Tables("turns", 1, _metadata)
_table = sa.Table(
    "patchbay_turns",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("began", sa.Double, nullable=False, index=True),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("calls", sa.Text, nullable=False),  # the names, as a JSON array
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("summary", sa.LargeBinary, nullable=False),  # JSON
    sa.Column("detail", sa.LargeBinary, nullable=False),  # JSON, compressed
)
_logger = logging.getLogger(__name__)


class TurnArchive:
    """Ended turns in the database at ``url`` (see Database), for ``keep`` seconds. For one event loop.

    Turns wait for the database in memory, while it fails too; those that do not fit there are lost, which is logged once.
    Raises ConfigurationError.
    """

    def __init__(self, url: str, *, keep: float, keeps_content: bool, most_bytes: int = MAX_ARCHIVE_BYTES) -> None:
        self._database = Database(url, TABLES)
        self._insert = (postgresql.insert if self._database.is_postgres else sqlite.insert)(_table).on_conflict_do_nothing()
        self.keep = keep
        self._keeps_content = keeps_content
        self._most_bytes = most_bytes
        self._waiting: list[Turn] = []
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._delete_at = 0.0
        self._has_lost = False

    @property
    def waiting(self) -> int:
        """Number of turns that are not written yet."""
        return len(self._waiting)

    @property
    def unwritten(self) -> list[Turn]:
        """The turns that are neither in the TurnStore any more nor in the database yet, the newest first."""
        return sorted((turn for turn in self._waiting if turn.store is None), key=lambda turn: turn.began, reverse=True)

    async def open(self) -> None:
        """Open the database. Raises ConfigurationError."""
        await self._database.read(lambda _: None)

    def add(self, turn: Turn) -> None:
        """Take a turn that has ended; it is written by a task."""
        if self._waiting_bytes + turn.size > MAX_TURN_BYTES:
            if not self._has_lost:
                _logger.error("Turns wait for the database of --keep-turns, and further ones are not kept (logged once)")
            self._has_lost = True
            return
        self._waiting.append(turn)
        self._waiting_bytes += turn.size
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_waiting())

    async def find(self, query: TurnQuery, limit: int, *, before: str = "", without: Collection[str] = ()) -> list[Json]:
        """Return the summaries of the newest turns that fit, but those ``without``; ``before``: older than the turn of that id.

        For a text the newest ``MAX_SEARCHED`` of them are read.
        """
        conditions: list[sa.ColumnElement[bool]] = [_table.c.id.not_in(list(without))]
        if query.session:
            conditions.append(_table.c.session == _storable(query.session))
        if query.model:
            conditions.append(_table.c.model == _storable(query.model))
        if query.outcome:
            conditions.append(_table.c.state == query.outcome)
        if query.tool:
            conditions.append(_table.c.calls.contains(json.dumps(query.tool), autoescape=True))
        newest = sa.select(_table.c.summary, _table.c.detail).order_by(_table.c.began.desc(), _table.c.id.desc())
        wanted = query.text.lower()

        def work(connection: sa.Connection) -> list[Json]:
            if before:
                row = connection.execute(sa.select(_table.c.began).where(_table.c.id == _storable(before))).first()
                if row is None:
                    return []
                conditions.append(sa.tuple_(_table.c.began, _table.c.id) < sa.tuple_(row.began, _storable(before)))
            matching = newest.where(*conditions)
            if not wanted:
                rows = connection.execute(matching.with_only_columns(_table.c.summary).limit(limit))
                return [json.loads(row.summary) for row in rows]
            rows = connection.execute(matching.limit(MAX_SEARCHED), execution_options={"yield_per": _PAGE})
            found = (row for row in rows if any(wanted in text.lower() for text in _texts(_decoded(row.detail))))
            return [json.loads(row.summary) for row in islice(found, limit)]

        return await self._database.read(work)

    async def get(self, turn_id: str) -> Json | None:
        """Return all of a turn, without secrets; None if it is not kept."""
        query = sa.select(_table.c.detail).where(_table.c.id == _storable(turn_id))
        detail = await self._database.read(lambda connection: connection.scalar(query))
        return None if detail is None else await run_in_thread(lambda: _decoded(detail))

    async def aclose(self) -> None:
        """Write the turns that wait, within a few seconds, and close the database."""
        if self._task is not None:
            done, _ = await asyncio.wait([self._task], timeout=_CLOSE_TIMEOUT)
            if not done:
                _logger.error("%d turns could not be written to the database of --keep-turns", len(self._waiting))
                self._task.cancel()
                await asyncio.wait([self._task])
        await self._database.close()

    async def _write_waiting(self) -> None:
        backoff = Backoff(_RETRY_FIRST, _RETRY_LONGEST)
        while batch := self._waiting[:_BATCH]:
            try:
                await self._write(batch)
            except sa.exc.SQLAlchemyError as error:
                if backoff.failures == 0:
                    _logger.error("Could not write turns, retrying: %s", _why(error))  # noqa: TRY400  (the statement has content)
                await asyncio.sleep(backoff.fail())
                continue
            backoff.reset()
            del self._waiting[: len(batch)]
            self._waiting_bytes -= sum(turn.size for turn in batch)
            if time.monotonic() >= self._delete_at:
                await self._delete_old()
                self._delete_at = time.monotonic() + _DELETE_INTERVAL

    async def _write(self, turns: Sequence[Turn]) -> None:
        rows = await run_in_thread(lambda: [row for turn in turns if (row := self._try_row(turn)) is not None])
        if rows:
            await self._database.write(lambda connection: connection.execute(self._insert, rows))

    def _try_row(self, turn: Turn) -> dict[str, Any] | None:
        """Return the row of a turn; one that cannot be described is left out, so that it does not keep the others waiting."""
        try:
            return self._row(turn)
        except Exception:
            _logger.exception("The turn %s is not kept", turn.id)
            return None

    def _row(self, turn: Turn) -> dict[str, Any]:
        summary, detail = summary_of(turn), detail_of(turn, whole=True)
        if not self._keeps_content:
            summary, detail = without_content(summary), without_content(detail)
        shown = encoded_for(turn, summary)
        compressed = zlib.compress(encoded_for(turn, detail))
        return {
            "id": turn.id,
            "began": turn.began,
            "session": _storable(turn.session),
            "model": _storable(turn.model),
            "state": summary["state"],
            "calls": json.dumps(summary["calls"]),
            "size": len(shown) + len(compressed),
            "summary": shown,
            "detail": compressed,
        }

    async def _delete_old(self) -> None:
        """Delete the turns that are too old, and the oldest of too many."""
        total = sa.select(sa.func.coalesce(sa.func.sum(_table.c.size), 0))
        oldest = sa.select(_table.c.id).order_by(_table.c.began).limit(_DELETE_LIMIT)

        def work(connection: sa.Connection) -> int:
            chosen = oldest if connection.execute(total).scalar_one() > self._most_bytes else oldest.where(_table.c.began < until)
            return connection.execute(_table.delete().where(_table.c.id.in_(chosen))).rowcount

        until = time.time() - self.keep
        try:
            while await self._database.write(work):
                pass
        except sa.exc.SQLAlchemyError as error:
            _logger.error("Could not delete old turns: %s", _why(error))  # noqa: TRY400


def _why(error: sa.exc.SQLAlchemyError) -> str:
    """Return the database's own message, without the statement."""
    return f"{type(error).__name__}: {reason_of(error)}"


def _decoded(detail: bytes) -> Json:
    found: Json = json.loads(zlib.decompress(detail))
    return found


def _texts(value: Any) -> Iterable[str]:
    """Return the texts in a JSON value, without the names of members."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _storable(text: str) -> str:
    """Return a text as PostgreSQL can hold it: without NUL and lone surrogates."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "?")
