"""Reads a request's body from ASGI: whole and bounded, or piece by piece.

Nothing is asked of the client before the first call here: a refusal that needs no body is answered without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from patchbay.errors import InvalidRequestError, RequestTooLargeError
from patchbay.server.watch import ClientLeftError, Watch

Receive = Callable[[], Awaitable[Any]]


def declared_length(header: bytes | None) -> int | None:
    """Read a Content-Length header; raises InvalidRequestError."""
    if header is None:
        return None
    if not header.isdigit():
        raise InvalidRequestError("The Content-Length header is not a number.")
    return int(header)


def check_length(length: int | None, limit: int) -> None:
    """Raise RequestTooLargeError for a body that is declared larger than ``limit`` bytes."""
    if length is not None and length > limit:
        raise RequestTooLargeError(f"The request body has {length} bytes; the limit is {limit} bytes.")


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return the whole body; raises RequestTooLargeError as soon as it exceeds ``limit``, and ClientLeftError."""
    message = await _next(receive)
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and len(body) <= limit:
        return body
    pieces, size = [body], len(body)
    while size <= limit:
        if not message.get("more_body", False):
            return b"".join(pieces)
        message = await _next(receive)
        piece = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
    raise RequestTooLargeError(f"The request body is larger than the limit of {limit} bytes.")


async def stream_body(
    receive: Receive, watch: Watch, *, note: Callable[[bytes], None] | None = None
) -> bytes | AsyncIterator[bytes]:
    """Return the body as it arrives: bytes where it came in one piece, else an iterator that reads on.

    While the iterator reads, it stands in for the watch: it notices the client's leaving.
    """
    watch.listening = False
    message = await _next(receive)
    body: bytes = message.get("body", b"")
    if note is not None:
        note(body)
    if not message.get("more_body", False):
        watch.listening = True
        return body
    return _pieces(receive, watch, body, note)


async def _pieces(receive: Receive, watch: Watch, first: bytes, note: Callable[[bytes], None] | None) -> AsyncIterator[bytes]:
    more = True
    try:
        if first:
            yield first
        while more:
            watch.waiting_since = 0.0  # now it is the client that is waited for
            try:
                message = await _next(receive)
            except ClientLeftError:
                watch.left()  # this runs in the upload's task: the work itself may be waiting for something else
                raise
            more = message.get("more_body", False)
            piece = message.get("body", b"")
            watch.wait()
            if piece:
                if note is not None:
                    note(piece)
                yield piece
    finally:
        watch.listening = True  # also where the upstream refused the rest


async def _next(receive: Receive) -> Any:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeftError("The client left before its request was complete.")
    return message
