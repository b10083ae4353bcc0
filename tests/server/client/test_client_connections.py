"""How connections come about, are kept, grow stale and end: names, addresses, TLS, the pool."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from client_rig import BOUND, CERTIFICATE, client_of, get, plain, read_body, read_head, responding, running

from patchbay.server import http_client
from patchbay.server.http_client import HttpClient
from patchbay.server.origin import ConnectError, ConnectTimeoutError, DisconnectedError, Origin

OK = plain(b"ok")


async def test_connections_are_pooled_last_used_first() -> None:
    used: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = server.accepted
        while True:
            await read_head(reader)
            used.append(number)
            writer.write(OK)

    async with running(handle) as server, client_of(server.port) as client:
        answers = await asyncio.gather(*(client.request(b"GET", b"/", []) for _ in range(3)))
        assert [b"ok"] * 3 == [await read_body(answer) for answer in answers]
        assert 3 == server.accepted
        used.clear()
        for _ in range(4):
            assert b"ok" == await get(client)
        assert 1 == len(set(used))
        assert 3 == server.accepted


async def test_an_idle_connection_that_the_upstream_closes_is_not_used() -> None:
    async with running(responding(OK, close=True)) as server, client_of(server.port) as client:
        for number in range(1, 4):
            assert b"ok" == await get(client)
            while server.tasks:
                await asyncio.sleep(0)
            assert number == server.accepted


async def test_idle_connections_end_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "IDLE_LIMIT", 0.05)
    gone = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(OK)
        await reader.read()
        gone.set()

    async with running(handle) as server, client_of(server.port) as client:
        assert b"ok" == await get(client)
        await gone.wait()
        assert b"ok" == await get(client)
        assert 2 == server.accepted


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_request_on_a_stale_connection_is_repeated_once(reset: bool) -> None:
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(OK)
        seen.append(await read_head(reader))  # and gives up on it without a word
        if reset:
            writer.transport.abort()

    async with running(handle) as server, client_of(server.port) as client:
        for target in (b"/1", b"/2"):
            assert b"ok" == await read_body(await client.request(b"POST", target, [], b""))
        assert 2 == server.accepted
        assert [b"POST /2"] == [request[:7] for request in seen]


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_unrepeatable_request_is_not_repeated_after_a_lost_connection(reset: bool) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(OK)
        await read_head(reader)  # and ends, perhaps having done what was asked
        if reset:
            writer.transport.abort()

    async with running(handle) as server, client_of(server.port) as client:
        assert b"ok" == await read_body(await client.request(b"POST", b"/1", [], b"", once=True))
        with pytest.raises(DisconnectedError):
            await client.request(b"POST", b"/2", [], b"", once=True)
        assert 1 == server.accepted


async def test_unrepeatable_request_is_not_sent_on_a_stale_connection() -> None:
    end, ended = threading.Event(), threading.Event()

    def serve(listener: socket.socket) -> None:
        for _ in range(2):
            with listener.accept()[0] as peer:
                peer.settimeout(BOUND)
                assert peer.recv(65536).startswith(b"POST / ")
                peer.sendall(OK)
                assert end.wait(BOUND)
            ended.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(BOUND)
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        async with client_of(listener.getsockname()[1]) as client:
            assert b"ok" == await read_body(await client.request(b"POST", b"/", [], b"", once=True))
            end.set()
            assert ended.wait(BOUND)  # which holds up the loop on purpose: it cannot have noticed
            assert b"ok" == await read_body(await client.request(b"POST", b"/", [], b"", once=True))
        server.join(BOUND)


async def test_a_request_on_a_new_connection_is_sent_once() -> None:
    async with running(responding(b"", close=True)) as server, client_of(server.port) as client:
        with pytest.raises(DisconnectedError):
            await client.request(b"GET", b"/", [])
        assert 1 == server.accepted


async def one_piece() -> AsyncIterator[bytes]:
    yield b"abc"


@pytest.mark.parametrize(
    ("second", "body"), [(b"HTTP/1.1 ", b"abc"), (b"", one_piece)], ids=["a byte of an answer", "a body that is gone"]
)
async def test_possibly_executed_or_unrepeatable_request_is_not_sent_again(second: bytes, body: Any) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (OK, second):
            await read_head(reader)
            await reader.readexactly(3)
            writer.write(answer)

    async with running(handle) as server, client_of(server.port) as client:
        assert b"ok" == await read_body(await client.request(b"POST", b"/", [], b"abc"))
        with pytest.raises(DisconnectedError):
            await client.request(b"POST", b"/", [], body() if callable(body) else body, length=3)
        assert 1 == server.accepted


async def test_close_ends_running_requests() -> None:
    async with running(responding(b"HTTP/1.1 200 OK\r\n\r\nhalf")) as server, client_of(server.port) as client:
        answer = await client.request(b"GET", b"/", [])
        assert b"half" == await answer.read()
        reading = asyncio.ensure_future(answer.read())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ConnectionError):  # and not the end that the connection's end is for such a body
            await reading


async def test_closed_port_is_connection_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # keeps the port from other processes
        for host in ("127.0.0.1", "localhost"):
            async with client_of(taken.getsockname()[1], url=f"http://{host}:{{}}") as client:
                with pytest.raises(ConnectError) as caught:
                    await client.request(b"GET", b"/", [])
                assert "Connection refused" == caught.value.reason


async def test_unresolvable_host_is_a_connect_error() -> None:
    for host in ("no-such-host.invalid", "a..b"):
        async with client_of(1, url=f"http://{host}:{{}}") as client:
            with pytest.raises(ConnectError):
                await client.request(b"GET", b"/", [])


async def test_localhost_is_reached_on_its_only_listening_address() -> None:
    async with running(responding(OK)) as server, client_of(server.port, url="http://localhost:{}") as client:
        assert b"ok" == await get(client)


async def test_an_ipv6_address_is_reached() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    async with running(responding(OK), host="::1") as server, client_of(server.port, url="http://[::1]:{}") as client:
        assert b"ok" == await get(client)


class UnacceptingPort:
    """A port on 127.0.0.2 that never completes a connection: its queue is full."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.2", port))
        self._listener.listen(0)
        self.port: int = self._listener.getsockname()[1]
        self._waiting = [socket.socket() for _ in range(4)]
        for waiting in self._waiting:
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.2", self.port))

    def close(self) -> None:
        for held in (*self._waiting, self._listener):
            held.close()


