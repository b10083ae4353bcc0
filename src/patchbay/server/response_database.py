"""Stored responses in a database: SQLite or PostgreSQL, by URL, for any number of servers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection
from typing_extensions import override

from patchbay.database import Database
from patchbay.database_tables import Tables
from patchbay.frontends.responses import StoredResponse
from patchbay.models.wire import decode, encode
from patchbay.server.stored_responses import LEASE_SECONDS, ResponseStore

_FOREVER: Final = 1e12
_DELETE_INTERVAL: Final = 600.0
_DELETE_LIMIT: Final = 1000  # other writers wait for this transaction

_metadata = sa.MetaData()
TABLES: Final = Tables("responses", 1, _metadata)

_table = sa.Table(
    "patchbay_responses",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),  # the key: the owner and the response's id
    sa.Column("expires", sa.Double, nullable=False, index=True),
    sa.Column("lease", sa.Double, nullable=True),
    # JSON in UTF-8: PostgreSQL's text cannot hold every string.
    sa.Column("response", sa.LargeBinary, nullable=False),
    sa.Column("input", sa.LargeBinary, nullable=False),
)


class DatabaseResponses(ResponseStore):
    """Responses in the database at ``url`` (see ``patchbay.database.Database``), each for ``keep`` seconds (None: for ever).

    Raises ConfigurationError.
    """

    def __init__(self, url: str, keep: float | None) -> None:
        self._database = Database(url, TABLES)
        self._keep = keep
        self._delete_at = 0.0

    @override
    async def open(self) -> None:
        await self._database.read(lambda _: None)

    @override
    async def get(self, key: str) -> StoredResponse | None:
        columns = (_table.c.response, _table.c.input, _table.c.lease)
        query = sa.select(*columns).where(_table.c.id == _storable(key), _table.c.expires > time.time())
        row = await self._database.read(lambda connection: connection.execute(query).first())
        if row is None:
            return None
        response = decode(row.response)
        owner = key.removesuffix(response["id"]).removesuffix(":")
        return StoredResponse(response, decode(row.input), row.lease, owner=owner)

    @override
    async def put(self, stored: StoredResponse) -> None:
        """Write a response, and delete those that have expired now and then."""
        now = time.time()
        expires = _FOREVER if self._keep is None else now + self._keep
        row = {"id": stored.key, "expires": expires, "input": encode(stored.items), **_columns(stored)}
        if deletes := now >= self._delete_at:
            self._delete_at = now + _DELETE_INTERVAL

        def work(connection: Connection) -> None:
            connection.execute(_table.insert().values(row))
            if deletes:
                old = sa.select(_table.c.id).where(_table.c.expires <= now).limit(_DELETE_LIMIT)
                connection.execute(_table.delete().where(_table.c.id.in_(old)))

        await self._database.write(work)

    @override
    async def settle(self, stored: StoredResponse) -> bool:
        running = _is_running([stored.key])
        change = _table.update().where(*running).values(_columns(stored))
        return bool(await self._database.write(lambda connection: connection.execute(change).rowcount))

    @override
    async def delete(self, key: str) -> bool:
        deletion = _table.delete().where(_table.c.id == _storable(key))
        return bool(await self._database.write(lambda connection: connection.execute(deletion).rowcount))

    @override
    async def renew(self, keys: Iterable[str]) -> set[str]:
        running = _is_running(list(keys))
        change = _table.update().where(*running).values(lease=time.time() + LEASE_SECONDS)

        def work(connection: Connection) -> set[str]:
            connection.execute(change)
            return set(connection.scalars(sa.select(_table.c.id).where(*running)))

        return await self._database.write(work)

    @override
    async def close(self) -> None:
        await self._database.close()


def _is_running(keys: list[str]) -> tuple[sa.ColumnElement[bool], ...]:
    return _table.c.id.in_(keys), _table.c.lease.is_not(None)


def _columns(stored: StoredResponse) -> dict[str, object]:
    return {"response": encode(stored.response), "lease": stored.lease}


def _storable(key: str) -> str:
    """Return a key with a client's id as text of PostgreSQL, which holds neither NUL nor lone surrogates."""
    return key.encode("ascii", "replace").decode().replace("\x00", "?")
