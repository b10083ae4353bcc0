"""Access checks of sessions, and the token as a subprotocol for web pages."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from patchbay.server import ToolsSettings
from patchbay.server.auth import AccessMiddleware
from patchbay.testing.realtime import FakeOpenAI

from .rig import foreign_scope, never, serving

TOKEN = "a-token-of-this-server"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with FakeOpenAI() as fake, serving(fake, "--token-file", str(file), "--allow-origin", "https://app.example.com") as server:
        yield server


@pytest.mark.parametrize(
    ("role", "options", "status", "code", "logged"),
    [
        ("ann", {"origin": "https://evil.example.com"}, 403, "untrusted_origin", "web pages of other sites"),
        ("ann", {"origin": "null"}, 403, "untrusted_origin", "web pages of other sites"),
        ("ann", {"additional_headers": {"X-Forwarded-For": "8.8.8.8"}}, 403, "unexpected_proxy", "proxy"),
        ("ann", {"additional_headers": {"Forwarded": "for=127.0.0.1"}}, 403, "unexpected_proxy", "proxy"),
        ("", {}, 404, "no_such_socket", "'/api/sessions/'"),
        ("ann/more", {}, 404, "no_such_socket", "'/api/sessions/ann/more'"),
        ("../tools", {}, 404, "no_such_socket", "'/api/sessions/../tools'"),
    ],
)
def test_foreign_handshake_is_refused_with_one_log_line(role, options, status, code, logged, shared):
    outcome, body = shared.turned_away(role, "session=x", **options)
    assert (status, code) == (outcome, body["error_code"])
    line = shared.next_logged(logged)
    assert (f"HTTP {status}" in line, "session=x" in line) == (True, False), line


KEY = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"


@pytest.mark.parametrize(
    ("path", "host", "key", "status", "logged"),
    [
        ("/api/sessions/ann", "evil.example.com", KEY, 400, "Invalid Host header"),
        ("/v1/responses", "localhost", KEY, 426, "/v1/responses"),
        ("/api/sessions/ann", "localhost", "", 400, "Sec-WebSocket-Key"),
    ],
)
def test_invalid_handshake_is_refused(path, host, key, status, logged, shared):
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{key}\r\n".encode())
        assert raw.recv(65536).startswith(f"HTTP/1.1 {status} ".encode())
    assert shared.next_logged(logged)


@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "http://127.0.0.1"])
def test_local_programs_and_pages_are_admitted(origin, shared):
    with shared.session(origin=origin):
        pass


def test_session_path_is_no_http_route(shared):
    assert 404 == shared.http.ask("GET", "/api/sessions/ann").status


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"additional_headers": {"Authorization": "Bearer another-token-entirely"}},
        {"subprotocols": ["patchbay", "bearer.another-token-entirely"]},
        {"subprotocols": ["patchbay", f"bearer.{TOKEN}", f"bearer.{TOKEN}"]},
        {"subprotocols": ["patchbay", f"bearer.{TOKEN}"], "additional_headers": {"Authorization": "Bearer another-token"}},
        {"subprotocols": ["patchbay", TOKEN]},
    ],
)
def test_token_is_required_if_configured(options, guarded):
    status, body = guarded.turned_away(**options)
    assert (401, "wrong_token") == (status, body["error_code"])
    assert TOKEN not in str(body)


def test_token_is_accepted_as_a_header_or_a_subprotocol(guarded):
    with guarded.session(additional_headers={"Authorization": f"Bearer {TOKEN}"}):
        pass
    protocols: Any = ["patchbay", f"bearer.{TOKEN}"]
    with guarded.session(subprotocols=protocols, origin="https://app.example.com") as client:
        assert "patchbay" == client.socket.subprotocol  # never the token


async def test_handshake_is_rejected_without_the_http_response_extension():
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    guard = AccessMiddleware(never, ToolsSettings(), sockets=never)
    await guard(foreign_scope(), never, send)
    await guard(foreign_scope(extensions={"websocket.http.response": {}}), never, send)
    closed, started, _ = sent
    assert {"type": "websocket.close", "code": 1008} == closed
    assert 403 == started["status"]


def test_server_without_a_session_model_accepts_no_websockets():
    with serving() as server:
        status, body = server.turned_away()
        assert (404, "Not Found") == (status, body["detail"])
