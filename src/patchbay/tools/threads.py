"""Runs the caller's functions, sync in bounded threads and async on the event loop, and recognises a user's Ctrl-C."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import itertools
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

from patchbay.tools.results import MOST_ITEMS, describe, read_items, too_many_items

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
        except BaseException as raised:  # noqa: BLE001  (it is handed to the waiter)
            error = raised
        try:
            loop.call_soon_threadsafe(deliver, value, error)
        except RuntimeError:  # the loop was closed meanwhile
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
    global _threads  # noqa: PLW0603  (a forked child has no threads of its parent)
    _threads = _Threads()


_threads = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)


async def invoke(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, in_thread: bool) -> Any:
    """Call ``function``, in a thread if it may block; awaitables are awaited, iterators are read to their end.

    When this is cancelled, an iterator in a thread is read no further than to its next item. Raises ValueError for an iterator
    that seems to have no end (``patchbay.tools.results.MOST_ITEMS``).
    """
    if in_thread:
        is_over = threading.Event()
        try:
            result = await run_in_thread(functools.partial(_call, function, args, kwargs, is_over))
        finally:
            is_over.set()
    else:
        result = function(*args, **kwargs)
    while type(result) is not str and inspect.isawaitable(result):  # an async function may return a task
        result = await result
    if type(result) is str:  # most are; what follows would cost as much as the call itself
        return result
    if isinstance(result, AsyncIterator):
        return await _read(result)
    return read_items(result) if isinstance(result, Iterator) else result


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling ``function`` only makes a coroutine or an async generator, so that it needs no thread."""
    # Not unwrapped: a decorator may well make a blocking function of an async one.
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    call = target if inspect.isroutine(target) else getattr(target, "__call__", target)  # noqa: B004  (the attribute)
    return inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], is_over: threading.Event) -> Any:
    """Call in the thread; the body of a generator, or of a ``map``, runs while it is read, so it is read here too."""
    result = function(*args, **kwargs)
    if not isinstance(result, Iterator):
        return result
    return read_items(itertools.takewhile(lambda _: not is_over.is_set(), result))


async def _read(items: AsyncIterator[Any]) -> list[Any]:
    read: list[Any] = []
    async for item in items:
        if len(read) == MOST_ITEMS:
            raise too_many_items()
        read.append(item)
    return read


def is_users_interrupt(error: BaseException) -> bool:
    """Whether this is a Ctrl-C: those reach the main thread only, so in any other a tool or hook raised it by itself."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
