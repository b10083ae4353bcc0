"""Threads for tools that block.

Not ``asyncio.to_thread``: its pool is small and shared, so a few tools that hang would hold up everything
else in the process, and the interpreter could not exit before they end. Here a job never waits for another
one's thread, idle threads are used again, and all are daemons.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from patchbay.tools.results import describe

T = TypeVar("T")

_IDLE_SECONDS = 30.0


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread, with a copy of the caller's context variables, and return what it returns.

    When the caller is cancelled it stops waiting at once; the thread goes on to its end, and what it returns
    is dropped. A KeyboardInterrupt or StopIteration of the work's own is raised as a RuntimeError: here they
    would pass for a Ctrl-C, and for the end of this coroutine.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(value: Any, error: BaseException | None) -> None:
        if not outcome.done():
            outcome.set_result((value, error))

    def job() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = context.run(work)
        except BaseException as raised:  # noqa: BLE001  (it is handed to whoever waits; a thread has nobody else to tell)
            error = raised
        try:
            loop.call_soon_threadsafe(deliver, value, error)
        except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
            pass

    _threads.submit(job)
    value, error = await outcome
    if isinstance(error, KeyboardInterrupt | StopIteration):
        raise RuntimeError(describe(error)) from error  # noqa: TRY004  (no wrong type is meant)
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def start_in_thread(job: Callable[[], None]) -> None:
    """Run ``job`` in a thread, and do not wait for it. It must not raise."""
    _threads.submit(job)


class _Threads:
    """Daemon threads that take jobs; ``_idle`` counts those that wait for one and have not been promised any."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            needs_thread = self._idle == 0
            if not needs_thread:
                self._idle -= 1
        if needs_thread:  # before the job is queued: where no thread can be had, it must not be found by another one later
            threading.Thread(target=self._work, name="patchbay-tool", daemon=True).start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._idle > 0:
                        self._idle -= 1
                        return
                # This thread's place was promised to a job that is about to be queued.
                continue
            job()
            # A finished job's frame would otherwise keep its arguments alive for as long as the thread idles.
            del job
            with self._lock:
                self._idle += 1


def _reset() -> None:
    global _threads  # noqa: PLW0603  (a forked child has none of its parent's threads)
    _threads = _Threads()


_threads = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)
