"""A Python callable called for a tool: on the loop or in a thread, and whatever it gives back read to its end.

What lives here: how a handler is run. What does not: which arguments it gets (``function``, ``definition``), and deadlines.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from patchbay.tools import results
from patchbay.tools.threads import run_in_thread


async def invoke(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, in_thread: bool) -> Any:
    """Call ``function``, in a thread if it may block; awaitables are awaited, iterators are read to their end.

    When this is cancelled, an iterator in a thread is read no further than to its next item. Raises ValueError for an iterator
    that seems to have no end (``results.MOST_ITEMS``).
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
    return results.read_items(result) if isinstance(result, Iterator) else result


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
    return results.read_items(itertools.takewhile(lambda _: not is_over.is_set(), result))


async def _read(items: AsyncIterator[Any]) -> list[Any]:
    read: list[Any] = []
    async for item in items:
        if len(read) == results.MOST_ITEMS:
            raise results.too_many_items()
        read.append(item)
    return read
