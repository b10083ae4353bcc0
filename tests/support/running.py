"""Runs a coroutine of a test that is not itself an ``async def``."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
BOUND = 90.0


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run in a new event loop, within a bound. ``asyncio.run`` is looked up here, as the fixture ``time_jumps`` replaces it."""
    return asyncio.run(asyncio.wait_for(work, BOUND))
