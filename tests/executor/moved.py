"""Time that tests move on by hand, so that none of them waits for a limit to pass."""

from __future__ import annotations

import asyncio


class MovedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be moved on."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


async def later(seconds: float) -> None:
    """Let so much time have passed, and all that was due by then have happened."""
    asyncio.get_running_loop().ahead += seconds
    for _ in range(20):
        await asyncio.sleep(0)
