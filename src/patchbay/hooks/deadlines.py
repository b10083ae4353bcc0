"""Run one method of a hook under a deadline: coroutines, threads, cancellation, and rate-limited warnings."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from types import MethodType
from typing import Any, Final

from patchbay.tools.results import describe
from patchbay.tools.threads import is_users_interrupt, run_in_thread

MAX_ABANDONED_THREADS: Final = 16
"""Maximum abandoned threads of one hook; until one of them ends, the hook is not called."""

MAX_WARNING_KINDS: Final = 50
"""Maximum kinds of warnings that are counted separately: a hook's output can create new ones without end."""

_logger = logging.getLogger("patchbay.hooks")


class HookWarnings:
    """Warnings about one hook: each kind is logged the first, tenth, hundredth, ... time."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def warn(self, message: str, *args: Any, kind: str = "", error: Exception | None = None) -> None:
        """Log ``message`` if it is due. Messages with the same text and ``kind`` count as one; ``error`` adds a traceback."""
        kind = f"{message} {kind}"
        if kind not in self.counts and len(self.counts) >= MAX_WARNING_KINDS:
            kind = "others"
        self.counts[kind] += 1
        count = self.counts[kind]
        if str(count).rstrip("0") != "1":
            return
        if count > 1:
            message, args = f"{message} (%d times by now)", (*args, count)
        _logger.log(logging.WARNING if error is None else logging.ERROR, message, *args, exc_info=error)


class HookTimeoutError(TimeoutError):
    """A hook exceeded its timeout (``limit``, in seconds)."""

    def __init__(self, limit: float) -> None:
        super().__init__(f"no answer within {limit:g} s")
        self.limit = limit


class HookBrokenError(RuntimeError):
    """A hook raised SystemExit, a cancellation or the like; it counts as a failure of the hook and does not end the turn."""


async def call_within(limit: float, method: Callable[..., Coroutine[Any, Any, Any]], view: Any) -> Any:
    """Return a hook's answer. Raises HookTimeoutError after ``limit`` seconds, and what the hook raises.

    A cancellation from outside always wins: what the hook returns or raises instead is dropped. A hook that ignores a
    cancellation holds up its turn; where a tool call waits for it, the executor leaves both running (``cancel_grace``).
    """
    task: Any = asyncio.current_task()
    before = task.cancelling()
    scope = asyncio.timeout(limit)
    failure: BaseException | None = None
    answer = None
    try:
        async with scope:
            answer = await method(view)
    except BaseException as error:  # noqa: BLE001  (inspected below)
        failure = error
    if failure is not None and is_users_interrupt(failure):
        raise failure
    if task.cancelling() > before:
        raise asyncio.CancelledError from failure
    if scope.expired():
        raise HookTimeoutError(limit) from failure
    if failure is not None:
        raise failure if isinstance(failure, Exception) else HookBrokenError(describe(failure)) from failure
    return answer


class _ThreadCall:
    """One call of a method in a thread."""

    __slots__ = ("has_ended", "is_abandoned")

    def __init__(self) -> None:
        self.has_ended = False
        self.is_abandoned = False


class HookThreads:
    """The threads of one hook whose methods are not async.

    A thread cannot be stopped: one whose hook took too long is abandoned, and counted in ``abandoned`` until it ends.
    """

    __slots__ = ("_lock", "_name", "_warnings", "abandoned")

    def __init__(self, name: str, warnings: HookWarnings | None = None) -> None:
        self._name = name
        self._warnings = warnings if warnings is not None else HookWarnings()
        self._lock = threading.Lock()
        self.abandoned = 0

    async def run(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call ``method`` in a thread. Raises HookBrokenError while too many threads are abandoned."""
        if self.abandoned >= MAX_ABANDONED_THREADS:
            raise HookBrokenError(f"{self.abandoned} of its threads were left running, and none of them has ended")
        call = _ThreadCall()
        try:
            return await run_in_thread(partial(self._run_call, call, method, args))
        except asyncio.CancelledError:
            self._abandon(call)
            raise

    def _run_call(self, call: _ThreadCall, method: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return method(*args)
        finally:
            with self._lock:
                call.has_ended = True
                if call.is_abandoned:
                    self.abandoned -= 1

    def _abandon(self, call: _ThreadCall) -> None:
        with self._lock:
            if call.has_ended:
                return
            call.is_abandoned = True
            self.abandoned += 1
            count = self.abandoned
        self._warnings.warn("The hook %r is left running in its thread; so are %d of its threads", self._name, count)


def as_coroutine_function(method: Callable[..., Any], threads: HookThreads) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return ``method`` as a function that returns a coroutine; a method that is not async runs in a thread."""
    function = method.__func__ if isinstance(method, MethodType) else method
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        return method
    if inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None)):  # noqa: B004

        async def awaited(*args: Any) -> Any:
            return await method(*args)

        return awaited

    async def in_thread(*args: Any) -> Any:
        answer = await threads.run(method, *args)
        return await answer if inspect.isawaitable(answer) else answer

    return in_thread
