"""The resources and prompts of an MCP server as tools that list and read them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import mcp_types as types
from mcp.client import Client

from patchbay._text import one_line
from patchbay.mcp.config import McpServer
from patchbay.mcp.tools import add_resource, read_contents
from patchbay.tools import Tool, ToolContext
from patchbay.types import Attachment, Illustrated

READ_RESOURCE: Final = "mcp_read_resource"
GET_PROMPT: Final = "mcp_get_prompt"
"""The tools' names behind the server's prefix."""

_MAX_LISTED: Final = 200
_PROMPT_PARAMETERS: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Name of the prompt; without it the prompts are listed."},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Its arguments."},
    },
}
_PARAMETERS: Final = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "URI of the resource; without it the resources are listed."}},
}

Request = Callable[[Callable[[Client], Awaitable[Any]], str], Awaitable[Any]]
"""Sends a request of the SDK's client when the connection is ready; the name is the tool's in errors."""


class _Reader(Tool):
    """Base class of the tools that read the resources and prompts of a server."""

    annotations = {"read_only": True}  # noqa: RUF012  (it is not changed)

    def __init__(self, server: McpServer, request: Request, name: str, description: str, parameters: dict[str, Any]) -> None:
        super().__init__(server.tool_name(name), description, parameters=parameters, timeout=server.timeout)
        self.source = server.source
        self.endpoint = server.address
        self._request = request


class ReadResource(_Reader):
    """Reads a resource of a server by its URI, or lists the resources."""

    def __init__(self, server: McpServer, request: Request) -> None:
        description = f"Read a resource of the MCP server {server.name}, or list its resources."
        super().__init__(server, request, READ_RESOURCE, description, _PARAMETERS)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:  # noqa: ARG002  (it has no use for one)
        """Return the resource's text, with its bytes as attachments, or the list. Raises McpCallError."""
        uri = arguments.get("uri")
        if not uri:
            return await self._request(_list_resources, self.name)
        result: types.ReadResourceResult = await self._request(lambda client: client.read_resource(uri), self.name)
        texts: list[str] = []
        attachments: list[Attachment] = []
        for each in result.contents:
            add_resource(each, texts, attachments)
        text = "\n".join(texts)
        return Illustrated(text, tuple(attachments)) if attachments else text


class GetPrompt(_Reader):
    """Fills in a prompt of a server, or lists the prompts."""

    def __init__(self, server: McpServer, request: Request) -> None:
        description = f"Get a prompt of the MCP server {server.name} with its arguments filled in, or list its prompts."
        super().__init__(server, request, GET_PROMPT, description, _PROMPT_PARAMETERS)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:  # noqa: ARG002  (it has no use for one)
        """Return the prompt's messages, with their files as attachments, or the list. Raises McpCallError."""
        name = arguments.get("name")
        if not name:
            return await self._request(_list_prompts, self.name)
        values = arguments.get("arguments") or {}
        result: types.GetPromptResult = await self._request(lambda client: client.get_prompt(name, values), self.name)
        texts: list[str] = []
        attachments: list[Attachment] = []
        for each in result.messages:
            text, files = read_contents([each.content])
            texts.append(f"{each.role}: {text}")
            attachments += files
        return Illustrated("\n".join(texts), tuple(attachments)) if attachments else "\n".join(texts)


async def _list_prompts(client: Client) -> list[dict[str, Any]]:
    """Return the first page of the prompts; arguments that may be left out end with a question mark."""
    prompts = (await client.list_prompts()).prompts
    return [
        {
            "name": each.name,
            "description": one_line(each.description or each.title or "", 200),
            "arguments": [f"{argument.name}{'' if argument.required else '?'}" for argument in each.arguments or ()],
        }
        for each in prompts[:_MAX_LISTED]
    ]


async def _list_resources(client: Client) -> list[dict[str, str]]:
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
