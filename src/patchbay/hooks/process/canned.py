"""Requests to try a hook with: one of every method, plain, with nothing in it, and large; and odd lines. Data only."""

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
_NOTHING: Final = {"for_llm": "", "silent": False, "is_error": False, "async": False}
_NO_RESPONSE: Final = {"content": "", "finish_reason": "", "reasoning": "", "reasoning_details": None}

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
ODD_LINES: Final[Mapping[str, bytes]] = {
    "no JSON": b"hello?",
    "half an object": b'{"jsonrpc":"2.0","id":7,',
    "empty": b"",
    "a list": b"[]",
    "a text": b'"hook.hello"',
    "null": b"null",
    "params that are a list": b'{"jsonrpc":"2.0","id":1000001,"method":"hook.before_tool","params":[1]}',
    "params that are a text": b'{"jsonrpc":"2.0","id":1000002,"method":"hook.before_llm","params":"x"}',
    "no params": b'{"jsonrpc":"2.0","id":1000003,"method":"hook.before_llm"}',
    "no method": b'{"jsonrpc":"2.0","id":1000004}',
    "bytes that are no UTF-8": b'{"jsonrpc":"2.0","method":"hook.runtime_event","params":{"kind":"\xff\xfe"}}',
    "an event of an old host": b'{"jsonrpc":"2.0","method":"hook.event","params":{"Kind":3,"Meta":{},"Payload":null}}',
}
"""Lines that no host sends, and that no hook should end for."""


def params_of(point: str, size: int | None = None) -> dict[str, Any]:
    """Return the params of a request: plain, or for a ``size`` with about so many bytes of text; 0 is nothing at all."""
    is_empty = size == 0
    text = "word " * ((size or 0) // 5)
    params: dict[str, Any] = {"meta": _meta(point, is_empty=is_empty)}
    if not is_empty:
        params["context"] = {"inbound": _INBOUND}
    arguments = {} if is_empty else {"path": f"/tmp/Zürich & <北京>{text}", "count": 3}  # noqa: S108  (no file)
    if point == "before_llm":
        params["model"] = "" if is_empty else "some-model"
        if not is_empty:
            params |= {"messages": [*_MESSAGES, *([{"role": "user", "content": text}] if text else [])]}
            params |= {"tools": [_TOOL], "options": _OPTIONS}
    elif point == "after_llm":
        call = {"id": "call-1", "type": "function", "function": {"name": PROBE, "arguments": '{"path":"/tmp"}'}}
        answer = {**_NO_RESPONSE, "content": f"It is sunny.{text}", "finish_reason": "tool_calls", "tool_calls": [call]}
        params |= {"model": "" if is_empty else "some-model", "response": _NO_RESPONSE if is_empty else answer}
    else:
        params["tool"] = PROBE
        if arguments:
            params["arguments"] = arguments
        if point == "after_tool":
            params["result"] = _NOTHING if is_empty else {**_NOTHING, "for_llm": f"done: {text}"}
            params["duration"] = 0 if is_empty else 1_500_000
        else:
            params["source"] = ""
    return params


def _meta(point: str, *, is_empty: bool) -> dict[str, Any]:
    return {
        "AgentID": "" if is_empty else "main",
        "TurnID": "" if is_empty else "main-turn-1",
        "ParentTurnID": "",
        "SessionKey": "" if is_empty else "doctor:chat-1",
        "Iteration": 0 if is_empty else 1,
        "TracePath": TRACE[point],
        "Source": "runTurn",
    }
