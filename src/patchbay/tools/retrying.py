"""A thing that is tried again in the background until it works: after a while, then after longer ones, and not for ever.

What lives here: when it is tried. What does not: what is tried, and whether it has worked (``manager``: telling live sessions).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

DELAYS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0, 30.0, 30.0)
"""Seconds before each attempt: two and a half minutes in all."""

ATTEMPT_SECONDS: Final = 10.0
"""How long one attempt may take."""


class Retrying:
    """Calls ``attempt``, which says whether it has worked and does not raise, after each of ``delays`` (seconds).

    ``given_up`` is called when the last of them has not. It waits without a task, so that an event loop may end at any time.
    """

    def __init__(
        self, attempt: Callable[[], Awaitable[bool]], given_up: Callable[[], object], *, delays: Sequence[float] = DELAYS
    ) -> None:
        self._attempt = attempt
        self._given_up = given_up
        self._delays = delays
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin anew, with the first delay; for a running event loop."""
        self.stop()
        self._plan(0)

    def stop(self) -> None:
        """Try no more, and cancel the attempt that is under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _plan(self, number: int) -> None:
        if number < len(self._delays):
            self._timer = asyncio.get_running_loop().call_later(self._delays[number], self._begin, number)
        else:
            self._given_up()

    def _begin(self, number: int) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._try(number))

    async def _try(self, number: int) -> None:
        worked = False
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                worked = await self._attempt()
        except TimeoutError:
            pass
        self._task = None
        if not worked:
            self._plan(number + 1)
