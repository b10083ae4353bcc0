"""The official SDK's client at the tool server's ``/mcp``, in both eras of the protocol, and tools of each kind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from patchbay import tool
from patchbay.tools.context import ToolContext
from patchbay.tools.output import ToolOutput
from patchbay.types import Attachment
from tools_server.rig import BOUND

ERAS = ["legacy", "auto"]
"""The ways to connect: a handshake with a session (2025-11-25), and requests without one (2026-07-28)."""

PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489")
SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(BOUND):
            return await coroutine

    return asyncio.run(bounded())


@contextlib.asynccontextmanager
async def connected(port: int, era: str, *, query: str = "", token: str = "", **options: Any) -> AsyncIterator[Client]:
    """A client of the server on this port."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=BOUND, trust_env=False) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp{query}", http_client=http)
        async with Client(transport, mode=era, **options) as client:
            yield client


@tool(title="Sum", annotations={"read_only": True, "expensive": True}, output_schema=SUM)
def add(a: int, b: int = 2) -> dict[str, Any]:
    """Add two integers."""
    return {"sum": a + b}


@tool(output_schema=SUM)
def wrong_sum() -> dict[str, Any]:
    return {"sum": "three"}


@tool
def files() -> list[Any]:
    return [
        "four files",
        Attachment(PIXEL, "image/png", "dot.png"),
        Attachment(b"RIFF----WAVE", "audio/wav"),
        Attachment("{'é': 1}".encode(), "text/plain", "a note.txt"),
        Attachment(b"\x00\xff", "application/pdf", "b.pdf"),
    ]


@tool
def answer_the_user(tool_context: ToolContext) -> ToolOutput:
    ref = tool_context.media.put(PIXEL)
    return ToolOutput("shown", for_user="Here it is.", media=(ref,), response_handled=True)


@tool
async def step_by_step(tool_context: ToolContext) -> str:
    tool_context.progress("begun")
    tool_context.progress("half", fraction=0.5)
    tool_context.progress("back", fraction=0.25)
    tool_context.progress(fraction=1.0)
    return "done"
