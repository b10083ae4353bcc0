"""A caller's mixed list of functions and tools, made into tools with distinct names."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.tools.base import Tool
from patchbay.tools.function import FunctionTool


def as_tool(item: Any) -> Tool:
    """Return ``item`` as a Tool: itself, or a FunctionTool of a function, method or callable object. Raises TypeError."""
    if isinstance(item, Tool):
        return item
    if isinstance(item, Mapping):
        raise TypeError("A dict has no handler to run: use tool(name=..., description=..., parameters=..., handler=function).")
    if inspect.isclass(item):
        raise TypeError(f"{item.__name__} is a class: pass an instance of a Tool, or a function.")
    if inspect.iscoroutine(item):
        raise TypeError("A coroutine was passed as a tool: pass the async function itself, without calling it.")
    if callable(item):
        return FunctionTool(item)
    raise TypeError(f"A tool must be a function or a Tool, not {type(item).__name__}.")


def collect_tools(items: Iterable[Any]) -> dict[str, Tool]:
    """Return the tools by name, in order. Raises TypeError for what is no tool, ConfigurationError for a name used twice."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise TypeError(f"tools must be a list of functions and tools, not {type(items).__name__}.")
    tools: dict[str, Tool] = {}
    for item in items:
        tool = as_tool(item)
        if tool.name in tools:
            raise ConfigurationError(f"Two tools are named {tool.name!r}: a model could only ever call one of them.")
        tools[tool.name] = tool
    return tools
