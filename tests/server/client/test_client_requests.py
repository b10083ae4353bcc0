"""How requests are sent: what stands in their heads, bodies of every size and kind, and an answer that comes too early."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop
from client_rig import BOUND, client_of, get, plain, read_body, read_head, responding, running

from patchbay.server.http_client import HttpClient
from patchbay.server.origin import IncompleteResponse, LocalProtocolError, Origin

OK = plain(b"ok")


def recording(seen: list[bytes], size: int) -> Any:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await read_head(reader) + await reader.readexactly(size))
            writer.write(OK)

    return handle


async def test_request_has_exactly_the_given_parts() -> None:
    seen: list[bytes] = []
    async with running(recording(seen, 4)) as server, client_of(server.port) as client:
        answer = await client.request(b"POST", b"/a%20b?c=\xff", [(b"x-A", b"\xe4 1"), (b"x-A", b"")], b"body")
        assert b"ok" == await read_body(answer)
        assert [
            b"POST /a%%20b?c=\xff HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nx-A: \xe4 1\r\nx-A: \r\nContent-Length: 4\r\n\r\nbody"
            % server.port
        ] == seen


@pytest.mark.parametrize(
    ("url", "host", "expected"),
    [
        ("http://Example.com/v1", None, b"example.com"),
        ("https://example.com", None, b"example.com"),
        ("http://example.com:443", None, b"example.com:443"),
        ("http://[::1]:8080", None, b"[::1]:8080"),
        ("http://[fe80::1%25eth0]", None, b"[fe80::1]"),
        ("http://bücher.example", None, b"xn--bcher-kva.example"),
        ("http://127.0.0.1:1", "other", b"other"),
    ],
)
def test_the_host_header_names_the_origin(url: str, host: str | None, expected: bytes) -> None:
    assert expected == Origin(url, host=host).host


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        (b"GET", b"/", [(b"x", b"1\r\nforged: 1")]),
        (b"GET", b"/", [(b"x", b"1\nforged: 1")]),
        (b"GET", b"/", [(b"x", b"1\rforged: 1")]),
        (b"GET", b"/", [(b"x", b"1\0")]),
        (b"GET", b"/", [(b"x\r\nforged", b"1")]),
        (b"GET", b"/ HTTP/1.1\r\nforged: 1\r\nx:", []),
        (b"GET", b"/ HTTP/1.1", []),
        (b"GET", b"/\t", []),
        (b"GET", b"", []),
        (b"GET /forged HTTP/1.1\r\nx:", b"/", []),
        (b"GET x", b"/", []),
    ],
)
async def test_nothing_can_be_smuggled_into_a_head(method: bytes, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    async with running(responding(OK)) as server, client_of(server.port) as client:
        with pytest.raises(LocalProtocolError):
            await client.request(method, target, headers)
        assert 0 == server.accepted


@pytest.mark.parametrize("size", [0, 1, 300_000, 3_000_000])
async def test_a_body_of_any_size_arrives_whole(size: int) -> None:
    seen: list[bytes] = []
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with running(recording(seen, size)) as server, client_of(server.port) as client:
        for _ in range(2):
            assert b"ok" == await read_body(await client.request(b"POST", b"/", [], body))
        assert 1 == server.accepted
        assert all(request.endswith(b"Content-Length: %d\r\n\r\n" % size + body) for request in seen)


async def pieces_of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.mark.parametrize(
    ("length", "framed"), [(6, b"abcdef"), (None, b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")], ids=["length", "chunked"]
)
async def test_body_in_pieces_is_framed(length: int | None, framed: bytes) -> None:
    seen: list[bytes] = []
    async with running(recording(seen, len(framed))) as server, client_of(server.port) as client:
        for _ in range(2):
            answer = await client.request(b"POST", b"/", [], pieces_of(b"abc", b"", b"def"), length=length)
            assert b"ok" == await read_body(answer)
        assert 1 == server.accepted
        assert [framed] * 2 == [request.partition(b"\r\n\r\n")[2] for request in seen]
        assert (b"Transfer-Encoding: chunked" in seen[0]) == (length is None)


@pytest.mark.parametrize("pieces", [(b"abc",), (b"abc", b"defg")], ids=["short", "long"])
async def test_body_of_a_wrong_length_is_not_sent_as_complete(pieces: tuple[bytes, ...]) -> None:
    got = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        got.set_result(await reader.read())

    async with running(handle) as server, client_of(server.port) as client:
        with pytest.raises(LocalProtocolError):
            await client.request(b"POST", b"/", [], pieces_of(*pieces), length=6)
        assert b"abc".startswith(await got)


async def test_exception_of_the_body_iterator_is_raised() -> None:
    class GoneError(Exception):
        pass

    async def failing() -> AsyncIterator[bytes]:
        yield b"abc"
        raise GoneError

    async with running(responding(b"")) as server, client_of(server.port) as client:
        with pytest.raises(GoneError):
            await client.request(b"POST", b"/", [], failing())


async def test_a_refusal_arrives_while_the_body_is_being_sent() -> None:
    """The upload ends there, and its connection is not used again."""
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            ended.set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        if server.accepted > 1:
            writer.write(OK)
            return
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 4\r\n\r\nmu")
        while not ended.is_set():  # before the answer does
            await reader.read(1_000_000)
        writer.write(b"ch")

    async with running(handle) as server, client_of(server.port) as client:
        answer = await client.request(b"POST", b"/", [], endless(), length=1 << 40)
        assert (413, b"much") == (answer.status, await read_body(answer))
        assert b"ok" == await get(client)
        assert 2 == server.accepted


async def test_a_large_body_of_bytes_stops_at_a_refusal_too() -> None:
    async with (
        running(responding(b"HTTP/1.1 413 Too Large\r\ncontent-length: 4\r\n\r\nmuch")) as server,
        client_of(server.port) as client,
    ):
        answer = await client.request(b"POST", b"/", [], b"x" * 50_000_000)
        assert (413, b"much") == (answer.status, await read_body(answer))


async def test_an_answer_is_read_while_the_body_is_being_sent() -> None:
    turns: asyncio.Queue[bytes] = asyncio.Queue()

    async def dictated() -> AsyncIterator[bytes]:
        while piece := await turns.get():
            yield piece

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n")
        for _ in range(2):
            writer.write(await reader.readexactly(3))

    async with running(echo) as server, client_of(server.port) as client:
        answer = await client.request(b"POST", b"/", [], dictated(), length=6)
        for piece in (b"abc", b"def"):
            turns.put_nowait(piece)
            assert piece == await answer.read()
        assert b"" == await answer.read()


async def test_slow_upstream_applies_backpressure_to_the_body() -> None:
    given = 0
    go_on = asyncio.Event()

    async def counted() -> AsyncIterator[bytes]:
        nonlocal given
        for _ in range(1000):
            given += 65536
            yield b"x" * 65536

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await go_on.wait()
        await reader.readexactly(65_536_000)
        writer.write(OK)

    async with running(handle) as server, client_of(server.port) as client:
        asking = asyncio.ensure_future(client.request(b"POST", b"/", [], counted(), length=65_536_000))
        before = -1
        while given != before or not given:  # until it stands still
            before = given
            await asyncio.sleep(0.05)
        assert 0 < given < 40_000_000
        go_on.set()
        assert b"ok" == await read_body(await asking)
        assert 65_536_000 == given


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"], ids=["no answer", "mid-answer"])
async def test_leaving_an_answer_frees_the_upstream(sent: bytes) -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(sent)
        arrived.set()
        try:
            await reader.read()
        finally:
            left.set()

    async with running(handle) as server, client_of(server.port) as client:
        if not sent:
            asking = asyncio.ensure_future(client.request(b"GET", b"/", []))
            await arrived.wait()
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
        else:
            answer = await client.request(b"GET", b"/", [])
            assert b"half" == await answer.read()
            reading = asyncio.ensure_future(answer.read())
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            answer.close()
            with pytest.raises(IncompleteResponse):
                await answer.read()
        await left.wait()


async def test_leaving_an_upload_ends_its_iterator() -> None:
    ended = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        try:
            yield b"abc"
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with running(responding(b"HTTP/1.1 200 OK\r\n\r\n")) as server, client_of(server.port) as client:
        answer = await client.request(b"POST", b"/", [], stuck())
        answer.close()
        await ended.wait()


async def test_slow_reader_applies_backpressure_to_the_upstream() -> None:
    written, size = 0, 65_536_000

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(b"x" * 65_536)
            written += 65_536
            await writer.drain()

    async with running(flood) as server, client_of(server.port) as client:
        answer = await client.request(b"GET", b"/", [])
        before = -1
        while written != before:  # until it stands still
            before = written
            await asyncio.sleep(0.05)
        assert written < 40_000_000
        assert answer.unread < 1_000_000
        assert size == len(await read_body(answer))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_client_serves_one_loop_after_another(run: Any) -> None:
    def serve() -> None:
        for _ in range(4):
            with listener.accept()[0] as peer:
                peer.settimeout(BOUND)
                assert peer.recv(65536).startswith(b"GET / ")
                peer.sendall(OK)
                assert b"" == peer.recv(1)

    async def main() -> None:
        for _ in range(2):  # closing is not the end of it
            assert b"ok" == await get(client)
            await client.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        listener.settimeout(BOUND)
        serving = threads.submit(serve)
        client = HttpClient(Origin(f"http://127.0.0.1:{listener.getsockname()[1]}"), connect_timeout=BOUND)
        run(main())
        run(main())
        serving.result(BOUND)
