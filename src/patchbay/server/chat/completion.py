"""One chat completion over HTTP: the upstream that an Exchange asks, and the client that gets its answer.

Per chunk of a stream: one read, one feed, at most one write; without middleware no task is woken (see ``direct_sink``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from patchbay.errors import PatchbayError, UpstreamError
from patchbay.models.attempt import Attempt
from patchbay.models.exchange import Exchange, UpstreamRejection
from patchbay.models.exchange_driver import DESCRIBES_LATER, DESCRIBING, drive_async
from patchbay.models.wire import decode
from patchbay.server.errors import JSON_TYPE, excerpt
from patchbay.server.http import CHAT, EVENT_STREAM, Headers, OwnHeaders, StreamDone, chat_downward, own_headers
from patchbay.server.origin import ClientError
from patchbay.server.upstream import is_event_stream, relay

if TYPE_CHECKING:
    from patchbay.server.http_client import Response
    from patchbay.server.request_log import BodyCapture
    from patchbay.server.upstream import ProxyRequest

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


class ChatUpstream:
    """The upstream of one client request. ``answer`` is the response being read."""

    def __init__(self, request: ProxyRequest, headers: Headers, exchange: Exchange[Any]) -> None:
        self._request = request
        self._headers = headers
        self._exchange = exchange
        self._declared = False
        self.answer: Response
        self.sink: Callable[[bytes], bool] | None = None
        """Gets pieces within the network callback, until it refuses one."""

    async def describe(self) -> Any:
        """Return llama.cpp's ``/props``, else the list of models, decoded; see AsyncUpstream."""
        try:
            async with asyncio.timeout(DESCRIBING):
                return await self._get("/props", at_root=True) or await self._get("/models") or {}
        except (PatchbayError, TimeoutError):
            return None

    async def _get(self, path: str, *, at_root: bool = False) -> Any:
        """Return the JSON document of a path, None without one. Raises PatchbayError, also where it may come later."""
        request = self._request
        answer = await request.upstream.open("GET", path, b"", request.upward(OWN_HEADERS[False, False]), None, at_root=at_root)
        try:
            body = await request.read(answer, ANSWER_LIMIT)
        finally:
            answer.close()
        if answer.status in DESCRIBES_LATER:
            raise UpstreamError(f"The upstream answered {answer.status}.", upstream_status=answer.status)
        try:
            return decode(body) if answer.status == 200 else None
        except (ValueError, RecursionError):
            return None

    async def open(self, body: bytes) -> UpstreamRejection | None:
        """Send a request; return a rejection for an error status, else None before the body is read."""
        request, headers = self._request, self._headers
        if self._exchange.upstream_streams and not self._exchange.client_streams:
            headers = [(name, b"text/event-stream" if name.lower() == b"accept" else value) for name, value in headers]
        if (turn := request.turn) is not None and turn.trace is not None:
            headers = turn.trace.replaced_in(headers, turn.trace.attempt(len(turn.attempts)))
        request.log("upstream_request", stream=self._exchange.upstream_streams, body=body)
        request.watch.wait()
        self.answer = answer = await request.upstream.open("POST", CHAT, request.scope.get("query_string", b""), headers, body)
        return await self._rejection() if answer.status >= 400 or answer.status in _REDIRECTS else None

    async def send(self, body: bytes) -> UpstreamRejection | bytes | None:
        """Send a request; return a rejection, a whole answer, or None where a stream is to be read."""
        rejection = await self.open(body)
        if rejection is not None:
            return rejection
        check_is_plain(self.answer)
        if not self._exchange.upstream_streams or is_json(self.answer):
            return await read_whole(self._request, self.answer)
        self._declared = is_event_stream(self.answer)
        return None

    async def read(self) -> bytes:
        """Read the next piece of the stream; b"" at its end, or where the sink wants no more of it."""
        request, answer = self._request, self.answer
        try:
            request.watch.wait()
            if self.sink is not None:
                await answer.pass_to(self.sink)
                request.watch.wait()
            piece = await answer.read()
        except StreamDone:
            return b""
        except ClientError as error:
            raise request.upstream.failure(error) from error
        if piece and not self._declared:
            check_is_stream(answer, request.redact(piece))
            self._declared = True
        return piece

    async def close(self) -> None:
        """Close the response. A connection that was read to the end is back in the pool already."""
        if hasattr(self, "answer"):  # the upstream could be reached
            self.answer.close()

    async def _rejection(self) -> UpstreamRejection:
        request, answer = self._request, self.answer
        if answer.status in _REDIRECTS:
            raise UpstreamError(
                f"The upstream answered with a redirect (HTTP {answer.status}) to "
                f"{request.redact.text(answer.header(b'location') or 'nowhere')}: set that address as the upstream."
            )
        body, error = await request.read_rejection(answer, chat=True)
        return UpstreamRejection(answer.status, body.decode("utf-8", "replace"), error)


