"""How many calls of one tool run at the same time, in whichever runs they are."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar

from patchbay.tools import Tool

# The tools whose calls the current code is part of: what a tool's own call leads to must not wait for that call to end.
_inside: ContextVar[tuple[Tool, ...]] = ContextVar("_inside", default=())


class Gate:
    """A number of places; whoever finds none waits, and they are let in as they came.

    Not ``asyncio.Semaphore``: to take a place that is free must not cost an await, since nearly all are.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take_now(self) -> bool:
        """Take a place if there is one."""
        if not self._free or self._waiting:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Take a place, as soon as there is one."""
        if self.take_now():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.free()  # it was handed over just as the waiting ended
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def free(self) -> None:
        """Give a place back: to the first who waits, if anybody does."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Slots:
    """The places that one call takes while its tool runs: one of its tool's, where that has a limit, and one of its run's."""

    __slots__ = ("_held", "_of_run", "_tool")

    def __init__(self, tool: Tool, of_run: Gate) -> None:
        self._tool = tool
        self._of_run = of_run
        self._held: list[Gate] = []

    def take_now(self) -> bool:
        """Take both places if that needs no waiting; for a tool without a limit of its own."""
        if self._tool.max_parallel is not None or not self._of_run.take_now():
            return False
        self._held.append(self._of_run)
        return True

    async def take(self) -> None:
        """Wait until both are free; calls are let in as they came. One that waits for its tool takes no place of the run.

        A call that is made, however indirectly, by a call of the same tool does not wait for a place of the tool.
        """
        if self._tool.max_parallel is not None and not any(self._tool is each for each in _inside.get()):
            await self._take(_gate(self._tool, self._tool.max_parallel))
            _inside.set((*_inside.get(), self._tool))
        await self._take(self._of_run)

    def free(self) -> None:
        """Give back what is held; also for a tool that is left to itself, which must not hold up others."""
        while self._held:
            self._held.pop().free()

    async def _take(self, gate: Gate) -> None:
        await gate.take()
        self._held.append(gate)


def _gate(tool: Tool, most: int) -> Gate:
    """The places of a tool, one set for each event loop; they are kept with the tool, and end with it."""
    loop = asyncio.get_running_loop()
    by_loop: dict[asyncio.AbstractEventLoop, Gate] = vars(tool).setdefault("_slots_by_loop", {})
    gate = by_loop.get(loop)
    if gate is None:
        for other in [each for each in list(by_loop) if each.is_closed()]:  # a list: other threads' loops add theirs
            by_loop.pop(other, None)
        gate = by_loop[loop] = Gate(most)
    return gate
