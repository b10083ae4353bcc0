"""Hidden turns in a database, for all servers that share it: a conversation goes on with any of them, and after a kill -9."""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection
from typing_extensions import override

from patchbay.database import Database, reason_of
from patchbay.database_tables import Tables
from patchbay.errors import ConfigurationError
from patchbay.models.wire import decode, encode
from patchbay.server.chat.hidden_turns import RESULT_CHARS, HiddenTurn, HiddenTurnStore, call_ids
from patchbay.server.errors import StoreUnavailableError
from patchbay.tools.result_store import MemoryResultStore

_DELETE_INTERVAL: Final = 600.0
_DELETE_LIMIT: Final = 1000  # other writers wait for this transaction

_MOST_IDS: Final = 10_000
_QUOTED: Final = re.compile(rb"call_([0-9a-f]{28})[0-9a-f]{4}")
"""An id of a call that was handed out for a hidden turn, anywhere in a request."""

_logger = logging.getLogger(__name__)
_metadata = sa.MetaData()
TABLES: Final = Tables("hidden turns", 1, _metadata)
_table = sa.Table(
    "patchbay_hidden_turns",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("expires", sa.Double, nullable=False, index=True),
    sa.Column("calls", sa.Integer, nullable=False),  # that were handed out
    # JSON in UTF-8: PostgreSQL's text cannot hold every string.
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("results", sa.LargeBinary, nullable=False),
)


class DatabaseHiddenTurns(HiddenTurnStore):
    """Hidden turns in the database at ``url``, each for ``seconds`` after its last use, with those in memory as a cache.

    A turn that cannot be written stays in memory: the conversation goes on with this server.
    """

    def __init__(self, url: str, *, most: int, most_bytes: int, seconds: float) -> None:
        super().__init__(most=most, most_bytes=most_bytes, seconds=seconds, clock=time.time)
        self._database = Database(url, TABLES)
        self._delete_at = 0.0

    @override
    async def load(self, body: bytes) -> None:
        """Load the turns that a request quotes. Raises StoreUnavailableError if one is not in memory and cannot be read."""
        now = self._clock()
        missing: list[str] = []
        due: list[HiddenTurn] = []
        for turn_id in {found[1].decode() for found in _QUOTED.finditer(body)}:
            turn = self._kept.get(turn_id)
            if turn is None or now - turn.used >= self._seconds:
                missing.append(turn_id)
            elif turn.stored_until < now + self._seconds / 2:
                due.append(turn)
        until = now + self._seconds

        def read(connection: Connection) -> list[HiddenTurn]:
            rows = sa.select(_table).where(_table.c.expires > now)
            return [_turn(row, now) for ids in _parts(missing) for row in connection.execute(rows.where(_table.c.id.in_(ids)))]

        def extend(connection: Connection) -> None:
            for ids in _parts([turn.id for turn in due]):
                connection.execute(_table.update().where(_table.c.id.in_(ids), _table.c.expires > now).values(expires=until))

        try:
            found = await self._database.read(read) if missing else []
        except (sa.exc.SQLAlchemyError, ConfigurationError) as error:
            raise StoreUnavailableError("the earlier part of this conversation") from error
        for turn in found:
            await super()._put(turn)
        due += [turn for turn in found if turn.stored_until < now + self._seconds / 2]
        if due:
            with suppress(sa.exc.SQLAlchemyError, ConfigurationError):  # the next request tries again
                await self._database.write(extend)
                for turn in due:
                    turn.stored_until = until

    @override
    async def close(self) -> None:
        await self._database.close()

    @override
    async def _put(self, turn: HiddenTurn) -> None:
        await super()._put(turn)
        now = turn.used
        turn.stored_until = now + self._seconds
        texts = turn.results.texts
        row = {
            "id": turn.id,
            "expires": turn.stored_until,
            "calls": len(turn.handed_out),
            "body": turn.body,
            "results": encode(texts),
        }
        if deletes := now >= self._delete_at:
            self._delete_at = now + _DELETE_INTERVAL

        def work(connection: Connection) -> None:
            connection.execute(_table.insert().values(row))
            if deletes:
                old = sa.select(_table.c.id).where(_table.c.expires <= now).limit(_DELETE_LIMIT)
                connection.execute(_table.delete().where(_table.c.id.in_(old)))

        try:
            await self._database.write(work)
        except (sa.exc.SQLAlchemyError, ConfigurationError) as error:
            turn.stored_until = 0.0
            _logger.warning("A turn is kept in memory only, since it could not be stored: %s", reason_of(error))


def _parts(ids: list[str]) -> list[list[str]]:
    """Divide ids, since a statement has no more than 65,535 parameters in PostgreSQL, and 32,766 in SQLite."""
    return [ids[start : start + _MOST_IDS] for start in range(0, len(ids), _MOST_IDS)]


def _turn(row: Any, now: float) -> HiddenTurn:
    results = MemoryResultStore.of(decode(row.results), max_chars=RESULT_CHARS)
    return HiddenTurn(row.id, row.body, frozenset(call_ids(row.id, row.calls)), results, now, row.expires)
