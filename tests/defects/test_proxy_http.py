"""Defects 31, 32, 33, 35: statuses, what passes through the proxy, time limits, CORS, keys and the log."""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patchbay.testing.script import Raw, error

from .doors import Proxy, http_request, running_proxy
from .reading import ROME, TOOLS, block
from .upstream import Upstream

Proxies = Callable[..., Proxy]
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
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
    "choice of no tool": {
        "model": "m", "messages": USER, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}
    },
}  # fmt: skip


@pytest.mark.parametrize("body", MISTAKES.values(), ids=MISTAKES)
def test_d31_the_clients_mistakes_are_400(proxies: Proxies, body: Any) -> None:
    response = http_request(proxies("--tools", "text").port, "POST", CHAT, body, JSON)
    assert (400, "invalid_request_error") == (response.status, response.json["error"]["type"])
    assert response.json["error"]["message"]


def test_d31_stream_null_is_no_stream(proxies: Proxies, upstream: Upstream, model: str) -> None:
    upstream.on(model, block(ROME))
    body = {
        "model": model,
        "messages": USER,
        "tools": TOOLS,
        "stream": None,
        "n": None,
        "tool_choice": None,
        "parallel_tool_calls": None,
    }
    response = http_request(proxies("--tools", "text").port, "POST", CHAT, body)
    assert (200, "tool_calls") == (response.status, response.json["choices"][0]["finish_reason"])


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "none"])
def test_d31_a_chat_body_over_the_limit_is_413(proxies: Proxies, tools: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 11_000_000}], **({"tools": tools} if tools else {})}
    response = http_request(proxies("--tools", "text").port, "POST", CHAT, body)
    assert (413, "request_too_large") == (response.status, response.json["error"]["code"])


def test_d31_nothing_else_is_at_another_path(proxies: Proxies) -> None:
    response = http_request(proxies("--tools", "text").port, "GET", "/elsewhere")
    assert (404, "not_found") == (response.status, response.json["error"]["type"])


def test_d32_a_query_string_passes_through(proxies: Proxies, upstream: Upstream, model: str) -> None:
    path = upstream.on("/v1/things/query", Raw([b"{}"], content_type="application/json"))
    http_request(proxies("--tools", "text").port, "GET", path + "?limit=2&after=a%2Fb&x=%20")
    assert [path + "?limit=2&after=a%2Fb&x=%20"] == [seen.target for seen in upstream.seen[path]]


def test_d32_the_answers_headers_pass_back(proxies: Proxies, upstream: Upstream) -> None:
    headers = [
        ("retry-after", "7"),
        ("x-request-id", "req_1"),
        ("content-disposition", 'attachment; filename="a.bin"'),
        ("x-ratelimit-remaining-tokens", "5"),
    ]
    octets = "application/octet-stream"
    for status in (200, 206, 429):
        body = b'{"error":{"message":"Slow down."}}' if status == 429 else b"\x00\xff"
        path = upstream.on(f"/v1/things/headers-{status}", Raw([body], status=status, content_type=octets, headers=headers))
        response = http_request(proxies("--tools", "text").port, "GET", path)
        assert (status, body) == (response.status, response.body)
        assert dict(headers).items() <= response.headers.items()
        assert status == 429 or octets == response.headers["content-type"]


def test_d32_html_error_page_becomes_a_json_error_that_quotes_it(proxies: Proxies, upstream: Upstream) -> None:
    """The error is JSON, as its content type says: the page itself could hide a key in its markup."""
    html = b"<html><body><h1>Not here</h1></body></html>"
    path = upstream.on("/v1/things/html-404", Raw([html], status=404, content_type="text/html; charset=utf-8"))
    response = http_request(proxies("--tools", "text").port, "GET", path)
    assert (404, "application/json") == (response.status, response.headers["content-type"])
    assert "404" in response.json["error"]["message"]
    assert "text/html" in response.json["error"]["message"]
    assert "Not here" in response.json["error"]["message"]


