"""What a tool is, and how Python functions become tools.

What lives here: the ``Tool`` class that every kind of tool extends, the context a tool is given, functions as
tools, and how what a tool returned is written for a model. What does not: which call runs when and for how
long (``patchbay.executor``).
"""

from __future__ import annotations

from patchbay.tools.base import Tool, ToolContext, Validation
from patchbay.tools.collect import as_tool, collect_tools
from patchbay.tools.function import FunctionTool, tool
from patchbay.tools.results import render_error, render_result, well_formed

__all__ = [
    "FunctionTool",
    "Tool",
    "ToolContext",
    "Validation",
    "as_tool",
    "collect_tools",
    "render_error",
    "render_result",
    "tool",
    "well_formed",
]
