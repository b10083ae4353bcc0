"""One answer, as its reader sees it: status, headers, and the body piece by piece as it arrives.

One connection to the upstream: writes one request, reads its answer, and is given back to its pool for the next.

Everything here runs for each piece that arrives, so it is done once per network read: one pass of the parser, one join of the
body's pieces, one wake-up of the reader. No task and no timer belongs to a connection; only a body that is uploaded while the
answer is awaited has a task.

The connections to one origin in one event loop: idle ones are kept for a while, the last used first.

Requests to one origin: writes their heads, finds them a connection, and sends them again where that is harmless.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import AsyncIterator, Callable, Iterable
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from patchbay.server.origin import DisconnectedError, IncompleteResponse, LocalProtocolError, Origin, RemoteProtocolError


class Response:
    """What a request got. ``status`` and ``headers`` (lower-case names) are there when ``HttpClient.request`` returns it.

    It has one reader, and is to be closed: where its body was not read to the end, that ends the connection at once.
    """

    __slots__ = (
        "_abort", "_chunks", "_error", "_loop", "_resume", "_sink", "_waiter", "complete", "headers", "status", "unread",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, abort: Callable[[], None]) -> None:
        self._loop = loop
        self._abort: Callable[[], None] | None = abort
        self._resume: Callable[[], None] | None = None
        self._chunks: list[bytes] = []
        self._error: BaseException | None = None
        self._sink: Callable[[bytes], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        """Whether the whole body has arrived. It may not have been read yet."""
        self.unread = 0
        """Bytes that came from the network since the last ``read``."""

    def header(self, name: bytes) -> str:
        """Return the first header of this lower-case name, or the empty string."""
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return ""

    @property
    def content_type(self) -> str:
        """The declared media type, in lower case and without parameters: ``text/event-stream``; empty where none is declared."""
        return self.header(b"content-type").partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        """Return what has arrived of the body since the last call, waiting for something; ``b""`` is its end.

        Raises BrokenOffError where the body ends before it is complete, or what the body of the request raised.
        """
        chunks = self._chunks
        while not chunks:
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            await self._news()
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.unread = 0
        if self._resume is not None:
            resume, self._resume = self._resume, None
            resume()
        return data

    async def pass_to(self, sink: Callable[[bytes], bool]) -> None:
        """Give each piece to ``sink`` as it arrives, within the callback of the network, until it refuses one.

        What it refuses (by False) is for ``read``, as are the end and what ``sink`` raises.
        """
        if self._chunks or self.complete or self._error is not None:
            return
        self._sink = sink
        try:
            await self._news()
        finally:
            self._sink = None

    def close(self) -> None:
        """Let the connection go: at once, where the answer is not complete."""
        if self._abort is not None:
            self._abort()

    # Below: for the connection and the client.

    async def begun(self) -> None:
        """Wait for the head; raises what came instead of it."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._news()

    def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The head is there."""
        self.status = status
        self.headers = headers

    def take(self, chunk: bytes, received: int) -> bool:
        """A piece of the body is there; it took ``received`` bytes on the wire. True: it was passed on at once."""
        sink = self._sink
        if sink is not None:
            try:
                if sink(chunk):
                    return True
            except Exception as error:  # noqa: BLE001  (a factory may raise what it likes)
                self._error = error
            self._sink = None
            if self._error is not None:
                return False
        self._chunks.append(chunk)
        self.unread += received
        return False

    def hold(self, resume: Callable[[], None]) -> None:
        """The connection reads no further; call ``resume`` when what is there was read."""
        self._resume = resume

    def finish(self) -> None:
        """The whole body is there, and the connection is no longer this answer's."""
        self.complete = True
        self._abort = self._resume = None

    def fail(self, error: BaseException) -> None:
        """Nothing more will come, because of ``error``."""
        self._error = self._error or error
        self._abort = self._resume = None
        self.wake()

    def wake(self) -> None:
        """Let the reader look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _news(self) -> asyncio.Future[None]:
        """A future that is done at the next ``wake``."""
        self._waiter = self._loop.create_future()
        return self._waiter


HEAD_LIMIT = 64 * 1024
"""Bytes of a head, of trailers, or of anything else that is not a body."""
HEADERS_LIMIT = 256
_HIGH_WATER = 128 * 1024
"""Bytes of an unread body from which on nothing more is read: the kernel then holds back the upstream."""


class _StopParsingError(Exception):
    """Ends a pass of the parser: what follows is of no use."""


class Connection(asyncio.Protocol):
    """An open connection. ``send`` when it is idle, and not before its last answer is complete."""

    __slots__ = (
        "_answer", "_bodiless", "_complete", "_drained", "_framing", "_headers", "_keep", "_loop", "_parser", "_pieces", "_pool",
        "_transport", "_upload", "on_body",
    )  # fmt: skip

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._loop = pool.loop
        self._transport: asyncio.Transport | None = None
        self._answer: Response | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # the parser calls the list itself: no Python runs for a chunk
        self._framing = 0
        self._bodiless = self._complete = self._keep = False
        self._upload: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        # What servers written by hand do wrong, and what cannot be misread where nobody else reads this connection.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)

    @property
    def open(self) -> bool:
        """Whether a request may be sent: neither side has closed."""
        return self._transport is not None and not self._transport.is_closing()

    def is_silent(self) -> bool:
        """Whether nothing has come that was not read, the end of the connection among it. Costs a system call."""
        connection = None if self._transport is None else self._transport.get_extra_info("socket")
        if connection is None or not hasattr(select, "poll"):
            return True  # it cannot be known
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        return not poll.poll(0)

    def send(self, head: bytes, body: bytes | AsyncIterator[bytes], *, length: int | None, bodiless: bool) -> Response:
        """Write a request and return its answer-to-be.

        A body that is an iterator is sent by a task, while the answer is read: ``length`` bytes, or in chunks where that is None.
        ``bodiless``: the answer has no body, whatever its head says (HEAD). Raises DisconnectedError where it is too late.
        """
        if self._transport is None or self._transport.is_closing():
            raise DisconnectedError("closed before the request", silent=True)
        assert self._answer is None
        self._answer = answer = Response(self._loop, self.abort)
        self._bodiless = bodiless
        self._complete = False
        self._framing = 0
        self._headers = []
        if isinstance(body, bytes):
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._upload = self._loop.create_task(self._send_pieces(body, length))
        return answer

    def abort(self) -> None:
        """End the connection now. An answer that is not complete becomes an error."""
        self._end(IncompleteResponse("closed before the answer was complete"))

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._pool.admit(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and pass on what it found."""
        answer, parser = self._answer, self._parser
        if answer is None or parser is None:
            self.abort()  # nothing was asked: what this is would be taken for the next answer
            return
        broken: Exception | None = None
        self._framing += len(data)
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            broken = error
        pieces = self._pieces
        if pieces:
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._framing = 0
            if answer.take(piece, len(data)) and not self._complete and broken is None:
                return
        if self._complete:
            self._finish(answer, clean=broken is None)
        elif broken is not None or self._framing > HEAD_LIMIT:
            self._end(
                IncompleteResponse(f"broken frame: {broken}")
                if answer.status
                else RemoteProtocolError(str(broken or "endless head"))
            )
        elif answer.unread > _HIGH_WATER and self._transport is not None:
            self._transport.pause_reading()
            answer.hold(self._resume_reading)
        answer.wake()

    def eof_received(self) -> None:
        """The upstream has closed its side; what is still being sent will not be read any more."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: for a body of unknown length that is its end, for anything else the answer is cut."""
        answer = self._answer
        if answer is not None:
            if exc is None and answer.status and _ends_with_connection(answer.headers):
                self._finish(answer, clean=False)
                answer.wake()
            elif answer.status:
                self._end(IncompleteResponse(str(exc or "connection closed")))
            else:
                self._end(DisconnectedError(str(exc or "connection closed"), silent=not self._framing))
        self._transport = self._parser = None  # and with them the rings that hold this object
        self.resume_writing()
        self._pool.forget(self)

    def pause_writing(self) -> None:
        """The upstream takes the request's body slower than it comes."""
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """The upstream has caught up, or is gone."""
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # The parser's calls.

    def on_message_begin(self) -> None:
        """Stop at anything that follows a complete answer."""
        if self._complete:
            raise _StopParsingError

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header, or a trailer, which nobody wants."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin the answer, except with the head of an informational one."""
        answer, parser = self._answer, self._parser
        assert answer is not None
        assert parser is not None
        headers, self._headers = self._headers, []
        status = parser.get_status_code()
        if status < 200:
            if status == 101:
                raise RemoteProtocolError("switched protocols unasked")
            return
        if len(headers) > HEADERS_LIMIT:
            raise RemoteProtocolError("too many headers")
        if self._framing > HEAD_LIMIT and sum(len(name) + len(value) for name, value in headers) > HEAD_LIMIT:
            raise RemoteProtocolError("the head is too large")
        answer.begin(status, headers)
        if status >= 400 and self._upload is not None:
            self._upload.cancel()  # refused: the rest is not wanted. It stays set: this connection is not used again
        if self._bodiless:
            # The parser cannot be told, and would wait for a body. So this connection is not used again either.
            self._complete, self._keep = True, False
            raise _StopParsingError

    def on_message_complete(self) -> None:
        """Note the end of the answer; what is to be done about it waits until the parser is through."""
        if self._answer is not None and self._answer.status:
            self._complete = True
            self._keep = self._parser is not None and self._parser.should_keep_alive()

    # The rest is ours.

    def _finish(self, answer: Response, *, clean: bool) -> None:
        """Hand over a complete answer, and the connection to the pool where it can be used again."""
        self._answer = None
        answer.finish()
        if clean and self._keep and self._upload is None and self.open:
            self._pool.keep(self)
        else:
            self._end(None)

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _end(self, error: BaseException | None) -> None:
        answer, self._answer = self._answer, None
        if self._upload is not None:
            self._upload.cancel()
            self._upload = None
        if answer is not None and error is not None:
            answer.fail(error)
        if self._transport is not None:
            self._transport.abort()

    async def _send_pieces(self, pieces: AsyncIterator[bytes], length: int | None) -> None:
        """Write a body as it comes. Cancelled where the answer is there before its end."""
        sent = 0
        try:
            async for piece in pieces:
                sent += len(piece)
                if length is not None and sent > length:
                    break
                if not piece or self._transport is None:
                    continue
                self._transport.write(piece if length is not None else b"%x\r\n%b\r\n" % (len(piece), piece))
                if self._drained is not None:
                    await self._drained
                # A refusal is read before the next piece is written into a connection that the upstream has closed.
                await asyncio.sleep(0)
            if length is None and self._transport is not None:
                self._transport.write(b"0\r\n\r\n")
            self._upload = None
            if length is not None and sent != length:
                self._end(LocalProtocolError(f"the request's body was declared to have {length} bytes"))
        except Exception as error:  # noqa: BLE001  (a factory may raise what it likes)
            self._upload = None
            self._end(error)
        finally:
            close = getattr(pieces, "aclose", None)
            if close is not None:
                await close()


