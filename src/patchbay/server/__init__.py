"""The HTTP servers: the OpenAI-compatible proxy, and the tool server with its registry, chat, live sessions and admin API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.server.admin_api import MediaApp as MediaApp
    from patchbay.server.admin_api import make_approvals_router as make_approvals_router
    from patchbay.server.admin_api import make_audit_router as make_audit_router
    from patchbay.server.admin_api import make_events_router as make_events_router
    from patchbay.server.app import ToolsApp as ToolsApp
    from patchbay.server.app import create_tools_app as create_tools_app
    from patchbay.server.callback_tool import CallbackError as CallbackError
    from patchbay.server.callback_tool import CallbackTool as CallbackTool
    from patchbay.server.event_stream import EventStream as EventStream
    from patchbay.server.governance import Governance as Governance
    from patchbay.server.governance import GovernanceSettings as GovernanceSettings
    from patchbay.server.settings import ChatSettings as ChatSettings
    from patchbay.server.settings import ProxySettings as ProxySettings
    from patchbay.server.settings import ToolsSettings as ToolsSettings


__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "admin_api": "MediaApp make_approvals_router make_audit_router make_events_router",
        "app": "ToolsApp create_tools_app",
        "callback_tool": "CallbackError CallbackTool",
        "event_stream": "EventStream",
        "governance": "Governance GovernanceSettings",
        "settings": "ChatSettings ProxySettings ToolsSettings",
    },
)
