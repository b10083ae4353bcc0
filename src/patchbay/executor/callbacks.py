"""Callbacks of the caller's own: they may answer a call before its tool runs, or change what it returned.

Those before a tool are asked before all hooks (``patchbay.hooks``). Those after it are links in the chain of hooks, of priority
0, which are given the objects themselves.

``before(call, tool, arguments, context)`` may change ``arguments`` in place: they are checked and of the tool's types, or what
the model wrote where that does not fit. What it returns, if not None, is the call's value and the tool is not run (then ``after``
is not asked either). What all of them leave of the arguments is checked again. ``after(call, tool, arguments, context, value)``
sees what a tool returned, as it returned it; what it returns, if not None, stands for it; it is not asked about calls that
failed. Both may be async. What a callback raises is the failure of the call: a guard that breaks lets nothing through.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from patchbay.hooks import HookManager, RegisteredHook

Callback: TypeAlias = Callable[..., Any]
Callbacks: TypeAlias = Callback | Sequence[Callback] | None
"""One hook, or several in the order in which they are asked."""


def as_callbacks(given: Callbacks, what: str) -> tuple[Callback, ...]:
    """Return the hooks as a tuple. Raises ConfigurationError for what cannot be called."""
    if given is None:
        return ()
    if callable(given):
        return (given,)
    if not isinstance(given, Sequence) or not all(callable(hook) for hook in given):
        raise ConfigurationError(f"{what} must be a function or a list of functions, not {given!r}.")
    return tuple(given)


def checked_hooks(given: Any) -> HookManager | None:
    """Return what was given as ``hooks``. Raises TypeError for anything but a HookManager."""
    if given is None:
        return None
    from patchbay.hooks import HookManager

    if not isinstance(given, HookManager):
        raise TypeError(f"hooks must be a HookManager, not {type(given).__name__}.")
    return given


def as_links(after: Sequence[Callback]) -> tuple[RegisteredHook, ...]:
    """Return the callbacks after a tool as links of the chain of hooks, in their order."""
    if not after:
        return ()
    from patchbay.hooks import native  # here: most programs have none

    return tuple(
        native(f"callback {number:03}", after_tool=partial(call_and_await, callback)) for number, callback in enumerate(after)
    )


async def first_answer(hooks: Sequence[Callback], *about: Any) -> Any:
    """Ask each hook until one returns something else than None, and return that."""
    for hook in hooks:
        if (answer := await call_and_await(hook, *about)) is not None:
            return answer
    return None


async def call_and_await(hook: Callback, *about: Any, **named: Any) -> Any:
    """Call a function, and wait for what it returns if it is async."""
    answer = hook(*about, **named)
    return await answer if inspect.isawaitable(answer) else answer