def _ends_with_connection(headers: list[tuple[bytes, bytes]]) -> bool:
    """Say whether a body with this head is as long as the connection lasts (RFC 9112 6.3)."""
    coding = None
    for name, value in headers:
        if name == b"transfer-encoding":
            coding = value
        elif name == b"content-length":
            return False
    return coding is None or coding.rpartition(b",")[2].strip().lower() != b"chunked"


IDLE_LIMIT = 15.0
"""Seconds that an idle connection is kept: shorter than most servers keep theirs, so that few are closed under a request."""
_CLOSING_LIMIT = 1.0


class Pool:
    """Belongs to the loop it was made in. As many connections as requests at a time: who asks is what bounds them."""

    __slots__ = ("_all", "_closed", "_emptied", "_idle", "_origin", "_timer", "loop")

    def __init__(self, origin: Origin) -> None:
        self.loop = asyncio.get_running_loop()
        self._origin = origin
        self._all: set[Connection] = set()
        self._idle: dict[Connection, float] = {}  # in the order of their times
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._closed = False

    def take(self, *, alive: bool = False) -> Connection | None:
        """Return the idle connection that was used last; None where there is none.

        ``alive``: only one that the kernel, too, does not know to be closed. The loop may not have been told yet.
        """
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.open:
                if not alive or connection.is_silent():
                    return connection
                connection.abort()
        return None

    async def connect(self, limit: float) -> Connection:
        """Return a new connection; raises ConnectError and ConnectTimeoutError. ``limit``: seconds."""
        return await self._origin.connect(lambda: Connection(self), limit)

    def admit(self, connection: Connection) -> None:
        """Note that a connection is there."""
        self._all.add(connection)

    def keep(self, connection: Connection) -> None:
        """Take back a connection whose answer is complete."""
        if self._closed:
            connection.abort()
            return
        self._idle[connection] = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(IDLE_LIMIT, self._sweep)

    def forget(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        self._idle.pop(connection, None)
        self._all.discard(connection)
        if not self._all and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    async def close(self) -> None:
        """End all connections, also those in use, and wait until they are gone; bounded."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._all):
            connection.abort()
        if self._all:
            self._emptied = self.loop.create_future()
            await asyncio.wait([self._emptied], timeout=_CLOSING_LIMIT)

    def _sweep(self) -> None:
        """End the connections that were idle too long; come back when the next can be due."""
        self._timer = None
        now = self.loop.time()
        for connection, since in list(self._idle.items()):
            left = since + IDLE_LIMIT - now
            if left > 0:
                self._timer = self.loop.call_later(left, self._sweep)
                return
            del self._idle[connection]
            connection.abort()


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
    ) -> Response:
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
) -> Response:
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
        raise LocalProtocolError("the request holds a line break, a NUL or a blank where none can be")
    return head
