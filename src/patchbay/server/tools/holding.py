"""One server for one store: two would each write down what they know, and lose what the other does.

What lives here: the hold on a store, and the refusal of a second one. What does not: the store
itself (``patchbay.registrations``), which any number of processes may use that know of each other.

It is the kernel's or the database server's lock, and no row or file that says so: it ends with the process, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from patchbay.store import Store

PATIENCE: Final = 1.0
"""Seconds that a process which was just killed may take until its lock is gone."""

_BETWEEN: Final = 0.05
_SERVING: Final = 0x7061746373727672
"""An advisory lock of the database that no other program is likely to take."""


class Hold:
    """The hold of a server on ``store``, from ``take`` to ``release``.

    Of a SQLite file it is a lock on a file beside it (``tools.db-serving``, which stays there); of PostgreSQL a lock that a
    connection of its own holds. A database in memory is nobody else's, and Windows has no such lock.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._file: int | None = None
        self._connection: Connection | None = None

    async def take(self) -> None:
        """Take it. Raises ConfigurationError where another server has it, and where the database cannot be opened."""
        await self._store.read(lambda _connection: None)  # first: it says best why a database cannot be opened
        until = time.monotonic() + PATIENCE
        while not await self._store.run(self._try):
            if time.monotonic() > until:
                await self.release()
                raise ConfigurationError(
                    f"The store {self._store.shown} is in use by another server: stop that one, or give this one its own."
                )
            await asyncio.sleep(_BETWEEN)

    async def release(self) -> None:
        """Let go of it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._connection is not None:
            await self._store.run(self._disconnect)

    def _try(self) -> bool:
        if self._store.is_postgres:
            return self._try_postgres()
        return self._store.file is None or self._try_file(self._store.file)

    def _try_file(self, database: Path) -> bool:
        try:
            import fcntl
        except ImportError:
            return True
        if self._file is None:
            path = f"{database.resolve()}-serving"
            try:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise ConfigurationError(f"The file {path} cannot be made: {error.strerror}.") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _try_postgres(self) -> bool:
        import sqlalchemy as sa

        if self._connection is None:
            self._connection = self._store.connect()
        return bool(self._connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_SERVING))))

    def _disconnect(self) -> None:
        import sqlalchemy as sa

        connection, self._connection = self._connection, None
        if connection is None:
            return
        # The server sees a closed connection a moment later; who comes next need not wait for that.
        with contextlib.suppress(sa.exc.DBAPIError):
            connection.scalar(sa.select(sa.func.pg_advisory_unlock_all()))
        with contextlib.suppress(sa.exc.DBAPIError):
            connection.invalidate()  # not back into the pool: there it would go on holding what could not be unlocked
        connection.close()
