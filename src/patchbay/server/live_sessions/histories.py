"""Histories of live sessions in a database: a client that comes back to any server goes on with its conversation."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from patchbay.database import Database, reason_of
from patchbay.database_tables import Tables
from patchbay.errors import ConfigurationError
from patchbay.models.wire import decode, encode
from patchbay.server.errors import StoreUnavailableError
from patchbay.types import Message

_KEPT: Final = 24 * 3600.0
"""Seconds after its last change for which a history is kept."""

_DELETE_INTERVAL: Final = 600.0

_logger = logging.getLogger(__name__)
_metadata = sa.MetaData()
TABLES: Final = Tables("histories of live sessions", 1, _metadata)
_table = sa.Table(
    "patchbay_live_sessions",
    _metadata,
    sa.Column("role", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("changed_at", sa.Double, nullable=False, index=True),
    # JSON in UTF-8: PostgreSQL's text cannot hold every string.
    sa.Column("messages", sa.LargeBinary, nullable=False),
)


class SessionHistories:
    """The histories in the database at ``url``, by role and the client's key."""

    def __init__(self, url: str) -> None:
        self._database = Database(url, TABLES)
        self._delete_at = 0.0

    async def load(self, role: str, key: str) -> list[Message]:
        """Return a history; empty if there is none. Raises StoreUnavailableError."""
        query = sa.select(_table.c.messages).where(
            _table.c.role == role, _table.c.key == key, _table.c.changed_at > time.time() - _KEPT
        )
        try:
            found = await self._database.read(lambda connection: connection.execute(query).scalar())
        except (sa.exc.SQLAlchemyError, ConfigurationError) as error:
            raise StoreUnavailableError("the session's history") from error
        return decode(found) if found is not None else []

    async def save(self, role: str, key: str, messages: Sequence[Message]) -> None:
        """Store a history in place of the last one. A failure is logged: the session goes on."""
        now = time.time()
        row = {"role": role, "key": key, "changed_at": now, "messages": encode(list(messages))}
        if deletes := now >= self._delete_at:
            self._delete_at = now + _DELETE_INTERVAL

        def work(connection: Connection) -> None:
            same = sa.and_(_table.c.role == role, _table.c.key == key)
            if not connection.execute(_table.update().where(same).values(row)).rowcount:
                connection.execute(_table.insert().values(row))
            if deletes:
                connection.execute(_table.delete().where(_table.c.changed_at <= now - _KEPT))

        try:
            await self._database.write(work)
        except (sa.exc.SQLAlchemyError, ConfigurationError) as error:
            _logger.warning("The history of the session %r could not be stored: %s", key, reason_of(error))

    async def close(self) -> None:
        """Close the database."""
        await self._database.close()
