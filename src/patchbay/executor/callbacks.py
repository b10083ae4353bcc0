"""The caller's callbacks around a tool: they may answer a call before its tool runs, or change the result.

``before(call, tool, arguments, context)`` is called before all hooks (``patchbay.hooks``). It may change ``arguments`` in place:
they are of the tool's types, or as the model wrote them if invalid, and are checked again afterwards. A return value other than
None is the call's value, and neither the tool nor ``after`` runs.

``after(call, tool, arguments, context, value)`` is a hook of priority 0. It gets the tool's value, and may return another one. It
is not called for failed calls. Both may be async. An exception of a callback fails the call: a broken guard lets nothing through.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from patchbay.hooks import HookManager

Callback: TypeAlias = Callable[..., Any]
Callbacks: TypeAlias = Callback | Sequence[Callback] | None
"""One callback, or several in the order of their calls."""


def as_callbacks(given: Callbacks, what: str) -> tuple[Callback, ...]:
    """Return the callbacks as a tuple. Raises ConfigurationError for anything that is not callable."""
    if given is None:
        return ()
    if callable(given):
        return (given,)
    if not isinstance(given, Sequence) or not all(callable(hook) for hook in given):
        raise ConfigurationError(f"{what} must be a function or a list of functions, not {given!r}.")
    return tuple(given)


def checked_hooks(given: Any) -> HookManager | None:
    """Return the ``hooks`` option. Raises TypeError for anything but a HookManager or None."""
    if given is None:
        return None
    from patchbay.hooks import HookManager

    if not isinstance(given, HookManager):
        raise TypeError(f"hooks must be a HookManager, not {type(given).__name__}.")
    return given


async def first_answer(hooks: Sequence[Callback], *about: Any) -> Any:
    """Call each until one returns something other than None, and return that."""
    for hook in hooks:
        if (answer := await call_and_await(hook, *about)) is not None:
            return answer
    return None


async def call_and_await(hook: Callback, *about: Any, **named: Any) -> Any:
    """Call a function, and await its result if that is awaitable."""
    answer = hook(*about, **named)
    return await answer if inspect.isawaitable(answer) else answer
