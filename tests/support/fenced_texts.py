"""Fenced calls in the contract's syntax, and the tools that they call."""

from __future__ import annotations

from typing import Any

from patchbay.types import Reply


def spec(name: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """One element of OpenAI's ``tools``."""
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


TOOLS = [
    spec("get_weather", ("city",), city={"type": "string"}, days={"type": "integer"}),
    spec("search", ("q",), q={"type": "string"}),
    spec("write_file", ("path", "content"), path={"type": "string"}, content={"type": "string"}),
    spec("glob", (), p={"type": "string"}, q={"type": "string"}, s={"type": "string"}),
    spec("set_opts", ()),
]

ROME = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
ROME_CALL = ("get_weather", {"city": "Rome"})
OSLO = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
OSLO_CALL = ("get_weather", {"city": "Oslo"})


def block(body: str, *, label: str = "tool_call", fence: str = "```") -> str:
    """A fenced block as the contract asks for it, its closer's line not ended."""
    return f"{fence}{label}\n{body}\n{fence}"


def calls(reply: Reply) -> list[tuple[str, dict[str, Any]]]:
    """The calls without their ids."""
    return [(call.name, call.arguments) for call in reply.tool_calls]


def words(text: str | None) -> list[str]:
    """The text without its white space: around a call, white space may go, and words may not fuse."""
    return (text or "").split()