def test_d32_retry_after_reaches_the_client_of_a_chat(proxies: Proxies, upstream: Upstream, model: str, stream: bool) -> None:
    busy = error(429, "Slow down.", kind="rate_limit_error")
    upstream.on(
        model,
        Raw(busy.chunks, status=429, content_type="application/json", headers=[("retry-after", "7"), ("x-request-id", "req_2")]),
    )
    body = {"model": model, "messages": USER, "tools": TOOLS, "stream": stream}
    response = http_request(proxies("--tools", "text").port, "POST", CHAT, body)
    assert (429, "7", "req_2") == (response.status, response.headers.get("retry-after"), response.headers.get("x-request-id"))
    assert "Slow down." in response.json["error"]["message"]


def test_d32_the_clients_own_key_and_headers_go_upstream(proxies: Proxies, upstream: Upstream, model: str) -> None:
    upstream.on(model, "Hello.")
    path = upstream.on("/v1/things/key", Raw([b"{}"], content_type="application/json"))
    headers = {
        "authorization": "Bearer sk-client",
        "openai-organization": "org_1",
        "openai-beta": "assistants=v2",
        "content-type": "application/json",
    }
    port = proxies("--tools", "text").port
    http_request(port, "GET", path, headers=headers)
    for tools in ({"tools": TOOLS}, {}):
        http_request(port, "POST", CHAT, {"model": model, "messages": USER, **tools}, headers)
    for seen in (upstream.seen[path][0], *upstream.seen[model]):
        assert "Bearer sk-client" == seen.headers["authorization"]
        assert "org_1" == seen.headers["openai-organization"]


def test_d32_an_upstream_key_replaces_the_clients(proxies: Proxies, upstream: Upstream, model: str) -> None:
    upstream.on(model, "Hello.")
    path = upstream.on("/v1/things/own-key", Raw([b"{}"], content_type="application/json"))
    port = proxies("--tools", "text", "--upstream-key", "sk-own").port
    http_request(port, "GET", path, headers={"authorization": "Bearer sk-client"})
    http_request(port, "POST", CHAT, {"model": model, "messages": USER, "tools": TOOLS}, {"authorization": "Bearer sk-client"})
    assert ["Bearer sk-own"] * 2 == [seen.headers["authorization"] for seen in (upstream.seen[path][0], upstream.seen[model][0])]


def test_d32_an_upload_may_be_larger_than_a_chat(proxies: Proxies, upstream: Upstream) -> None:
    path = upstream.on("/v1/audio/transcriptions", Raw([b'{"text":"hi"}'], content_type="application/json"))
    body = os.urandom(1 << 20) * 12
    kind = "multipart/form-data; boundary=xyz"
    response = http_request(proxies("--tools", "text").port, "POST", path, body, {"content-type": kind})
    assert 200 == response.status
    assert (body, kind) == (upstream.seen[path][0].body, upstream.seen[path][0].headers["content-type"])


def test_d32_a_body_that_is_cut_is_not_ended_as_if_it_were_complete(proxies: Proxies, upstream: Upstream) -> None:
    path = upstream.on("/v1/things/cut", Raw([b"half of it"], content_type="text/plain", end="cut"))
    sized = upstream.on(
        "/v1/things/cut-sized", Raw([b"half of it"], content_type="text/plain", headers=[("content-length", "100")], end="cut")
    )
    for target in (path, sized):
        response = http_request(proxies("--tools", "text").port, "GET", target)
        assert response.cut or response.status == 502


def test_d32_a_compressed_answer_passes_as_it_is(proxies: Proxies, upstream: Upstream) -> None:
    data = gzip.compress(b'{"object":"list"}', mtime=0)
    path = upstream.on("/v1/things/gzip", Raw([data], content_type="application/json", headers=[("content-encoding", "gzip")]))
    response = http_request(proxies("--tools", "text").port, "GET", path, headers={"accept-encoding": "gzip"})
    assert (data, "gzip") == (response.body, response.headers["content-encoding"])


