"""The processes that carry out durable runs: each writes its row every few seconds, and one whose row is old is gone."""

from __future__ import annotations

import time
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Column, Connection, Float, MetaData, Table, Text

from patchbay.database import Database
from patchbay.database_tables import Tables

BEAT: Final = 3.0
"""Seconds between two writes of a row."""

GONE: Final = 10.0
"""Seconds after which a process that has not written its row has lost its runs."""

_metadata = MetaData()
TABLES: Final = Tables("servers of durable runs", 1, _metadata)
servers = Table(
    "patchbay_servers",
    _metadata,
    Column("id", Text, primary_key=True),
    Column("address", Text, nullable=False),
    Column("seen_at", Float, nullable=False),  # seconds since the epoch, by the database's clock
)


class Servers:
    """The rows of all processes in ``database``, one of them that of the process ``own_id``."""

    def __init__(self, database: Database, own_id: str, address: str) -> None:
        self._database = database
        self._own = {"id": own_id, "address": address}
        self._last = -GONE
        clock = "extract(epoch from clock_timestamp())" if database.is_postgres else "(julianday('now') - 2440587.5) * 86400.0"
        self._now: sa.ColumnElement[float] = sa.cast(sa.literal_column(clock), Float)

    def beat(self, *, deletes: bool = False) -> bool:
        """Write the own row; ``deletes`` those of processes that are gone. Returns False if the own one had been deleted.

        After the database was away no row is fresh: nothing is deleted until the others have had the time to write theirs.
        """
        is_regular = time.monotonic() - self._last < GONE / 2

        def work(connection: Connection) -> bool:
            own = sa.update(servers).where(servers.c.id == self._own["id"]).values(seen_at=self._now)
            was_there = connection.execute(own).rowcount > 0
            if not was_there:
                connection.execute(sa.insert(servers).values(**self._own, seen_at=self._now))
            if deletes and is_regular:
                connection.execute(sa.delete(servers).where(servers.c.seen_at < self._now - GONE))
            return was_there

        was_there = self._database.write_from_thread(work)
        self._last = time.monotonic()
        return was_there

    def living(self) -> set[str]:
        """Return the ids of the processes that have a row."""
        return self._database.read_from_thread(lambda connection: set(connection.execute(sa.select(servers.c.id)).scalars()))

    def leave(self) -> None:
        """Delete the own row: the runs that were not ended are free."""
        own = sa.delete(servers).where(servers.c.id == self._own["id"])
        self._database.write_from_thread(lambda connection: connection.execute(own))
