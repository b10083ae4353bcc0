"""Plugins: tools that live in a process of their own.

What lives here: what a plugin is written with, under the names that the seeds give it and plain ones beside them. What does not:
the host that runs plugins and registers their tools.

    neko_plugin, NekoPluginBase        (plugin, PluginBase) the class of a plugin
    llm_tool, lifecycle                its methods that a model may call, and those that are called as it lives
    Ok, Err, Result, unwrap, unwrap_or an outcome as a value
    PluginConfig                       its part of plugin.toml
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.plugins.errors import EntryConflictError, PluginError, RegistrationError
    from patchbay.plugins.sdk.base import NekoPluginBase, PluginBase, neko_plugin, plugin
    from patchbay.plugins.sdk.config import PluginConfig
    from patchbay.plugins.sdk.context import PluginContext
    from patchbay.plugins.sdk.lifecycle import lifecycle
    from patchbay.plugins.sdk.llm_tool import llm_tool
    from patchbay.plugins.sdk.outcome import Err, Ok, Result, unwrap, unwrap_or
    from patchbay.plugins.sdk.tool_table import ToolState
    from patchbay.tools import Progress, ToolContext

__all__ = [
    "EntryConflictError",
    "Err",
    "NekoPluginBase",
    "Ok",
    "PluginBase",
    "PluginConfig",
    "PluginContext",
    "PluginError",
    "Progress",
    "RegistrationError",
    "Result",
    "ToolContext",
    "ToolState",
    "lifecycle",
    "llm_tool",
    "neko_plugin",
    "plugin",
    "unwrap",
    "unwrap_or",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "EntryConflictError": "patchbay.plugins.errors",
        "Err": "patchbay.plugins.sdk.outcome",
        "NekoPluginBase": "patchbay.plugins.sdk.base",
        "Ok": "patchbay.plugins.sdk.outcome",
        "PluginBase": "patchbay.plugins.sdk.base",
        "PluginConfig": "patchbay.plugins.sdk.config",
        "PluginContext": "patchbay.plugins.sdk.context",
        "PluginError": "patchbay.plugins.errors",
        "Progress": "patchbay.tools",
        "RegistrationError": "patchbay.plugins.errors",
        "Result": "patchbay.plugins.sdk.outcome",
        "ToolContext": "patchbay.tools",
        "ToolState": "patchbay.plugins.sdk.tool_table",
        "lifecycle": "patchbay.plugins.sdk.lifecycle",
        "llm_tool": "patchbay.plugins.sdk.llm_tool",
        "neko_plugin": "patchbay.plugins.sdk.base",
        "plugin": "patchbay.plugins.sdk.base",
        "unwrap": "patchbay.plugins.sdk.outcome",
        "unwrap_or": "patchbay.plugins.sdk.outcome",
    },
)
