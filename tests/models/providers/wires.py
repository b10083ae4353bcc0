"""The wires of providers' servers, for what goes wrong on each of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from patchbay.models.resolve import resolve_model
from patchbay.testing import Raw, ScriptedUpstream, events
from patchbay.testing.script import error

from . import gemini_server as gemini
from .conftest import WEATHER

KEY = "my-own-secret-key-7"


def piece(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """One chunk of chat completions."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def event(part: dict[str, Any]) -> bytes:
    """One event of Gemini."""
    return f"data: {json.dumps(part)}\r\n\r\n".encode()


@dataclass(frozen=True)
class Wire:
    """One protocol: its fake server, a model on it, an error, and answers that break off (of a stream, and whole)."""

    serve: Callable[[Any], ScriptedUpstream]
    model: Callable[..., Any]
    error: Callable[[int, str], Raw]
    begun: bytes
    cuts: dict[str, Raw]
    whole_cuts: dict[str, Raw]
    tools: Any = ()


def _chat_model(server: Any, **options: Any) -> Any:
    return resolve_model(f"{server.url}#m", **{"api_key": KEY, "max_retries": 0, **options})


def _gemini_model(server: Any, **options: Any) -> Any:
    options.pop("tool_mode", None)
    return resolve_model("gemini/gemini-3-pro", **{"api_key": KEY, "base_url": server.base_url, "max_retries": 0, **options})


BEGUN = piece({"role": "assistant", "content": "It is "})
_CALLING = piece({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": '{"ci'}}]})
_CHAT = {
    "connection lost": Raw([events(BEGUN, done=False)], end="cut"),
    "connection lost in an event": Raw([events(BEGUN, done=False) + b'data: {"choices"'], end="cut"),
    "ended without an end": Raw([events(BEGUN, done=False)]),
    "ended in a call": Raw([events(_CALLING, done=False)]),
    "an error": Raw([events(BEGUN, {"error": {"message": "CUDA OOM"}}, done=False)]),
    "nothing": Raw([]),
}
_CHAT_WHOLE = {"half": Raw([b'{"choices": [{"index": 0, "message": {"con'], content_type="application/json", end="cut")}
_GEMINI_BEGUN = event(gemini.response(gemini.text("It is "), finish=None))
_GEMINI = {
    "connection lost": Raw([_GEMINI_BEGUN], end="cut"),
    "connection lost in an event": Raw([_GEMINI_BEGUN, b'data: {"candi'], end="cut"),
    "ended without an end": Raw([_GEMINI_BEGUN]),
    "half an event": Raw([_GEMINI_BEGUN, b'data: {"candi']),
    "an error": Raw([_GEMINI_BEGUN, event({"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}})]),
    "nothing": Raw([]),
    "no candidate": Raw([event({"candidates": []})]),
    "a page": Raw([b"<html>Welcome to nginx</html>"], content_type="text/html"),
}
_GEMINI_WHOLE = {
    "cut": Raw([b'{"candidates": [{"con'], content_type="application/json", end="cut"),
    "half": Raw([b'{"candidates": [{"con'], content_type="application/json"),
    "without a candidate": Raw([b'{"candidates": []}'], content_type="application/json"),
    "empty": Raw([b"{}"], content_type="application/json"),
}
WIRES = {
    "chat": Wire(ScriptedUpstream, _chat_model, error, events(BEGUN, done=False), _CHAT, _CHAT_WHOLE),
    "chat with tools": Wire(ScriptedUpstream, _chat_model, error, events(BEGUN, done=False), _CHAT, _CHAT_WHOLE, (WEATHER,)),
    "gemini": Wire(gemini.GeminiServer, _gemini_model, gemini.error, _GEMINI_BEGUN, _GEMINI, _GEMINI_WHOLE, (WEATHER,)),
}
