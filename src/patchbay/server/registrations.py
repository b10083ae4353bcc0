"""Stores the registry's changes, so that a change reported as "stored" survives a restart; and the lock on the store.

The lock is the kernel's or the database server's, and ends with the process. In PostgreSQL it ends with its session too (a
restart, a failover, ``pg_terminate_backend``), so everything is written on the session that holds it: every commit there was made
under the lock, and later writes fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa

from patchbay.database import DatabaseFileLostError
from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.registrations import RegistrationStore, serving
from patchbay.tools.registry import Change, Key, ToolRegistry

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from patchbay.database import Database

T = TypeVar("T")

ACQUIRE_TIMEOUT: Final = 1.0
"""Seconds until the lock of a process that was just killed is gone."""

_POLL_SECONDS: Final = 0.05
_SERVER_LOCK: Final = 0x7061746373727672
"""The key of the advisory lock."""


class StoreInUseError(ConfigurationError):
    """Another server uses the store."""


class StoreLockLostError(ConfigurationError):
    """The session that held the lock has ended."""


class StoreLock:
    """Exclusive lock: only one server may use ``store``, from ``acquire`` to ``release``.

    For SQLite it is a lock on a file beside the database (``tools.db-serving``, which is kept); for PostgreSQL an advisory lock
    of a session of its own, on which ``write`` writes. A database in memory needs none.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._server = uuid.uuid4().hex
        self._file: int | None = None
        self._connection: Connection | None = None
        self._was_last_holder = False
        self.is_held = False
        """Whether it was held when it was last used."""

    async def acquire(self) -> None:
        """Acquire the lock. Raises StoreInUseError, and ConfigurationError where the store cannot be opened."""
        await self._database.read(lambda _connection: None)  # first: its error says why a database cannot be opened
        until = time.monotonic() + ACQUIRE_TIMEOUT
        while not await self._database.run(self._try):
            if time.monotonic() > until:
                await self.release()
                raise StoreInUseError(
                    f"The store {self._database.display_url} is in use by another server: stop that one, "
                    "or give this one its own."
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def reacquire(self) -> bool:
        """Acquire a lost lock again; return whether no other server held it meanwhile. Raises StoreInUseError, DBAPIError."""
        if not await self._database.run(self._try):
            raise StoreInUseError(
                f"the store {self._database.display_url} is in use by another server since the connection was lost"
            )
        return self._was_last_holder

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction under the lock. Raises StoreLockLostError, and what the database raises.

        One call at a time.
        """
        if not self._database.is_postgres:
            return await self._database.write(work, exclusive=True)
        return await self._database.run(lambda: self._write(work))

    async def check(self) -> None:
        """Raise what ``write`` would."""
        await self.write(lambda connection: connection.scalar(sa.select(1)))

    def abort(self) -> None:
        """Shut down the session's socket, from any thread: a pending query fails."""
        connection = self._connection
        if connection is not None and not connection.invalidated:
            driver: Any = connection.connection.driver_connection
            with contextlib.suppress(Exception), socket.fromfd(driver.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
                end.shutdown(socket.SHUT_RDWR)

    async def release(self) -> None:
        """Release the lock."""
        self.is_held = False
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._connection is not None:
            await self._database.run(self._disconnect)

    def _try(self) -> bool:
        if self._database.is_postgres:
            self.is_held = self._try_postgres()
        else:
            self.is_held = self._database.file is None or self._try_file(self._database.file)
        return self.is_held

    def _try_file(self, database: Path) -> bool:
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
        if self._connection is None:
            self._connection = self._database.connect()

        def lock(connection: Connection) -> bool:
            if not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_SERVER_LOCK))):
                return False
            self._was_last_holder = connection.scalar(sa.select(serving.c.server)) == self._server
            if not self._was_last_holder:
                connection.execute(serving.delete())
                connection.execute(serving.insert().values(one=1, server=self._server))
            return True

        return self._transaction(lock)

    def _write(self, work: Callable[[Connection], T]) -> T:
        if not self.is_held:
            raise StoreLockLostError(f"the lock on the store {self._database.display_url} is lost")
        return self._transaction(self._database.excluding(work))

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        try:
            connection = self._connected()
            with connection.begin():
                return work(connection)
        finally:
            self._connected()

    def _connected(self) -> Connection:
        """Return the session. Raises StoreLockLostError for one that has ended: a new one would not hold the lock."""
        connection = self._connection
        if connection is None or connection.invalidated:
            self._connection, self.is_held = None, False
            if connection is not None:
                connection.close()
            raise StoreLockLostError(f"the connection to the store {self._database.display_url} is lost")
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        # The server notices a closed connection only a moment later.
        with contextlib.suppress(sa.exc.DBAPIError), connection.begin():
            connection.scalar(sa.select(sa.func.pg_advisory_unlock_all()))
        with contextlib.suppress(sa.exc.DBAPIError):
            connection.invalidate()  # not back into the pool, where it would keep what could not be unlocked
        connection.close()


RETRY_SECONDS: Final = 2.0
"""Seconds between retries, and between checks of the lock."""

SAVE_TIMEOUT: Final = 5.0
"""Seconds for which a caller waits for the store."""

_logger = logging.getLogger(__name__)


