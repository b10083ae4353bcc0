"""Servers of a few lines for the client's tests: they read what came and answer with bytes, in the client's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from patchbay.server.http_client import HttpClient, Response
from patchbay.server.origin import Origin

BOUND = 30.0
"""Seconds that any wait may take."""
CERTIFICATE = Path(__file__).with_name("test_certificate.pem")
"""For localhost and 127.0.0.1, signed by itself, and its key. It protects nothing."""

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A running server; ``accepted`` counts its connections."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.port = 0
        self.accepted = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await self.handler(reader, writer)
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()
            self.tasks.discard(task)


@contextlib.asynccontextmanager
async def running(handler: Handler, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Server]:
    server = Server(handler)
    listener = await asyncio.start_server(server.serve, host, 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in list(server.tasks):
            task.cancel()
        if server.tasks:
            await asyncio.wait(server.tasks)


@contextlib.asynccontextmanager
async def client_of(
    port: int, *, url: str = "http://127.0.0.1:{}", tls: ssl.SSLContext | None = None
) -> AsyncIterator[HttpClient]:
    client = HttpClient(Origin(url.format(port), tls=tls), connect_timeout=BOUND)
    try:
        yield client
    finally:
        await client.close()


async def read_head(reader: asyncio.StreamReader) -> bytes:
    """Return a request's head; ConnectionError where the client is gone."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        raise ConnectionError from error


def responding(*answers: bytes, close: bool = False) -> Handler:
    """Answer one request after the other (none of them has a body); the last answer again and again, or once and then close."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        while not close or number < len(answers):
            await read_head(reader)
            writer.write(answers[min(number, len(answers) - 1)])
            number += 1

    return handle


def plain(body: bytes, *headers: bytes) -> bytes:
    """An answer with a Content-Length."""
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"content-length: %d" % len(body), *headers, b"", body])


async def read_body(answer: Response) -> bytes:
    """Read a body to its end."""
    pieces: list[bytes] = []
    await collect(answer, pieces)
    answer.close()
    return b"".join(pieces)


async def collect(answer: Response, pieces: list[bytes]) -> None:
    """Read a body to its end or to its error, piece by piece into ``pieces``."""
    while piece := await answer.read():
        pieces.append(piece)


async def get(client: HttpClient, target: bytes = b"/") -> bytes:
    return await read_body(await client.request(b"GET", target, []))
