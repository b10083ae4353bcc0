"""The names for plugin authors: the base class, its configuration and its lifecycle."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, TypeVar

from patchbay.errors import ConfigurationError
from patchbay.plugins.envelope import Err, Ok, unwrap
from patchbay.plugins.errors import EntryConflictError, PluginError
from patchbay.plugins.protocol import DEFAULT_TIMEOUT, Message
from patchbay.plugins.tool_table import LlmToolMeta, ToolState, ToolTable, functions_of, marked_function, tools_of
from patchbay.tools.results import describe
from patchbay.tools.threads import invoke, is_async

_MISSING: Any = object()


class PluginConfig(Mapping[str, Any]):
    """The sections of ``plugin.toml`` that are not the host's, as a read-only mapping.

    ``config["weather"]["units"]`` and ``config["weather.units"]`` are the same; ``config.get("weather.units", "C")`` where it may
    be missing. It is a view: after a change of the file it shows the new values. ``snapshot()`` is a copy that stays.
    """

    def __init__(self, sections: Mapping[str, Any] | None = None) -> None:
        self._sections: Mapping[str, Any] = dict(sections or {})

    def __getitem__(self, key: str) -> Any:
        value = _find(self._sections, key)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)

    def __repr__(self) -> str:
        return f"PluginConfig({', '.join(self._sections)})"  # not the values: they may be secret

    def snapshot(self) -> dict[str, Any]:
        """Return a deep copy."""
        return deepcopy(dict(self._sections))

    def replace(self, sections: Mapping[str, Any]) -> None:
        """Replace the sections. For the runtime."""
        self._sections = dict(sections)


def _find(sections: Mapping[str, Any], key: str) -> Any:
    if key in sections:
        return sections[key]
    first, dot, rest = key.partition(".") if isinstance(key, str) else (key, "", "")
    inner = sections.get(first) if dot else None
    return _find(inner, rest) if isinstance(inner, Mapping) else _MISSING


IDS: Final = ("startup", "shutdown", "reload", "freeze", "unfreeze", "config_change")

_HOOK_MARK: Final = "__patchbay_lifecycle__"
_BY_NAME: Final = {"startup": "on_start", "shutdown": "on_shutdown"}
"""Methods that are hooks by their names, unless another method is marked."""

F = TypeVar("F", bound=Callable[..., Any])


def lifecycle(*, id: str) -> Callable[[F], F]:  # noqa: A002  (N.E.K.O's name for it)
    """Mark a method, sync or async, as a lifecycle hook.

    ``id`` is "startup" (given ``reason``: "start", "restart" or "reload"), "shutdown" (``reason``: "stop" or "reload"), "reload"
    (before a shutdown that is a reload), "freeze", "unfreeze" or "config_change" (``config`` and ``previous``). A method gets
    those of the keyword arguments that it declares; ``**_`` gets all. Raising, and returning an ``Err``, are failures.
    Raises ConfigurationError (a ValueError) for another id.
    """
    if id not in IDS:
        raise ConfigurationError(f"lifecycle id must be one of {', '.join(IDS)}; not {id!r}.")

    def mark(method: F) -> F:
        setattr(marked_function(method, "lifecycle"), _HOOK_MARK, id)
        return method

    return mark


def hooks_of(plugin_class: type) -> dict[str, str]:
    """Return the method names of a class's hooks by id. Raises EntryConflictError where two methods have the same id."""
    found: dict[str, str] = {}
    for name, function in functions_of(plugin_class):
        id_ = getattr(function, _HOOK_MARK, None)
        if id_ is None:
            continue
        if id_ in found:
            raise EntryConflictError(id_, what="lifecycle hook")
        found[id_] = name
    for id_, name in _BY_NAME.items():
        if id_ not in found and callable(getattr(plugin_class, name, None)):
            found[id_] = name
    return found


async def call_hook(hook: Callable[..., Any], **arguments: Any) -> Any:
    """Call a hook with those of ``arguments`` that it declares, and return its result.

    Raises its Exception, PluginError for another BaseException (SystemExit), and the error of an Err.
    """
    taken = {name: value for name, value in arguments.items() if _takes(hook, name)}
    try:
        outcome = await invoke(hook, (), taken, in_thread=not is_async(hook))
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        # Raised by the hook itself: it would end the event loop, or be taken for a cancellation of the caller.
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


