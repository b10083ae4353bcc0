"""Access checks of sessions, and the token as a subprotocol for web pages."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def open_to_all():
    with FakeOpenAI() as fake, serving(fake) as server:
        yield server


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"origin": "https://evil.example.com"}, 403, "untrusted_origin"),
        ({"origin": "null"}, 403, "untrusted_origin"),
        ({"additional_headers": {"X-Forwarded-For": "8.8.8.8"}}, 403, "unexpected_proxy"),
        ({"additional_headers": {"Forwarded": "for=127.0.0.1"}}, 403, "unexpected_proxy"),
    ],
)
def test_foreign_request_is_refused_before_the_upgrade(options, status, code, open_to_all):
    outcome, body = open_to_all.turned_away(**options)
    assert (status, code) == (outcome, body["error_code"])


def test_foreign_host_is_refused(open_to_all):
    import socket

    with socket.create_connection(("127.0.0.1", open_to_all.port), timeout=60) as raw:
        key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13"
        head = f"GET /api/sessions/ann HTTP/1.1\r\nHost: evil.example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{key}\r\n\r\n"
        raw.sendall(head.encode())
        assert raw.recv(65536).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "http://127.0.0.1"])
def test_local_programs_and_pages_are_admitted(origin, open_to_all):
    with open_to_all.session(origin=origin):
        pass


def test_only_session_paths_accept_sockets(open_to_all):
    for role in ("", "ann/more", "../tools"):
        status, body = open_to_all.turned_away(role)
        assert (404, "no_such_socket") == (status, body["error_code"])
    assert 404 == open_to_all.http.ask("GET", "/api/sessions/ann").status
    import socket

    with socket.create_connection(("127.0.0.1", open_to_all.port), timeout=60) as raw:
        key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13"
        raw.sendall(
            f"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{key}\r\n\r\n".encode()
        )
        assert raw.recv(65536).startswith(b"HTTP/1.1 426 ")


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
