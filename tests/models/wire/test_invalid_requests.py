"""Invalid chat requests through the proxy."""

from __future__ import annotations

from typing import Any

import pytest

from support.fenced_texts import ROME, TOOLS, block

USER = [{"role": "user", "content": "Hi"}]


def with_tools(tools: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": USER, "tools": tools, **fields}


MISTAKES: dict[str, Any] = {
    "not JSON": b"{",
    "nothing": b"",
    "an array": b"[]",
    "a string": b'"x"',
    "UTF-16": b"\xff\xfe{}",
    "too deep": b'{"model": "m", "messages": ' + b"[" * 100_000,
    "no messages": {"model": "m"},
    "messages is text": {"model": "m", "messages": "hello"},
    "messages is an object": with_tools(TOOLS, messages={"role": "user"}),
    "a message is a number": with_tools(TOOLS, messages=[7]),
    "a message without role": with_tools(TOOLS, messages=[{"content": "no role"}]),
    "no model": {"messages": USER},
    "model is a number": {"model": 7, "messages": USER},
    "stream is text": {"model": "m", "messages": USER, "stream": "yes"},
    "stream is a number": {"model": "m", "messages": USER, "stream": 1},
    "tools is text": with_tools("f"),
    "a tool is a number": with_tools([7]),
    "a tool without function": with_tools([{"type": "function"}]),
    "a tool without name": with_tools([{"type": "function", "function": {"name": ""}}]),
    "parameters is text": with_tools([{"type": "function", "function": {"name": "f", "parameters": "x"}}]),
    "unknown choice": with_tools(TOOLS, tool_choice="sometimes"),
    "choice of an unknown tool": with_tools(TOOLS, tool_choice={"type": "function", "function": {"name": "nope"}}),
    "a custom tool": with_tools([{"type": "custom", "custom": {"name": "grep", "description": "Greps."}}]),
}


@pytest.mark.parametrize("body", MISTAKES.values(), ids=MISTAKES)
def test_invalid_request_is_400(post, body):
    response = post(body)
    assert (400, "invalid_request_error") == (response.status, response.json["error"]["type"])
    assert {"message", "type", "code", "param"} == response.json["error"].keys()


def test_null_fields_are_absent_fields(post, upstream, model):
    upstream.on(model, block(ROME))
    absent = dict.fromkeys(("stream", "n", "tool_choice", "parallel_tool_calls"))
    response = post({"model": model, "messages": USER, "tools": TOOLS, **absent})
    assert (200, "tool_calls") == (response.status, response.json["choices"][0]["finish_reason"])
