"""The resources of an MCP server as a tool that lists and reads them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import mcp_types as types
from mcp.client import Client

from patchbay._text import one_line
from patchbay.mcp.config import McpServer
from patchbay.mcp.tools import add_resource, tool_name
from patchbay.tools import Tool, ToolContext
from patchbay.types import Attachment, Illustrated

READ_RESOURCE: Final = "mcp_read_resource"
"""The tool's name behind the server's prefix."""

_MAX_LISTED: Final = 200
_PARAMETERS: Final = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "URI of the resource; without it the resources are listed."}},
}

Request = Callable[[Callable[[Client], Awaitable[Any]], str], Awaitable[Any]]
"""Sends a request of the SDK's client when the connection is ready; the name is the tool's in errors."""


class ReadResource(Tool):
    """Reads a resource of a server by its URI, or lists the resources."""

    annotations = {"read_only": True}  # noqa: RUF012  (it is not changed)

    def __init__(self, server: McpServer, request: Request) -> None:
        super().__init__(
            tool_name(server, READ_RESOURCE),
            f"Read a resource of the MCP server {server.name}, or list its resources.",
            parameters=_PARAMETERS,
            timeout=server.timeout,
        )
        self.source = server.source
        self.endpoint = server.address
        self._request = request

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:  # noqa: ARG002  (it has no use for one)
        """Return the resource's text, with its bytes as attachments, or the list. Raises McpCallError."""
        uri = arguments.get("uri")
        if not uri:
            return await self._request(_listed, self.name)
        result: types.ReadResourceResult = await self._request(lambda client: client.read_resource(uri), self.name)
        texts: list[str] = []
        attachments: list[Attachment] = []
        for each in result.contents:
            add_resource(each, texts, attachments)
        text = "\n".join(texts)
        return Illustrated(text, tuple(attachments)) if attachments else text


async def _listed(client: Client) -> list[dict[str, str]]:
    """Return the first page of the resources and of the templates of their URIs."""
    resources = (await client.list_resources()).resources
    templates = (await client.list_resource_templates()).resource_templates
    found = [
        *((str(each.uri), each.title or each.name, each.description) for each in resources),
        *((each.uri_template, each.title or each.name, each.description) for each in templates),
    ]
    return [
        {"uri": uri, "name": name, "description": one_line(description or "", 200)}
        for uri, name, description in found[:_MAX_LISTED]
    ]