def test_d32_a_redirect_is_the_clients_to_follow(proxies: Proxies, upstream: Upstream) -> None:
    path = upstream.on(
        "/v1/things/moved", Raw([], status=307, content_type="", headers=[("location", "https://elsewhere.example/x")])
    )
    response = http_request(proxies("--tools", "text").port, "GET", path)
    assert (307, "https://elsewhere.example/x") == (response.status, response.headers["location"])


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "none"])
def test_d32_an_html_error_is_not_labelled_json_unless_it_is(
    proxies: Proxies, upstream: Upstream, model: str, stream: bool, tools: Any
) -> None:
    html = b"<html><body><h1>boom token=abc</h1></body></html>"
    upstream.on(model, Raw([html], status=503, content_type="text/html"))
    body = {"model": model, "messages": USER, "stream": stream, **({"tools": tools} if tools else {})}
    response = http_request(proxies("--tools", "text").port, "POST", CHAT, body)
    assert 503 == response.status
    if "json" in response.headers["content-type"]:
        assert "boom" in response.json["error"]["message"]
        assert "<h1>" not in response.json["error"]["message"]
    else:
        assert response.body.count(b"<h1>") == response.body.count(b"</h1>") == 1


def test_d32_numbers_are_not_secrets(proxies: Proxies, upstream: Upstream, model: str) -> None:
    message = "You have used token: 5000 of max_tokens: 4096."
    upstream.on(model, error(400, message, kind="invalid_request_error"))
    body = {"model": model, "messages": USER, "tools": TOOLS}
    response = http_request(proxies("--tools", "text").port, "POST", CHAT, body)
    assert (400, message) == (response.status, response.json["error"]["message"])


def test_d32_secrets_of_the_upstream_are_not_shown(proxies: Proxies, upstream: Upstream, model: str) -> None:
    upstream.on(model, error(401, "Incorrect API key provided: sk-abcdefghijklmnopqrstuvwx1234567890."))
    body = {"model": model, "messages": USER, "tools": TOOLS}
    response = http_request(proxies("--tools", "text").port, "POST", CHAT, body)
    assert 401 == response.status
    assert b"sk-abcdefghijklmnopqrstuvwx" not in response.body


def test_d32_a_403_keeps_what_it_says_of_the_quota(proxies: Proxies, upstream: Upstream, model: str) -> None:
    upstream.on(model, error(403, "You exceeded your monthly quota.", kind="insufficient_quota"))
    body = {"model": model, "messages": USER, "tools": TOOLS}
    response = http_request(proxies("--tools", "text").port, "POST", CHAT, body)
    assert 403 == response.status
    assert "You exceeded your monthly quota." in response.json["error"]["message"]


def test_d33_an_upstream_that_never_answers_is_504_after_the_time_that_was_set(upstream: Upstream, model: str) -> None:
    upstream.on(model, Raw([], end="hang"))
    hung = upstream.on("/v1/things/hung", Raw([], end="hang"))
    with running_proxy("--upstream", upstream.url, "--tools", "text", "--upstream-timeout", "0.3") as proxy:
        for stream in (False, True):
            body = {"model": model, "messages": USER, "tools": TOOLS, "stream": stream}
            response = http_request(proxy.port, "POST", CHAT, body)
            assert (504, "upstream_timeout") == (response.status, response.json["error"]["code"])
        response = http_request(proxy.port, "GET", hung)
        assert response.cut or response.status == 504


def test_d33_a_stream_that_falls_silent_ends_in_an_error(upstream: Upstream, model: str) -> None:
    from patchbay.testing.script import events

    from .test_wire_answers import chunk

    upstream.on(model, Raw([events(chunk(model, role="assistant", content="Hello "), done=False)], end="hang"))
    with running_proxy("--upstream", upstream.url, "--tools", "text", "--upstream-timeout", "2") as proxy:
        response = http_request(proxy.port, "POST", CHAT, {"model": model, "messages": USER, "tools": TOOLS, "stream": True})
    assert 200 == response.status
    assert b"[DONE]" not in response.body
    assert b"upstream_timeout" in response.body


def test_d33_an_upstream_that_is_not_there_is_502() -> None:
    with running_proxy("--upstream", "http://127.0.0.1:9/v1", "--tools", "text") as proxy:
        for stream in (False, True):
            body = {"model": "m", "messages": USER, "tools": TOOLS, "stream": stream}
            response = http_request(proxy.port, "POST", CHAT, body)
            assert (502, "upstream_error") == (response.status, response.json["error"]["code"])


BROWSER = {
    "origin": "http://app.example",
    "access-control-request-method": "DELETE",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang,x-stainless-retry-count,openai-beta",
}


