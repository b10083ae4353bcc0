"""Locks by number among all processes that share a database, fair within each, and released when their process dies.

They are locks of the kernel or the database server, not rows with an expiry: after a kill -9 the next run need not wait, and a
slow run does not lose its lock.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from patchbay._backoff import Backoff
from patchbay.agents.sessions.base import RunLocks
from patchbay.database import Database

if sys.platform != "win32":
    import fcntl


_FIRST_DELAY, _LONGEST_DELAY = 0.002, 0.1
"""Seconds between two attempts to get a lock that another process holds."""


def lock_number(*names: str) -> int:
    """Return a number (62 bits) for these names, the same in every process."""
    return int.from_bytes(hashlib.blake2b(json.dumps(names).encode(), digest_size=8).digest()) >> 2


async def _retry(attempt: Callable[[], Awaitable[bool]]) -> None:
    backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
    while not await attempt():
        delay = backoff.fail()
        await asyncio.sleep(delay)


class FileLocks:
    """For a SQLite file: locks of single bytes of a file beside it; without such locks (Windows), for this process only."""

    def __init__(self, database: Path) -> None:
        self._path = Path(f"{database}-lock")

    @asynccontextmanager
    async def hold(self, number: int) -> AsyncIterator[None]:
        """Hold the lock within the block."""
        file = _LockFile.opened(self._path)
        try:
            async with file.locks.hold(number):
                await _retry(lambda: file.try_lock(number))
                try:
                    yield
                finally:
                    file.unlock(number)
        finally:
            file.close()

    async def close(self) -> None:
        """Do nothing: without a lock no file is open."""


@dataclass
class _LockFile:
    """A lock file, opened once per process: to the kernel all locks of a process have one holder."""

    path: Path
    descriptor: int
    users: int = 0
    locks: RunLocks = field(default_factory=RunLocks)

    @classmethod
    def opened(cls, path: Path) -> _LockFile:
        path = path.resolve()
        with _guard:
            file = _files.get(path)
            if file is None:
                file = _files[path] = cls(path, os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            file.users += 1
            return file

    def close(self) -> None:
        with _guard:
            self.users -= 1
            if not self.users:
                os.close(self.descriptor)
                if _files.get(self.path) is self:
                    del _files[self.path]

    async def try_lock(self, number: int) -> bool:
        if sys.platform == "win32":
            return True
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except BlockingIOError:
            return False
        return True

    def unlock(self, number: int) -> None:
        if sys.platform != "win32":
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, number)


_files: dict[Path, _LockFile] = {}
_guard = threading.Lock()


def _forget() -> None:
    # A forked child has its parent's descriptors, but none of its locks.
    global _guard  # noqa: PLW0603
    _guard = threading.Lock()
    _files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class AdvisoryLocks:
    """For PostgreSQL: advisory locks of one connection. If that breaks, the server releases them."""

    def __init__(self, store: Database) -> None:
        self._store = store
        self._locks = RunLocks()
        self._guard = threading.Lock()
        self._lock_connection: sa.Connection | None = None

    @asynccontextmanager
    async def hold(self, number: int) -> AsyncIterator[None]:
        """Hold the lock within the block."""
        async with self._locks.hold(number):
            try:
                await _retry(lambda: self._store.run(lambda: self._call("pg_try_advisory_lock", number)))
                yield
            finally:
                # Also after a cancelled wait: the lock may just have been acquired.
                await self._store.run(lambda: self._unlock(number))

    async def close(self) -> None:
        """Close the connection."""
        if self._lock_connection is not None:
            await self._store.run(self._close)

    def _call(self, function: str, number: int) -> bool:
        statement = sa.select(getattr(sa.func, function)(number))
        with self._guard:
            try:
                return bool(self._connection().scalar(statement))
            except sa.exc.DBAPIError as error:
                if not error.connection_invalidated:
                    raise
            # It broke while it was idle.
            return bool(self._connection().scalar(statement))

    def _unlock(self, number: int) -> None:
        if self._lock_connection is None:
            return
        try:
            self._call("pg_advisory_unlock", number)
        except sa.exc.DBAPIError:
            self._close()  # closing the connection releases the lock

    def _connection(self) -> sa.Connection:
        if self._lock_connection is not None and self._lock_connection.invalidated:
            self._lock_connection.close()
            self._lock_connection = None
        if self._lock_connection is None:
            # No transaction: an idle one ends after seconds, with its session's locks.
            self._lock_connection = self._store.connect().execution_options(isolation_level="AUTOCOMMIT")
        return self._lock_connection

    def _close(self) -> None:
        with self._guard:
            if self._lock_connection is not None:
                # Not back into the pool, where it would hold its locks.
                self._lock_connection.invalidate()
                self._lock_connection.close()
                self._lock_connection = None
