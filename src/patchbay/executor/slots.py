"""How many calls of one tool run at the same time, in whichever runs they are."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from patchbay.tools import Tool

# The tools whose calls the current code is part of: what a tool's own call leads to must not wait for that call to end.
_inside: ContextVar[tuple[Tool, ...]] = ContextVar("_inside", default=())


class Slots:
    """The places that one call takes while its tool runs: one of its tool's, where that has a limit, and one of its run's."""

    __slots__ = ("_held", "_of_run", "_tool")

    def __init__(self, tool: Tool, of_run: asyncio.Semaphore) -> None:
        self._tool = tool
        self._of_run = of_run
        self._held: list[asyncio.Semaphore] = []

    async def take(self) -> None:
        """Wait until both are free; calls are let in as they came. One that waits for its tool takes no place of the run.

        A call that is made, however indirectly, by a call of the same tool does not wait for a place of the tool.
        """
        if self._tool.max_parallel is not None and not any(self._tool is each for each in _inside.get()):
            await self._take(_semaphore(self._tool, self._tool.max_parallel))
            _inside.set((*_inside.get(), self._tool))
        await self._take(self._of_run)

    def free(self) -> None:
        """Give back what is held; also for a tool that is left to itself, which must not hold up others."""
        while self._held:
            self._held.pop().release()

    async def _take(self, semaphore: asyncio.Semaphore) -> None:
        await semaphore.acquire()
        self._held.append(semaphore)


def _semaphore(tool: Tool, most: int) -> asyncio.Semaphore:
    """The places of a tool, one set for each event loop; they are kept with the tool, and end with it."""
    loop = asyncio.get_running_loop()
    by_loop: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = vars(tool).setdefault("_slots_by_loop", {})
    semaphore = by_loop.get(loop)
    if semaphore is None:
        for other in [each for each in by_loop if each.is_closed()]:
            by_loop.pop(other, None)
        semaphore = by_loop[loop] = asyncio.Semaphore(most)
    return semaphore
