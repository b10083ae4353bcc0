"""Stores the registry's changes, so that a change reported as "stored" survives a restart, and follows those of other servers.

Any number of servers share a PostgreSQL database. A SQLite file has one server, which locks it: the lock is the kernel's, and
ends with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import sqlalchemy as sa

from patchbay._backoff import Backoff
from patchbay.database import Database, reason_of
from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.registrations import CHANNEL, RegistrationStore
from patchbay.server.errors import RegistrationConflictError
from patchbay.tools.registry import Change, ToolRegistry

ACQUIRE_TIMEOUT: Final = 1.0
"""Seconds until the lock of a process that was just killed is gone."""

_POLL_SECONDS: Final = 0.05
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0
"""Seconds between two attempts to connect for notifications."""


class FileLock:
    """The lock of a SQLite file's only server, on a file beside it (``tools.db-serving``, which is kept)."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._descriptor: int | None = None

    async def acquire(self) -> None:
        """Acquire the lock. Raises ConfigurationError where another server has it, or it cannot be made."""
        if (file := self._database.file) is None:
            return
        path = f"{file.resolve()}-serving"
        try:
            descriptor = self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(f"The file {path} cannot be made: {error.strerror}.") from None
        until = time.monotonic() + ACQUIRE_TIMEOUT
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    self.release()
                    raise ConfigurationError(
                        f"The store {self._database.display_url} is in use by another server: stop that one, "
                        "give this one its own, or let both use a PostgreSQL database."
                    ) from None
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


RETRY_SECONDS: Final = 2.0
"""Seconds between retries, and between looks for changes of other servers whose notification was lost."""

SAVE_TIMEOUT: Final = 5.0
"""Seconds for which a caller waits for the store."""

_logger = logging.getLogger(__name__)


class RegistrationWriter:
    """Keeps ``registry`` and ``store`` equal, from ``open`` to ``close``: writes changes, and reads those of other servers.

    Changes that come during a write are written together. ``problem`` is why nothing can be stored at the moment, or None.
    """

    def __init__(self, registry: ToolRegistry, store: RegistrationStore) -> None:
        self.problem: str | None = "the server has not been started"
        self.shared_id = ""
        """The id that servers with one PostgreSQL database have in common; "" for other stores, and before ``open``."""
        self.shared_secret = b""
        """Their secret, for what one signs and another checks; as ``shared_id``."""
        self._registry = registry
        self._store = store
        self._lock = FileLock(store.database)
        self._reported = ""
        self._waiting: dict[asyncio.Future[str | None], frozenset[str]] = {}  # with the names of what they have changed
        self._wakeup: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe = registry.subscribe(self._note)

    async def open(self) -> None:
        """Restore what was stored, and start writing changes.

        Raises ConfigurationError for a SQLite file that another server uses, or a store that cannot be opened.
        """
        database = self._store.database
        try:
            await database.read(lambda _connection: None)  # first: its error says why a database cannot be opened
            await self._lock.acquire()
            if self._store.is_shared:
                self.shared_id, self.shared_secret = await self._store.shared_identity()
            self._registry.restore(await self._store.load())
        except BaseException:
            await self._release()
            raise
        self.problem = None
        self._loop = asyncio.get_running_loop()
        self._wakeup = wakeup = asyncio.Event()
        self._tasks = [self._loop.create_task(self._write(wakeup))]
        if self._store.is_shared:
            self._tasks.append(self._loop.create_task(listen(database, CHANNEL, wakeup.set)))

    @property
    def revision(self) -> int:
        """The number of the last change of a store that servers share."""
        return self._store.revision

    async def close(self) -> None:
        """Write the last changes, and close the store. One that does not respond is waited for SAVE_TIMEOUT, then closed."""
        if self._tasks and (problem := await self.saved()) is not None:
            _logger.warning("The last changes of the tools could not be stored: %s", problem)
        self.problem = "the server is stopping"
        self._unsubscribe()
        tasks, self._tasks, self._loop = self._tasks, [], None
        for task in tasks:
            task.cancel()
        await self._release()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def saved(self, names: Iterable[str] = ()) -> str | None:
        """Wait until all changes so far are written; return None, or why they are not: they will be retried.

        Raises RegistrationConflictError where another server has changed a tool of one of ``names``.
        """
        return await self.saving(names)

    def saving(self, names: Iterable[str] = ()) -> Awaitable[str | None]:
        """As ``saved``, for changes up to this call: not up to the first step of a task that awaits it."""
        if self._loop is None or self._wakeup is None:
            return _finished(self.problem)
        waiting: asyncio.Future[str | None] = self._loop.create_future()
        self._waiting[waiting] = frozenset(names)
        self._wakeup.set()
        return self._wait(waiting)

    async def _wait(self, waiting: asyncio.Future[str | None]) -> str | None:
        try:
            await asyncio.wait([waiting], timeout=SAVE_TIMEOUT)
            if waiting.done():
                return waiting.result()
        finally:
            self._waiting.pop(waiting, None)
            waiting.cancel()
        return self._failed("TimeoutError", f"the store has not answered within {SAVE_TIMEOUT:g} s")

    async def _release(self) -> None:
        await self._store.close()
        self._lock.release()

    def _note(self, change: Change) -> None:
        if not change.keys:
            return
        self._store.mark_unsaved(change.keys)
        if self._loop is not None and self._wakeup is not None:
            self._loop.call_soon_threadsafe(self._wakeup.set)

    async def _write(self, wakeup: asyncio.Event) -> None:
        """Write changes as they come, and read those of other servers."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):  # (wait_for loses a cancellation that comes with the event)
                    await wakeup.wait()
            wakeup.clear()
            waiting, self._waiting = self._waiting, {}
            problem, dropped = await self._try()
            for each, names in [*waiting.items(), *self._waiting.items()]:
                if each.done():
                    continue
                if lost := names & dropped:
                    each.set_exception(RegistrationConflictError(min(lost)))
                elif each in waiting:
                    each.set_result(problem)

    async def _try(self) -> tuple[str | None, frozenset[str]]:
        """Write and read; return None, or why that failed, and the names whose changes were dropped."""
        try:
            dropped = await self._store.exchange(self._registry)
        except (PatchbayError, OSError) as error:
            return self._failed(type(error).__name__, str(error)), frozenset()
        except sa.exc.DBAPIError as error:
            display_url = self._store.database.display_url
            problem = f"the store {display_url} cannot be used: {reason_of(error)[:300]}"
            return self._failed(type(error).__name__, problem), frozenset()
        except Exception as error:
            if self.problem is None:
                _logger.exception("Changes of the tools could not be stored")
            return self._failed(type(error).__name__, f"they could not be stored: {type(error).__name__}"), frozenset()
        if self.problem is not None:
            _logger.warning("The store can be used again")
        self.problem, self._reported = None, ""
        for name in dropped:
            _logger.warning("Dropped a change of the tool %r: another server has changed it meanwhile", name)
        return None, frozenset(dropped)

    def _failed(self, kind: str, problem: str) -> str:
        """Set ``problem``, and log it once per kind."""
        self.problem = problem
        if self._reported != kind:
            self._reported = kind
            _logger.warning("Changes of the tools are not stored, and will be tried again: %s", problem)
        return problem


async def _finished(problem: str | None) -> str | None:
    return problem


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
