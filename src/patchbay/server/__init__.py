"""The HTTP servers: the OpenAI-compatible proxy, and the tool server with its registry, chat, live sessions and admin API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports
from patchbay.server import _moved

if TYPE_CHECKING:
    from patchbay.server.admin_api import MediaApp, make_approvals_router, make_audit_router, make_events_router
    from patchbay.server.app import ToolsApp, create_tools_app
    from patchbay.server.callback_tool import CallbackError, CallbackTool
    from patchbay.server.event_stream import EventStream
    from patchbay.server.governance import Governance, GovernanceSettings
    from patchbay.server.settings import ChatSettings, ProxySettings, ToolsSettings

__all__ = [
    "CallbackError",
    "CallbackTool",
    "ChatSettings",
    "EventStream",
    "Governance",
    "GovernanceSettings",
    "MediaApp",
    "ProxySettings",
    "ToolsApp",
    "ToolsSettings",
    "create_tools_app",
    "make_approvals_router",
    "make_audit_router",
    "make_events_router",
]

_HOMES = {
    "admin_api": ("MediaApp", "make_approvals_router", "make_audit_router", "make_events_router"),
    "app": ("ToolsApp", "create_tools_app"),
    "callback_tool": ("CallbackError", "CallbackTool"),
    "event_stream": ("EventStream",),
    "governance": ("Governance", "GovernanceSettings"),
    "settings": ("ChatSettings", "ProxySettings", "ToolsSettings"),
}

__getattr__ = lazy_exports(__name__, {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names})

_moved.register()