class PluginContext:
    """The ``ctx`` of a plugin: ``plugin_id``, ``folder`` (None for one without), ``config``, ``logger``.

    ``tools`` is the table of its tools, ``failures`` the errors of tools that could not be registered; plugins use their methods.
    """

    def __init__(
        self, plugin_id: str, *, send: Callable[[Message], None], folder: Path | None = None, config: PluginConfig | None = None
    ) -> None:
        self.plugin_id = plugin_id
        self.folder = folder
        self.config = config if config is not None else PluginConfig()
        self.logger = logging.getLogger(f"plugin.{plugin_id}")
        self.tools = ToolTable(plugin_id, send)
        self.failures: list[Exception] = []
        self.is_made = False
        """Whether ``NekoPluginBase.__init__`` was called."""


C = TypeVar("C", bound=type)

startup_task: ContextVar[asyncio.Task[Any] | None] = ContextVar("startup_task", default=None)
"""The task of the startup hook; set by the runtime."""


def neko_plugin(plugin_class: C) -> C:
    """Mark the class of a plugin. Raises TypeError for anything but a class."""
    if not isinstance(plugin_class, type):
        raise TypeError(f"@neko_plugin marks classes, not {type(plugin_class).__name__}.")
    plugin_class.__patchbay_plugin__ = True  # type: ignore[attr-defined]
    return plugin_class


class NekoPluginBase:
    """A plugin: ``ctx``, ``plugin_id``, ``config`` (of ``plugin.toml``) and ``logger``, and tools that models may call.

    A plugin's ``__init__`` takes ``ctx`` and calls ``super().__init__(ctx)``, which registers the methods marked with
    ``@llm_tool``. One that cannot be registered is logged, and the others are registered.
    """

    def __init__(self, ctx: PluginContext) -> None:
        self.ctx = ctx
        self.plugin_id = ctx.plugin_id
        self.config = ctx.config
        self.logger = ctx.logger
        ctx.is_made = True
        for name, meta in tools_of(type(self)):
            try:
                ctx.tools.add(getattr(self, name), meta)
            except Exception as error:
                ctx.failures.append(error)
                ctx.logger.exception("The tool %r of method %s was not registered", meta.name, name)

    def register_llm_tool(
        self,
        name: str,
        description: str = "",
        parameters: Mapping[str, Any] | None = None,
        handler: Callable[..., Any] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        role: str | None = None,
        annotations: Mapping[str, bool] | None = None,
    ) -> bool:
        """Register a tool at run time, and return True.

        The options are those of ``@llm_tool``; ``handler`` is any function, sync or async, and is called with keyword arguments.
        May be called from any thread. Raises EntryConflictError for a name that is in use, ConfigurationError (a ValueError)
        or TypeError for invalid options.
        """
        if handler is None or not callable(handler):
            raise TypeError(f"handler of tool {name!r} must be callable, not {type(handler).__name__}.")
        self.ctx.tools.add(handler, LlmToolMeta(name, description, parameters, timeout, role, annotations))
        return True

    def unregister_llm_tool(self, name: str) -> bool:
        """Remove a tool, and return whether there was one. Calls in flight run to their end."""
        return self.ctx.tools.remove(name)

    def list_llm_tools(self) -> list[dict[str, Any]]:
        """Return each tool's ``name``, ``description``, ``parameters``, ``timeout_seconds``, ``role`` and ``annotations``."""
        return self.ctx.tools.listed()

    def llm_tool_state(self, name: str) -> ToolState:
        """Return whether models can call a tool: ``state`` and ``reason``. Raises KeyError where there is none."""
        return self.ctx.tools.state(name)

    async def registered(self, *names: str, timeout: float | None = None) -> None:  # noqa: ASYNC109  (one line for authors)
        """Wait until models can call these tools (default: all), through restarts of the server.

        ``timeout`` is in seconds. Raises TimeoutError, RegistrationError for a tool that is refused, and RuntimeError in the
        startup hook: tools are registered after it, so start a task there that waits.
        """
        if asyncio.current_task() is startup_task.get():
            raise RuntimeError("Tools are registered when the startup hook has returned: wait in a task of your own.")
        async with asyncio.timeout(timeout):
            await self.ctx.tools.registered(names)


PluginBase = NekoPluginBase
"""The plain name of NekoPluginBase."""

plugin = neko_plugin
"""The plain name of neko_plugin."""
