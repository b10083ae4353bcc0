"""MCP (Model Context Protocol): its servers' tools in the registry, and the registry as one of its servers.

The official SDK (``pip install 'patchbay-tools[mcp]'``) is imported when the first server is mounted, or the registry is served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.mcp.config import McpServer as McpServer
    from patchbay.mcp.config import parse_servers as parse_servers
    from patchbay.mcp.config import read_servers as read_servers
    from patchbay.mcp.host import McpHost as McpHost
    from patchbay.mcp.host import McpToolset as McpToolset
    from patchbay.mcp.host import ServerStatus as ServerStatus

__all__, __getattr__ = lazy_exports(
    __name__, {"config": "McpServer parse_servers read_servers", "host": "McpHost McpToolset ServerStatus"}
)
