"""Plugins: tools in a process of their own. The names for plugin authors; ``plugins.host`` runs them.

neko_plugin, NekoPluginBase        (plugin, PluginBase) the class of a plugin
llm_tool, lifecycle                methods that a model may call, and hooks of its life cycle
Ok, Err, Result, unwrap, unwrap_or an outcome as a value
PluginConfig                       its part of plugin.toml
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.plugins.envelope import Err, Ok, Result, unwrap, unwrap_or
    from patchbay.plugins.errors import EntryConflictError, PluginError, RegistrationError
    from patchbay.plugins.sdk import (
        NekoPluginBase,
        PluginBase,
        PluginConfig,
        PluginContext,
        ToolState,
        lifecycle,
        llm_tool,
        neko_plugin,
        plugin,
    )
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
        "Err": "patchbay.plugins.envelope",
        "NekoPluginBase": "patchbay.plugins.sdk",
        "Ok": "patchbay.plugins.envelope",
        "PluginBase": "patchbay.plugins.sdk",
        "PluginConfig": "patchbay.plugins.sdk",
        "PluginContext": "patchbay.plugins.sdk",
        "PluginError": "patchbay.plugins.errors",
        "Progress": "patchbay.tools",
        "RegistrationError": "patchbay.plugins.errors",
        "Result": "patchbay.plugins.envelope",
        "ToolContext": "patchbay.tools",
        "ToolState": "patchbay.plugins.sdk",
        "lifecycle": "patchbay.plugins.sdk",
        "llm_tool": "patchbay.plugins.sdk",
        "neko_plugin": "patchbay.plugins.sdk",
        "plugin": "patchbay.plugins.sdk",
        "unwrap": "patchbay.plugins.envelope",
        "unwrap_or": "patchbay.plugins.envelope",
    },
)
