"""One connection to the upstream: writes one request, reads its answer, and is given back to its pool for the next.

Everything here runs for each piece that arrives, so it is done once per network read: one pass of the parser, one join of the
body's pieces, one wake-up of the reader. No task and no timer belongs to a connection; only a body that is uploaded while the
answer is awaited has a task.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from patchbay.server.client.answer import Answer
from patchbay.server.client.errors import BrokenOffError, DisconnectedError, NotHttpError, UnsendableError

if TYPE_CHECKING:
    from patchbay.server.client.pool import Pool

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
        self._answer: Answer | None = None
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

    def send(self, head: bytes, body: bytes | AsyncIterator[bytes], *, length: int | None, bodiless: bool) -> Answer:
        """Write a request and return its answer-to-be.

        A body that is an iterator is sent by a task, while the answer is read: ``length`` bytes, or in chunks where that is None.
        ``bodiless``: the answer has no body, whatever its head says (HEAD). Raises DisconnectedError where it is too late.
        """
        if self._transport is None or self._transport.is_closing():
            raise DisconnectedError("closed before the request", silent=True)
        assert self._answer is None
        self._answer = answer = Answer(self._loop, self.abort)
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
        self._end(BrokenOffError("closed before the answer was complete"))

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
            self._end(BrokenOffError(f"broken frame: {broken}") if answer.status else NotHttpError(str(broken or "endless head")))
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
                self._end(BrokenOffError(str(exc or "connection closed")))
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
                raise NotHttpError("switched protocols unasked")
            return
        if len(headers) > HEADERS_LIMIT:
            raise NotHttpError("too many headers")
        if self._framing > HEAD_LIMIT and sum(len(name) + len(value) for name, value in headers) > HEAD_LIMIT:
            raise NotHttpError("the head is too large")
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

    def _finish(self, answer: Answer, *, clean: bool) -> None:
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
                self._end(UnsendableError(f"the request's body was declared to have {length} bytes"))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to who waits for the answer
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
