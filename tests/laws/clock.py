"""Event loop that advances in single steps, with a manual clock, so that each state can be inspected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class SteppedLoop(asyncio.SelectorEventLoop):
    """``step`` runs what is ready now and nothing that becomes ready by it; ``now`` (seconds) is the time."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__()

    def time(self) -> float:
        return self.now

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.call_soon(self.stop)
            self.run_forever()

    def inside(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` where this loop is the running one."""

        async def call() -> Any:
            return function()

        return self.run_until_complete(call())
