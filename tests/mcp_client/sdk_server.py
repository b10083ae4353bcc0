"""An MCP server on the official SDK, over stdio, or with a port as its argument over streamable HTTP (legacy: with sessions)."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.utilities.types import Audio, Image
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    EmbeddedResource,
    Icon,
    InputRequiredResult,
    ResourceLink,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import BaseModel

server = MCPServer("reference", version="1.0")
PNG = bytes.fromhex("89504e470d0a1a0a")


class Sum(BaseModel):
    total: int


ICON = Icon(src="data:image/png;base64,iVBORw0KGgo=", mime_type="image/png", sizes=["16x16"])


@server.tool(title="Add", icons=[ICON], annotations=ToolAnnotations(readOnlyHint=True, destructiveHint=False))
def add(a: int, b: int = 1) -> Sum:
    """Add two integers."""
    return Sum(total=a + b)


@server.tool(structured_output=False)
def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool(structured_output=False)
def everything() -> list:
    """Return content of every kind."""
    return [
        "some text",
        Image(data=PNG, format="png"),
        Audio(data=b"RIFF", format="wav"),
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="mem://notes", text="a note")),
        ResourceLink(type="resource_link", uri="mem://more", name="more", description="the rest"),
    ]


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("the disk is full")


@server.tool(structured_output=False)
async def work(steps: int, ctx: Context) -> str:
    """Report progress."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
    return "done"


@server.tool(structured_output=False)
async def wait(mark: str) -> str:
    """Wait until the call is cancelled, and leave a mark then, as another one before."""
    Path(f"{mark}.began").touch()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        Path(mark).write_text("cancelled")
        raise
    return "waited"


@server.tool(structured_output=False)
async def grow(name: str, ctx: Context) -> str:
    """Add a tool."""
    server.add_tool(lambda: name, name=name, description=f"Say {name}.", structured_output=False)
    await ctx.notify_tools_changed()
    if (legacy := getattr(ctx.session, "send_tool_list_changed", None)) is not None:
        await legacy()
    return "grown"


SIZES = {"type": "object", "properties": {"size": {"type": "string", "enum": ["S", "M"]}}, "required": ["size"]}


@server.tool(structured_output=False)
async def ask(ctx: Context, url: bool = False) -> str | InputRequiredResult:
    """Ask the user in a second round."""
    if ctx.input_responses is None:
        form = ElicitRequestFormParams(message="Which size?", requested_schema=SIZES)
        page = ElicitRequestURLParams(message="Which size?", url="https://x.example/pay", elicitation_id="1")
        return InputRequiredResult(input_requests={"size": ElicitRequest(params=page if url else form)})
    return ctx.input_responses["size"].model_dump_json(include={"action", "content"}, exclude_none=True)


@server.resource("mem://notes", name="notes", description="All notes.")
def notes() -> str:
    return "a note"


@server.resource("mem://pictures/{number}", name="pictures", mime_type="image/png")
def pictures(number: str) -> bytes:
    return PNG + number.encode()


@server.prompt(description="Greet a person.")
def greet(name: str, tone: str = "warm") -> str:
    return f"Write a {tone} greeting to {name}."


@server.tool(structured_output=False)
def die() -> str:
    """End the process at once."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
