"""Tools: the ``Tool`` class that every kind extends, functions as tools, the context of a call, and results for a model."""

from __future__ import annotations

from patchbay.tools.context import AgentScope, Context, Progress, ToolActions, ToolContext, merge_actions
from patchbay.tools.function import FunctionTool, ToolDefinition, as_tool, collect_tools, tool
from patchbay.tools.results import render_error, render_result, well_formed
from patchbay.tools.search import ToolSearch
from patchbay.tools.state import State
from patchbay.tools.tool import BaseTool, Tool, Toolset, Validation

__all__ = [
    "AgentScope",
    "BaseTool",
    "Context",
    "FunctionTool",
    "Progress",
    "State",
    "Tool",
    "ToolActions",
    "ToolContext",
    "ToolDefinition",
    "ToolSearch",
    "Toolset",
    "Validation",
    "as_tool",
    "collect_tools",
    "merge_actions",
    "render_error",
    "render_result",
    "tool",
    "well_formed",
]
