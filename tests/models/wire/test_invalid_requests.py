"""Invalid chat requests through the proxy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from patchbay.testing.script import Raw
from support.chat_clients import Proxy, http_request
from support.fenced_texts import ROME, TOOLS, block
from support.scripted_server import SharedUpstream

Proxies = Callable[..., Proxy]
CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]

MISTAKES: dict[str, Any] = {
    "not JSON": b"{",
    "nothing": b"",
    "an array": b"[]",
    "a string": b'"x"',
    "UTF-16": b"\xff\xfe{}",
    "too deep": b'{"model": "m", "messages": ' + b"[" * 100_000,
    "no messages": {"model": "m"},
    "messages is text": {"model": "m", "messages": "hello"},
    "messages is an object": {"model": "m", "messages": {"role": "user"}, "tools": TOOLS},
    "a message is a number": {"model": "m", "messages": [7], "tools": TOOLS},
    "a message without role": {"model": "m", "messages": [{"content": "no role"}], "tools": TOOLS},
    "no model": {"messages": USER},
    "model is a number": {"model": 7, "messages": USER},
    "stream is text": {"model": "m", "messages": USER, "stream": "yes"},
    "tools is text": {"model": "m", "messages": USER, "tools": "f"},
    "a tool is a number": {"model": "m", "messages": USER, "tools": [7]},
    "a tool without function": {"model": "m", "messages": USER, "tools": [{"type": "function"}]},
    "a tool without name": {"model": "m", "messages": USER, "tools": [{"type": "function", "function": {"name": ""}}]},
    "parameters is text": {
        "model": "m", "messages": USER, "tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]
    },
    "unknown choice": {"model": "m", "messages": USER, "tools": TOOLS, "tool_choice": "sometimes"},
    "choice of an unknown tool": {
        "model": "m", "messages": USER, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}
    },
    "a custom tool": {
        "model": "m", "messages": USER, "tools": [{"type": "custom", "custom": {"name": "grep", "description": "Greps."}}]
    },
}  # fmt: skip


@pytest.mark.parametrize("body", MISTAKES.values(), ids=MISTAKES)
def test_invalid_request_is_400(proxies: Proxies, body: Any) -> None:
    response = http_request(proxies("--tools", "text").port, "POST", CHAT, body, {"content-type": "application/json"})
    assert (400, "invalid_request_error") == (response.status, response.json["error"]["type"])
    assert response.json["error"]["message"]


def test_null_fields_are_absent_fields(proxies: Proxies, upstream: SharedUpstream, model: str) -> None:
    upstream.on(model, block(ROME))
    absent = dict.fromkeys(("stream", "n", "tool_choice", "parallel_tool_calls"))
    body = {"model": model, "messages": USER, "tools": TOOLS, **absent}
    response = http_request(proxies("--tools", "text").port, "POST", CHAT, body)
    assert (200, "tool_calls") == (response.status, response.json["choices"][0]["finish_reason"])


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "none"])
def test_html_error_page_is_quoted_without_its_markup(
    proxies: Proxies, upstream: SharedUpstream, model: str, stream: bool, tools: Any
) -> None:
    upstream.on(model, Raw([b"<html><body><h1>boom token=abc</h1></body></html>"], status=503, content_type="text/html"))
    body = {"model": model, "messages": USER, "stream": stream, **({"tools": tools} if tools else {})}
    response = http_request(proxies("--tools", "text").port, "POST", CHAT, body)
    assert (503, "application/json") == (response.status, response.headers["content-type"].partition(";")[0])
    assert "boom" in response.json["error"]["message"]
    assert "<h1>" not in response.json["error"]["message"]
