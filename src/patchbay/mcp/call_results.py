"""Tools and executions as MCP's types: definitions with annotations and schemas; content, structured content, files."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

import mcp_types as types

from patchbay._text import json_object
from patchbay.executor import ToolExecution
from patchbay.media import MediaStore, shared_store
from patchbay.media.attachments import FileOrigin, attach_media
from patchbay.schema import SchemaValidator
from patchbay.tools import Tool, render_result
from patchbay.tools.output import KINDS, ToolOutput
from patchbay.tools.threads import run_in_thread
from patchbay.tools.tool import MCP_HINTS
from patchbay.types import Attachment, Illustrated

_USER: Final = types.Annotations(audience=["user"])

CallResult = types.CallToolResult | types.InputRequiredResult


def describe_tool(tool: Tool) -> types.Tool:
    """Return a tool's definition. An output schema of anything but objects is left out, as clients of 2025 require objects."""
    spec = tool.spec
    hints = {theirs: value for theirs, name in MCP_HINTS.items() if isinstance(value := tool.annotations.get(name), bool)}
    output = _output_schema(tool)
    return types.Tool(
        name=tool.name,
        title=tool.title or None,
        description=spec.description or None,
        input_schema={**_plain(spec.parameters), "type": "object"},
        output_schema=_plain(output) if output is not None else None,
        annotations=types.ToolAnnotations.model_validate(hints, by_name=False) if hints else None,
        icons=[types.Icon.model_validate(each, by_name=False) for each in tool.icons] or None,
    )


def error_result(text: str, *, code: str, ran: str = "no") -> types.CallToolResult:
    """Return a failed call with its message for the model. ``code`` and ``ran`` (``ToolExecution``) are for programs."""
    meta = {"patchbay/code": code, "patchbay/ran": ran}
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True, _meta=meta)


async def call_result(execution: ToolExecution, tool: Tool, media: MediaStore | None) -> CallResult:
    """Return what a client gets for a call; ``media`` has the files of the tool's output.

    A tool that knows MCP may return one of its results, which is passed on unchanged.
    """
    value = execution.value
    if execution.error is not None:
        return error_result(execution.content, code=execution.result.code or "", ran=execution.ran)
    if isinstance(value, CallResult):
        return value
    structured = _structured(value)
    if (schema := _output_schema(tool)) is not None:
        if problems := _mismatch(SchemaValidator(tool.name, schema), structured):
            text = f"Error: the result of the tool {tool.name!r} does not match its output schema: {'; '.join(problems)}"
            return error_result(text, code="output_mismatch", ran=execution.ran)
    elif structured is not None and render_result(structured) not in execution.content:
        structured = None  # shortened or with its files taken out: the text says so, and the data would not
    content: list[types.ContentBlock] = [types.TextContent(text=execution.content)]
    content += [_block(each) for each in execution.result.attachments]
    if isinstance(value, ToolOutput):
        content += await _for_user(value, tool, media)
    return types.CallToolResult(content=content, structured_content=structured)


def _structured(value: Any) -> dict[str, Any] | None:
    """Return a value as a JSON object; None if it is none."""
    if isinstance(value, Illustrated):
        value = value.output
    text = value.for_llm if isinstance(value, ToolOutput) else None if isinstance(value, str) else render_result(value)
    return json_object(text) if text is not None and text.startswith("{") else None


def _mismatch(validator: SchemaValidator, structured: dict[str, Any] | None) -> tuple[str, ...]:
    return validator.error_messages(structured) if structured is not None else ("it is not a JSON object",)


def _output_schema(tool: Tool) -> Mapping[str, Any] | None:
    schema = tool.output_schema
    return schema if schema is not None and schema.get("type") == "object" else None


def _block(file: Attachment, annotations: types.Annotations | None = None) -> types.ContentBlock:
    """Return a file as content: an image, a sound, or an embedded resource."""
    kind, name = file.media_type.partition("/")[0], file.name or "file"
    data = base64.b64encode(file.data).decode()
    if kind == "image" and file.kind == "image":
        return types.ImageContent(data=data, mime_type=file.media_type, annotations=annotations)
    if kind == "audio":
        return types.AudioContent(data=data, mime_type=file.media_type, annotations=annotations)
    uri = f"attachment:///{quote(name)}"
    if kind == "text" or file.media_type == "application/json":
        try:
            text = types.TextResourceContents(uri=uri, mime_type=file.media_type, text=file.data.decode())
            return types.EmbeddedResource(resource=text, annotations=annotations)
        except UnicodeDecodeError:
            pass
    blob = types.BlobResourceContents(uri=uri, mime_type=file.media_type, blob=data)
    return types.EmbeddedResource(resource=blob, annotations=annotations)


async def _for_user(output: ToolOutput, tool: Tool, media: MediaStore | None) -> Iterable[types.ContentBlock]:
    """Return an output's text and files for the user, which the model's part does not have."""
    content: list[types.ContentBlock] = []
    if output.shown and output.shown != output.for_llm:
        content.append(types.TextContent(text=output.shown, annotations=_USER))
    if output.response_handled and output.media:
        store, origin = media if media is not None else shared_store(), FileOrigin(tool.name)
        _, files = await run_in_thread(lambda: attach_media(store, "", output.media, KINDS, origin))
        content += [_block(each, _USER) for each in files]
    return content


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema as dicts and lists."""
    plain: dict[str, Any] = json.loads(json.dumps(schema, default=dict))
    return plain
