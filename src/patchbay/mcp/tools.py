"""An MCP server's tool as a tool of the registry: its name, its schema, and its results."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import mcp_types as types
from mcp.shared.dispatcher import ProgressFnT

from patchbay._text import one_line
from patchbay.errors import ToolError
from patchbay.mcp.config import McpServer
from patchbay.mcp.elicitation import current_call
from patchbay.mcp.limits import MAX_PROGRESS
from patchbay.schema import SchemaValidator
from patchbay.tools import ToolContext, Validation
from patchbay.tools.results import render_result
from patchbay.tools.tool import MCP_HINTS, ForeignTool, checked_annotations
from patchbay.types import Attachment, Illustrated

Call = Callable[[str, dict[str, Any], ProgressFnT], Awaitable[types.CallToolResult]]
"""Sends a call: the tool's own name, its arguments, and a callback for progress."""


class McpCallError(ToolError):
    """A call of an MCP server's tool failed without a result. ``ran`` is whether the tool ran."""

    code = "mcp_call_failed"

    def __init__(self, message: str, *, tool_name: str = "", ran: Literal["no", "yes", "unknown"] = "unknown") -> None:
        super().__init__(message, tool_name=tool_name)
        self.ran = ran

    @property
    def for_model(self) -> str:
        """State whether the tool ran."""
        note = {"no": " The tool did not run.", "unknown": " The tool may have run.", "yes": ""}[self.ran]
        return f"Error: {self}.{note}"


class McpResultError(ToolError):
    """The tool reported an error (``isError``); the model gets its content."""

    code = "mcp_tool_error"

    @property
    def for_model(self) -> str:
        """The tool's own text."""
        return f"Error: {self}"


class McpTool(ForeignTool):
    """A tool of an MCP server. ``definition`` is the server's; ``call`` sends its calls."""

    def __init__(self, server: McpServer, definition: types.Tool, call: Call) -> None:
        super().__init__(
            server.tool_name(definition.name),
            definition.description or definition.title or "",
            parameters=definition.input_schema,
            timeout=server.timeout,
            annotations=_annotations(definition),
            title=definition.title or (definition.annotations.title if definition.annotations else None) or "",
            output_schema=definition.output_schema,
        )
        self.icons = [each.model_dump(by_alias=True, mode="json", exclude_none=True) for each in definition.icons or ()]
        self.definition = definition
        self.source = server.source
        self.endpoint = server.address
        self._call = call
        self._result_validator = SchemaValidator(self.name, self.output_schema or {})

    def validate(self, raw_arguments: str, validation: Validation | None) -> dict[str, Any]:
        """Check the arguments against the schema; its defaults are the server's to apply."""
        return super().validate(raw_arguments, replace(validation, use_defaults=False) if validation is not None else None)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Call the tool. Raises McpCallError, and McpResultError where its result is an error."""
        left = MAX_PROGRESS

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            nonlocal left
            if left > 0:
                left -= 1
                context.progress(message and message[:1000], fraction=progress / total if total else None)

        current_call.set(context)  # for the server's questions; the call's task ends with it
        result = await self._call(self.definition.name, arguments, on_progress)
        if result.is_error:
            text, _ = read_contents(result.content)
            raise McpResultError(text or "the tool failed and did not say why", tool_name=self.name)
        if self.output_schema is not None and (problems := self._result_validator.error_messages(result.structured_content)):
            raise McpCallError(
                f"its result does not fit its output schema: {'; '.join(problems)}", tool_name=self.name, ran="yes"
            )
        return output_of(result, is_structured=self.output_schema is not None)


def output_of(result: types.CallToolResult, *, is_structured: bool) -> Any:
    """Return a result's value: its text, or its structured content; with its images, audio and files as attachments.

    ``is_structured``: the tool has a schema for its results, whose text then says the same. Otherwise both are
    kept if they differ.
    """
    value: Any
    value, attachments = read_contents(result.content)
    structured = result.structured_content
    if structured is not None:
        is_all = is_structured or not value or _is_same(value, structured)
        value = structured if is_all else f"{value}\n{render_result(structured)}"
    return Illustrated(value, tuple(attachments)) if attachments else value


def read_contents(content: Iterable[types.ContentBlock]) -> tuple[str, list[Attachment]]:
    """Return the text of a result or message, and its images, audio and files."""
    texts: list[str] = []
    attachments: list[Attachment] = []
    for item in content:
        if isinstance(item, types.TextContent):
            texts.append(item.text)
        elif isinstance(item, types.ImageContent | types.AudioContent):
            _attach(item.data, item.mime_type, None, texts, attachments)
        elif isinstance(item, types.ResourceLink):
            about = ": ".join(filter(None, (item.title or item.name, item.description)))
            texts.append(f"[resource {item.uri}: {one_line(about, 300)}]")
        else:
            add_resource(item.resource, texts, attachments)
    return "\n".join(texts), attachments


def add_resource(
    resource: types.TextResourceContents | types.BlobResourceContents, texts: list[str], attachments: list[Attachment]
) -> None:
    """Append a resource's text, or its bytes as an attachment."""
    if isinstance(resource, types.TextResourceContents):
        texts.append(f"[resource {resource.uri}]\n{resource.text}")
    else:
        name = str(resource.uri).rstrip("/").rpartition("/")[2][:100] or None
        _attach(resource.blob, resource.mime_type or "application/octet-stream", name, texts, attachments)


def _attach(data: str, media_type: str, name: str | None, texts: list[str], attachments: list[Attachment]) -> None:
    try:
        attachments.append(Attachment(base64.b64decode(data, validate=True), media_type, name))
    except (binascii.Error, ValueError):
        texts.append(f"[{media_type}: its base64 cannot be decoded, and it is left out]")


def _is_same(text: str, structured: Mapping[str, Any]) -> bool:
    """Return whether a text is the structured content as JSON, or its only member: FastMCP wraps values that are not objects."""
    if structured.keys() == {"result"} and structured["result"] == text:
        return True
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(value == structured or structured == {"result": value})


def _annotations(definition: types.Tool) -> dict[str, bool]:
    """Return the hints that are booleans, by our names."""
    if definition.annotations is None:
        return {}
    given = definition.annotations.model_dump(by_alias=True)
    return checked_annotations({name: given[name] for name in MCP_HINTS if isinstance(given.get(name), bool)})
