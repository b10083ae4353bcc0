"""Chat completions: the driver around the exchange, and each failure in OpenAI's shape."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading

import pytest
from aiohttp import web
from proxy_rig import chat_body, json_answer, make_proxy, open_chat, open_stream, proxied, raw_upstream, read_until, stream_of

from support.http_server import BOUND, ask, serving

CHAT = "/v1/chat/completions"


def refusing(status: int, body: bytes, content_type: str = "application/json") -> object:
    async def script(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, content_type=content_type, headers={"retry-after": "2"})

    return script


def test_chat_uses_the_exchange_and_keeps_upstream_headers() -> None:
    with proxied(json_answer) as (upstream, port):
        answer = ask(port, "POST", CHAT + "/", chat_body(), headers={"openai-project": "p", "accept-encoding": "gzip"})
        assert (200, {"id": "1", "said": "exchange"}) == (answer.status, answer.json)
        assert ("r1", "9") == (answer.headers["x-upstream-request-id"], answer.headers["x-ratelimit-remaining"])
        seen = upstream.seen[0]
        assert ("/up/v1/chat/completions", "p") == (seen.path, seen.headers["openai-project"])
        assert ("identity", "application/json") == (seen.headers["Accept-Encoding"], seen.headers["Content-Type"])


def test_without_tools_bytes_pass_as_they_are_both_ways() -> None:
    body = b'{ "model":"m",  "messages":[], "n": 1.0 }'
    with proxied(json_answer) as (upstream, port):
        assert {"id": "1", "said": "upstream"} == ask(port, "POST", CHAT, body).json
        assert body == upstream.seen[0].body


@pytest.mark.parametrize("content_type", ["text/event-stream", "text/plain"])
def test_stream_uses_the_exchange_event_by_event(content_type: str) -> None:
    script = stream_of(b'data: {"said": "up', b'stream"}\n', b"\ndata: 2\n\n", content_type=content_type)
    with proxied(script) as (_, port):
        answer = ask(port, "POST", CHAT, chat_body(stream=True))
    assert b'data: {"said": "exchange"}\n\ndata: 2\n\ndata: [DONE]\n\n' == answer.body
    assert "text/event-stream; charset=utf-8" == answer.headers["content-type"]
    assert ("no-cache", "r1") == (answer.headers["cache-control"], answer.headers["x-upstream-request-id"])


def test_a_json_answer_to_a_stream_becomes_a_stream() -> None:
    with proxied(json_answer) as (_, port):
        answer = ask(port, "POST", CHAT, chat_body(stream=True))
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert b"data: [DONE]" in answer.body


@pytest.mark.parametrize("stream", [False, True])
def test_upstream_is_requested_as_often_as_the_exchange_demands(stream: bool) -> None:
    script = stream_of(b"data: upstream\n\n") if stream else json_answer
    with proxied(script) as (upstream, port):
        answer = ask(port, "POST", CHAT, chat_body(stream=stream, fake={"again": 2}))
        assert 200 == answer.status
        assert 3 == len(upstream.seen)


@pytest.mark.parametrize("stream", [False, True])
def test_buffered_answer_is_sent_if_the_retry_fails(stream: bool) -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        if len(upstream.seen) > 1:
            return web.json_response({"error": {"message": "overloaded"}}, status=503)
        return await json_answer(request)

    with proxied(script) as (upstream, port):
        answer = ask(port, "POST", CHAT, chat_body(stream=stream, fake={"again": 1, "kept": "the first answer"}))
        assert (200, b"the first answer") == (answer.status, answer.body)


def test_refusal_used_for_capabilities_is_not_sent() -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        if b"contract" in await request.read():
            return web.json_response({"said": "upstream"})
        return web.json_response({"error": {"message": "no tools here"}}, status=400)

    with proxied(script) as (_, port):
        answer = ask(port, "POST", CHAT, chat_body(fake={"refuse": True}))
        assert (200, {"said": "exchange"}) == (answer.status, answer.json)


def test_upstream_is_closed_when_the_exchange_is_finished() -> None:
    with proxied(stream_of(b"data: enough\n\n", hangs=True)) as (upstream, port):
        answer = ask(port, "POST", CHAT, chat_body(stream=True, fake={"stop": "enough"}))
        assert b"data: enough\n\ndata: [DONE]\n\n" == answer.body
        assert upstream.left.wait(BOUND)


@pytest.mark.parametrize(
    ("second", "end"),
    [(b"data: enough\n\n", b"data: [DONE]\n\n"), (b"data: wrong\n\n", b"CUDA OOM")],
    ids=["nothing more is wanted", "failure"],
)
def test_later_chunk_of_a_stream_can_end_it_at_once(second: bytes, end: bytes) -> None:
    is_read = threading.Event()

    async def script(request: web.Request) -> web.StreamResponse:
        response = await open_stream(request, b"data: first\n\n")
        assert await asyncio.to_thread(is_read.wait, BOUND)
        await response.write(second)
        await asyncio.sleep(60)
        return response

    with proxied(script) as (upstream, port):
        with open_chat(port, chat_body(stream=True, fake={"stop": "enough", "fail": "CUDA OOM", "fail_at": "wrong"})) as client:
            assert b"data: first" in read_until(client, b"first\n\n")
            is_read.set()
            assert end in read_until(client, b"\r\n0\r\n\r\n")
        assert upstream.left.wait(BOUND)


def test_a_body_declared_too_large_is_refused_before_it_is_read() -> None:
    with proxied(json_answer, max_body_size=1000) as (_, port):
        with socket.create_connection(("127.0.0.1", port), BOUND) as client:
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 1001\r\n\r\n"
            )
            data = read_until(client, b"}}")
        assert data.startswith(b"HTTP/1.1 413")
        assert b"request_too_large" in data


def test_a_body_that_grows_too_large_is_refused_while_it_is_read() -> None:
    with proxied(json_answer, max_body_size=100_000) as (_, port):
        answer = ask(port, "POST", CHAT, iter([b"x" * 60_000, b"x" * 60_000]), chunked=True)
        assert (413, "invalid_request_error") == (answer.status, answer.json["error"]["type"])
        assert 400 == ask(port, "POST", CHAT, b"x" * 100_000).status  # at the limit: read, and found not to be JSON


def test_the_connection_serves_on_after_a_refused_body() -> None:
    with proxied(json_answer, max_body_size=1000) as (_, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND)
        connection.request("POST", CHAT, b"x" * 300_000)
        refused = connection.getresponse()
        refused.read()
        used = connection.sock
        assert (413, True) == (refused.status, used is not None)
        connection.request("GET", "/health")
        assert connection.sock is used
        assert 200 == connection.getresponse().status
        connection.close()


def test_unreachable_upstream_is_502() -> None:
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", 0))  # keeps the port from other processes
        free = taken.getsockname()[1]
        port = stack.enter_context(serving(make_proxy(f"http://127.0.0.1:{free}/v1")))
        for method, path in [("POST", CHAT), ("GET", "/v1/models")]:
            answer = ask(port, method, path, chat_body() if method == "POST" else None)
            assert (502, "upstream_error") == (answer.status, answer.json["error"]["type"])
            assert f"127.0.0.1:{free}/v1 cannot be reached" in answer.message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9\r\n", "did not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\ncontent-type: application/json\r\n\r\n{", "broke off its answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\ncontent-type: text/html\r\n\r\n<h1>Hi</h1>\n", "text/html, which is not a chat completion: Hi"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-encoding: gzip\r\n\r\n{}", "compressed its answer (gzip)"),
        (b"HTTP/1.1 301 Moved\r\nlocation: https://new/v1\r\ncontent-length: 0\r\n\r\n", "redirect (HTTP 301) to https://new/v1"),
    ],
    ids=["nothing", "not http", "cut json", "html", "compressed", "redirect"],
)  # fmt: skip
def test_invalid_upstream_response_is_502_and_quoted(sent: bytes, message: str, stream: bool) -> None:
    with raw_upstream(sent) as url, serving(make_proxy(url)) as port:
        answer = ask(port, "POST", CHAT, chat_body(stream=stream))
        assert (502, "upstream_error") == (answer.status, answer.json["error"]["type"])
        assert message in answer.message


def test_an_empty_answer_is_502() -> None:
    with raw_upstream(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as url, serving(make_proxy(url)) as port:
        answer = ask(port, "POST", CHAT, chat_body())
    assert (502, True) == (answer.status, answer.message.endswith("which is not a chat completion: an empty body"))


CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("tools", [[{}], None], ids=["exchange", "transparent"])
def test_a_stream_that_breaks_off_ends_with_an_error_event(tools: object) -> None:
    with raw_upstream(CHUNKED + b"10\r\ndata: upstream\n\n\r\n") as url, serving(make_proxy(url)) as port:
        answer = ask(port, "POST", CHAT, chat_body(stream=True, tools=tools))
    assert answer.body.startswith(b"data: exchange\n\n" if tools else b"data: upstream\n\n")
    assert (True, False) == (b"broke off" in answer.body, b"[DONE]" in answer.body)


def test_a_stream_that_breaks_off_within_an_event_is_cut() -> None:
    broken = raw_upstream(CHUNKED + b"9\r\ndata: ab\n\r\n")
    with broken as url, serving(make_proxy(url)) as port, pytest.raises(http.client.IncompleteRead):
        ask(port, "POST", CHAT, chat_body(stream=True, tools=None))


def test_a_bug_is_500_without_its_details() -> None:
    class BrokenError(Exception):
        pass

    def explode(body: bytes, _encoder: object) -> object:
        raise BrokenError("inner secret")

    with proxied(json_answer, make_exchange=explode) as (_, port):
        answer = ask(port, "POST", CHAT, chat_body())
        assert 500 == answer.status
        assert b"secret" not in answer.body


def test_upstream_error_keeps_its_status_body_and_retry_headers() -> None:
    body = b'{"error": {"message": "slow down", "type": "rate", "n": 1.0}}'
    with proxied(refusing(429, body)) as (_, port):
        for fields in ({}, {"stream": True}, {"tools": None}):
            answer = ask(port, "POST", CHAT, chat_body(**fields))
            assert (429, body, "2") == (answer.status, answer.body, answer.headers["retry-after"])


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, b'{"error": {"message": "bad sk-up-0123456789abcdef", "code": "invalid"}}', "refused the proxy's API key for it (HTTP 401): bad [redacted]"),
        (403, b'{"error": {"message": "quota exceeded", "code": "quota"}}', "(HTTP 403): quota exceeded"),
        (403, b'{"detail": "not in your region"}', "not in your region"),
        (401, b"nope", "refused the proxy's API key for it (HTTP 401)."),
        (500, b"", "The upstream returned HTTP 500 without a message."),
    ],
)  # fmt: skip
def test_refused_key_is_reported_with_its_cause(status: int, body: bytes, message: str) -> None:
    with proxied(refusing(status, body), upstream_key="sk-up-0123456789abcdef") as (_, port):
        for answer in (ask(port, "POST", CHAT, chat_body()), ask(port, "GET", "/v1/models")):
            assert status == answer.status
            assert message in answer.message


def test_a_large_request_and_a_large_answer_pass_whole() -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        return web.json_response({"size": len(await request.read()), "pad": "y" * 3_000_000})

    with proxied(script) as (_, port):
        body = json.dumps(chat_body(pad="x" * 2_000_000)).encode()
        answer = ask(port, "POST", CHAT, body)
        assert (len(body), 3_000_000) == (answer.json["size"], len(answer.json["pad"]))


@pytest.mark.parametrize("pad", [0, 170, 180, 190])
def test_truncated_message_shows_no_part_of_a_key(pad: int) -> None:
    key = "up-0123456789-abcdefghij"

    async def script(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<p>" + "x" * pad + " " + key, status=200 if request.method == "POST" else 500)

    with proxied(script, upstream_key=key) as (_, port):
        for fields in ({}, {"stream": True}):
            assert key[:8].encode() not in ask(port, "POST", CHAT, chat_body(**fields)).body
        assert key[:8].encode() not in ask(port, "GET", "/v1/models").body


def test_two_requests_written_at_once_are_answered_in_order() -> None:
    with (
        proxied(json_answer) as (_, port),
        open_chat(port, chat_body()) as client,
    ):
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        data = read_until(client, b"patchbay proxy")
        assert data.index(b"exchange") < data.index(b"patchbay proxy")
