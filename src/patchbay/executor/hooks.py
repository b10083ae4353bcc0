"""Code of the caller's that may answer a call before its tool runs, or change what it returned.

``before(call, tool, arguments, context)`` may change ``arguments`` in place; what it returns, if not None, is the call's value
and the tool is not run (then ``after`` is not asked either). ``after(call, tool, arguments, context, value)`` sees what a tool
returned, as it returned it; what it returns, if not None, stands for it. Neither is asked about calls that failed. Both may be
async. What a hook raises is the failure of the call: a guard that breaks lets nothing through.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from patchbay.errors import ConfigurationError

Hook: TypeAlias = Callable[..., Any]
Hooks: TypeAlias = Hook | Sequence[Hook] | None
"""One hook, or several in the order in which they are asked."""


def as_hooks(given: Hooks, what: str) -> tuple[Hook, ...]:
    """Return the hooks as a tuple. Raises ConfigurationError for what cannot be called."""
    if given is None:
        return ()
    if callable(given):
        return (given,)
    if not isinstance(given, Sequence) or not all(callable(hook) for hook in given):
        raise ConfigurationError(f"{what} must be a function or a list of functions, not {given!r}.")
    return tuple(given)


async def first_answer(hooks: Sequence[Hook], *about: Any) -> Any:
    """Ask each hook until one returns something else than None, and return that."""
    for hook in hooks:
        if (answer := await called(hook, *about)) is not None:
            return answer
    return None


async def passed_through(hooks: Sequence[Hook], *about: Any, value: Any) -> Any:
    """Give ``value`` to each hook, in turn what the one before made of it, and return what comes out."""
    for hook in hooks:
        if (answer := await called(hook, *about, value)) is not None:
            value = answer
    return value


async def called(hook: Hook, *about: Any, **named: Any) -> Any:
    """Call a function, and wait for what it returns if it is async."""
    answer = hook(*about, **named)
    return await answer if inspect.isawaitable(answer) else answer
