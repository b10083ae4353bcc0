"""What is not a chat completion passes through, both ways, as it is."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from pathlib import Path

import pytest
from aiohttp import web
from proxy_rig import json_answer, make_proxy, proxied, raw_upstream, read_until

from patchbay.server.http import headers_for_client, headers_for_upstream
from support.http_server import BOUND, ask, serving


def test_method_path_query_and_body_reach_the_upstream_unchanged() -> None:
    with proxied(json_answer) as (upstream, port):
        for method, path, body in [
            ("GET", "/v1/models?limit=2&after=a%20b", None),
            ("POST", "/v1/embeddings", b'{"input": 1.0}'),
            ("DELETE", "/v1/files/file-1", None),
            ("PUT", "/v1/x", b"\x00\xff"),
            ("PATCH", "/v1/models/org%2Fname", b"{}"),
            ("GET", "/v1/chat/completions?limit=1", None),
            ("GET", "/v1/models/", None),
        ]:
            assert ask(port, method, path, body).status == 200
        assert [
            ("GET", "/up/v1/models?limit=2&after=a%20b", b""),
            ("POST", "/up/v1/embeddings", b'{"input": 1.0}'),
            ("DELETE", "/up/v1/files/file-1", b""),
            ("PUT", "/up/v1/x", b"\x00\xff"),
            ("PATCH", "/up/v1/models/org%2Fname", b"{}"),
            ("GET", "/up/v1/chat/completions?limit=1", b""),
            ("GET", "/up/v1/models", b""),
        ] == [(seen.method, seen.path, seen.body) for seen in upstream.seen]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../secret", "/v1/%2e%2e/secret", "/v1/%252e%252e/secret", "/v1/a/..%2f..%2fsecret", "/v1/..;/secret",
        "/v1/..%5csecret", "/v1/./x", "/v1/%25252525252525252e", "/v1/x%00", "/v2/models", "/v1x", "/",
    ],
)  # fmt: skip
def test_no_path_escapes_the_base(path: str) -> None:
    with proxied(json_answer) as (upstream, port):
        answer = ask(port, "POST", path, b"{}")
        assert (404, "not_found") == (answer.status, answer.json["error"]["code"])
        assert [] == upstream.seen


def test_headers_that_may_be_forwarded_are_and_others_are_not() -> None:
    with proxied(json_answer) as (upstream, port):
        ask(
            port, "POST", "/v1/embeddings", b"{}",
            headers={
                "authorization": "Bearer client", "openai-organization": "org", "x-stainless-lang": "python", "x-api-key": "k",
                "content-type": "application/json", "accept-encoding": "br", "user-agent": "me", "cookie": "a=b",
                "origin": "http://localhost:3000", "x-forwarded-for": "1.2.3.4", "connection": "keep-alive, x-hop", "x-hop": "1",
                "te": "trailers", "proxy-authorization": "Basic eA==",
            },
        )  # fmt: skip
        got = {name.lower(): value for name, value in upstream.seen[0].headers.items()}
        assert f"127.0.0.1:{upstream.port}" == got.pop("host")
        assert {
            "authorization": "Bearer client", "openai-organization": "org", "x-stainless-lang": "python", "x-api-key": "k",
            "content-type": "application/json", "accept-encoding": "br", "user-agent": "me", "content-length": "2",
        } == got  # fmt: skip


def test_repeated_headers_stay_repeated() -> None:
    assert [(b"x-a", b"1"), (b"x-a", b"2")] == headers_for_upstream([(b"x-a", b"1"), (b"x-a", b"2")], with_keys=False)
    assert [(b"vary", b"a"), (b"vary", b"b")] == headers_for_client([(b"Vary", b"a"), (b"vary", b"b")])


def test_configured_key_and_headers_replace_the_clients() -> None:
    given = {"Host": "models.example", "OpenAI-Organization": "ours"}
    with proxied(json_answer, upstream_key="up-key-1", upstream_headers=given) as (upstream, port):
        ask(
            port, "GET", "/v1/models",
            headers={"authorization": "Bearer client", "x-api-key": "client", "openai-organization": "theirs"},
        )  # fmt: skip
        headers = {name.lower(): value for name, value in upstream.seen[0].headers.items()}
        assert ("Bearer up-key-1", "models.example", "ours", None) == tuple(
            headers.get(name) for name in ("authorization", "host", "openai-organization", "x-api-key")
        )


def test_key_of_the_proxy_is_not_sent_upstream() -> None:
    with proxied(json_answer, api_key="proxy-key") as (upstream, port):
        assert 200 == ask(port, "GET", "/v1/models", headers={"authorization": "bearer proxy-key"}).status
        assert "Authorization" not in upstream.seen[0].headers


def test_status_headers_and_compressed_bodies_are_forwarded_unchanged() -> None:
    packed = gzip.compress(b"audio" * 1000)

    async def script(request: web.Request) -> web.StreamResponse:
        return web.Response(
            status=206, body=packed,
            headers={
                "content-encoding": "gzip", "content-type": "audio/mpeg", "retry-after": "3", "x-request-id": "r",
                "x-ratelimit-limit-requests": "10", "content-disposition": "attachment; filename=a", "set-cookie": "a=b",
                "access-control-allow-origin": "https://upstream", "alt-svc": "h3", "etag": '"1"',
            },
        )  # fmt: skip

    with proxied(script) as (_, port):
        answer = ask(port, "GET", "/v1/audio", headers={"accept-encoding": "gzip"})
        assert {answer.headers.pop("date"), answer.headers.pop("x-request-id")}.isdisjoint({"", "r"})
        assert (206, packed) == (answer.status, answer.body)
        assert {
            "content-encoding": "gzip", "content-type": "audio/mpeg", "retry-after": "3", "x-upstream-request-id": "r",
            "x-ratelimit-limit-requests": "10", "content-disposition": "attachment; filename=a", "etag": '"1"',
            "content-length": str(len(packed)),
        } == answer.headers  # fmt: skip


def test_a_redirect_is_passed_on_and_not_followed() -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"location": "https://elsewhere/file"})

    with proxied(script) as (upstream, port):
        answer = ask(port, "GET", "/v1/files/1/content")
        assert (302, "https://elsewhere/file") == (answer.status, answer.headers["location"])
        assert 1 == len(upstream.seen)


def test_head_passes_with_its_length_and_without_a_body() -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"12345")

    with proxied(script) as (_, port):
        answer = ask(port, "HEAD", "/v1/files/1")
        assert (200, "5", b"") == (answer.status, answer.headers["content-length"], answer.body)


def test_an_upload_larger_than_the_chat_limit_streams_through() -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        return web.json_response({"size": len(await request.read())})

    with proxied(script, max_body_size=1000) as (upstream, port):
        body = b"x" * 3_000_000
        assert {"size": 3_000_000} == ask(port, "POST", "/v1/audio/transcriptions", body).json
        assert body == upstream.seen[0].body
        assert "3000000" == upstream.seen[0].headers["Content-Length"]
        pieces = iter([b"a" * 70_000, b"b" * 70_000])
        assert {"size": 140_000} == ask(port, "POST", "/v1/audio/transcriptions", pieces, chunked=True).json
        assert "Content-Length" not in upstream.seen[1].headers


def test_upload_and_response_are_streamed_in_both_directions() -> None:
    first = threading.Event()

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for piece in request.content.iter_any():
            first.set()
            await response.write(piece.upper())
        await response.write_eof()
        return response

    with (
        proxied(script) as (_, port),
        socket.create_connection(("127.0.0.1", port), BOUND) as client,
    ):
        client.sendall(
            b"POST /v1/x HTTP/1.1\r\nhost: localhost\r\nx-read-body: no\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"
        )
        assert first.wait(BOUND)
        assert b"ABC" in read_until(client, b"ABC")
        client.sendall(b"3\r\ndef\r\n0\r\n\r\n")
        assert b"DEF" in read_until(client, b"0\r\n\r\n")


def test_a_refusal_reaches_a_client_that_is_still_sending_and_its_leaving_is_noticed() -> None:
    """The upstream answers before the body's end. What the client goes on to send is read and forgotten, so it is heard to leave."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=200 if request.path.endswith("x") else 413)
        await response.prepare(request)
        await response.write(b"early")
        if request.path.endswith("x"):
            await asyncio.sleep(60)
        await response.write_eof()
        return response

    head = b"POST /v1/%b HTTP/1.1\r\nhost: localhost\r\nx-read-body: no\r\ncontent-length: 1000000000\r\n\r\nabc"
    with proxied(script) as (upstream, port):
        with socket.create_connection(("127.0.0.1", port), BOUND) as client:
            client.sendall(head % b"refused")
            data = read_until(client, b"early")
            assert data.startswith(b"HTTP/1.1 413")
        with socket.create_connection(("127.0.0.1", port), BOUND) as client:
            client.sendall(head % b"x")
            assert b"early" in read_until(client, b"early")
        assert upstream.left.wait(BOUND)


