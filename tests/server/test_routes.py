"""Who may come in, and from where: health, keys, CORS, the base path, mounting."""

from __future__ import annotations

import socket

import pytest
from proxy_rig import chat_body, json_answer, make_proxy, proxied, read_until, running_upstream

from patchbay.errors import ConfigurationError
from patchbay.server.http import find_tail, is_chat, own_path
from support.http_server import BOUND, ask, serving

CHAT = "/v1/chat/completions"


def test_health_answers_without_a_key() -> None:
    with serving(make_proxy("http://127.0.0.1:9/v1", api_key="proxy-key")) as port:
        for path in ("/", "/health", "/health/"):
            assert {"status": "ok", "service": "patchbay proxy"} == ask(port, "GET", path).json
        assert b"" == ask(port, "HEAD", "/health").body


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 401), ("Bearer proxy-key", 200), ("bEARER proxy-key", 200), ("Bearer  proxy-key ", 200), ("Bearer proxy-keyx", 401),
        ("Bearer proxy-ke", 401), ("Basic proxy-key", 401), ("proxy-key", 401), ("Bearer", 401), ("Bearer dör-key", 401),
    ],
)  # fmt: skip
def test_the_key_opens_and_nothing_else_does(given: str | None, status: int) -> None:
    with proxied(json_answer, api_key="proxy-key") as (upstream, port):
        for method, path in (("POST", CHAT), ("GET", "/v1/models")):
            headers = {"authorization": given} if given else {}
            answer = ask(port, method, path, chat_body() if method == "POST" else None, headers=headers)
            assert status == answer.status
            if status == 401:
                assert "Bearer" == answer.headers["www-authenticate"]
                assert ("authentication_error", "invalid_api_key") == (
                    answer.json["error"]["type"],
                    answer.json["error"]["code"],
                )
        assert (status == 200) == bool(upstream.seen)


def test_wrong_key_is_refused_before_the_body_is_read() -> None:
    with (
        serving(make_proxy("http://127.0.0.1:9/v1", api_key="proxy-key")) as port,
        socket.create_connection(("127.0.0.1", port), BOUND) as client,
    ):
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n"
        )
        assert read_until(client, b"}}").startswith(b"HTTP/1.1 401")


def test_options_needs_no_key_and_has_no_cors_headers_by_default() -> None:
    with serving(make_proxy("http://127.0.0.1:9/v1", api_key="proxy-key")) as port:
        answer = ask(port, "OPTIONS", CHAT)
        assert 204 == answer.status
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_cors_allows_any_origin_and_its_requested_headers() -> None:
    with proxied(json_answer, cors=True, api_key="proxy-key") as (_, port):
        headers = {"access-control-request-headers": "authorization, x-stainless-lang", "origin": "http://page"}
        preflight = ask(port, "OPTIONS", CHAT, headers=headers)
        assert (204, "*") == (preflight.status, preflight.headers["access-control-allow-origin"])
        assert "authorization, x-stainless-lang" == preflight.headers["access-control-allow-headers"]
        assert "DELETE" in preflight.headers["access-control-allow-methods"]
        for answer in (
            ask(port, "POST", CHAT, chat_body()),
            ask(port, "GET", "/v1/models", headers={"authorization": "Bearer proxy-key"}),
        ):
            assert "*" == answer.headers["access-control-allow-origin"]


@pytest.mark.parametrize(
    ("base", "path"), [("v2", "/v2/chat/completions"), ("/a/b/", "/a/b/chat/completions"), ("", "/chat/completions")]
)
def test_base_path_is_accepted_in_any_spelling(base: str, path: str) -> None:
    with proxied(json_answer, base_path=base) as (_, port):
        assert {"id": "1", "said": "exchange"} == ask(port, "POST", path, chat_body()).json
        assert 404 == ask(port, "POST", "/elsewhere/chat/completionsx", chat_body()).status or base == ""


def test_app_works_mounted_without_a_lifespan() -> None:
    with running_upstream(json_answer) as upstream:
        proxy = make_proxy(upstream.url)

        async def outer(scope: dict, receive: object, send: object) -> None:
            if scope["type"] == "lifespan":
                await receive()
                await send({"type": "lifespan.startup.complete"})
                await receive()
                await proxy.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await proxy({**scope, "root_path": "/models"}, receive, send)

        with serving(outer) as port:
            assert {"id": "1", "said": "exchange"} == ask(port, "POST", "/models/v1/chat/completions", chat_body()).json
            assert 200 == ask(port, "GET", "/models/health").status
            assert 200 == ask(port, "GET", "/models/v1/models").status
            assert 404 == ask(port, "GET", "/models/v2/models").status


def test_mount_path_is_found_in_any_asgi_spelling() -> None:
    assert "/v1/x%2Fy" == own_path({"raw_path": b"/mount/v1/x%2Fy", "path": "/mount/v1/x/y", "root_path": "/mount"})
    assert "/v1/x" == own_path({"raw_path": b"/v1/x", "path": "/v1/x", "root_path": "/mount"})
    assert "/v1/a%20b" == own_path({"path": "/mount/v1/a b", "root_path": "/mount"})
    assert "/mounted/v1" == own_path({"path": "/mounted/v1", "root_path": "/mount"})
    assert "/" == own_path({"path": "/mount", "root_path": "/mount"})


def test_chat_path_is_recognised_in_any_encoding() -> None:
    assert is_chat("/chat/%63ompletions")
    assert is_chat("/chat%2Fcompletions")
    assert not is_chat("/chat/completions/abc")
    assert "/chat/completions" == find_tail("/v1/chat/completions//", "/v1")


@pytest.mark.parametrize(
    "upstream",
    ["", "localhost:1/v1", "ftp://x/v1", "http://", "http://x:99999/v1", "http://u:p@x/v1", "http://x/v1?a=b", "http://x/v1/chat/completions", "http://[::1/v1", "http://a b/v1", "http://a..b/v1", f"http://{'x' * 64}/v1", "http://bü..cher/v1"],
)  # fmt: skip
def test_an_upstream_that_cannot_work_is_refused_when_it_is_set(upstream: str) -> None:
    with pytest.raises(ConfigurationError, match="upstream"):
        make_proxy(upstream)


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": ""}, {"api_key": "a b"}, {"upstream_key": "\n"}, {"base_path": "/a/../b"}, {"max_body_size": 0},
        {"max_body_size": "10zb"}, {"upstream_timeout": -1}, {"heartbeat": 0}, {"upstream_headers": {"a b": "c"}},
        {"upstream_headers": {"a": "b\nc"}}, {"log_file": "/nowhere/at/all"}, {"max_log_size": 1, "log_file": "x"},
        {"log_file": ""}, {"log_file": "."}, {"log_file": "/"}, {"upstream_headers": {"Content-Length": "1"}},
        {"upstream_headers": {"transfer-encoding": "1"}}, {"upstream_headers": {"Connection": "1"}},
    ],
)  # fmt: skip
def test_a_setting_that_cannot_work_is_refused_when_it_is_set(settings: dict) -> None:
    with pytest.raises(ConfigurationError):
        make_proxy("http://127.0.0.1:9/v1", make_exchange=None, **settings)
