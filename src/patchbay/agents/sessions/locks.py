"""Locks by key that any event loop of the process may wait for, first come first served.

Not ``asyncio.Lock``: it belongs to one loop, and one service may be used from several (``asyncio.run`` twice, ``run_sync``).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Hashable

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Held:
    """One lock for the length of a block. A class, since a generator would cost three times as much."""

    __slots__ = ("_key", "_locks")

    def __init__(self, locks: RunLocks, key: Hashable) -> None:
        self._locks = locks
        self._key = key

    async def __aenter__(self) -> None:
        await self._locks.acquire(self._key)

    async def __aexit__(self, *_: object) -> None:
        self._locks.release(self._key)


class RunLocks:
    """One lock for each key that is in use."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queues: dict[Hashable, deque[_Waiter]] = {}  # held keys, with those who wait

    def hold(self, key: Hashable) -> Held:
        """Return what waits for the lock of ``key`` and holds it for the length of an ``async with`` block."""
        return Held(self, key)

    async def acquire(self, key: Hashable) -> None:
        """Wait for the lock of ``key``; every one that is got must be released."""
        with self._guard:
            queue = self._queues.get(key)
            if queue is None:
                self._queues[key] = deque()
                return
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[None] = loop.create_future()
            queue.append((loop, turn))
        try:
            await turn
        except BaseException:
            with self._guard:
                waiting = (loop, turn) in queue
                if waiting:
                    queue.remove((loop, turn))
            if not waiting:
                self.release(key)  # the turn had been handed over just as the waiter gave up
            raise

    def release(self, key: Hashable) -> None:
        """Hand the lock over to the first who waits, if anybody does."""
        with self._guard:
            queue = self._queues[key]
            while queue:
                loop, turn = queue.popleft()
                try:
                    loop.call_soon_threadsafe(_wake, turn)
                except RuntimeError:  # its loop was closed while it waited
                    continue
                return
            del self._queues[key]


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
