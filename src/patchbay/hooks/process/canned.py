"""Test requests for a hook, one of every method. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

PROBE: Final = "patchbay_probe"
"""The name of the tool in these requests: no hook has one of this name."""

_INBOUND: Final = {"channel": "doctor", "chat_id": "chat-1", "sender_id": "someone", "chat_type": "direct"}
_SCHEMA: Final = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
_TOOL: Final = {"type": "function", "function": {"name": PROBE, "description": "Does nothing.", "parameters": _SCHEMA}}
_MESSAGES: Final = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "How is the weather in Zürich? <b>北京</b> & 🌦"},
]
_OPTIONS: Final = {"max_tokens": 512, "temperature": 0.5}
TRACE: Final[Mapping[str, str]] = {
    "before_llm": "turn.llm.request",
    "after_llm": "turn.llm.response",
    "before_tool": "turn.tool.before",
    "after_tool": "turn.tool.after",
    "approve_tool": "turn.tool.approve",
}
EVENT: Final = {
    "id": "evt-1", "kind": "agent.turn.start", "time": "2026-01-01T00:00:00.000000000Z", "source": {"component": "agent"},
    "scope": {"turn_id": "main-turn-1"}, "correlation": {}, "severity": "info", "payload": {"UserMessage": "hi", "MediaCount": 0},
}  # fmt: skip


def params_of(point: str) -> dict[str, Any]:
    """Return the params of a request."""
    meta = {
        "AgentID": "main", "TurnID": "main-turn-1", "ParentTurnID": "", "SessionKey": "doctor:chat-1", "Iteration": 1,
        "TracePath": TRACE[point], "Source": "runTurn",
    }  # fmt: skip
    params: dict[str, Any] = {"meta": meta, "context": {"inbound": _INBOUND}}
    if point == "before_llm":
        return {**params, "model": "some-model", "messages": _MESSAGES, "tools": [_TOOL], "options": _OPTIONS}
    if point == "after_llm":
        call = {"id": "call-1", "type": "function", "function": {"name": PROBE, "arguments": '{"path":"/tmp"}'}}
        response = {"content": "It is sunny.", "finish_reason": "tool_calls", "reasoning": "", "reasoning_details": None}
        return {**params, "model": "some-model", "response": {**response, "tool_calls": [call]}}
    params |= {"tool": PROBE, "arguments": {"path": "/tmp/Zürich & <北京>", "count": 3}}  # noqa: S108  (no file)
    if point == "after_tool":
        return {
            **params,
            "result": {"for_llm": "done", "silent": False, "is_error": False, "async": False},
            "duration": 1_500_000,
        }
    return {**params, "source": ""}
