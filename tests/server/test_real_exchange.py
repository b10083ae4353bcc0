"""The whole proxy: real sockets on both sides, and the real exchange between them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from proxy_rig import make_proxy, raw_upstream, running_upstream

from support.http_server import HttpResponse, ask, serving

CHAT = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {"name": "lookup", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
}
CALL = '```tool_call\n{"name": "lookup", "arguments": {"q": "x", "n": 12345678901234567890, "f": 1.0}}\n```\n'


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], **fields}


def chunk(**delta: Any) -> dict[str, Any]:
    finish = delta.pop("finish", None)
    return {
        "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }  # fmt: skip


def sse(*events: Any, end: str = "\n\n", done: bool = True) -> bytes:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events] + (["[DONE]"] if done else [])
    return "".join(f"data: {line}{end}" for line in lines).encode()


def over(data: bytes, *, size: int = 0) -> object:
    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for at in range(0, len(data), size or len(data)):
            await response.write(data[at : at + (size or len(data))])
        return response

    return script


def read_stream(answer: HttpResponse) -> list[Any]:
    events = [line[6:] for line in answer.body.decode().split("\n\n") if line.startswith("data: ")]
    return [json.loads(event) for event in events if event != "[DONE]"]


def real(url: str, **settings: Any) -> Any:
    return make_proxy(url, make_exchange=None, tools="text", **settings)


def gathered(events: list[Any]) -> tuple[str, str, str, str | None]:
    """Return content, the call's name, its arguments and the finish reason of a stream."""
    content = name = arguments = ""
    finish = None
    for event in events:
        for choice in event["choices"]:
            content += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or ():
                name += call["function"].get("name") or ""
                arguments += call["function"].get("arguments") or ""
            finish = choice["finish_reason"] or finish
    return content, name, arguments, finish


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"], ids=["lf", "crlf"])
def test_written_call_is_a_call_in_any_split_of_the_stream(size: int, end: str) -> None:
    pieces = [chunk(role="assistant", content="")] + [chunk(content=CALL[at : at + 4]) for at in range(0, len(CALL), 4)]
    data = sse(*pieces, chunk(finish="stop"), end=end)
    with running_upstream(over(data, size=size)) as upstream, serving(real(upstream.url)) as port:
        answer = ask(port, "POST", CHAT, body(stream=True))
        _, name, arguments, finish = gathered(read_stream(answer))
        assert ("lookup", "tool_calls") == (name, finish)
        assert '{"q": "x", "n": 12345678901234567890, "f": 1.0}' == arguments
        assert answer.body.endswith(b"data: [DONE]\n\n")
        sent = json.loads(upstream.seen[0].body)
        assert "tools" not in sent
        assert "lookup" in sent["messages"][0]["content"]


def test_written_call_in_a_whole_response_is_a_call() -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        message = {"role": "assistant", "content": "Let me see.\n" + CALL}
        return web.json_response(
            {"id": "1", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        )

    with running_upstream(script) as upstream, serving(real(upstream.url)) as port:
        choice = ask(port, "POST", CHAT, body()).json["choices"][0]
        assert ("tool_calls", "lookup") == (choice["finish_reason"], choice["message"]["tool_calls"][0]["function"]["name"])


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_finish_reason_of_the_upstream_is_kept_in_a_stream(reason: str) -> None:
    with running_upstream(over(sse(chunk(content="Ro"), chunk(finish=reason)))) as upstream, serving(real(upstream.url)) as port:
        assert ("Ro", "", "", reason) == gathered(read_stream(ask(port, "POST", CHAT, body(stream=True))))


def test_an_error_inside_a_stream_reaches_the_client_as_an_error() -> None:
    data = sse(chunk(content="Hello there. "), {"error": {"message": "CUDA OOM"}})
    with running_upstream(over(data)) as upstream, serving(real(upstream.url)) as port:
        answer = ask(port, "POST", CHAT, body(stream=True))
        assert b"CUDA OOM" in answer.body
        assert b"[DONE]" not in answer.body


def test_key_in_a_stream_error_is_redacted() -> None:
    data = sse(chunk(content="Hello there. "), {"error": {"message": "refused up-key-0123456789"}})
    with running_upstream(over(data)) as upstream, serving(real(upstream.url, upstream_key="up-key-0123456789")) as port:
        answer = ask(port, "POST", CHAT, body(stream=True))
        assert b"refused [redacted]" in answer.body
        assert b"up-key" not in answer.body


def test_an_error_as_the_first_event_has_a_status() -> None:
    with running_upstream(over(sse({"error": {"message": "CUDA OOM"}}))) as upstream, serving(real(upstream.url)) as port:
        answer = ask(port, "POST", CHAT, body(stream=True))
        assert 502 == answer.status
        assert "CUDA OOM" in answer.message


def test_empty_stream_is_an_error() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    with raw_upstream(head + b"content-length: 0\r\n\r\n") as url, serving(real(url)) as port:
        assert 502 == ask(port, "POST", CHAT, body(stream=True)).status
    with raw_upstream(head + b'\r\ndata: {"choi') as url, serving(real(url)) as port:
        assert 502 == ask(port, "POST", CHAT, body(stream=True)).status


@pytest.mark.parametrize(
    "wrong",
    [b"", b"{", b"[]", b'"x"', b'{"model": 1, "messages": []}', b'{"model": "m"}', b'{"model":"m","messages":"x","tools":[]}',
     b'{"model":"m","messages":[],"tools":"x"}', b'{"model":"m","messages":[],"stream":1}', b"\xff\xfe", b"[" * 200_000,
     b'{"model":"m","messages":[],"tools":[{"type":"function"}]}'],
)  # fmt: skip
def test_the_clients_mistakes_are_400_in_openais_shape(wrong: bytes) -> None:
    with running_upstream(over(sse())) as upstream, serving(real(upstream.url)) as port:
        answer = ask(port, "POST", CHAT, wrong)
        assert (400, "invalid_request_error") == (answer.status, answer.json["error"]["type"])
        assert {"message", "type", "code", "param"} == set(answer.json["error"])
        assert [] == upstream.seen


@pytest.mark.parametrize("described", ["without tools", "with tools", "missing", "not json", "slow"])
def test_server_is_asked_once_for_its_description(described: str) -> None:
    asked: list[str] = []

    async def script(request: web.Request) -> web.StreamResponse:
        asked.append(f"{request.method} {request.path}" + " tools" * (b'"tools"' in await request.read()))
        if request.path != "/up/props":
            answer = {"id": "c", "choices": [{"index": 0, "message": {"content": CALL}, "finish_reason": "stop"}]}
            return web.json_response(answer)
        if described == "slow":
            await asyncio.sleep(60)
        if described in ("missing", "not json"):
            return web.Response(status=404 if described == "missing" else 200, text="<html>")
        return web.json_response({"chat_template_caps": {"supports_tools": described == "with tools"}})

    with running_upstream(script) as upstream, serving(make_proxy(upstream.url, make_exchange=None)) as port:
        for _ in range(2):
            answer = ask(port, "POST", CHAT, body(max_tokens=1)).json
            assert "lookup" == answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"]
    chat = "POST /up/v1/chat/completions" + " tools" * (described != "without tools")
    assert ["GET /up/props", chat, chat] == asked
