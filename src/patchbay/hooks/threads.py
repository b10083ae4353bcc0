"""Hooks whose methods are not async: each call has a thread, and one that does not end is left to itself, and counted."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from types import MethodType
from typing import Any, Final

from patchbay.hooks.bounded import BrokenHookError
from patchbay.hooks.complaints import Complaints
from patchbay.tools.threads import run_in_thread

MOST_ABANDONED: Final = 16
"""How many threads of one hook may be left running; until one of them ends, the hook is not asked any more."""


class _Call:
    """One call of a method in a thread: whether it has ended, and whether somebody still waits for it."""

    __slots__ = ("has_ended", "is_left")

    def __init__(self) -> None:
        self.has_ended = False
        self.is_left = False


class Threads:
    """The threads of one hook whose methods are not async.

    A thread cannot be stopped: one whose hook took too long is left to itself, and counted in ``abandoned`` until it ends.
    """

    __slots__ = ("_complaints", "_lock", "_name", "abandoned")

    def __init__(self, name: str, complaints: Complaints | None = None) -> None:
        self._name = name
        self._complaints = complaints if complaints is not None else Complaints()
        self._lock = threading.Lock()
        self.abandoned = 0

    async def run(self, method: Callable[..., Any], *about: Any) -> Any:
        """Call ``method`` in a thread. Raises BrokenHookError where too many earlier calls have not ended."""
        if self.abandoned >= MOST_ABANDONED:
            raise BrokenHookError(f"{self.abandoned} of its threads were left running, and none of them has ended")
        call = _Call()
        try:
            return await run_in_thread(partial(self._carry_out, call, method, about))
        except asyncio.CancelledError:
            self._leave(call)
            raise

    def _carry_out(self, call: _Call, method: Callable[..., Any], about: tuple[Any, ...]) -> Any:
        try:
            return method(*about)
        finally:
            with self._lock:
                call.has_ended = True
                if call.is_left:
                    self.abandoned -= 1

    def _leave(self, call: _Call) -> None:
        with self._lock:
            if call.has_ended:
                return
            call.is_left = True
            self.abandoned += 1
            count = self.abandoned
        self._complaints.say("The hook %r is left running in its thread; so are %d of its threads", self._name, count)


def asking(method: Callable[..., Any], threads: Threads) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return ``method`` as one that gives a coroutine: one that is not async runs in a thread."""
    function = method.__func__ if isinstance(method, MethodType) else method
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        return method
    if inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None)):  # noqa: B004

        async def awaited(*about: Any) -> Any:
            return await method(*about)

        return awaited

    async def in_thread(*about: Any) -> Any:
        answer = await threads.run(method, *about)
        return await answer if inspect.isawaitable(answer) else answer

    return in_thread
