"""What a server says of itself is asked once, before the first request with tools."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from proxy_rig import proxied

from support.http_server import ask

TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}
CALL = '```tool_call\n{"name": "lookup", "arguments": {"q": "x"}}\n```\n'
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], "max_tokens": 1}


@pytest.mark.parametrize("described", ["without tools", "with tools", "missing", "not json", "slow", "loading"])
def test_server_is_asked_once_for_its_description(described: str) -> None:
    asked: list[str] = []

    async def script(request: web.Request) -> web.StreamResponse:
        asked.append(f"{request.method} {request.path}" + " tools" * (b'"tools"' in await request.read()))
        if request.path == "/up/v1/models":
            return web.json_response({"data": []})
        if request.path != "/up/props":
            answer = {"id": "c", "choices": [{"index": 0, "message": {"content": CALL}, "finish_reason": "stop"}]}
            return web.json_response(answer)
        if described == "slow":
            await asyncio.sleep(60)
        if described == "loading":
            return web.json_response({"error": {"message": "Loading model"}}, status=503)
        if described in ("missing", "not json"):
            return web.Response(status=404 if described == "missing" else 200, text="<html>")
        return web.json_response({"chat_template_caps": {"supports_tools": described == "with tools"}})

    with proxied(script, make_exchange=None) as (_, port):
        for _ in range(2):
            answer = ask(port, "POST", "/v1/chat/completions", BODY).json
            assert "lookup" == answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"]
    chat = "POST /up/v1/chat/completions" + " tools" * (described != "without tools")
    listed = ["GET /up/v1/models"] * (described in ("missing", "not json"))
    assert ["GET /up/props", *listed, chat, chat] == asked  # (its answer has shown that it takes tools)
