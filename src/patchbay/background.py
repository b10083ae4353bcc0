"""One event loop in a background thread, for sync callers, also inside of another event loop.

Not ``asyncio.run``, which creates a loop for every call: an async client's pooled connections die with their loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` in the background loop, with this thread's context variables, and wait for its result.

    If the wait is interrupted (Ctrl-C), the work is cancelled and awaited first.
    """
    loop = _background_loop()
    if _running_loop() is loop:
        work.close()
        raise RuntimeError("This would wait for itself: it was called from a task of the background loop. Await the async form.")
    guarded = _guarded(work)
    future: concurrent.futures.Future[T | _Exit] | None = None
    try:
        future = asyncio.run_coroutine_threadsafe(guarded, loop)
        result = future.result()
    except BaseException:
        if future is None or not future.done():
            _stop(guarded, loop)
            work.close()  # if it had not begun
        raise
    if isinstance(result, _Exit):
        raise result.error
    return result


@dataclass(frozen=True)
class _Exit:
    """An exception that would end the background loop if it were raised there."""

    error: BaseException


async def _guarded(work: Coroutine[Any, Any, T]) -> T | _Exit:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        return _Exit(error)


def _stop(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the task and wait until it has ended: the future is "cancelled" before its task is."""
    ended = threading.Event()

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            if task.get_coro() is work:
                task.add_done_callback(lambda _task: ended.set())
                task.cancel()
                return
        ended.set()

    # Runs after the callback that creates the task, even if the interrupt came before we had its future.
    loop.call_soon_threadsafe(cancel)
    ended.wait()
    work.close()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _background_loop() -> asyncio.AbstractEventLoop:
    global _loop  # noqa: PLW0603  (one for the process)
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="patchbay-background", daemon=True).start()
        return _loop


def _forget() -> None:
    # A forked child has the loop but not the thread that runs it.
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
