"""FastMCP as a peer of MCP's conformance: a server, a proxy of a server, a client. It runs without Patchbay, in FastMCP's environment.

conformance_fastmcp.py server          over stdio; with a port over streamable HTTP
conformance_fastmcp.py proxy URL       over stdio: a server that mounts a proxy of the one at URL
conformance_fastmcp.py client MODE URL | COMMAND...
                                       check the suite's tools there, and print the outcome of each check as JSON
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
from typing import Any

from fastmcp import Client, Context, FastMCP
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from fastmcp.server import create_proxy
from fastmcp.utilities.types import Image

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==")
LIMIT = 60.0

server: FastMCP[Any] = FastMCP("peer")


@server.tool
def add(a: int, b: int = 1) -> int:
    """Add two integers."""
    return a + b


@server.tool
def picture() -> Image:
    """Return a picture."""
    return Image(data=PIXEL, format="png")


@server.tool
def fail() -> str:
    """Fail."""
    raise ToolError("no such order")


@server.tool
async def steps(context: Context) -> str:
    """Report progress."""
    for step in (1, 2, 3):
        await context.report_progress(step, 3, f"step {step}")
    return "three steps"


def proxy(url: str) -> FastMCP[Any]:
    parent: FastMCP[Any] = FastMCP("parent")
    parent.mount(create_proxy(url), namespace="ours")
    return parent


async def check(mode: str, target: list[str]) -> dict[str, bool]:
    """Use the suite's tools at a URL, or of a command, and return what went well."""
    is_url = target[0].startswith("http")
    transport: Any = target[0] if is_url else StdioTransport(target[0], target[1:])
    progress: list[float] = []

    async def on_progress(value: float, _total: float | None, _message: str | None) -> None:
        progress.append(value)

    async def on_question(_message: str, _type: Any, _params: Any, _context: Any) -> dict[str, str]:
        return {"user_name": "Ann", "name": "Ann", "response": "Ann"}

    async with asyncio.timeout(LIMIT), Client(transport, elicitation_handler=on_question, mode=mode) as client:
        names = {each.name for each in await client.list_tools()}
        text = await client.call_tool("test_simple_text", {})
        image = await client.call_tool("test_image_content", {})
        failed = await client.call_tool("test_error_handling", {}, raise_on_error=False)
        await client.call_tool("test_tool_with_progress", {}, progress_handler=on_progress)
        checks = {
            "list": {"test_simple_text", "test_image_content"} <= names,
            "text": text.content[0].text == "This is a simple text response for testing.",
            "image": image.content[-1].type == "image" and base64.b64decode(image.content[-1].data) == PIXEL,
            "error": failed.is_error and "intentionally" in failed.content[0].text,
            "progress": len(progress) >= 3 and progress == sorted(progress),
        }
        if mode == "legacy":
            asked = await client.call_tool("test_elicitation", {"message": "Who are you?"})
            checks["elicitation"] = "action=accept" in asked.content[0].text
        else:
            asked = await client.call_tool("test_input_required_result_elicitation", {})
            checks["input required"] = "Ann" in asked.content[0].text
        if is_url:
            prompt = await client.get_prompt("test_simple_prompt")
            read = await client.read_resource("test://static-text")
            checks["prompt"] = "for testing" in prompt.messages[0].content.text
            checks["resource"] = read[0].text == "This is the content of the resource."
        return checks


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "client":
        print(json.dumps(asyncio.run(check(arguments[0], arguments[1:]))))
    elif what == "proxy":
        logging.disable(logging.CRITICAL)
        proxy(arguments[0]).run("stdio", show_banner=False)
    elif arguments:
        server.run("http", host="127.0.0.1", port=int(arguments[0]), show_banner=False)
    else:
        server.run("stdio", show_banner=False)