class RegistrationWriter:
    """Writes the changes of ``registry`` to ``store``, from ``open`` to ``close``; no other server has the store meanwhile.

    Changes that come during a write are written together. ``problem`` is why nothing can be stored at the moment, or None.
    """

    def __init__(self, registry: ToolRegistry, store: RegistrationStore) -> None:
        self.problem: str | None = "the server has not been started"
        self._registry = registry
        self._store = store
        self._lock = StoreLock(store.database)
        self._reported = ""
        self._late: set[Key] = set()  # unsaved, and reported as such: an older change than any of another server with the store
        self._waiting: list[asyncio.Future[str | None]] = []
        self._wakeup: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe = registry.subscribe(self._note)

    async def open(self) -> None:
        """Restore what was stored, and start writing changes.

        Raises ConfigurationError for a store that another server uses, or that cannot be opened.
        """
        try:
            await self._lock.acquire()
            self._registry.restore(await self._store.load())
        except BaseException:
            await self._release()
            raise
        self.problem = None
        self._loop = asyncio.get_running_loop()
        self._wakeup = asyncio.Event()
        self._task = self._loop.create_task(self._write())

    async def close(self) -> None:
        """Write the last changes, and close the store. A store that does not respond is waited for twice SAVE_TIMEOUT."""
        if self._task is not None and (problem := await self.saved()) is not None:
            _logger.warning("The last changes of the tools could not be stored: %s", problem)
        self.problem = "the server is stopping"
        self._unsubscribe()
        task, self._task, self._loop = self._task, None, None
        if task is not None:
            task.cancel()
            if not (await asyncio.wait([task], timeout=SAVE_TIMEOUT))[0]:
                self._lock.abort()
                await asyncio.wait([task])
        await self._release()

    async def saved(self) -> str | None:
        """Wait until all changes so far are written; return None, or why they are not: they will be retried."""
        if self._loop is None or self._wakeup is None:
            return self.problem
        waiting: asyncio.Future[str | None] = self._loop.create_future()
        self._waiting.append(waiting)
        self._wakeup.set()
        await asyncio.wait([waiting], timeout=SAVE_TIMEOUT)
        if waiting.done():
            return waiting.result()
        with contextlib.suppress(ValueError):
            self._waiting.remove(waiting)
        return self._failed("TimeoutError", f"the store has not answered within {SAVE_TIMEOUT:g} s")

    async def _release(self) -> None:
        await self._lock.release()
        await self._store.close()

    def _note(self, change: Change) -> None:
        if not change.keys:
            return
        self._store.mark_unsaved(change.keys)
        if self._loop is not None and self._wakeup is not None:
            self._loop.call_soon_threadsafe(self._wakeup.set)

    async def _write(self) -> None:
        """Write changes as they come, and check the lock from time to time."""
        assert self._wakeup is not None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):  # (wait_for loses a cancellation that comes with the event)
                    await self._wakeup.wait()
            self._wakeup.clear()
            waiting, self._waiting = self._waiting, []
            problem = await self._try()
            for each in waiting:
                if not each.done():
                    each.set_result(problem)

    async def _try(self) -> str | None:
        """Write pending changes; return None, or why that failed."""
        try:
            try:
                if not self._lock.is_held:
                    await self._reacquire()
                await self._save()
            except Exception as error:
                if isinstance(getattr(error, "orig", None), DatabaseFileLostError):
                    self._mark_all()
                    self._store.mark_unsaved(each.key for each in await self._store.load())  # to be removed, of another file
                elif self._lock.is_held:
                    raise
                else:
                    await self._reacquire()
                await self._save()
        except (PatchbayError, OSError) as error:
            return self._failed(type(error).__name__, str(error))
        except sa.exc.DBAPIError as error:
            reason = " ".join(str(error.orig).split())[:300]
            return self._failed(type(error).__name__, f"the store {self._store.database.display_url} cannot be used: {reason}")
        except Exception as error:
            if self.problem is None:
                _logger.exception("Changes of the tools could not be stored")
            return self._failed(type(error).__name__, f"they could not be stored: {type(error).__name__}")
        if self.problem is not None:
            _logger.warning("The store can be used again: all changes are stored")
        self.problem, self._reported = None, ""
        self._late.clear()
        return None

    async def _save(self) -> None:
        if self._store.unsaved:
            await self._store.save(self._registry, write=self._lock.write)
        else:
            await self._lock.check()

    async def _reacquire(self) -> None:
        """Reacquire the lost lock. What another server has stored meanwhile wins over what could not be stored here."""
        if await self._lock.reacquire():
            self._mark_all()  # the database may have lost what it had confirmed (a failover)
            return
        try:
            stored = await self._store.load()
        except BaseException:
            await self._lock.release()  # it must not be held without the stored tools
            raise
        registry = self._registry
        unsaved = {key: registry.get(key) for key in self._store.unsaved}
        for each in registry.registrations():
            if each.is_remote:
                registry.unregister(each.name, each.role, inside=True)
        registry.restore(stored)
        for key, change in unsaved.items():
            if change is None and key not in self._late:
                registry.unregister(key.name, key.role, inside=True)
            if change is None or not change.is_remote:
                continue
            if key in self._late or not registry.register(change, trusted=True, secret=change.secret).ok:
                _logger.warning("Dropped the tool %r of %r: another server has had the store", change.name, change.source)

    def _mark_all(self) -> None:
        self._store.mark_unsaved(each.key for each in self._registry.registrations())

    def _failed(self, kind: str, problem: str) -> str:
        """Set ``problem``, and log it once per kind."""
        self.problem = problem
        self._late.update(self._store.unsaved)
        if self._reported != kind:
            self._reported = kind
            _logger.warning("Changes of the tools are not stored, and will be tried again: %s", problem)
        return problem
