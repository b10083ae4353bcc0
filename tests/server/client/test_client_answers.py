"""How answers are read: whole, cut, informational, too large, and in any split."""

from __future__ import annotations

import asyncio
import socket
import struct
from itertools import pairwise
from typing import Any

import pytest
from client_rig import client_of, collect, get, plain, read_body, responding, running
from hypothesis import given
from hypothesis import strategies as st

from patchbay.server.http_client import HEAD_LIMIT, HttpClient, HttpConnection
from patchbay.server.origin import DisconnectedError, IncompleteResponse, Origin, RemoteProtocolError

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
OK = plain(b"ok")


async def test_an_answer_has_its_status_headers_and_body() -> None:
    sent = b"HTTP/1.1 429 Slow\r\nX-A: 1\r\nx-a: 2\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\ncontent-length: 4\r\n\r\nbody"
    async with running(responding(sent)) as server, client_of(server.port) as client:
        answer = await client.request(b"GET", b"/", [])
        assert 429 == answer.status
        assert [(b"x-a", b"1"), (b"x-a", b"2")] == answer.headers[:2]
        assert ("1", "", "text/event-stream") == (answer.header(b"x-a"), answer.header(b"x-b"), answer.content_type)
        assert b"body" == await read_body(answer)


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (CHUNKED + b"3\r\nabc\r\n4;name=value\r\ndefg\r\n0\r\nx-trailer: 1\r\nx-more: 2\r\n\r\n", b"abcdefg"),
        (plain(b""), b""),
        (CHUNKED + b"0\r\n\r\n", b""),
        (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok", b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 99\r\n\r\n", b""),
    ],
    ids=["chunked", "empty", "empty chunked", "no reason", "bare line feeds", "informational", "204", "304"],
)
async def test_complete_response_leaves_its_connection_reusable(sent: bytes, body: bytes) -> None:
    async with running(responding(sent, OK)) as server, client_of(server.port) as client:
        first = await client.request(b"GET", b"/", [])
        assert body == await read_body(first)
        assert not [name for name, _ in first.headers if name in (b"x-trailer", b"link")]
        assert b"ok" == await get(client)
        assert 1 == server.accepted


@pytest.mark.parametrize(
    "sent",
    [
        plain(b"ok", b"connection: close"),
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged",
        OK + b"rubbish",
        OK + b"H",
    ],
    ids=["told to close", "HTTP/1.0", "a second answer", "rubbish", "a letter"],
)
async def test_a_connection_that_cannot_be_trusted_is_not_used_again(sent: bytes) -> None:
    async with running(responding(sent)) as server, client_of(server.port) as client:
        assert [b"ok"] * 3 == [await get(client) for _ in range(3)]
        assert 3 == server.accepted


async def test_unsolicited_data_closes_an_idle_connection() -> None:
    gone = asyncio.Event()
    go_on = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        if server.accepted == 1:
            await go_on.wait()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
        try:
            await reader.read()
        finally:
            gone.set()

    async with running(handle) as server, client_of(server.port) as client:
        assert b"ok" == await get(client)
        go_on.set()
        await gone.wait()
        assert b"ok" == await get(client)
        assert 2 == server.accepted