async def test_connect_timeout_is_enforced() -> None:
    unaccepting = UnacceptingPort()
    client = HttpClient(Origin(f"http://127.0.0.2:{unaccepting.port}"), connect_timeout=0.05)
    try:
        with pytest.raises(ConnectTimeoutError):
            await client.request(b"GET", b"/", [])
    finally:
        unaccepting.close()
        await client.close()


async def test_unreachable_address_does_not_delay_the_others() -> None:
    async with running(responding(OK)) as server:
        unaccepting = UnacceptingPort(server.port)
        client = HttpClient(
            Origin(f"http://some.name:{server.port}", addresses=["127.0.0.2", "127.0.0.1"]), connect_timeout=BOUND
        )
        try:
            assert b"ok" == await get(client)
        finally:
            unaccepting.close()
            await client.close()


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


def serving_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_tls_connections_are_pooled(host: str) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            size = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            writer.write(plain(await reader.readexactly(size)))

    url = f"https://{host}:{{}}"
    async with running(handle, tls=serving_tls()) as server, client_of(server.port, url=url, tls=trusting()) as client:
        for body in (b"abc", b"x" * 1_000_000):
            assert body == await read_body(await client.request(b"POST", b"/", [], body))
        assert 1 == server.accepted


async def test_a_body_without_a_length_ends_with_its_tls_connection() -> None:
    handle = responding(b"HTTP/1.1 200 OK\r\n\r\nto the end", close=True)
    async with (
        running(handle, tls=serving_tls()) as server,
        client_of(server.port, url="https://localhost:{}", tls=trusting()) as client,
    ):
        assert b"to the end" == await get(client)


@pytest.mark.parametrize(
    ("host", "trusted"), [("127.0.0.1", False), ("127.0.0.2", True)], ids=["unknown authority", "other name"]
)
async def test_unverifiable_certificate_is_an_error(host: str, trusted: bool) -> None:
    url = f"https://{host}:{{}}"
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the server's side of it
    async with (
        running(responding(OK), tls=serving_tls(), host=host) as server,
        client_of(server.port, url=url, tls=trusting() if trusted else None) as client,
    ):
        with pytest.raises(ConnectError, match="certificate verify failed"):
            await client.request(b"GET", b"/", [])


async def test_server_without_tls_is_an_error() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        await reader.read()

    async with running(handle) as server, client_of(server.port, url="https://127.0.0.1:{}") as client:
        with pytest.raises(ConnectError):
            await client.request(b"GET", b"/", [])
