"""Who is let in to /v1, and whose key goes to the upstream: never the server's own token."""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import Any

import pytest

from chat_server.rig import MODEL, USER, ChatServer, serve_chat
from tools_server.rig import BOUND, TOKEN, serving

BODY = {"model": MODEL, "messages": [USER]}
KEYS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


def keys_seen(at: ChatServer) -> dict[str, str]:
    headers = at.upstream.requests[-1].headers
    assert not any(TOKEN in value for value in headers.values())
    return {name: headers[name] for name in KEYS if name in headers}


@pytest.mark.parametrize("with_tools", [True, False])
@pytest.mark.parametrize(
    ("given", "seen"),
    [({}, {}), ({"authorization": "Bearer theirs"}, {"authorization": "Bearer theirs"}), ({"authorization": f"Bearer {TOKEN}"}, {}),
     ({"authorization": f"bearer  {TOKEN} "}, {}), ({"authorization": TOKEN}, {}), ({"x_api_key": TOKEN}, {}), ({"api_key": f"Bearer {TOKEN}"}, {}),
     ({"x_api_key": "theirs", "authorization": f"Bearer {TOKEN}"}, {"x-api-key": "theirs"}),
     ({"authorization": f"Bearer {TOKEN}x"}, None)],
)  # fmt: skip
def test_the_token_stays_here_and_any_other_bearer_is_the_clients_key(given: dict[str, str], seen: Any, with_tools: bool) -> None:
    with serve_chat(lambda _: "ok", token=TOKEN) as at:
        if with_tools:
            at.server.register("weather")
        assert 200 == at.post(BODY, **given).status
        if seen is None:  # one that merely begins like it is a key like any other
            assert f"Bearer {TOKEN}x" == at.upstream.requests[-1].headers["authorization"]
        else:
            assert seen == keys_seen(at)
        assert 200 == at.server.ask("GET", "/v1/models", **given).status


@pytest.mark.parametrize("value", [TOKEN, f"Bearer {TOKEN}", f"Bearer\t{TOKEN}", f"a; t={TOKEN}", f'"{TOKEN}"'])
def test_the_token_stays_here_in_whichever_header_it_comes(value: str) -> None:
    with serve_chat(lambda _: "ok", token=TOKEN) as at:
        for name in ("authorization", "x_api_key", "x_auth_token", "openai_project"):
            for answer in (at.post(BODY, **{name: value}), at.server.ask("GET", "/v1/models", **{name: value})):
                assert 200 == answer.status
                assert value not in at.upstream.requests[-1].headers.values(), name


def test_upstream_key_replaces_the_clients_key() -> None:
    for given in ({}, {"authorization": "Bearer theirs", "x_api_key": "theirs"}, {"authorization": f"Bearer {TOKEN}"}):
        with serve_chat(lambda _: "ok", token=TOKEN, proxy={"upstream_key": "operators"}) as at:
            at.server.register("weather")
            assert 200 == at.post(BODY, **given).status
            assert {"authorization": "Bearer operators"} == keys_seen(at)


def test_wrong_token_is_refused_elsewhere() -> None:
    with serve_chat([], token=TOKEN) as at:
        for path in ("/api/tools", "/openapi.json", "/v2/models", "/v1x", "/%76%31/models", "/v1/../api/tools"):
            assert 401 == at.server.ask("GET", path, authorization="Bearer theirs").status, path
        assert [] == at.upstream.requests


def test_without_a_token_of_the_servers_every_bearer_is_the_clients() -> None:
    with serve_chat(lambda _: "ok") as at:
        assert 200 == at.post(BODY, authorization="Bearer theirs").status
        assert {"authorization": "Bearer theirs"} == keys_seen(at)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [({"host": "evil.com"}, 400, "untrusted_host"), ({"origin": "https://evil.com"}, 403, "untrusted_origin"),
     ({"x_forwarded_for": "127.0.0.1"}, 403, "unexpected_proxy"), ({"content_type": "text/plain"}, 422, "not_json")],
)  # fmt: skip
def test_rejected_requests_get_errors_in_openai_format(headers: dict[str, str], status: int, code: str) -> None:
    with serve_chat([]) as at:
        answer = at.post(BODY, **headers)
        error = answer.json["error"]
        assert (status, code, {"message", "type", "code", "param"}) == (answer.status, error["code"], error.keys())
        assert error["message"]
        assert [] == at.upstream.requests


def test_a_body_that_is_too_large_is_413() -> None:
    with serve_chat([], max_body_size=100) as at:
        answer = at.post({**BODY, "more": "x" * 200})
        assert (413, "request_too_large") == (answer.status, answer.json["error"]["code"])


def status_of(*authorization: str, proxies: tuple[str, ...] = ("127.0.0.1",)) -> tuple[int, str]:
    """Ask as a reverse proxy does that stands at 127.0.0.1, or, where it is none, as a client; the status, and an error's code."""
    with serve_chat([], token=TOKEN, proxies=proxies) as at:
        connection = http.client.HTTPConnection("127.0.0.1", at.server.port, timeout=BOUND)
        with contextlib.closing(connection):
            connection.putrequest("GET", "/v1/models")
            if proxies:
                connection.putheader("x-forwarded-for", "10.0.0.1")
            for value in authorization:
                connection.putheader("authorization", value)
            connection.endheaders()
            answer = connection.getresponse()
            body = json.loads(answer.read())
        assert not any(TOKEN in str(request.headers) for request in at.upstream.requests)
        assert (200 == answer.status) == bool(at.upstream.requests)
    return answer.status, body.get("error", {}).get("code", "")


def test_request_through_a_proxy_needs_the_token() -> None:
    for shown in ((), ("Bearer theirs",), (f"Basic {TOKEN}",), (f"Bearer {TOKEN}", "Bearer theirs")):
        assert (401, "wrong_token") == status_of(*shown)
    assert (200, "") == status_of(f"Bearer {TOKEN}")


def test_two_bearers_at_once_are_refused() -> None:
    for shown in (("Bearer theirs", f"Bearer {TOKEN}"), ("Bearer theirs", "Bearer more")):
        assert 401 == status_of(*shown, proxies=())[0]
    assert 200 == status_of("Bearer theirs", proxies=())[0]


def test_v1_without_an_upstream_explains_how_to_set_one() -> None:
    with serving() as server:
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1")):
            answer = server.ask(method, path, BODY if method == "POST" else None, authorization="Bearer theirs")
            assert (404, "no_upstream") == (answer.status, answer.json["error"]["code"])
            assert "--upstream" in answer.json["error"]["message"]
        assert 200 == server.ask("GET", "/api/tools").status
