"""Drives one chat completion: sends what the Exchange wants sent, feeds it what comes, writes what it gives.

All that the request and the answer mean is decided in ``models.exchange``; here are only the wire, its order and its failures.
The work per piece of a stream is: one read, one feed, at most one write; where nothing stands between, no task (``direct``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from patchbay.errors import PatchbayError, UpstreamError
from patchbay.server.answers import JSON_TYPE, excerpt
from patchbay.server.client import ClientError
from patchbay.server.direct import EnoughError
from patchbay.server.headers import Headers, OwnHeaders, chat_downward, own_headers
from patchbay.server.relay import is_event_stream, read_bounded, read_refusal, refusal, relay
from patchbay.server.reply import EVENT_STREAM
from patchbay.server.watch import ClientLeftError

if TYPE_CHECKING:
    from patchbay.server.client import Answer
    from patchbay.server.journal import Capture
    from patchbay.server.request import Request

ANSWER_LIMIT = 64 * 1024 * 1024
"""Bytes of an answer that is read whole."""
_JSON: dict[str, str] = {"Content-Type": "application/json"}
# The text must be readable here, and a stream that has begun with a heartbeat can not turn out to be compressed.
_READABLE = {**_JSON, "Accept-Encoding": "identity"}
OWN_HEADERS: dict[tuple[bool, bool], OwnHeaders] = {
    # Whether the exchange is transparent, whether it streams.
    (True, False): own_headers(_JSON),
    (True, True): own_headers(_READABLE),
    (False, False): own_headers({**_READABLE, "Accept": "application/json"}),
    (False, True): own_headers({**_READABLE, "Accept": "text/event-stream"}),
}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Chat(Protocol):
    """A chat completion that was begun: what must be known of it where it fails."""

    streaming: bool

    def error_event(self, error: PatchbayError, /) -> bytes:
        """Return the event that tells a stream's reader of a failure."""


class ChatExchange(Chat, Protocol):
    """What this driver needs of ``patchbay.models.exchange.Exchange``: see there for the meaning of each."""

    transparent: bool
    request: bytes
    finished: bool
    """The rest of the upstream's stream is not wanted."""

    def refused(self, status: int, text: str, /) -> bool:
        """Say whether to ask again, after an error answer."""

    def feed(self, data: bytes, /) -> bytes:
        """Take a piece of the upstream's stream; return what to write."""

    def end(self) -> tuple[bytes, bool]:
        """Take the end of the stream; return what to write, and whether to ask again."""

    def answer(self, body: bytes, /) -> tuple[bytes, bool]:
        """Take a whole JSON answer; return what to write, and whether to ask again."""

    def rescue(self) -> bytes | None:
        """Return the answer of an earlier attempt that may be given although the last one failed."""


ExchangeFactory = Callable[[bytes], ChatExchange]


async def run_chat(request: Request, exchange: ChatExchange) -> None:
    """Carry out one exchange. Raises PatchbayError; whether the client's answer had begun is in ``request.reply``."""
    reply, watch, journal = request.reply, request.watch, request.journal
    streaming = exchange.streaming
    headers = request.upward(OWN_HEADERS[exchange.transparent, streaming])
    if streaming:
        watch.beat(reply.heartbeat)
    capture = request.capture()
    again = True
    while again:
        if journal is not None:
            journal.record("upstream_request", request.id, stream=streaming, body=exchange.request)
        watch.wait()
        try:
            again = await _attempt(request, exchange, headers, capture)
        except ClientLeftError:
            raise
        except PatchbayError:
            saved = exchange.rescue()
            if saved is None:
                raise
            again = False
            await _give(request, saved, streaming=streaming, capture=capture)
    if journal is not None and capture is not None:
        journal.record("response", request.id, status=reply.status, stream=streaming, **capture.fields())


async def _attempt(request: Request, exchange: ChatExchange, headers: Headers, capture: Capture | None) -> bool:
    """Ask the upstream once and pass on what it says; return whether to ask again."""
    answer = await request.upstream.post_chat(exchange.request, headers, request.scope.get("query_string", b""))
    try:
        if is_refusal(answer):
            return await refused(request, exchange, answer)
        if exchange.transparent:
            await relay(answer, request.reply, request.watch, request.upstream, capture=capture)
            return False
        check_is_plain(answer)
        if exchange.streaming and not is_json(answer):
            return await _stream(request, exchange, answer, capture)
        return await _whole(request, exchange, answer, capture)
    finally:
        answer.close()  # a connection whose answer was read to its end is back in the pool by now


async def _give(request: Request, saved: bytes, *, streaming: bool, capture: Capture | None) -> None:
    """Give an answer that was kept."""
    reply = request.reply
    await request.watch.wrote()
    if capture is not None:
        capture.add(saved)
    if not streaming:
        await reply.whole(200, [JSON_TYPE], saved)
        return
    if not reply.started:
        await reply.start(200, EVENT_STREAM)
    await reply.finish(saved)


