"""What happens, told to observers: in order, one after the other, and without anybody waiting for it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from patchbay.hooks.bounded import within
from patchbay.hooks.views import Event, Meta, copied

if TYPE_CHECKING:
    from patchbay.hooks.chains import Link

BUFFER: Final = 64
"""How many events wait for slow observers; what comes then is dropped, and counted."""

NOTHING: Final[Mapping[str, Any]] = {}

_logger = logging.getLogger(__name__)


class Dispatcher:
    """Hands events to ``observers``, in a task that is there while there are any; ``dropped`` counts those that were too many."""

    def __init__(self) -> None:
        self.observers: Sequence[Link] = ()
        self.dropped = 0
        self._numbers = itertools.count(1)
        self._waiting: list[Event] = []
        self._task: asyncio.Task[None] | None = None
        self._told_of_loss = False

    def tell(
        self,
        kind: str,
        meta: Meta,
        context: Mapping[str, Any],
        payload: Mapping[str, Any],
        *,
        severity: str = "info",
        attrs: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Say that something happened; does nothing where nobody observes. The payload is not to be changed afterwards."""
        if not self.observers:
            return
        if len(self._waiting) >= BUFFER:
            self.dropped += 1
            if not self._told_of_loss:
                self._told_of_loss = True
                _logger.warning("Observers are too slow: events are dropped (told once; Dispatcher.dropped counts them)")
            return
        number = f"evt-{next(self._numbers)}"
        # The turn's own context is what approvers and records see.
        self._waiting.append(Event(number, kind, time.time(), meta, copied(context), severity, payload, {**attrs}))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._hand_out())

    async def flush(self) -> None:
        """Wait until all that was said is handed out."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def aclose(self) -> None:
        """Stop handing out."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _hand_out(self) -> None:
        while self._waiting:
            event = self._waiting.pop(0)
            observers = self.observers
            for each, ask in observers:
                # One observer's changes are not what the next one sees.
                shown = event if len(observers) == 1 else _copy(event)
                try:
                    await within(each.timeouts.observer, ask, shown)
                except Exception as error:  # noqa: BLE001  (an observer's failure is its own)
                    kind = type(error).__name__
                    words = "The observer %r failed on %s: %s: %s"
                    each.complaints.say(words, each.name, event.kind, kind, error, kind=f"{event.kind} {kind}")


def _copy(event: Event) -> Event:
    return replace(event, context=copied(event.context), payload=copied(event.payload), attrs=copied(event.attrs))
