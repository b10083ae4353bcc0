"""Exclusive lock: only one server may use a store. Two would each write down what they know, and lose what the other does.

It is the kernel's or the database server's lock, and no row or file that says so: it ends with the process, however that ends. In
PostgreSQL it ends with its session too (a restart, a failover, ``pg_terminate_backend``). So everything is written on the session
that has the lock: what was committed there was committed under it, and what comes after its end fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from patchbay.errors import ConfigurationError
from patchbay.registrations import serving

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from patchbay.store import Store

T = TypeVar("T")

PATIENCE: Final = 1.0
"""Seconds that a process which was just killed may take until its lock is gone."""

_BETWEEN: Final = 0.05
_SERVING: Final = 0x7061746373727672
"""An advisory lock of the database that no other program is likely to take."""


class StoreInUseError(ConfigurationError):
    """Another server has the store."""


class StoreLockLostError(ConfigurationError):
    """The session that had the lock is over."""


class Hold:
    """The lock of a server on ``store``, from ``take`` to ``release``.

    Of a SQLite file it is a lock on a file beside it (``tools.db-serving``, which stays there); of PostgreSQL a lock that a
    session of its own holds, on which ``write`` writes. A database in memory is nobody else's, and Windows has no such lock.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._server = uuid.uuid4().hex
        self._file: int | None = None
        self._connection: Connection | None = None
        self._is_last = False
        self.is_held = False
        """Whether it was held when it was last used."""

    async def take(self) -> None:
        """Take it. Raises StoreInUseError where another server has it, ConfigurationError where it cannot be opened."""
        await self._store.read(lambda _connection: None)  # first: it says best why a database cannot be opened
        until = time.monotonic() + PATIENCE
        while not await self._store.run(self._try):
            if time.monotonic() > until:
                await self.release()
                raise StoreInUseError(
                    f"The store {self._store.shown} is in use by another server: stop that one, or give this one its own."
                )
            await asyncio.sleep(_BETWEEN)

    async def take_again(self) -> bool:
        """Take it after it was lost; return whether this server was the last that had it. Raises StoreInUseError, DBAPIError."""
        if not await self._store.run(self._try):
            raise StoreInUseError(f"the store {self._store.shown} is in use by another server since this one lost its connection")
        return self._is_last

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction under the lock, and commit it. Raises StoreLockLostError, and what the database raises.

        One call at a time.
        """
        if not self._store.is_postgres:
            return await self._store.write(work)
        return await self._store.run(lambda: self._write(work))

    async def check(self) -> None:
        """Raise what ``write`` would."""
        if self._store.is_postgres:
            import sqlalchemy as sa

            await self.write(lambda connection: connection.scalar(sa.select(1)))

    def abort(self) -> None:
        """Cut the session off, from any thread: what waits for its answer fails."""
        connection = self._connection
        if connection is not None and not connection.invalidated:
            driver: Any = connection.connection.driver_connection
            with contextlib.suppress(Exception), socket.fromfd(driver.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
                end.shutdown(socket.SHUT_RDWR)

    async def release(self) -> None:
        """Let go of it."""
        self.is_held = False
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._connection is not None:
            await self._store.run(self._disconnect)

    def _try(self) -> bool:
        if self._store.is_postgres:
            self.is_held = self._try_postgres()
        else:
            self.is_held = self._store.file is None or self._try_file(self._store.file)
        return self.is_held

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

        def lock(connection: Connection) -> bool:
            if not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_SERVING))):
                return False
            self._is_last = connection.scalar(sa.select(serving.c.server)) == self._server
            if not self._is_last:
                connection.execute(serving.delete())
                connection.execute(serving.insert().values(one=1, server=self._server))
            return True

        return self._transaction(lock)

    def _write(self, work: Callable[[Connection], T]) -> T:
        if not self.is_held:
            raise StoreLockLostError(f"the lock on the store {self._store.shown} is lost")
        return self._transaction(work)

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        try:
            connection = self._connected()
            with connection.begin():
                return work(connection)
        finally:
            self._connected()

    def _connected(self) -> Connection:
        """Return the session. Raises StoreLockLostError for one that has ended: it would connect anew, without the lock."""
        connection = self._connection
        if connection is None or connection.invalidated:
            self._connection, self.is_held = None, False
            if connection is not None:
                connection.close()
            raise StoreLockLostError(f"the connection to the store {self._store.shown} is lost")
        return connection

    def _disconnect(self) -> None:
        import sqlalchemy as sa

        connection, self._connection = self._connection, None
        if connection is None:
            return
        # The server sees a closed connection a moment later; who comes next need not wait for that.
        with contextlib.suppress(sa.exc.DBAPIError), connection.begin():
            connection.scalar(sa.select(sa.func.pg_advisory_unlock_all()))
        with contextlib.suppress(sa.exc.DBAPIError):
            connection.invalidate()  # not back into the pool: there it would go on holding what could not be unlocked
        connection.close()
