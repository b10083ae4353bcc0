"""The door that tools of other processes come in by: ``/api/tools``, and the way back to where they answer.

What lives here: who may come in (``admission``, ``guard``), what is registered and told (``desk``, ``api``), how a tool's calls
are carried to its callback (``dispatch``, ``callback_url``, ``progress``), what becomes of callbacks that are gone (``lease``),
and when registrations are written down (``keeper``). What does not: the rules of the registry (``patchbay.tools.registry``), and
how a server is run (``patchbay.server.serve``).

The names are imported when they are used: a plugin host shares ``admission`` and ``progress``, and needs no web framework for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.server.tools.app import ToolsApp, create_tools_app
    from patchbay.server.tools.dispatch import CallbackError, CallbackTool
    from patchbay.server.tools.settings import ToolsSettings

__all__ = ["CallbackError", "CallbackTool", "ToolsApp", "ToolsSettings", "create_tools_app"]

__getattr__ = lazy_exports(
    __name__,
    {
        "CallbackError": "patchbay.server.tools.dispatch",
        "CallbackTool": "patchbay.server.tools.dispatch",
        "ToolsApp": "patchbay.server.tools.app",
        "ToolsSettings": "patchbay.server.tools.settings",
        "create_tools_app": "patchbay.server.tools.app",
    },
)
