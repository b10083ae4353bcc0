"""Writes down what changes in the registry, so that a caller who is told "stored" finds it there after a restart.

What lives here: when it is written, and what is said where it cannot be. What does not: how (``patchbay.registrations``). Changes
that come while one is being written are written together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Final

import sqlalchemy as sa

from patchbay.errors import PatchbayError
from patchbay.registrations import RegistrationStore
from patchbay.server.tools.holding import Hold
from patchbay.tools.registry import Change, ToolRegistry

AGAIN: Final = 2.0
"""Seconds until what could not be written is tried again, and from one look at the lock to the next."""

DEADLINE: Final = 5.0
"""Seconds that a caller waits for the store."""

_logger = logging.getLogger(__name__)


class Keeper:
    """Keeps ``registry`` in ``store``, from ``open`` to ``close``; no other server has the store meanwhile.

    ``problem`` is why nothing can be stored at the moment, None where it can.
    """

    def __init__(self, registry: ToolRegistry, store: RegistrationStore) -> None:
        self.problem: str | None = "the server has not been started"
        self._registry = registry
        self._store = store
        self._hold = Hold(store.database)
        self._guard = threading.Lock()
        self._changes: list[Change] = []
        self._owes = False
        self._reported = ""
        self._waiting: list[asyncio.Future[str | None]] = []
        self._news: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._forget = registry.subscribe(self._note)

    async def open(self) -> None:
        """Bring back what was kept, and begin to write down what changes.

        Raises ConfigurationError for a store that another server has, or that cannot be opened.
        """
        try:
            await self._hold.take()
            self._registry.restore(await self._store.load())
        except BaseException:
            await self._let_go()
            raise
        self.problem = None
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._task = self._loop.create_task(self._write())

    async def close(self) -> None:
        """Write down the last of it, and close the store. A store that does not answer is waited for twice DEADLINE."""
        if self._task is not None and (problem := await self.saved()) is not None:
            _logger.warning("The last changes of the tools could not be written down: %s", problem)
        self.problem = "the server is stopping"
        self._forget()
        task, self._task, self._loop = self._task, None, None
        if task is not None:
            task.cancel()
            if not (await asyncio.wait([task], timeout=DEADLINE))[0]:
                self._hold.abort()
                await asyncio.wait([task])
        await self._let_go()

    async def saved(self) -> str | None:
        """Wait until all changes so far have been written down; return None, or why they are not: they will be tried again."""
        if self._loop is None or self._news is None:
            return self.problem
        waiting: asyncio.Future[str | None] = self._loop.create_future()
        self._waiting.append(waiting)
        self._news.set()
        await asyncio.wait([waiting], timeout=DEADLINE)
        if waiting.done():
            return waiting.result()
        with contextlib.suppress(ValueError):
            self._waiting.remove(waiting)
        return self._failed("TimeoutError", f"the store has not answered within {DEADLINE:g} s")

    async def _let_go(self) -> None:
        await self._hold.release()
        await self._store.close()

    def _note(self, change: Change) -> None:
        if not change.keys:
            return
        with self._guard:
            self._changes.append(change)
        if self._loop is not None and self._news is not None:
            self._loop.call_soon_threadsafe(self._news.set)

    async def _write(self) -> None:
        """Write what has changed, and look at the lock from time to time."""
        assert self._news is not None
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), AGAIN)
            self._news.clear()
            waiting, self._waiting = self._waiting, []
            problem = await self._try()
            for each in waiting:
                if not each.done():
                    each.set_result(problem)

    async def _try(self) -> str | None:
        """Write what is owed; return None, or why that could not be."""
        try:
            try:
                if not self._hold.is_held:
                    await self._take_again()
                await self._save()
            except Exception:
                if self._hold.is_held:
                    raise
                await self._take_again()
                await self._save()
        except (PatchbayError, OSError) as error:
            return self._failed(type(error).__name__, str(error))
        except sa.exc.DBAPIError as error:
            said = " ".join(str(error.orig).split())[:300]
            return self._failed(type(error).__name__, f"the store {self._store.database.shown} cannot be used: {said}")
        except Exception as error:
            if self.problem is None:
                _logger.exception("Changes of the tools could not be written down")
            return self._failed(type(error).__name__, f"they could not be written down: {type(error).__name__}")
        if self.problem is not None:
            _logger.warning("The store can be used again: what has changed is stored")
        self.problem, self._reported = None, ""
        return None

    async def _save(self) -> None:
        with self._guard:
            changes, self._changes = self._changes, []
        if not changes and not self._owes:
            await self._hold.check()
            return
        self._owes = True
        await self._store.save(self._registry, *changes, write=self._hold.write)  # also what an earlier one could not write
        self._owes = False

    async def _take_again(self) -> None:
        """Take the lost lock again. What another server has stored meanwhile comes before what is unsaved here."""
        with self._guard:
            self._store.owe(key for change in self._changes for key in change.keys)
            self._changes, self._owes = [], True
        if await self._hold.take_again():
            # The database may have lost what it had confirmed (a failover): all is written again.
            self._store.owe(each.key for each in self._registry.registrations())
            return
        try:
            stored = await self._store.load()
        except BaseException:
            await self._hold.release()  # not without what is stored
            raise
        unsaved = [each for key in self._store.owed() if (each := self._registry.get(key)) is not None and each.is_remote]
        for each in self._registry.registrations():
            if each.is_remote:
                self._registry.unregister(each.name, each.role, inside=True)
        self._registry.restore(stored)
        for each in unsaved:
            if not self._registry.register(each, trusted=True, secret=each.secret).ok:
                _logger.warning("Dropped the tool %r of %r: another server has stored one of that name", each.name, each.source)

    def _failed(self, kind: str, problem: str) -> str:
        """Note, and log once for each kind, why nothing can be stored."""
        self.problem = problem
        if self._reported != kind:
            self._reported = kind
            _logger.warning("Changes of the tools are not stored, and will be tried again: %s", problem)
        return problem
