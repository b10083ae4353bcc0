"""Connections: clients that do not read or are not read, with a scripted application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from patchbay._ratelimit import LogRateLimiter
from patchbay.server import ToolsSettings, request_log
from patchbay.server.auth import AccessMiddleware
from patchbay.server.runtime import _ServedApp, _Server
from patchbay.server.sockets import WebSocketProtocol

from .rig import foreign_scope, never

BOUND = 30
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
HELLO = b"\x81\x85\0\0\0\0hello"
PING, GIVEN_UP = b"\x89\x04", b"\x03\xf3keepalive ping timeout"

Work = Callable[[Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class Quick(WebSocketProtocol):
    close_seconds = 0.1
    max_buffered_bytes = 256 * 1024


class Running(_Server):
    """A server as ``patchbay serve`` runs it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config, lambda: None, (), config.app, _ServedApp(config.app), 0)


@contextlib.asynccontextmanager
async def served(
    work: Work, head: bytes = HANDSHAKE, kind: type[uvicorn.Server] = uvicorn.Server, **options: Any
) -> AsyncIterator[tuple[uvicorn.Server, socket.socket]]:
    """A server, and the socket of an accepted client that reads nothing by itself."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await work(receive, send)

    defaults: Any = {"log_config": None, "lifespan": "off", "ws": Quick, "loop": "none"}
    server = kind(uvicorn.Config(app, port=0, **{**defaults, **options}))
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(BOUND):
        while not server.started:
            await asyncio.sleep(0)
        with socket.create_connection(server.servers[0].sockets[0].getsockname()) as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(client, head)
            if head == HANDSHAKE:
                await read_until(client, b" 101 ", b"\r\n\r\n")
            yield server, client
            server.should_exit = True
            await task


async def read_until(client: socket.socket, *texts: bytes) -> None:
    """Read until each of these texts has been received, in order."""
    seen = b""
    for text in texts:
        while text not in seen:
            data = await asyncio.get_running_loop().sock_recv(client, 65_536)
            assert data, seen
            seen += data
        seen = seen.partition(text)[2]


@pytest.mark.parametrize("ending", ["by itself", "with a close frame"])
async def test_client_that_reads_nothing_loses_its_connection(ending: str):
    async def work(_receive: Any, send: Any) -> None:
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(0.1):
                    await send({"type": "websocket.send", "text": "x" * 50_000})
        if ending != "by itself":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await send({"type": "websocket.close"})

    async with served(work) as (server, _client):
        assert server.server_state.connections
        while server.server_state.connections:
            await asyncio.sleep(0.01)


async def test_unread_client_is_not_timed_out():
    reading = asyncio.Event()

    async def work(receive: Any, send: Any) -> None:
        await reading.wait()
        await send({"type": "websocket.send", "text": (await receive())["text"]})
        await receive()

    async with served(work, ws_ping_interval=0.05, ws_ping_timeout=0.05) as (_server, client):
        await asyncio.get_running_loop().sock_sendall(client, HELLO)  # and no pong behind it
        await read_until(client, PING, PING, PING)
        reading.set()
        await read_until(client, b"hello", GIVEN_UP)


async def test_recently_active_client_is_not_timed_out():
    async def work(receive: Any, _send: Any) -> None:
        while (await receive())["type"] != "websocket.disconnect":
            pass

    async with served(work, ws_ping_interval=0.05, ws_ping_timeout=1.0) as (_server, client):
        await read_until(client, PING)
        await asyncio.get_running_loop().sock_sendall(client, HELLO)
        await read_until(client, PING, GIVEN_UP)


async def test_client_that_pings_without_reading_pongs_is_paused():
    loop = asyncio.get_running_loop()

    async def work(receive: Any, send: Any) -> None:
        await send({"type": "websocket.send", "text": (await receive())["text"]})

    async with served(work) as (server, client):
        (connection,) = server.server_state.connections
        assert isinstance(connection, Quick)
        ping = b"\x89\xfd\0\0\0\0" + b"x" * 125
        for _ in range(1_000):
            pings = asyncio.create_task(loop.sock_sendall(client, ping * 500))
            while not pings.done() and connection.transport.is_reading():
                await asyncio.sleep(0)
            if not connection.transport.is_reading():
                break
        assert connection.transport.get_write_buffer_size() < 2 * Quick.max_buffered_bytes
        rest = asyncio.create_task(_after(pings, loop.sock_sendall(client, HELLO)))
        await read_until(client, b"hello")  # all that was said is heard, once its pongs are taken
        await rest


async def _after(first: asyncio.Task[None], then: Awaitable[None]) -> None:
    await first
    await then


@pytest.mark.parametrize("how", ["timeout", "second signal"])
async def test_client_that_reads_nothing_does_not_delay_a_forced_stop(how: str):
    ended = asyncio.Event()

    async def work(_receive: Any, send: Any) -> None:
        try:
            while True:
                await send({"type": "websocket.send", "text": "x" * 50_000})
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                await send({"type": "websocket.close", "code": 1001})
            ended.set()
            raise

    seconds = 1 if how == "timeout" else 3_600
    async with served(work, kind=Running, ws=WebSocketProtocol, timeout_graceful_shutdown=seconds) as (server, _client):
        (connection,) = server.server_state.connections
        assert isinstance(connection, WebSocketProtocol)
        while connection.writable.is_set():
            await asyncio.sleep(0)
        for _ in range(1 if how == "timeout" else 2):
            server.handle_exit(signal.SIGINT, None)
        await ended.wait()


@pytest.mark.parametrize(
    "head",
    [
        HANDSHAKE.replace(b"Host", b"Content-Length: 5\r\nHost") + b"hello",
        HANDSHAKE.replace(b"GET /", b"GET /" + b"x" * 1_000_000),
    ],
)
async def test_invalid_opening_request_is_answered_with_400(head: bytes):
    async with served(never, head) as (server, client):
        await read_until(client, b"HTTP/1.1 400 ", b"This WebSocket cannot be opened")
        while server.server_state.connections:
            await asyncio.sleep(0.01)


async def test_token_in_an_opening_request_is_not_logged(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(0):

        async def work(_receive: Any, send: Any) -> None:
            await send({"type": "websocket.send", "text": "hello"})

        head = HANDSHAKE.replace(b"Host", b"Authorization: Bearer a-secret-token\r\nHost")
        async with served(work, head) as (_server, client):
            await read_until(client, b"hello")
    assert caplog.text
    assert "a-secret-token" not in caplog.text


# The log of refused handshakes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the rate limiter."""
    now = [0.0]
    monkeypatch.setattr(request_log, "_rejections", LogRateLimiter(request_log._rejections._log, lambda: now[0]))
    return now


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_refused_and_invalid_handshakes_are_rate_limited_in_the_log(clock, caplog):
    async def send(_message: Any) -> None:
        pass

    guard = AccessMiddleware(never, ToolsSettings(), sockets=never)
    for _ in range(200):
        await guard(foreign_scope(), never, send)
    async with served(never, HANDSHAKE.replace(b"Sec-WebSocket-Key", b"X-Key")) as (_server, client):
        await read_until(client, b"HTTP/1.1 400 ")
    assert 20 == len(warned(caplog))
    clock[0] = 1.0
    await guard(foreign_scope(), never, send)
    *_, counted, last = warned(caplog)
    assert 22 == len(warned(caplog))
    assert ("181 lines" in counted, "10.0.0.1 was refused" in last) == (True, True), (counted, last)


def test_rejection_log_line_is_escaped_and_bounded(clock, caplog):
    request_log.log_rejection("one\n\x1b[2J" + "x" * 5_000)
    (line,) = warned(caplog)
    assert (True, True) == (line.isprintable(), len(line) < 600)