async def run_chat(request: ProxyRequest, exchange: Exchange[bytes]) -> None:
    """Run one exchange. Raises PatchbayError; ``request.reply`` knows whether the response has started."""
    reply, watch = request.reply, request.watch
    streaming = exchange.client_streams
    upstream = ChatUpstream(request, request.upward(OWN_HEADERS[exchange.transparent, streaming]), exchange)
    if streaming:
        watch.beat(reply.heartbeat)
    capture = request.capture()
    try:
        if exchange.transparent:
            await _forward_without_tools(request, exchange, upstream, capture)
            return
        pieces = drive_async(exchange, upstream)
        try:
            async for out in pieces:
                await _write(request, exchange, upstream, out, capture)
                if streaming and upstream.sink is None:
                    upstream.sink = reply.direct_sink(exchange, watch, None if capture is None else capture.add)
        finally:
            await pieces.aclose()
    finally:
        if capture is not None and reply.is_complete:
            request.log("response", status=reply.status, stream=streaming, **capture.fields())


async def _forward_without_tools(
    request: ProxyRequest, exchange: Exchange[bytes], upstream: ChatUpstream, capture: BodyCapture | None
) -> None:
    attempt = Attempt(exchange.request, exchange.request, time.time())
    if request.turn is not None:
        request.turn.add_attempt(attempt)
    try:
        rejection = await upstream.open(exchange.request)
        attempt.status = upstream.answer.status
        if rejection is not None:
            raise rejection.error
        if request.turn is not None:
            request.turn.coding = upstream.answer.coding
        await relay(request, upstream.answer, capture=capture)
    finally:
        attempt.ended = time.time()
        await upstream.close()


async def _write(
    request: ProxyRequest, exchange: Exchange[bytes], upstream: ChatUpstream, out: bytes, capture: BodyCapture | None
) -> None:
    """Write a piece of the client's response; the last one ends it."""
    reply = request.reply
    await request.watch.before_write()
    if capture is not None:
        capture.add(out)
    headers = [] if reply.started or exchange.fell_back else chat_downward(upstream.answer.headers)
    if not exchange.client_streams:
        await reply.whole(200, [JSON_TYPE, *headers], out)
        return
    if not reply.started:
        await reply.send_head(200, EVENT_STREAM + headers)
    await (reply.finish(out) if exchange.complete else reply.write(out))


async def read_whole(request: ProxyRequest, answer: Response) -> bytes:
    """Read a response that is not a stream. Raises UpstreamError for one that is too large or not JSON."""
    body = await request.read(answer, ANSWER_LIMIT)
    if len(body) > ANSWER_LIMIT:
        raise UpstreamError(f"The upstream's answer is larger than {ANSWER_LIMIT} bytes.")
    if not is_json(answer) and body.lstrip()[:1] not in (b"{", b"["):
        raise _unreadable(answer, request.redact(body))
    return body


def is_json(answer: Response) -> bool:
    """Return whether a response is declared as JSON."""
    return "json" in answer.content_type


def check_is_plain(answer: Response) -> None:
    """Raise UpstreamError for a compressed response."""
    if answer.coding:
        raise UpstreamError(f"The upstream compressed its answer ({answer.coding}), against the request.")


def check_is_stream(answer: Response, piece: bytes) -> None:
    """Accept a stream that is declared otherwise (some servers say text/plain); raise UpstreamError for anything else."""
    first = piece.lstrip(b"\xef\xbb\xbf\r\n\t ")
    if first.startswith((b"<", b"{", b"[")) or "html" in answer.content_type:
        raise _unreadable(answer, piece)


def _unreadable(answer: Response, body: bytes) -> UpstreamError:
    """Describe an unreadable response. ``body`` is redacted already: half a key would not be recognised in an excerpt."""
    text = excerpt(body) or "an empty body"
    return UpstreamError(
        f"The upstream answered HTTP {answer.status} with {answer.header(b'content-type') or 'no content type'}, "
        f"which is not a chat completion: {text}",
        upstream_status=answer.status,
        body=body[:1000].decode("utf-8", "replace"),
    )
