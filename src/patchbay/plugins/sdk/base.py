"""The class that plugins extend, and its decorator.

What lives here: what a plugin's methods may call. What does not: its process (``patchbay.plugins.child``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from patchbay.plugins.deadlines import DEFAULT_TIMEOUT
from patchbay.plugins.sdk.context import PluginContext
from patchbay.plugins.sdk.llm_tool import LlmToolMeta, tools_of
from patchbay.plugins.sdk.tool_table import ToolState

C = TypeVar("C", bound=type)

startup_task: ContextVar[asyncio.Task[Any] | None] = ContextVar("startup_task", default=None)
"""The task that the startup hook runs in; set by the runtime."""


def neko_plugin(plugin_class: C) -> C:
    """Mark the class of a plugin. Raises TypeError for what is no class."""
    if not isinstance(plugin_class, type):
        raise TypeError(f"@neko_plugin marks classes, not {type(plugin_class).__name__}.")
    plugin_class.__patchbay_plugin__ = True  # type: ignore[attr-defined]
    return plugin_class


class NekoPluginBase:
    """A plugin: ``ctx``, ``plugin_id``, ``config`` (of ``plugin.toml``) and ``logger``, and tools that models may call.

    An ``__init__`` of a plugin's own takes ``ctx`` and calls ``super().__init__(ctx)``, which registers the methods marked with
    ``@llm_tool``. One that cannot be registered is logged, and spares the others.
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
        """Register a tool whose schema is known only now; True.

        The options are those of ``@llm_tool``; ``handler`` is any function, sync or async, and is called with keyword arguments.
        May be called from any thread. Raises EntryConflictError for a name that the plugin has already, ConfigurationError (a
        ValueError) or TypeError for what cannot work.
        """
        if handler is None or not callable(handler):
            raise TypeError(f"handler of tool {name!r} must be callable, not {type(handler).__name__}.")
        meta = LlmToolMeta(
            name=name,
            description=description,
            parameters=parameters,
            timeout=timeout,
            role=role or None,
            annotations=annotations or {},
        )
        self.ctx.tools.add(handler, meta)
        return True

    def unregister_llm_tool(self, name: str) -> bool:
        """Take a tool back, and say whether there was one. Calls under way go on to their end."""
        return self.ctx.tools.remove(name)

    def list_llm_tools(self) -> list[dict[str, Any]]:
        """Return each tool's ``name``, ``description``, ``parameters``, ``timeout_seconds``, ``role`` and ``annotations``."""
        return self.ctx.tools.listed()

    def llm_tool_state(self, name: str) -> ToolState:
        """Return whether models can call a tool: ``state`` and ``reason``. Raises KeyError where there is none."""
        return self.ctx.tools.state(name)

    async def registered(self, *names: str, timeout: float | None = None) -> None:  # noqa: ASYNC109  (one line for authors)
        """Wait until models can call these tools (none given: all there are), through every restart of the server.

        ``timeout`` is in seconds. Raises TimeoutError, RegistrationError for a tool that is refused, and RuntimeError in the
        startup hook, since nothing is registered before that has returned: start a task there that waits.
        """
        if asyncio.current_task() is startup_task.get():
            raise RuntimeError("Tools are registered when the startup hook has returned: wait in a task of your own.")
        async with asyncio.timeout(timeout):
            await self.ctx.tools.registered(names)


PluginBase = NekoPluginBase
"""The plain name of NekoPluginBase."""

plugin = neko_plugin
"""The plain name of neko_plugin."""
