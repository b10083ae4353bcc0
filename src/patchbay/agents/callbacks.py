"""Callbacks: code of the caller's that an agent asks at fixed points, sync or async, one or a list.

Each is asked in turn; the first that returns something else than None has spoken. ``before_tool(ctx, name, args)`` and
``after_tool(ctx, name, result)`` may take one more parameter, ``tool_context``; of several ``after_tool`` each sees what the one
before made of the result. They are asked about tools that do something: not about the one that a model gives its answer by.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from patchbay.executor.callbacks import as_hooks, called, first_answer
from patchbay.tools import Tool, ToolContext
from patchbay.types import ToolCall

Callback: TypeAlias = Callable[..., Any]
Callbacks: TypeAlias = Callback | Sequence[Callback] | None
"""One callback, or several in the order in which they are asked."""

as_callbacks = as_hooks


async def ask(callbacks: Callbacks, *about: Any) -> Any:
    """Ask each until one returns something else than None, and return that. Raises what they raise."""
    return await first_answer(as_callbacks(callbacks, "A callback"), *about)


def before_hook(callback: Callback) -> Callback:
    """Return ``before_tool(ctx, name, args)`` as a hook of the executor."""
    wants_context = _takes_tool_context(callback)

    async def hook(_call: ToolCall, tool: Tool, arguments: dict[str, Any], context: ToolContext) -> Any:
        named = {"tool_context": context} if wants_context else {}
        return await called(callback, context.invocation_context, tool.name, arguments, **named)

    return hook


def after_hook(callback: Callback) -> Callback:
    """Return ``after_tool(ctx, name, result)`` as a hook of the executor; it sees what the tool returned, as it returned it."""
    wants_context = _takes_tool_context(callback)

    async def hook(_call: ToolCall, tool: Tool, _arguments: dict[str, Any], context: ToolContext, value: Any) -> Any:
        named = {"tool_context": context} if wants_context else {}
        return await called(callback, context.invocation_context, tool.name, value, **named)

    return hook


def _takes_tool_context(callback: Callback) -> bool:
    try:
        return "tool_context" in inspect.signature(callback).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False
