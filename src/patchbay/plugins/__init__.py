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
    from patchbay.plugins.envelope import Err as Err
    from patchbay.plugins.envelope import Ok as Ok
    from patchbay.plugins.envelope import Result as Result
    from patchbay.plugins.envelope import unwrap as unwrap
    from patchbay.plugins.envelope import unwrap_or as unwrap_or
    from patchbay.plugins.errors import EntryConflictError as EntryConflictError
    from patchbay.plugins.errors import PluginError as PluginError
    from patchbay.plugins.errors import RegistrationError as RegistrationError
    from patchbay.plugins.sdk import NekoPluginBase as NekoPluginBase
    from patchbay.plugins.sdk import PluginBase as PluginBase
    from patchbay.plugins.sdk import PluginConfig as PluginConfig
    from patchbay.plugins.sdk import PluginContext as PluginContext
    from patchbay.plugins.sdk import lifecycle as lifecycle
    from patchbay.plugins.sdk import neko_plugin as neko_plugin
    from patchbay.plugins.sdk import plugin as plugin
    from patchbay.plugins.tool_table import ToolState as ToolState
    from patchbay.plugins.tool_table import llm_tool as llm_tool
    from patchbay.tools import Progress as Progress
    from patchbay.tools import ToolContext as ToolContext


__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "envelope": "Err Ok Result unwrap unwrap_or",
        "errors": "EntryConflictError PluginError RegistrationError",
        "sdk": "NekoPluginBase PluginBase PluginConfig PluginContext lifecycle neko_plugin plugin",
        "tool_table": "ToolState llm_tool",
        "patchbay.tools": "Progress ToolContext",
    },
)
