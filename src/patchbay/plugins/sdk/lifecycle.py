"""``@lifecycle(id=...)``: what a plugin does when it starts, stops, or is told of something.

What lives here: the decorator, and finding and calling what it marks. What does not: when each is called (``runtime``).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from patchbay.errors import ConfigurationError
from patchbay.plugins.errors import EntryConflictError, PluginError
from patchbay.plugins.sdk.outcome import Err, Ok, unwrap
from patchbay.tools.invoke import invoke, is_async
from patchbay.tools.results import describe

IDS: Final = ("startup", "shutdown", "reload", "freeze", "unfreeze", "config_change")

_MARK: Final = "__patchbay_lifecycle__"
_BY_NAME: Final = {"startup": "on_start", "shutdown": "on_shutdown"}
"""Methods that are hooks by their names, where no other one is marked."""

F = TypeVar("F", bound=Callable[..., Any])


def lifecycle(*, id: str) -> Callable[[F], F]:  # noqa: A002  (the seed's name for it)
    """Mark a method, sync or async, to be called at a turn of the plugin's life.

    ``id`` is "startup" (given ``reason``: "start", "restart" or "reload"), "shutdown" (``reason``: "stop" or "reload"), "reload"
    (before a shutdown that is a reload), "freeze", "unfreeze" or "config_change" (``config`` and ``previous``). A method is given
    those of the keyword arguments that it takes; ``**_`` takes what there is. Raising, and returning an ``Err``, are failures.
    Raises ConfigurationError (a ValueError) for another id.
    """
    if id not in IDS:
        raise ConfigurationError(f"lifecycle id must be one of {', '.join(IDS)}; not {id!r}.")

    def mark(method: F) -> F:
        target: Any = getattr(method, "__func__", method)
        if not inspect.isroutine(target):
            raise TypeError(f"@lifecycle marks methods, not {type(method).__name__}.")
        setattr(target, _MARK, id)
        return method

    return mark


def hooks_of(plugin_class: type) -> dict[str, str]:
    """Return the names of a class's hooks by their ids. Raises EntryConflictError where two methods have the same id."""
    found: dict[str, str] = {}
    for name, function in functions_of(plugin_class):
        id_ = getattr(function, _MARK, None)
        if id_ is None:
            continue
        if id_ in found:
            raise EntryConflictError(id_, what="lifecycle hook")
        found[id_] = name
    for id_, name in _BY_NAME.items():
        if id_ not in found and callable(getattr(plugin_class, name, None)):
            found[id_] = name
    return found


def functions_of(plugin_class: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions behind a class's methods, in the order of their names, without running any property."""
    for name in sorted(dir(plugin_class)):
        member = inspect.getattr_static(plugin_class, name)
        function = getattr(member, "__func__", member)
        if inspect.isroutine(function):
            yield name, function


async def call_hook(hook: Callable[..., Any], **about: Any) -> Any:
    """Call a hook with what it takes of ``about``, and return what it gave.

    Raises the Exception that it raises, PluginError for what is none (a SystemExit), and an Err's error.
    """
    taken = {name: value for name, value in about.items() if _takes(hook, name)}
    try:
        outcome = await invoke(hook, (), taken, in_thread=not is_async(hook))
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        # The hook's own. Out of a task it would end the event loop, or pass for a cancellation of whoever waits.
        raise PluginError(describe(error)) from error
    while isinstance(outcome, Ok | Err):
        outcome = unwrap(outcome)
    return outcome


def _takes(hook: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(hook).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return True
    parameter = parameters.get(name)
    return parameter is not None and parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL)
