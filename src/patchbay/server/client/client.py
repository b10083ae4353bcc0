"""Requests to one origin: writes their heads, finds them a connection, and sends them again where that is harmless."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable

from patchbay.server.client.answer import Answer
from patchbay.server.client.connection import Connection
from patchbay.server.client.errors import DisconnectedError, UnsendableError
from patchbay.server.client.origin import Origin
from patchbay.server.client.pool import Pool

_AT_ONCE = 256 * 1024
"""Larger bodies are written piece by piece: in one write they would be copied, and encrypted while nothing else runs."""
_STALE = 1.0
"""Seconds in which a pooled connection shows that the upstream had already closed it."""
_START = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [\x21-\x7e\x80-\xff]+")


class HttpClient:
    """Sends requests to ``origin``. It may be used in one loop after another; each has a pool of its own."""

    def __init__(self, origin: Origin, *, connect_timeout: float) -> None:
        self._origin = origin
        self._connect_timeout = connect_timeout
        self._pool: Pool | None = None

    async def request(
        self,
        method: bytes,
        target: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes | AsyncIterator[bytes] | None = None,
        *,
        length: int | None = None,
        once: bool = False,
    ) -> Answer:
        """Send a request and return its answer when the head is there. Close it when done with it.

        ``headers``: all but Content-Length and Transfer-Encoding, which follow from ``body``: bytes, or an iterator that gives
        ``length`` bytes (None: chunked), and Host, which is the origin's. There is no time limit but the one for connecting;
        cancelling frees the connection at once. Raises ClientError, or what the body's iterator raised.

        A pooled connection that the upstream had closed in the meantime is not a failure: the request is sent once more. Not with
        ``once``, where a request that is carried out twice does harm: only a connection that is seen to be alive is taken then,
        and what becomes of it after that is told.
        """
        if isinstance(body, bytes):
            length = len(body)
        head = _encode_head(b"%b %b" % (method, target), self._origin.host, headers, length=length, chunked=body is not None)
        bodiless = method == b"HEAD"
        pool = self._pool
        loop = asyncio.get_running_loop()
        if pool is None or pool.loop is not loop:
            self._pool = pool = Pool(self._origin)
        connection = pool.take(alive=once)
        if connection is not None:
            started = loop.time()
            try:
                return await _ask(connection, head, body, length, bodiless=bodiless)
            except DisconnectedError as error:
                again = body is None or isinstance(body, bytes)
                if once or not (error.silent and again and loop.time() - started < _STALE):
                    raise
        connection = await pool.connect(self._connect_timeout)
        return await _ask(connection, head, body, length, bodiless=bodiless)

    async def close(self) -> None:
        """Close all connections. The next request opens a new one."""
        pool, self._pool = self._pool, None
        if pool is not None and pool.loop is asyncio.get_running_loop():
            await pool.close()


async def _ask(
    connection: Connection, head: bytes, body: bytes | AsyncIterator[bytes] | None, length: int | None, *, bodiless: bool
) -> Answer:
    if body is None:
        body = b""
    elif isinstance(body, bytes) and len(body) > _AT_ONCE:
        body = _slices(body)
    answer = connection.send(head, body, length=length, bodiless=bodiless)
    try:
        await answer.begun()
    except BaseException:
        answer.close()
        raise
    return answer


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _AT_ONCE):
        yield body[start : start + _AT_ONCE]


def _encode_head(
    start: bytes, host: bytes, headers: Iterable[tuple[bytes, bytes]], *, length: int | None, chunked: bool
) -> bytes:
    """Return the head of a request; raises UnsendableError for anything that would end a line or the head itself."""
    lines = [start + b" HTTP/1.1", b"Host: " + host]
    lines += map(b": ".join, headers)
    if length is not None:
        lines.append(b"Content-Length: %d" % length)
    elif chunked:
        lines.append(b"Transfer-Encoding: chunked")
    lines.append(b"\r\n")
    head = b"\r\n".join(lines)
    ends = len(lines)
    if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\0" in head or not _START.fullmatch(start):
        raise UnsendableError("the request holds a line break, a NUL or a blank where none can be")
    return head
