"""Asking a hook: its first step at once, and what it waits for no longer than it may take.

What lives here: the call itself, and what becomes of hooks that do not end when they are told to. What an answer, or none, means
is decided in ``turn``. A hook that answers at once costs no timer and no task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, Final

from patchbay.tools.interrupts import is_users_interrupt
from patchbay.tools.results import describe

GRACE: Final = 5.0
"""Seconds that a hook which was cancelled is waited for before it is closed."""

_logger = logging.getLogger(__name__)


class HookTimeoutError(TimeoutError):
    """A hook took longer than it may (``limit``, in seconds)."""

    def __init__(self, limit: float) -> None:
        super().__init__(f"no answer within {limit:g} s")
        self.limit = limit


class BrokenHookError(RuntimeError):
    """A hook raised what would end the turn, or the program, if it were let through: a cancellation, an exit."""


class Waiting:
    """A hook that has taken its first step and waits for something. It must be awaited (``end``)."""

    __slots__ = ("_begun", "_waits_for")

    def __init__(self, begun: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._begun = begun
        self._waits_for = waits_for

    async def end(self, limit: float) -> Any:
        """Return what the hook comes to. Raises HookTimeoutError after ``limit`` seconds, and what the hook raises."""
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                return await _rest(self._begun, self._waits_for)
        except TimeoutError as error:
            if scope.expired():
                raise HookTimeoutError(limit) from error
            raise  # the hook's own


class Failed:
    """A hook that has raised ``error`` in its first step."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def first_step(ask: Callable[..., Coroutine[Any, Any, Any]], view: Any) -> Any:
    """Ask a hook: return its answer, or that it waits or has failed. Raises nothing but the user's Ctrl-C."""
    try:
        begun = ask(view)
        return Waiting(begun, begun.send(None))
    except StopIteration as end:
        return end.value
    except BaseException as error:  # noqa: BLE001  (looked through there)
        return failed(error)


def failed(error: BaseException) -> Failed:
    """Return what a hook's first step has raised. Raises the user's Ctrl-C."""
    if is_users_interrupt(error):
        raise error
    return Failed(_contained(error))


async def within(limit: float, ask: Callable[..., Coroutine[Any, Any, Any]], view: Any) -> Any:
    """Return what a hook answers. Raises HookTimeoutError after ``limit`` seconds, and what the hook raises."""
    answer = first_step(ask, view)
    if type(answer) is Waiting:
        return await answer.end(limit)
    if type(answer) is Failed:
        raise answer.error
    return answer


@coroutine
def _rest(begun: Any, waits_for: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that has taken its first step, in the task that it began in.

    Whoever cancels this is obeyed: what the hook makes of it, or raises instead, is dropped. It may clean up for ``GRACE``
    seconds; then it is closed. Cancellations of the hook's own making, such as those of a timeout within it, are its own.
    """
    stop = _Stop()
    try:
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                begun.close()
                raise
            except asyncio.CancelledError as error:
                stop.reason = stop.reason or error
                if stop.is_overdue:
                    _close(begun)
                    raise stop.reason from None
                step = partial(begun.throw, error)
            except BaseException as error:  # noqa: BLE001  (handed in, as the event loop would)
                step = partial(begun.throw, error)
            else:
                step = partial(begun.send, sent)
            try:
                waits_for = step()
            except StopIteration as end:
                if (reason := stop.asked_for()) is not None:
                    raise reason from None
                return end.value
            except BaseException as error:
                if is_users_interrupt(error):
                    raise
                if (reason := stop.asked_for()) is not None:
                    raise reason from error
                if isinstance(error, Exception):
                    raise
                raise _contained(error) from error
            if stop.asked_for() is not None:
                stop.set_clock()
    finally:
        stop.end()


class _Stop:
    """Whether a hook is being stopped from outside, and how long it may still clean up."""

    __slots__ = ("_before", "_task", "_timer", "is_overdue", "reason")

    def __init__(self) -> None:
        task: Any = asyncio.current_task()
        self._task = task
        self._before: int = task.cancelling()
        self._timer: asyncio.TimerHandle | None = None
        self.reason: asyncio.CancelledError | None = None
        self.is_overdue = False

    def asked_for(self) -> asyncio.CancelledError | None:
        """Return the cancellation that is in force. A timeout within the hook takes its own back."""
        if self.reason is not None and self._task.cancelling() <= self._before:
            self.reason = None
        return self.reason

    def set_clock(self) -> None:
        """Cancel once more when the time for cleaning up is over."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRACE, self._cancel)

    def _cancel(self) -> None:
        self.is_overdue = True
        self._task.cancel()

    def end(self) -> None:
        """Stop the clock, and take back the cancellation that was ours."""
        if self._timer is not None:
            self._timer.cancel()
            if self.is_overdue:
                self._task.uncancel()


def _close(begun: Any) -> None:
    _logger.warning("A hook ignored its cancellation for %s s and is closed: %r", GRACE, begun)
    try:
        begun.close()
    except BaseException as error:
        if is_users_interrupt(error):
            raise


def _contained(error: BaseException) -> Exception:
    """Return what a hook raised as something that ends nothing but the hook."""
    return error if isinstance(error, Exception) else BrokenHookError(describe(error))