@pytest.mark.parametrize("rest", [b"", b"def"], ids=["during", "after"])
def test_client_disconnected_during_an_upload_is_logged(rest: bytes, tmp_path: Path) -> None:
    log = tmp_path / "log"
    received = threading.Event()

    async def script(request: web.Request) -> web.StreamResponse:
        size = 0
        async for piece in request.content.iter_any():
            size += len(piece)
            if size == 3 + len(rest):
                received.set()
        await asyncio.sleep(60)
        return web.Response()

    with proxied(script, log_file=str(log)) as (upstream, port):
        with socket.create_connection(("127.0.0.1", port), BOUND) as client:
            client.sendall(b"POST /v1/x HTTP/1.1\r\nhost: localhost\r\nx-read-body: no\r\ncontent-length: 6\r\n\r\nabc")
            assert upstream.arrived.wait(BOUND)
            client.sendall(rest)
            assert received.wait(BOUND)
        assert upstream.left.wait(BOUND)
    assert "client_left" == json.loads(log.read_text().splitlines()[-1])["code"]


@pytest.mark.parametrize(
    "head", [b"content-length: 100\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n4\r\n"], ids=["length", "chunked"]
)
def test_truncated_upstream_body_is_not_ended_cleanly(head: bytes) -> None:
    with (
        raw_upstream(b"HTTP/1.1 200 OK\r\n" + head + b"half") as url,
        serving(make_proxy(url)) as port,
        socket.create_connection(("127.0.0.1", port), BOUND) as client,
    ):
        client.sendall(b"GET /v1/files/1 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        data = read_until(client, b"never")
        assert b"half" in data
        assert not data.endswith(b"0\r\n\r\n")


def test_json_errors_pass_through_and_others_are_quoted() -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("json"):
            return web.Response(status=429, body=b'{"error" : {"message":"slow down"}}', headers={"retry-after": "7"})
        if request.path.endswith("packed"):
            body = gzip.compress(b'{"error":"bad key sk-upstream-key-0123456789"}')
            return web.Response(status=400, body=body, headers={"content-encoding": "gzip"})
        return web.Response(status=503, text="<html><h1>Overloaded</h1><script>x</script> sk-upstream-key-0123456789</html>")

    with proxied(script, upstream_key="sk-upstream-key-0123456789") as (_, port):
        as_json = ask(port, "GET", "/v1/json")
        assert (429, b'{"error" : {"message":"slow down"}}', "7") == (
            as_json.status,
            as_json.body,
            as_json.headers["retry-after"],
        )
        packed = ask(port, "GET", "/v1/packed")
        assert (400, {"error": "bad key [redacted]"}) == (packed.status, json.loads(packed.body))
        assert "content-encoding" not in packed.headers
        page = ask(port, "GET", "/v1/page")
        assert 503 == page.status
        assert "The upstream answered HTTP 503 (text/plain; charset=utf-8): Overloaded [redacted]" == page.message


def test_unknown_methods_are_refused() -> None:
    with proxied(json_answer) as (_, port):
        answer = ask(port, "PROPFIND", "/v1/models")
        assert (405, "method_not_allowed") == (answer.status, answer.json["error"]["code"])
        assert "GET" in answer.headers["allow"]
