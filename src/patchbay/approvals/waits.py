"""Which requests runs of this program wait for, how they are woken, and that others who use the database are told of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from patchbay.approvals.store import ApprovalStore

BEAT: Final = 1.0
"""Seconds after which a program says again for which requests its runs wait."""

_logger = logging.getLogger(__name__)


class Waits:
    """The requests that runs wait for, each with the event that wakes its run. ``store`` is told while there are any."""

    def __init__(self, store: ApprovalStore) -> None:
        self._store = store
        self._events: dict[str, asyncio.Event] = {}
        self._saying: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[str]:
        return iter(self._events)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._events

    def __getitem__(self, request_id: str) -> asyncio.Event:
        return self._events[request_id]

    def begin(self, request_id: str) -> None:
        """A run waits for this request from now on."""
        self._events[request_id] = asyncio.Event()
        if self._saying is None and self._store.is_shared:
            self._saying = asyncio.get_running_loop().create_task(self._say())

    def end(self, request_id: str) -> None:
        """It does not any more, if it did."""
        self._events.pop(request_id, None)
        if not self._events and self._saying is not None:
            self._saying.cancel()
            self._saying = None

    def wake(self, request_id: str | None = None) -> None:
        """Have the run look that waits for this request, or all of them."""
        for each, event in self._events.items():
            if request_id is None or each == request_id:
                event.set()

    async def aclose(self) -> None:
        """Let all runs look, and say no more that they wait."""
        self.wake()
        saying, self._saying = self._saying, None
        if saying is not None:
            saying.cancel()
            await asyncio.wait([saying])

    async def _say(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            try:
                await self._store.still_waiting(tuple(self._events))
            except Exception:
                _logger.warning("What waits for approval could not be told to others who use the database", exc_info=True)