def test_d35_a_browsers_preflight_allows_what_the_openai_sdk_sends(proxies: Proxies) -> None:
    response = http_request(proxies("--tools", "text", "--cors").port, "OPTIONS", CHAT, headers=BROWSER)
    assert response.status in (200, 204)
    assert response.headers["access-control-allow-origin"] in ("*", "http://app.example")
    allowed = response.headers["access-control-allow-headers"].lower().replace(" ", "").split(",")
    assert "*" not in allowed or "authorization" in allowed, "a star does not cover authorization"
    assert {"authorization", "content-type", "x-stainless-lang", "x-stainless-retry-count"} <= set(allowed)
    assert "DELETE" in response.headers["access-control-allow-methods"]


def test_d35_every_answer_carries_the_origin_errors_too(proxies: Proxies, upstream: Upstream, model: str, stream: bool) -> None:
    upstream.on(model, "Hello.")
    port = proxies("--tools", "text", "--cors").port
    for body in ({"model": model, "messages": USER, "tools": TOOLS, "stream": stream}, {"model": model}):
        response = http_request(port, "POST", CHAT, body, {"origin": "http://app.example"})
        assert response.headers["access-control-allow-origin"] in ("*", "http://app.example")


def test_d35_cors_is_off_by_default(proxies: Proxies) -> None:
    response = http_request(proxies("--tools", "text").port, "OPTIONS", CHAT, headers=BROWSER)
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_d35_the_bearer_scheme_is_compared_in_any_case(proxies: Proxies, upstream: Upstream, model: str, scheme: str) -> None:
    upstream.on(model, "Hello.")
    port = proxies("--tools", "text", "--api-key", "sk-proxy").port
    body = {"model": model, "messages": USER, "tools": TOOLS}
    assert 200 == http_request(port, "POST", CHAT, body, {"authorization": f"{scheme} sk-proxy"}).status
    assert "authorization" not in upstream.seen[model][0].headers, "the proxy's own key stays here"


@pytest.mark.parametrize("given", [None, "Bearer wrong", "sk-proxy", "Basic sk-proxy", "Bearer sk-proxy2", "Bearer "])
def test_d35_a_wrong_key_is_401(proxies: Proxies, given: str | None) -> None:
    port = proxies("--tools", "text", "--api-key", "sk-proxy").port
    response = http_request(port, "GET", "/v1/models", headers={"authorization": given} if given else {})
    assert (401, "authentication_error") == (response.status, response.json["error"]["type"])
    assert 200 == http_request(port, "GET", "/health").status


def test_d35_the_log_is_private_holds_streamed_answers_and_no_keys(upstream: Upstream, model: str, tmp_path: Path) -> None:
    log = tmp_path / "proxy.jsonl"
    upstream.on(model, f"Sunny in Rome.\n{block(ROME)}")
    flags = ("--upstream", upstream.url, "--tools", "text", "--upstream-key", "sk-own-key", "--log-file", str(log))
    with running_proxy(*flags) as proxy:
        body = {"model": model, "messages": [{"role": "user", "content": "Xanadu?"}], "tools": TOOLS, "stream": True}
        http_request(proxy.port, "POST", CHAT, body, {"authorization": "Bearer sk-client-key"})
    assert 0o600 == stat.S_IMODE(log.stat().st_mode)
    text = log.read_text()
    assert all(json.loads(line) for line in text.splitlines())
    assert "Xanadu?" in text
    assert "Sunny" in text
    assert "get_weather" in text
    assert "sk-own-key" not in text
    assert "sk-client-key" not in text


def test_d35_the_logs_size_is_bounded_over_restarts(upstream: Upstream, model: str, tmp_path: Path) -> None:
    log = tmp_path / "proxy.jsonl"
    upstream.on(model, "Hello.")
    for _ in range(3):
        flags = ("--upstream", upstream.url, "--tools", "text", "--log-file", str(log), "--max-log-size", "20000")
        with running_proxy(*flags) as proxy:
            body = {"model": model, "messages": [{"role": "user", "content": "x" * 4000}], "tools": TOOLS}
            for _ in range(3):
                assert 200 == http_request(proxy.port, "POST", CHAT, body).status
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 20_000
    assert log.stat().st_size > 0
