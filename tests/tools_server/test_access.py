"""Who is let in, and that it is decided before a byte of the body is read."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any

import pytest

from patchbay.errors import ConfigurationError
from patchbay.server.auth import TRUSTED, AccessMiddleware
from patchbay.server.settings import ToolsSettings, listed, read_token
from tools_server.dialogues import WIRE
from tools_server.rig import BOUND, TOKEN, serving

LOCAL = [("host", "127.0.0.1:48911")]


def guarded_request(
    headers: list[tuple[str, str]] = LOCAL,
    *,
    peer: Any = ("127.0.0.1", 5),
    method: str = "GET",
    body: list[bytes] | None = None,
    **settings: Any,
) -> tuple[int, Any, int]:
    """Put a request to a guard; return status and body of the answer (200: what the app behind it saw), and what was read."""
    read = 0

    async def receive() -> Any:
        nonlocal read
        pieces = body or [b""]
        assert read < len(pieces), "the body was read beyond its end"
        read += 1
        return {"type": "http.request", "body": pieces[read - 1], "more_body": read < len(pieces)}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        seen = json.dumps({"trusted": scope[TRUSTED], "body": message["body"].decode(), "more": message["more_body"]})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": seen.encode()})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": "/api/tools",
        "client": peer,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }
    asyncio.run(AccessMiddleware(app, ToolsSettings(**settings))(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"]), read


ROW = re.compile(r"(\S+) (.*)  ->  (\d+) ?(\w*)")
ROWS = [row.groups() for line in (WIRE / "access.txt").read_text().splitlines() if (row := ROW.fullmatch(line))]


@pytest.mark.parametrize(("part", "value", "status", "code"), ROWS)
def test_who_is_let_in_is_decided_before_the_body_is_read(part: str, value: str, status: str, code: str) -> None:
    """A request that is let in has its body passed on in one piece."""
    given: Any = json.loads(value)
    headers = [("content-type", "application/json"), *LOCAL]
    peer = (given and (given, 5)) if part == "peer" else ("127.0.0.1", 5)
    if part != "peer":
        headers = [each for each in headers if each[0] != part] + [(part, each) for each in given]
    token = TOKEN if part == "authorization" else None
    answered, answer, read = guarded_request(
        headers, peer=peer, method="POST", body=[b"12345", b"67890"], max_body_size=10, token=token
    )
    assert int(status) == answered
    if answered == 200:
        assert ({"trusted": code == "trusted", "body": "1234567890", "more": False}, 2) == (answer, read)
    else:
        assert 0 == read
        assert code in ("", answer.get("error_code"))


def test_hosts_can_be_listed_and_a_star_alone_is_passed_over() -> None:
    allowed = ("tools.example.com", "*.Example.org.", "*")
    for host, status in {
        "tools.example.com": 200, "TOOLS.example.com.:80": 200, "a.b.example.org": 200, "example.org": 400, "x.example.com": 400,
        "evilexample.org": 400, "evil.com": 400,
    }.items():  # fmt: skip
        assert status == guarded_request([("host", host)], allowed_hosts=allowed)[0], host


def test_origins_can_be_listed() -> None:
    assert (
        200 == guarded_request([*LOCAL, ("origin", "https://App.example.com")], allowed_origins=("https://app.example.com/",))[0]
    )


def test_request_through_a_configured_proxy_needs_the_token() -> None:
    for peer in ("127.0.0.1", "172.17.0.1"):
        through = {"peer": (peer, 5), "proxies": ("127.0.0.1", "172.17.0.1"), "token": TOKEN}
        forwarded = [*LOCAL, ("x-forwarded-for", "127.0.0.1")]
        assert 401 == guarded_request(forwarded, **through)[0]
        status, seen, _ = guarded_request([*forwarded, ("authorization", f"Bearer {TOKEN}")], **through)
        assert (200, True) == (status, seen["trusted"])


def test_authorization_is_ignored_without_a_configured_token() -> None:
    status, seen, _ = guarded_request([*LOCAL, ("authorization", "Bearer anything")])
    assert (200, False) == (status, seen["trusted"])


JSON = [*LOCAL, ("content-type", "application/json")]


def test_a_body_that_grows_too_large_is_413_and_read_no_further() -> None:
    status, body, read = guarded_request(JSON, method="POST", body=[b"x" * 6] * 5, max_body_size=10)
    assert (413, "request_too_large", 2) == (status, body["error_code"], read)


def test_websockets_are_refused() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def never(*_: Any) -> None:
        raise AssertionError

    asyncio.run(AccessMiddleware(never, ToolsSettings())({"type": "websocket"}, never, send))
    assert [{"type": "websocket.close", "code": 1008}] == sent


def test_another_address_of_the_loopback_net_is_another_machine(server: Any) -> None:
    with socket.socket() as connection:
        connection.settimeout(BOUND)
        connection.bind(("127.0.0.2", 0))
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(b"GET /api/tools HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 403 ")


# The guard's settings


def test_a_token_file_is_read_if_only_its_owner_can(tmp_path: Any) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert TOKEN == read_token(file)
    for mode in (0o640, 0o604, 0o660, 0o601):
        file.chmod(mode)
        with pytest.raises(ConfigurationError, match="chmod 600"):
            read_token(file)


def test_a_token_file_that_is_missing_empty_or_no_text_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_token(tmp_path / "none")
    file = tmp_path / "token"
    file.touch(0o600)
    with pytest.raises(ConfigurationError, match="is empty"):
        read_token(file)
    file.write_bytes(b"\xff\xff")
    with pytest.raises(ConfigurationError, match="not ASCII"):
        read_token(file)


@pytest.mark.parametrize(
    "settings",
    [{"token": "short"}, {"token": "x" * 20 + " x"}, {"proxies": ("127.0.0.1",)}, {"allowed_hosts": ("a b",)}, {"max_body_size": 0},
     {"max_result_size": 0}, {"lease": -1}, {"lease": float("nan")}, {"max_failures": 0}, {"connect_timeout": 0}],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ToolsSettings(**settings)


def test_settings_hide_the_token() -> None:
    assert TOKEN not in repr(ToolsSettings(token=TOKEN))


def test_a_list_may_be_written_with_commas() -> None:
    assert ("a", "b", "c") == listed(["a, b", ",c,"]) == listed("a,b,c")


@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_a_body_that_stops_coming_is_408_and_the_connection_ends(framing: str) -> None:
    with serving(body_timeout=0.05) as server, socket.create_connection(("127.0.0.1", server.port), timeout=BOUND) as connection:
        head = f"POST /api/tools/clear HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
        connection.sendall(head.encode() + b"1\r\n{\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"error_code":"body_timeout"' in answer
