"""Several stores of one process on one PostgreSQL URL share its connections."""

from __future__ import annotations

import asyncio

import sqlalchemy as sa
from sqlalchemy import Connection

from agents.databases import execute
from patchbay.database import Database
from patchbay.database_tables import Tables
from tools_server.rig import poll_until

COUNT = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def wait(connection: Connection) -> None:
    connection.execute(sa.text("SELECT pg_sleep(0.02)"))


def test_stores_of_one_url_share_connections_and_the_last_closes_them(new_postgres: str) -> None:
    async def use() -> None:
        stores = [Database(new_postgres, Tables(f"kind {number}", 1, sa.MetaData())) for number in range(4)]
        await asyncio.gather(*(store.read(wait) for store in stores for _ in range(12)))
        assert 1 < execute(new_postgres, COUNT) <= 8
        for store in stores[:-1]:
            await store.close()
        await stores[-1].read(wait)
        await stores[0].read(wait)  # opened again
        assert execute(new_postgres, COUNT) <= 8
        for store in stores:
            await store.close()
        poll_until(lambda: execute(new_postgres, COUNT) == 0)

    asyncio.run(use())
