"""The way to the upstream: its address, the headers that are the operator's, and its failures in our words.

How bytes get there is ``client``'s; what a request or an answer means is not known here. Silence is timed by ``watch``, for the
whole request with one timer.

Passes an upstream's answer on as the bytes it came in: passthrough, and chat requests without tools.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from patchbay.errors import InvalidRequestError, PatchbayError, UpstreamError, UpstreamTimeoutError
from patchbay.server.errors import ERROR_LIMIT, JSON_TYPE, UpstreamStatusError, decompress, upstream_error_body
from patchbay.server.http import Headers, OwnHeaders, Receive, ResponseWriter, chat_downward, downward, own_headers, upward
from patchbay.server.http_client import HttpClient, Response
from patchbay.server.origin import (
    ClientError,
    ConnectError,
    ConnectTimeoutError,
    DisconnectedError,
    IncompleteResponse,
    LocalProtocolError,
    Origin,
    RemoteProtocolError,
)
from patchbay.server.request_log import BodyCapture, Redactor, RequestLog
from patchbay.server.settings import ProxySettings
from patchbay.server.watchdog import RequestWatchdog

_AS_WRITTEN = "!#$%&'()*+,/:;=?@[]~"
"""What stays as it is in the base URL's path; everything else that is no letter or digit is encoded."""


class Upstream:
    """Opens requests to one base URL. Connections are made as they are needed, in the running loop, and end with ``close``."""

    def __init__(self, settings: ProxySettings) -> None:
        self._base = settings.upstream
        self._connect_timeout = settings.connect_timeout
        given = dict(settings.upstream_headers)
        host = next((given.pop(name) for name in list(given) if name.lower() == "host"), None)
        if settings.upstream_key is not None and not any(name.lower() == "authorization" for name in given):
            given["Authorization"] = "Bearer " + settings.upstream_key
        self.own: OwnHeaders = own_headers(given)
        """The headers that replace the client's of the same names."""
        self._client = HttpClient(Origin(settings.upstream, host=host), connect_timeout=settings.connect_timeout)
        self._path = quote(urlsplit(settings.upstream).path, safe=_AS_WRITTEN).encode()
        self._chat = self._path + b"/chat/completions"

    async def post_chat(self, body: bytes, headers: Headers, query: bytes = b"") -> Response:
        """Ask for a chat completion and return the answer once its head is there; raises UpstreamError."""
        try:
            return await self._client.request(b"POST", self._chat + (b"?" + query if query else b""), headers, body)
        except ClientError as error:
            raise self.failure(error) from error

    async def open(
        self,
        method: str,
        tail: str,
        query: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] | None,
        *,
        length: int | None = None,
    ) -> Response:
        """Send any request below the base URL and return the answer once its head is there.

        ``tail`` is percent-encoded already. ``length`` is that of a body that comes in pieces (None: not known). Raises
        UpstreamError, and what reading the body raised.
        """
        target = (self._path + tail.encode("latin-1", "replace")) or b"/"
        if query:
            target += b"?" + query
        try:
            return await self._client.request(method.encode("latin-1"), target, headers, body, length=length)
        except ClientError as error:
            raise self.failure(error) from error

    def failure(self, error: ClientError) -> PatchbayError:
        """Return what ``error``, raised by the client or by an answer's body, means for who asked."""
        if isinstance(error, LocalProtocolError):
            return InvalidRequestError(f"The request cannot be passed on: {error}.")
        if isinstance(error, ConnectTimeoutError):
            return UpstreamTimeoutError(f"The upstream {self._base} accepted no connection within {self._connect_timeout:g} s.")
        if isinstance(error, ConnectError):
            return UpstreamError(f"The upstream {self._base} cannot be reached: {error.reason}.")
        if isinstance(error, DisconnectedError):
            return UpstreamError(f"The upstream {self._base} closed the connection without an answer.")
        if isinstance(error, IncompleteResponse):
            return UpstreamError(f"The upstream {self._base} broke off its answer.")
        if isinstance(error, RemoteProtocolError):
            return UpstreamError(f"The upstream {self._base} did not answer in HTTP: {error}.")
        return UpstreamError(f"The connection to the upstream {self._base} failed: {error}.")

    async def close(self) -> None:
        """Close the connections. The next request opens a new one."""
        await self._client.close()


@dataclass(slots=True)
class ProxyRequest:
    """A request that has passed the door's checks. ``id`` joins its lines in the log."""

    id: str
    scope: Any
    receive: Receive
    reply: ResponseWriter
    watch: RequestWatchdog
    upstream: Upstream
    settings: ProxySettings
    redact: Redactor
    journal: RequestLog | None

    @property
    def own_key(self) -> bool:
        """Whether the upstream is asked with the proxy's own key."""
        return self.settings.upstream_key is not None

    def upward(self, own: OwnHeaders | None = None) -> Headers:
        """Return the headers for the upstream, with the key that it is to see. ``own`` stand above all others."""
        settings = self.settings
        # A bearer that opened this proxy is the proxy's own secret and none of the upstream's business.
        with_keys = settings.upstream_key is None and settings.api_key is None
        fixed = self.upstream.own
        return upward(self.scope["headers"], with_keys=with_keys, own={**fixed, **own} if own else fixed)

    def capture(self) -> BodyCapture | None:
        """Return a place to collect the answer for the log, where there is a log."""
        return BodyCapture() if self.journal is not None else None


class TruncatedResponseError(UpstreamError):
    """The upstream broke off in the middle of a body whose head is already with the client."""


async def relay(
    answer: Response,
    reply: ResponseWriter,
    watch: RequestWatchdog,
    upstream: Upstream,
    *,
    capture: BodyCapture | None,
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
        raise TruncatedResponseError(str(upstream.failure(error))) from error
    await watch.wrote()
    await reply.finish()


async def read_error_body(answer: Response, watch: RequestWatchdog, upstream: Upstream) -> bytes:
    """Return the body of an error answer, decompressed, at most ERROR_LIMIT bytes of it."""
    watch.wait()
    body = await read_bounded(answer, ERROR_LIMIT, upstream)
    return decompress(body[:ERROR_LIMIT], answer.header(b"content-encoding"))


async def read_bounded(answer: Response, limit: int, upstream: Upstream) -> bytes:
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


def upstream_status_error(answer: Response, body: bytes, *, chat: bool, own_key: bool, redact: Redactor) -> UpstreamStatusError:
    """Return the client's answer to an upstream's error status, as the error that carries it."""
    told = upstream_error_body(answer.status, answer.header(b"content-type"), body, chat=chat, own_key=own_key, redact=redact)
    headers: Headers = (chat_downward if chat else downward)(answer.headers)
    # The body may be another than the one these describe.
    kept = [pair for pair in headers if pair[0] not in (b"content-length", b"content-type", b"content-encoding", b"etag")]
    return UpstreamStatusError(answer.status, told, [JSON_TYPE, *kept])


def is_event_stream(answer: Response) -> bool:
    """Say whether an answer is declared to be SSE."""
    return answer.content_type == "text/event-stream"
