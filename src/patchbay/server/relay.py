"""Passes an upstream's answer on as the bytes it came in: passthrough, and chat requests without tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay.errors import UpstreamError
from patchbay.server.answers import ERROR_LIMIT, JSON_TYPE, UpstreamStatusError, decompress, refusal_body
from patchbay.server.client import ClientError
from patchbay.server.headers import Headers, chat_downward, downward

if TYPE_CHECKING:
    from patchbay.server.client import Answer
    from patchbay.server.journal import Capture
    from patchbay.server.redaction import Redactor
    from patchbay.server.reply import Reply
    from patchbay.server.upstream import Upstream
    from patchbay.server.watch import Watch


class CutAnswerError(UpstreamError):
    """The upstream broke off in the middle of a body whose head is already with the client."""


async def relay(
    answer: Answer,
    reply: Reply,
    watch: Watch,
    upstream: Upstream,
    *,
    capture: Capture | None,
    bodiless: bool = False,
) -> None:
    """Pass status, headers and body on, piece by piece. Raises CutAnswerError where the upstream breaks off.

    Memory stays bounded: the next piece is read when the client has taken the last.
    """
    stream = is_event_stream(answer) and not answer.header(b"content-encoding")
    if not reply.started:
        await reply.start(answer.status, downward(answer.headers))
    elif not stream:
        raise UpstreamError(
            f"The upstream answered a stream with {answer.content_type or 'no content type'} after a long silence."
        )
    if bodiless:
        await reply.finish()
        return
    read = answer.read
    reply.pausable = stream
    try:
        while True:
            watch.wait()
            piece = await read()
            if not piece:
                break
            if capture is not None:
                capture.add(piece)
            await watch.wrote()
            await reply.write(piece)
            if stream:
                reply.passed(piece)
    except ClientError as error:
        raise CutAnswerError(str(upstream.failure(error))) from error
    await watch.wrote()
    await reply.finish()


async def read_refusal(answer: Answer, watch: Watch, upstream: Upstream) -> bytes:
    """Return the body of an error answer, decompressed, at most ERROR_LIMIT bytes of it."""
    watch.wait()
    body = await read_bounded(answer, ERROR_LIMIT, upstream)
    return decompress(body[:ERROR_LIMIT], answer.header(b"content-encoding"))


async def read_bounded(answer: Answer, limit: int, upstream: Upstream) -> bytes:
    """Return the whole body, or a little more than ``limit`` bytes of it; raises UpstreamError where it is broken off."""
    read = answer.read
    try:
        body = await read()
        if not body or answer.complete:
            return body
        pieces, size = [body], len(body)
        while size <= limit:
            body = await read()
            if not body:
                break
            pieces.append(body)
            size += len(body)
    except ClientError as error:
        raise upstream.failure(error) from error
    return b"".join(pieces)


def refusal(answer: Answer, body: bytes, *, chat: bool, own_key: bool, redact: Redactor) -> UpstreamStatusError:
    """Return the client's answer to an upstream's error status, as the error that carries it."""
    told = refusal_body(answer.status, answer.header(b"content-type"), body, chat=chat, own_key=own_key, redact=redact)
    headers: Headers = (chat_downward if chat else downward)(answer.headers)
    # The body may be another than the one these describe.
    kept = [pair for pair in headers if pair[0] not in (b"content-length", b"content-type", b"content-encoding", b"etag")]
    return UpstreamStatusError(answer.status, told, [JSON_TYPE, *kept])


def is_event_stream(answer: Answer) -> bool:
    """Say whether an answer is declared to be SSE."""
    return answer.content_type == "text/event-stream"