async def test_an_answer_to_head_has_no_body() -> None:
    async with (
        running(responding(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")) as server,
        client_of(server.port) as client,
    ):
        for _ in range(2):
            answer = await client.request(b"HEAD", b"/", [])
            assert (200, "5", b"") == (answer.status, answer.header(b"content-length"), await read_body(answer))


@pytest.mark.parametrize("head", [b"", b"transfer-encoding: gzip\r\n"], ids=["no length", "foreign coding"])
async def test_a_body_without_a_length_ends_with_its_connection(head: bytes) -> None:
    handle = responding(b"HTTP/1.1 200 OK\r\n" + head + b"\r\nto the end", close=True)
    async with running(handle) as server, client_of(server.port) as client:
        assert b"to the end" == await get(client)


async def test_a_body_without_a_length_does_not_end_with_a_reset() -> None:
    go_on = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await go_on.wait()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with running(handle) as server, client_of(server.port) as client:
        answer = await client.request(b"GET", b"/", [])
        assert b"half" == await answer.read()
        go_on.set()
        with pytest.raises(IncompleteResponse):
            await answer.read()


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", b"half"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", b""),
        (CHUNKED + b"4\r\nhalf\r\n", b"half"),
        (CHUNKED + b"9\r\nhalf", b"half"),
        (CHUNKED + b"4\r\nhalf\r\n0\r\n", b"half"),
        (CHUNKED + b"4\r\nhalf\r\nrubbish\r\n", b"half"),
        (CHUNKED + b"4\r\nhalf\r\n0\r\n" + b"x: y\r\n" * HEAD_LIMIT, b"half"),
    ],
    ids=[
        "length",
        "nothing of a length",
        "between chunks",
        "in a chunk",
        "before the trailers",
        "broken chunk",
        "endless trailers",
    ],
)
async def test_a_cut_body_is_an_error_and_never_an_end(sent: bytes, got: bytes) -> None:
    async with running(responding(sent, close=True)) as server, client_of(server.port) as client:
        answer = await client.request(b"GET", b"/", [])
        pieces: list[bytes] = []
        with pytest.raises(IncompleteResponse):
            await collect(answer, pieces)
        assert got == b"".join(pieces)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", DisconnectedError),
        (b"HTTP/1.1 200 OK\r\nx: ", DisconnectedError),
        (b"HTTP/1.1 100 Continue\r\n\r\n", DisconnectedError),
        (b"SSH-2.0-OpenSSH_9\r\n", RemoteProtocolError),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2 * HEAD_LIMIT + b"\r\n\r\n", RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 8 * HEAD_LIMIT, RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300 + b"\r\n", RemoteProtocolError),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * HEAD_LIMIT, RemoteProtocolError),
    ],
    ids=[
        "nothing", "half a head", "only informational", "not http", "upgrade", "two lengths", "large header", "endless header",
        "many headers", "endless informational",
    ],
)  # fmt: skip
async def test_invalid_http_response_is_an_error(sent: bytes, error: type[Exception]) -> None:
    async with running(responding(sent, close=True)) as server, client_of(server.port) as client:
        with pytest.raises(error):
            await client.request(b"GET", b"/", [])


class Wire(asyncio.Transport):
    """Takes what is written and does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        pass


BODY = bytes(range(256)) * 3
ANSWERS = {
    "length": plain(BODY, b"x-a: b"),
    "chunked": CHUNKED
    + b"".join(b"%X;e=1\r\n%b\r\n" % (size, BODY[at : at + size]) for at, size in [(0, 1), (1, 15), (16, 700), (716, 52)])
    + b"0\r\nx-trailer: 1\r\n\r\n",
    "informational": b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + plain(BODY),
}


@pytest.mark.parametrize("kind", ANSWERS)
@given(cuts=st.lists(st.integers(0, 1000), max_size=12), every=st.sampled_from([0, 1, 2, 7]))
def test_any_split_of_a_response_gives_the_same_body(kind: str, cuts: list[int], every: int) -> None:
    sent = ANSWERS[kind]
    marks = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent)), *(range(0, len(sent), every) if every else ())})

    async def main() -> None:
        connection = HttpConnection(HttpClient(Origin("http://127.0.0.1:9"), connect_timeout=1))
        connection.connection_made(Wire())
        for _ in range(2):  # the second answer on the same connection
            answer = connection.send(b"", b"", length=None, bodiless=False)
            for start, end in pairwise(marks):
                connection.data_received(sent[start:end])
            assert answer.complete
            await answer.wait_for_head()
            assert BODY == await read_body(answer)
            assert connection.open
        connection.abort()

    asyncio.run(main())
