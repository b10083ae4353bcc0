"""Notifications of PostgreSQL (LISTEN): how servers that share a database learn of each other's changes at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from patchbay._backoff import Backoff
from patchbay.database import Database

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0
"""Seconds between two attempts to connect."""

_logger = logging.getLogger(__name__)


async def listen(database: Database, channel: str, on_change: Callable[[], object]) -> None:
    """Call ``on_change`` for each notification of ``channel``, and after each new connection, until cancelled.

    For a PostgreSQL database; a server that is away is retried. A notification may be lost: the caller must look by itself from
    time to time.
    """
    import psycopg

    backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
    while True:
        try:
            args, options = database.connect_arguments
            async with await psycopg.AsyncConnection.connect(*args, **options, autocommit=True) as connection:
                await connection.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(channel)))
                backoff.reset()
                on_change()
                async for _notification in connection.notifies():
                    on_change()
        except (psycopg.Error, OSError) as error:
            if not backoff.failures:
                why = " ".join(str(error).split())[:300]
                _logger.warning("Changes of other servers are noticed with a delay: %s", why or type(error).__name__)
        await asyncio.sleep(backoff.fail())
