"""Time that tests move on by hand, or that passes by itself where all wait: none of them waits for a limit to pass.

And no limit passes because the machine is busy.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ManualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be moved on."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def manual_clock(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in a ManualClockLoop, without a bound of time: that would move with the clock."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=ManualClockLoop) as runner:
            runner.run(test(*arguments, **fixtures))

    return run


async def later(seconds: float) -> None:
    """Advance the clock, and let due timers run."""
    asyncio.get_running_loop().ahead += seconds
    for _ in range(20):
        await asyncio.sleep(0)


class TimeJumpLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while all that runs in it waits: then it is at once the time of the next timer.

    Not for tests in which something beside the loop is waited for, such as a thread: no time passes for that.
    """

    now = 0.0

    def __init__(self) -> None:
        super().__init__(_TimeJumpSelector(self))

    def time(self) -> float:
        return self.now


class _TimeJumpSelector(selectors.DefaultSelector):
    """Does not wait until a timer is due."""

    def __init__(self, loop: TimeJumpLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(timeout and 0)
        if timeout is not None and not events:
            self._loop.now += timeout
        return events


def jump_run(main: Coroutine[Any, Any, T], **options: Any) -> T:
    """Run as ``asyncio.run`` does, in such a loop."""
    with asyncio.Runner(loop_factory=TimeJumpLoop, **options) as runner:
        return runner.run(main)
