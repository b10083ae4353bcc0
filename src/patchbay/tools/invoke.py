"""A Python callable called for a tool: on the loop or in a thread, and whatever it gives back read to its end.

What lives here: how a handler is run. What does not: which arguments it gets (``function``, ``definition``), and deadlines.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncIterator, Callable
from typing import Any

from patchbay.tools.threads import run_in_thread


async def invoke(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, in_thread: bool) -> Any:
    """Call ``function``, in a thread if it may block; awaitables are awaited, generators are read to their end."""
    if in_thread:
        result = await run_in_thread(functools.partial(_call, function, args, kwargs))
    else:
        result = function(*args, **kwargs)
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, AsyncIterator):
        return [item async for item in result]
    return result


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling ``function`` only makes a coroutine or an async generator, so that it needs no thread."""
    # Not unwrapped: a decorator may well make a blocking function of an async one.
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    call = target if inspect.isroutine(target) else getattr(target, "__call__", target)  # noqa: B004  (the attribute)
    return inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call in the thread; a generator's body runs while it is read, so it is read here too."""
    result = function(*args, **kwargs)
    return list(result) if isinstance(result, types.GeneratorType) else result
