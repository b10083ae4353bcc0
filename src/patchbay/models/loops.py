"""One thing per event loop: an asynchronous client keeps connections, and those die with the loop that opened them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

Thing = TypeVar("Thing")


class PerLoop(Generic[Thing]):
    """Makes a thing for each event loop that asks, and forgets it with the loop."""

    def __init__(self, make: Callable[[], Thing]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, Thing] = WeakKeyDictionary()

    def get(self) -> Thing:
        """Return the running loop's."""
        loop = asyncio.get_running_loop()
        thing = self._made.get(loop)
        if thing is None:
            thing = self._made[loop] = self._make()
        return thing

    def take(self) -> Thing | None:
        """Return the running loop's and forget it; None where there is none."""
        return self._made.pop(asyncio.get_running_loop(), None)
