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
from patchbay.server.errors import JSON_TYPE
from patchbay.server.http import CHAT, EVENT_STREAM, Headers, OwnHeaders, StreamDone, chat_headers_for_client, own_headers
from patchbay.server.origin import ClientError
from patchbay.server.upstream import ANSWER_LIMIT, check_is_plain, check_is_stream, is_event_stream, is_json, read_document, relay

if TYPE_CHECKING:
    from patchbay.server.http_client import Response
    from patchbay.server.request_log import BodyCapture
    from patchbay.server.upstream import ProxyRequest

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
    """The upstream of one client request. ``response`` is the one being read."""

    def __init__(self, request: ProxyRequest, headers: Headers, exchange: Exchange[Any]) -> None:
        self._request = request
        self._headers = headers
        self._exchange = exchange
        self._declared = False
        self.response: Response
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
        headers = request.headers_for_upstream(OWN_HEADERS[False, False])
        response = await request.upstream.open("GET", path, b"", headers, None, at_root=at_root)
        try:
            body = await request.read(response, ANSWER_LIMIT)
        finally:
            response.close()
        if response.status in DESCRIBES_LATER:
            raise UpstreamError(f"The upstream answered {response.status}.", upstream_status=response.status)
        try:
            return decode(body) if response.status == 200 else None
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
        query = request.scope.get("query_string", b"")
        self.response = response = await request.upstream.open("POST", CHAT, query, headers, body)
        return await self._rejection() if response.status >= 400 or response.status in _REDIRECTS else None

    async def send(self, body: bytes) -> UpstreamRejection | bytes | None:
        """Send a request; return a rejection, a whole answer, or None where a stream is to be read."""
        rejection = await self.open(body)
        if rejection is not None:
            return rejection
        check_is_plain(self.response)
        if not self._exchange.upstream_streams or is_json(self.response):
            return await read_document(self._request, self.response)
        self._declared = is_event_stream(self.response)
        return None

    async def read(self) -> bytes:
        """Read the next piece of the stream; b"" at its end, or where the sink wants no more of it."""
        request, response = self._request, self.response
        try:
            request.watch.wait()
            if self.sink is not None:
                await response.pass_to(self.sink)
                request.watch.wait()
            piece = await response.read()
        except StreamDone:
            return b""
        except ClientError as error:
            raise request.upstream.failure(error) from error
        if piece and not self._declared:
            check_is_stream(response, request.redact(piece))
            self._declared = True
        return piece

    async def close(self) -> None:
        """Close the response. A connection that was read to the end is back in the pool already."""
        if hasattr(self, "response"):  # the upstream could be reached
            self.response.close()

    async def _rejection(self) -> UpstreamRejection:
        request, response = self._request, self.response
        if response.status in _REDIRECTS:
            raise UpstreamError(
                f"The upstream answered with a redirect (HTTP {response.status}) to "
                f"{request.redact.text(response.header(b'location') or 'nowhere')}: set that address as the upstream."
            )
        body, error = await request.read_rejection(response, chat=True)
        return UpstreamRejection(response.status, body.decode("utf-8", "replace"), error)


async def run_chat(request: ProxyRequest, exchange: Exchange[bytes]) -> None:
    """Run one exchange. Raises PatchbayError; ``request.reply`` knows whether the response has started."""
    reply, watch = request.reply, request.watch
    streaming = exchange.client_streams
    upstream = ChatUpstream(request, request.headers_for_upstream(OWN_HEADERS[exchange.transparent, streaming]), exchange)
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
        attempt.status = upstream.response.status
        if rejection is not None:
            raise rejection.error
        if request.turn is not None:
            request.turn.coding = upstream.response.coding
        await relay(request, upstream.response, capture=capture)
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
    headers = [] if reply.started or exchange.fell_back else chat_headers_for_client(upstream.response.headers)
    if not exchange.client_streams:
        await reply.whole(200, [JSON_TYPE, *headers], out)
        return
    if not reply.started:
        await reply.send_head(200, EVENT_STREAM + headers)
    await (reply.finish(out) if exchange.complete else reply.write(out))
