"""Connections: clients that do not read or are not read, with a scripted application."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from patchbay.server.runtime import _Server
from patchbay.server.sockets import WebSocketProtocol

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


@contextlib.asynccontextmanager
async def served(work: Work, head: bytes = HANDSHAKE, **options: Any) -> AsyncIterator[tuple[uvicorn.Server, socket.socket]]:
    """A server, and the socket of an accepted client that reads nothing by itself."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await work(receive, send)

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws=Quick, loop="none", **options))
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

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        try:
            while True:
                await send({"type": "websocket.send", "text": "x" * 50_000})
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                await send({"type": "websocket.close", "code": 1001})
            ended.set()
            raise

    seconds = 1 if how == "timeout" else 3_600
    options: Any = {"log_config": None, "lifespan": "off", "ws": WebSocketProtocol, "loop": "none"}
    config = uvicorn.Config(app, port=0, timeout_graceful_shutdown=seconds, **options)
    server = _Server(config, lambda: None, (), app)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(BOUND):
        while not server.started:
            await asyncio.sleep(0)
        with socket.create_connection(server.servers[0].sockets[0].getsockname()) as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(client, HANDSHAKE)
            await read_until(client, b" 101 ", b"\r\n\r\n")
            (connection,) = server.server_state.connections
            assert isinstance(connection, WebSocketProtocol)
            while connection.writable.is_set():
                await asyncio.sleep(0)
            server.handle_exit(signal.SIGINT, None)
            if how == "second signal":
                server.handle_exit(signal.SIGINT, None)
            await serving
            await ended.wait()


@pytest.mark.parametrize(
    "head",
    [
        HANDSHAKE.replace(b"Host", b"Content-Length: 5\r\nHost") + b"hello",
        HANDSHAKE.replace(b"GET /", b"GET /" + b"x" * 1_000_000),
    ],
)
async def test_invalid_opening_request_is_answered_with_400(head: bytes):
    async def never(_receive: Any, _send: Any) -> None:
        raise AssertionError

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
