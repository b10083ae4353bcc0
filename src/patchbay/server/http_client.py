"""A small HTTP/1.1 client for one origin: asyncio protocols around httptools' C parser.

No redirects, cookies, proxies, decompression or HTTP/2: the caller gets the bytes that came. It exists because a general client
costs more than all the rest of a streamed event (docs/project/dependencies.md). What runs for each network read is one pass of
the parser, one join of the body's pieces and one wake-up of the reader. A connection owns no task and no timer, except for the
task that uploads a streamed body.
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
    """A response. ``status`` and ``headers`` (lower-case names) are set when ``HttpClient.request`` returns it.

    It has one reader, and must be closed: closing it before its end ends the connection at once.
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
        """Return the first header of this lower-case name, or an empty string."""
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return ""

    @property
    def content_type(self) -> str:
        """The media type in lower case without parameters: ``text/event-stream``; empty where none is declared."""
        return self.header(b"content-type").partition(";")[0].strip().lower()

    @property
    def coding(self) -> str:
        """The content coding in lower case; empty where the body is plain."""
        coding = self.header(b"content-encoding").strip().lower()
        return "" if coding == "identity" else coding

    async def read(self) -> bytes:
        """Return what has arrived of the body since the last call, waiting for some; ``b""`` at its end.

        Raises IncompleteResponse where the body is cut off, or what the iterator of the request's body raised.
        """
        chunks = self._chunks
        while not chunks:
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            await self._wakeup()
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.unread = 0
        if self._resume is not None:
            resume, self._resume = self._resume, None
            resume()
        return data

    async def read_up_to(self, limit: int) -> bytes:
        """Return the whole body, or somewhat more than ``limit`` bytes of it. Raises as ``read``."""
        pieces: list[bytes] = []
        size = 0
        while size <= limit and (piece := await self.read()):
            pieces.append(piece)
            size += len(piece)
            if self.complete:
                break
        return b"".join(pieces)

    async def pass_to(self, sink: Callable[[bytes], bool]) -> None:
        """Pass each piece to ``sink`` within the network callback, as it arrives, until it returns False.

        A refused piece, the end, and what ``sink`` raises are left for ``read``.
        """
        if self._chunks or self.complete or self._error is not None:
            return
        self._sink = sink
        try:
            await self._wakeup()
        finally:
            self._sink = None

    def close(self) -> None:
        """Release the connection: it is ended if the response is not complete."""
        if self._abort is not None:
            self._abort()

    # Called by the connection and the client.

    async def wait_for_head(self) -> None:
        """Wait for the head. Raises what came instead of it."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wakeup()

    def set_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Set the head."""
        self.status = status
        self.headers = headers

    def add_chunk(self, chunk: bytes, received: int) -> bool:
        """Add a piece of the body, of ``received`` bytes on the wire. True: the sink has taken it."""
        sink = self._sink
        if sink is not None:
            try:
                if sink(chunk):
                    return True
            except Exception as error:  # noqa: BLE001  (raised by ``read``)
                self._error = error
            self._sink = None
            if self._error is not None:
                return False
        self._chunks.append(chunk)
        self.unread += received
        return False

    def pause(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once the arrived data was read: the connection has paused reading."""
        self._resume = resume

    def finish(self) -> None:
        """Mark the body as complete, and detach from the connection."""
        self.complete = True
        self._abort = self._resume = None

    def fail(self, error: BaseException) -> None:
        """End the response with ``error``."""
        self._error = self._error or error
        self._abort = self._resume = None
        self.wake()

    def wake(self) -> None:
        """Wake the reader."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wakeup(self) -> asyncio.Future[None]:
        """Return a future that the next ``wake`` completes."""
        self._waiter = self._loop.create_future()
        return self._waiter


HEAD_LIMIT = 64 * 1024
"""Maximum bytes of a head, of trailers, or of anything else that is not a body."""
HEADERS_LIMIT = 256
_HIGH_WATER = 128 * 1024
"""Bytes of unread body above which reading pauses; the kernel then slows the upstream down."""


class _StopParsingError(Exception):
    """Ends a pass of the parser: the rest is not wanted."""


class HttpConnection(asyncio.Protocol):
    """An open connection. ``send`` only while it is idle: after its last response is complete."""

    __slots__ = (
        "_bodiless", "_client", "_complete", "_drained", "_framing", "_headers", "_keep", "_loop", "_parser",
        "_pieces", "_response", "_transport", "_upload", "on_body",
    )  # fmt: skip

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # the parser calls the list itself: no Python runs for a chunk
        self._framing = 0
        self._bodiless = self._complete = self._keep = False
        self._upload: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        # Common mistakes of simple servers, which cannot be misread where no intermediary reads this connection.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)

    @property
    def open(self) -> bool:
        """Whether a request may be sent: neither side has closed."""
        return self._transport is not None and not self._transport.is_closing()

    def is_alive(self) -> bool:
        """Whether no data waits to be read, an end of the connection included. Costs a system call."""
        connection = None if self._transport is None else self._transport.get_extra_info("socket")
        if connection is None or not hasattr(select, "poll"):
            return True  # unknown
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        return not poll.poll(0)

    def send(self, head: bytes, body: bytes | AsyncIterator[bytes], *, length: int | None, bodiless: bool) -> Response:
        """Write a request and return its response, whose head has not come yet.

        A body that is an iterator is sent by a task while the response is read: ``length`` bytes, or chunked where that is None.
        ``bodiless``: the response has no body, whatever its head says (HEAD). Raises DisconnectedError where the connection is
        closed.
        """
        if self._transport is None or self._transport.is_closing():
            raise DisconnectedError("closed before the request", silent=True)
        assert self._response is None
        self._response = response = Response(self._loop, self.abort)
        self._bodiless = bodiless
        self._complete = False
        self._framing = 0
        self._headers = []
        if isinstance(body, bytes):
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._upload = self._loop.create_task(self._send_pieces(body, length))
        return response

    def abort(self) -> None:
        """End the connection now. An incomplete response fails."""
        self._end(IncompleteResponse("closed before the answer was complete"))

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._client.add(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and hand on what it found."""
        response, parser = self._response, self._parser
        if response is None or parser is None:
            self.abort()  # unsolicited data would be taken for the next response
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
            if response.add_chunk(piece, len(data)) and not self._complete and broken is None:
                return
        if self._complete:
            self._finish(response, clean=broken is None)
        elif broken is not None or self._framing > HEAD_LIMIT:
            self._end(
                IncompleteResponse(f"broken frame: {broken}")
                if response.status
                else RemoteProtocolError(str(broken or "endless head"))
            )
        elif response.unread > _HIGH_WATER and self._transport is not None:
            self._transport.pause_reading()
            response.pause(self._resume_reading)
        response.wake()

    def eof_received(self) -> None:
        """Abort: the upstream has closed its side and will not read what is still being sent."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response: complete if its body lasts as long as the connection, else incomplete."""
        response = self._response
        if response is not None:
            if exc is None and response.status and _ends_with_connection(response.headers):
                self._finish(response, clean=False)
                response.wake()
            elif response.status:
                self._end(IncompleteResponse(str(exc or "connection closed")))
            else:
                self._end(DisconnectedError(str(exc or "connection closed"), silent=not self._framing))
        self._transport = self._parser = None  # and with them the rings that hold this object
        self.resume_writing()
        self._client.discard(self)

    def pause_writing(self) -> None:
        """Pause the upload: the upstream reads slower than the body comes."""
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """Resume the upload."""
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Stop at anything that follows a complete response."""
        if self._complete:
            raise _StopParsingError

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header, or a trailer, which is ignored."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Set the head of the response, unless it is an informational one."""
        response, parser = self._response, self._parser
        assert response is not None
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
        response.set_head(status, headers)
        if status >= 400 and self._upload is not None:
            self._upload.cancel()  # refused: the rest is not wanted. It stays set: this connection is not used again
        if self._bodiless:
            # The parser would wait for a body, so this connection is not used again either.
            self._complete, self._keep = True, False
            raise _StopParsingError

    def on_message_complete(self) -> None:
        """Note the end of the response; it is handled after the parser's pass."""
        if self._response is not None and self._response.status:
            self._complete = True
            self._keep = self._parser is not None and self._parser.should_keep_alive()

    def _finish(self, response: Response, *, clean: bool) -> None:
        """Complete the response, and return the connection to the client where it is reusable."""
        self._response = None
        response.finish()
        if clean and self._keep and self._upload is None and self.open:
            self._client.release_connection(self, self._loop)
        else:
            self._end(None)

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _end(self, error: BaseException | None) -> None:
        response, self._response = self._response, None
        if self._upload is not None:
            self._upload.cancel()
            self._upload = None
        if response is not None and error is not None:
            response.fail(error)
        if self._transport is not None:
            self._transport.abort()

    async def _send_pieces(self, pieces: AsyncIterator[bytes], length: int | None) -> None:
        """Write a body as it comes. Cancelled when the response is complete before it."""
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
        except Exception as error:  # noqa: BLE001  (raised by ``read``)
            self._upload = None
            self._end(error)
        finally:
            close = getattr(pieces, "aclose", None)
            if close is not None:
                await close()


def _ends_with_connection(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a body with this head ends with the connection (RFC 9112 6.3)."""
    coding = None
    for name, value in headers:
        if name == b"transfer-encoding":
            coding = value
        elif name == b"content-length":
            return False
    return coding is None or coding.rpartition(b",")[2].strip().lower() != b"chunked"


IDLE_LIMIT = 15.0
"""Seconds for which an idle connection is kept: less than most servers, so that few are closed during a request."""
_CLOSING_LIMIT = 1.0


_MAX_WRITE_BYTES = 256 * 1024
"""Larger bodies are written piece by piece: in one write they would be copied, and encrypted while nothing else runs."""
_STALE_SECONDS = 1.0
"""Seconds in which a pooled connection shows that the upstream had already closed it."""
_START = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [\x21-\x7e\x80-\xff]+")


class HttpClient:
    """Sends requests to ``origin``, over connections that it keeps. It may be used in one event loop after another.

    Connections are not limited in number: the callers' concurrency is the limit.
    """

    def __init__(self, origin: Origin, *, connect_timeout: float) -> None:
        self._origin = origin
        self._connect_timeout = connect_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._all: set[HttpConnection] = set()
        self._idle: dict[HttpConnection, float] = {}  # in the order of their times
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

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
        """Send a request and return its response once its head has come. Close the response when done.

        ``headers``: without Content-Length and Transfer-Encoding, which follow from ``body`` (bytes, or an iterator of ``length``
        bytes; None: chunked), and without Host. The only time limit is that of connecting; cancelling frees the connection at
        once. Raises ClientError, or what the body's iterator raised.

        Where the upstream had closed a pooled connection, the request is sent again. With ``once`` it is not, for requests that
        must not be carried out twice: only a connection that is known to be alive is reused, and its failure is raised.
        """
        if isinstance(body, bytes):
            length = len(body)
        head = _encode_head(b"%b %b" % (method, target), self._origin.host, headers, length=length, chunked=body is not None)
        bodiless = method == b"HEAD"
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._all, self._idle, self._timer = loop, set(), {}, None
        connection = self._acquire(alive=once)
        if connection is not None:
            started = loop.time()
            try:
                return await _send(connection, head, body, length, bodiless=bodiless)
            except DisconnectedError as error:
                again = body is None or isinstance(body, bytes)
                if once or not (error.silent and again and loop.time() - started < _STALE_SECONDS):
                    raise
        connection = await self._origin.connect(lambda: HttpConnection(self), self._connect_timeout)
        return await _send(connection, head, body, length, bodiless=bodiless)

    async def close(self) -> None:
        """End all connections, also those in use, and wait until they are closed; bounded. The next request opens a new one."""
        if self._loop is not asyncio.get_running_loop():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._all):
            connection.abort()
        if self._all:
            self._emptied = self._loop.create_future()
            await asyncio.wait([self._emptied], timeout=_CLOSING_LIMIT)

    # Called by the connections.

    def add(self, connection: HttpConnection) -> None:
        """Register a connection."""
        self._all.add(connection)

    def release_connection(self, connection: HttpConnection, loop: asyncio.AbstractEventLoop) -> None:
        """Return a connection whose response is complete to the pool."""
        self._idle[connection] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(IDLE_LIMIT, self._sweep, loop)

    def discard(self, connection: HttpConnection) -> None:
        """Remove a closed connection."""
        self._idle.pop(connection, None)
        self._all.discard(connection)
        if not self._all and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _acquire(self, *, alive: bool) -> HttpConnection | None:
        """Return the most recently used idle connection, or None. ``alive``: only one that the kernel, too, reports as open."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.open:
                if not alive or connection.is_alive():
                    return connection
                connection.abort()
        return None

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """End connections that were idle too long; reschedule for the next one."""
        self._timer = None
        now = loop.time()
        for connection, since in list(self._idle.items()):
            left = since + IDLE_LIMIT - now
            if left > 0:
                self._timer = loop.call_later(left, self._sweep, loop)
                return
            del self._idle[connection]
            connection.abort()


async def _send(
    connection: HttpConnection, head: bytes, body: bytes | AsyncIterator[bytes] | None, length: int | None, *, bodiless: bool
) -> Response:
    if body is None:
        body = b""
    elif isinstance(body, bytes) and len(body) > _MAX_WRITE_BYTES:
        body = _slices(body)
    response = connection.send(head, body, length=length, bodiless=bodiless)
    try:
        await response.wait_for_head()
    except BaseException:
        response.close()
        raise
    return response


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _MAX_WRITE_BYTES):
        yield body[start : start + _MAX_WRITE_BYTES]


def _encode_head(
    start: bytes, host: bytes, headers: Iterable[tuple[bytes, bytes]], *, length: int | None, chunked: bool
) -> bytes:
    """Return the head of a request. Raises LocalProtocolError for anything that would end a line or the head."""
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