async def _stream(request: Request, exchange: ChatExchange, answer: Answer, capture: Capture | None) -> bool:
    """Pass a stream through the exchange; return whether to ask again."""
    reply, watch = request.reply, request.watch
    read, feed = answer.read, exchange.feed
    declared = is_event_stream(answer)
    sink: Callable[[bytes], bool] | None = None
    try:
        while True:
            watch.wait()
            piece = await read()
            if not piece:
                break
            if not declared:
                check_is_stream(answer, request.redact(piece))
                declared = True
            out = feed(piece)
            if out:
                await watch.wrote()
                if not reply.started:
                    await reply.start(200, EVENT_STREAM + chat_downward(answer.headers))
                await reply.write(out)
                if capture is not None:
                    capture.add(out)
            if exchange.finished:
                break
            sink = sink or reply.direct(exchange, watch, capture)
            if sink is not None:
                watch.wait()
                await answer.pass_to(sink)
    except EnoughError:
        pass
    except ClientError as error:
        raise request.upstream.failure(error) from error
    out, again = exchange.end()
    await _emit(request, answer, out, again=again, capture=capture)
    return again


async def _whole(request: Request, exchange: ChatExchange, answer: Answer, capture: Capture | None) -> bool:
    """Take an answer that is not a stream; return whether to ask again."""
    out, again = exchange.answer(await read_whole(request, answer))
    if exchange.streaming:
        await _emit(request, answer, out, again=again, capture=capture)
    elif not again:
        await request.watch.wrote()
        await request.reply.whole(200, [JSON_TYPE, *chat_downward(answer.headers)], out)
        if capture is not None:
            capture.add(out)
    return again


async def _emit(request: Request, answer: Answer, out: bytes, *, again: bool, capture: Capture | None) -> None:
    """Write the end of one round of a stream, and the end of the stream where it is the last round."""
    reply = request.reply
    if not out and again:
        return
    await request.watch.wrote()
    if not reply.started:
        await reply.start(200, EVENT_STREAM + chat_downward(answer.headers))
    if capture is not None:
        capture.add(out)
    if again:
        await reply.write(out)
    else:
        await reply.finish(out)


async def read_whole(request: Request, answer: Answer) -> bytes:
    """Read an answer that is not a stream; raises UpstreamError for one that is too large, or no JSON."""
    request.watch.wait()
    body = await read_bounded(answer, ANSWER_LIMIT, request.upstream)
    if len(body) > ANSWER_LIMIT:
        raise UpstreamError(f"The upstream's answer is larger than {ANSWER_LIMIT} bytes.")
    if not is_json(answer) and body.lstrip()[:1] not in (b"{", b"["):
        raise _unreadable(answer, request.redact(body))
    return body


def is_refusal(answer: Answer) -> bool:
    """Say whether an answer has an error status, or one that leads elsewhere."""
    return answer.status >= 400 or answer.status in _REDIRECTS


async def refused(request: Request, exchange: ChatExchange, answer: Answer) -> bool:
    """Take an error status: True where the exchange asks again, else raises it as the client's answer."""
    status = answer.status
    if status in _REDIRECTS:
        raise UpstreamError(
            f"The upstream answered with a redirect (HTTP {status}) to "
            f"{request.redact.text(answer.header(b'location') or 'nowhere')}: set that address as the upstream."
        )
    body = await read_refusal(answer, request.watch, request.upstream)
    if request.journal is not None:
        request.journal.record("upstream_error", request.id, status=status, body=body)
    if exchange.refused(status, body.decode("utf-8", "replace")):
        return True
    raise refusal(answer, body, chat=True, own_key=request.own_key, redact=request.redact)


def is_json(answer: Answer) -> bool:
    """Say whether an answer is declared to be one JSON."""
    return "json" in answer.content_type


def check_is_plain(answer: Answer) -> None:
    """Raise UpstreamError for an answer that came compressed."""
    if (coding := answer.header(b"content-encoding").strip().lower()) not in ("", "identity"):
        raise UpstreamError(f"The upstream compressed its answer ({coding}), although it was asked not to.")


def check_is_stream(answer: Answer, piece: bytes) -> None:
    """Accept a stream that is not declared as one (some servers say text/plain); raise UpstreamError for anything else."""
    first = piece.lstrip(b"\xef\xbb\xbf\r\n\t ")
    if first.startswith((b"<", b"{", b"[")) or "html" in answer.content_type:
        raise _unreadable(answer, piece)


def _unreadable(answer: Answer, body: bytes) -> UpstreamError:
    """Say what came. ``body`` is without secrets already: half a key at the end of an excerpt would not be found any more."""
    said = excerpt(body) or "an empty body"
    return UpstreamError(
        f"The upstream answered HTTP {answer.status} with {answer.header(b'content-type') or 'no content type'}, "
        f"which is not a chat completion: {said}",
        upstream_status=answer.status,
        body=body[:1000].decode("utf-8", "replace"),
    )
