"""Run one method of a hook under a deadline: coroutines, threads, cancellation, and rate-limited warnings.

The first step of a coroutine runs at once: a hook that answers without waiting costs no timer and no task.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, Final

from patchbay.tools.results import describe
from patchbay.tools.threads import is_async, is_users_interrupt, run_in_thread

GRACE: Final = 5.0
"""Seconds that a cancelled hook may clean up before its coroutine is closed."""

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
    """Return a hook's answer. Raises HookTimeoutError after ``limit`` seconds, and what the hook raises."""
    try:
        started = method(view)
        suspended_on = started.send(None)
    except StopIteration as end:
        return end.value
    except BaseException as error:
        if isinstance(error, Exception) or is_users_interrupt(error):
            raise
        raise _contained(error) from error
    scope = asyncio.timeout(limit)
    try:
        async with scope:
            return await _resume(started, suspended_on)
    except TimeoutError as error:
        if scope.expired():
            raise HookTimeoutError(limit) from error
        raise  # the hook's own


@coroutine
def _resume(suspended: Any, suspended_on: Any) -> Generator[Any, Any, Any]:
    """Continue a coroutine that has run its first step, in the same task.

    An outside cancellation always wins: whatever the hook returns or raises instead is dropped. The hook may clean up for
    ``GRACE`` seconds, then it is closed. Cancellations from inside the hook, such as those of its own timeouts, remain its own.
    """
    cancellation = _Cancellation()
    try:
        while True:
            try:
                sent = yield suspended_on
            except GeneratorExit:
                suspended.close()
                raise
            except asyncio.CancelledError as error:
                cancellation.reason = cancellation.reason or error
                if cancellation.is_overdue:
                    _close(suspended)
                    raise cancellation.reason from None
                step = partial(suspended.throw, error)
            except BaseException as error:  # noqa: BLE001  (handed in, as the event loop would)
                step = partial(suspended.throw, error)
            else:
                step = partial(suspended.send, sent)
            try:
                suspended_on = step()
            except StopIteration as end:
                if (reason := cancellation.in_force()) is not None:
                    raise reason from None
                return end.value
            except BaseException as error:
                if is_users_interrupt(error):
                    raise
                if (reason := cancellation.in_force()) is not None:
                    raise reason from error
                if isinstance(error, Exception):
                    raise
                raise _contained(error) from error
            if cancellation.in_force() is not None:
                cancellation.start_grace()
    finally:
        cancellation.finish()


class _Cancellation:
    """Tracks whether a hook is being cancelled from outside, and its grace period."""

    __slots__ = ("_before", "_task", "_timer", "is_overdue", "reason")

    def __init__(self) -> None:
        task: Any = asyncio.current_task()
        self._task = task
        self._before: int = task.cancelling()
        self._timer: asyncio.TimerHandle | None = None
        self.reason: asyncio.CancelledError | None = None
        self.is_overdue = False

    def in_force(self) -> asyncio.CancelledError | None:
        """Return the outside cancellation, if any. A timeout inside the hook uncancels its own."""
        if self.reason is not None and self._task.cancelling() <= self._before:
            self.reason = None
        return self.reason

    def start_grace(self) -> None:
        """Cancel once more when the grace period is over."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRACE, self._cancel)

    def _cancel(self) -> None:
        self.is_overdue = True
        self._task.cancel()

    def finish(self) -> None:
        """Stop the timer and take back the second cancellation."""
        if self._timer is not None:
            self._timer.cancel()
            if self.is_overdue:
                self._task.uncancel()


def _close(suspended: Any) -> None:
    _logger.warning("A hook ignored its cancellation for %s s and is closed: %r", GRACE, suspended)
    try:
        suspended.close()
    except BaseException as error:
        if is_users_interrupt(error):
            raise


def _contained(error: BaseException) -> Exception:
    """Return an exception that ends only the hook."""
    return error if isinstance(error, Exception) else HookBrokenError(describe(error))


class HookThreads:
    """The threads of one hook whose methods are not async.

    A thread cannot be stopped: one whose hook took too long is abandoned, and counted in ``abandoned`` until it ends.
    """

    __slots__ = ("_left", "_name", "_warnings")

    def __init__(self, name: str, warnings: HookWarnings | None = None) -> None:
        self._name = name
        self._warnings = warnings if warnings is not None else HookWarnings()
        self._left: list[threading.Event] = []

    @property
    def abandoned(self) -> int:
        """Number of abandoned threads that still run."""
        self._left = [ended for ended in self._left if not ended.is_set()]
        return len(self._left)

    async def run(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call ``method`` in a thread. Raises HookBrokenError while too many threads are abandoned."""
        if (abandoned := self.abandoned) >= MAX_ABANDONED_THREADS:
            raise HookBrokenError(f"{abandoned} of its threads were left running, and none of them has ended")
        ended = threading.Event()

        def call() -> Any:
            try:
                return method(*args)
            finally:
                ended.set()

        try:
            return await run_in_thread(call)
        except asyncio.CancelledError:
            if not ended.is_set():
                self._left.append(ended)
                self._warnings.warn(
                    "The hook %r is left running in its thread; so are %d of its threads", self._name, self.abandoned
                )
            raise


def as_coroutine_function(method: Callable[..., Any], threads: HookThreads) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return ``method`` as a function that returns a coroutine; a method that is not async runs in a thread."""
    if is_async(method):

        async def awaited(*args: Any) -> Any:
            return await method(*args)

        return awaited

    async def in_thread(*args: Any) -> Any:
        answer = await threads.run(method, *args)
        return await answer if inspect.isawaitable(answer) else answer

    return in_thread
