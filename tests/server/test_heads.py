"""Request heads that do not come to their end: the connection is closed. What takes its time after its head is left alone."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from patchbay.server.http import read_body
from patchbay.server.runtime import HeadTimeoutProtocol, listen_on, run_server

BOUND = 30.0
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"


async def echo(scope, receive, send) -> None:
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
        return
    body = await read_body(receive, 100)
    if body == b"..":
        await asyncio.sleep(3 * HeadTimeoutProtocol.head_seconds)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(HeadTimeoutProtocol, "head_seconds", 0.1)
    listener, stop, up = listen_on("127.0.0.1", 0), threading.Event(), threading.Event()
    thread = threading.Thread(
        target=lambda: run_server(echo, listener, drain_timeout=1, ready=up.set, still_wanted=lambda: not stop.is_set())
    )
    thread.start()
    assert up.wait(BOUND)
    yield listener.getsockname()[1]
    stop.set()
    thread.join(BOUND)
    assert not thread.is_alive()


@pytest.fixture
def client(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=BOUND) as connection:
        yield connection


def drip(client: socket.socket, piece: bytes) -> None:
    """Send the piece again and again until the connection is closed."""
    try:
        for _ in range(3_000):
            client.sendall(piece)
            client.settimeout(0.01)
            try:
                assert b"" == client.recv(1000)
            except TimeoutError:
                continue
            return
        pytest.fail("it is never closed")
    except ConnectionError:
        return


def answered(client: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\nok") and not data.endswith(b"\r\n\r\n.."):
        data += (piece := client.recv(1000))
        assert piece, "closed without an answer"
    return data


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nHost:"])
def test_connection_without_a_complete_head_is_closed(client: socket.socket, first: bytes) -> None:
    client.sendall(first)
    assert b"" == client.recv(1000)


@pytest.mark.parametrize("answered_before", [False, True])
@pytest.mark.parametrize(("first", "piece"), [(b"GET / HTTP/1.1\r\nA: ", b"a"), (b"", b"\r\n")])
def test_a_head_that_drips_is_cut(client: socket.socket, first: bytes, piece: bytes, answered_before: bool) -> None:
    if answered_before:
        client.sendall(HEAD + b"ok")
        answered(client)
    client.sendall(first)
    drip(client, piece)


def test_slow_response_is_allowed_and_the_connection_reused(client: socket.socket) -> None:
    for body in (b"..", b"ok", b".."):
        client.sendall(HEAD)
        client.sendall(body)
        assert answered(client).startswith(b"HTTP/1.1 200")
