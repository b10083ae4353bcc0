"""What the parser tests share: the tools, the ways of feeding a text, and how two replies are compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import patchbay
from patchbay.types import Reply

Read = Callable[..., Reply]

WAYS: dict[str, int | None] = {"parse": None, "one-feed": 0, "by-1": 1, "by-3": 3, "by-7": 7}
"""How a text reaches the parser: ``patchbay.parse``, or ``StreamParser.feed`` with pieces of that many characters (0: one piece)."""


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


def facts(reply: Reply) -> dict[str, Any]:
    """All of a reply but the ids, which are random."""
    return {
        "content": reply.content,
        "reasoning": reply.reasoning,
        "calls": [(call.name, call.raw_arguments) for call in reply.tool_calls],
        "incomplete": [(call.name, call.raw_arguments, call.raw) for call in reply.incomplete],
        "repairs": list(reply.repairs),
    }


def pieces(text: str, size: int) -> list[str]:
    """The text in pieces of ``size`` characters; size 0 is one piece."""
    return [text[at : at + size] for at in range(0, len(text), size)] if size else [text]


def read_in_all_ways(text: str, **options: Any) -> Reply:
    """Read ``text`` in each of WAYS, and return the reply, which is the same for all."""
    replies = {way: _read(text, size, **options) for way, size in WAYS.items()}
    whole = replies["parse"]
    assert {} == {way: facts(reply) for way, reply in replies.items() if facts(reply) != facts(whole)}, facts(whole)
    return whole


def _read(text: str, size: int | None, **options: Any) -> Reply:
    if size is None:
        return patchbay.parse(text, **options)
    parser = patchbay.StreamParser(**options)
    for piece in pieces(text, size):
        parser.feed(piece)
    parser.close()
    return parser.reply


def compact(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))
