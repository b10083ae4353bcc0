"""Writes down what changes in the registry, so that a caller who is told "registered" finds it there after a restart.

What lives here: when it is written. What does not: how (``patchbay.registrations``). Changes that come while one is being
written are written together.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Final

from patchbay.registrations import RegistrationStore
from patchbay.server.tools.holding import Hold
from patchbay.tools.registry import Change, ToolRegistry

AGAIN: Final = 2.0
"""Seconds until what could not be written is tried again."""

_logger = logging.getLogger(__name__)


class Keeper:
    """Keeps ``registry`` in ``store``, from ``open`` to ``close``; no other server has the store meanwhile."""

    def __init__(self, registry: ToolRegistry, store: RegistrationStore) -> None:
        self._registry = registry
        self._store = store
        self._hold = Hold(store.database)
        self._guard = threading.Lock()
        self._changes: list[Change] = []
        self._owes = False
        self._one = asyncio.Lock()
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
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._task = self._loop.create_task(self._write())

    async def close(self) -> None:
        """Write down the last of it, and close the store."""
        self._forget()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._loop = self._task = None
        try:
            await self.flush()
        except Exception:
            _logger.exception("The last changes could not be written down")
        await self._let_go()

    async def _let_go(self) -> None:
        await self._hold.release()
        await self._store.close()

    async def flush(self) -> None:
        """Return when all changes so far have been written down. Raises what kept them from it; they will be tried again."""
        async with self._one:
            with self._guard:
                changes, self._changes = self._changes, []
            if not changes and not self._owes:
                return
            self._owes = True
            await self._store.save(self._registry, *changes)  # which also writes what an earlier one could not
            self._owes = False

    def _note(self, change: Change) -> None:
        if not change.keys:
            return
        with self._guard:
            self._changes.append(change)
        if self._loop is not None and self._news is not None:
            self._loop.call_soon_threadsafe(self._news.set)

    async def _write(self) -> None:
        """Write what nobody waits for: what the lease drops, and what other threads change."""
        assert self._news is not None
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self.flush()
            except Exception:
                _logger.exception("Changes of the tools could not be written down; they will be tried again")
                await asyncio.sleep(AGAIN)
                self._news.set()
