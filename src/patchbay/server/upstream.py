"""The upstream of a proxy: requests below its base URL, and forwarding its responses unchanged.

Silence is timed by the request's watchdog, with one timer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol
from urllib.parse import quote, urlsplit

from patchbay._redaction import Redactor
from patchbay.errors import InvalidRequestError, PatchbayError, UpstreamError, UpstreamTimeoutError
from patchbay.server.errors import (
    ERROR_LIMIT,
    JSON_TYPE,
    NoUpstreamError,
    UpstreamStatusError,
    decompress,
    plain_excerpt,
    upstream_error_body,
)
from patchbay.server.http import (
    Headers,
    OwnHeaders,
    Receive,
    ResponseWriter,
    chat_headers_for_client,
    headers_for_client,
    headers_for_upstream,
    own_headers,
)
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
from patchbay.server.request_log import BodyCapture, RequestLog
from patchbay.server.settings import ProxySettings
from patchbay.server.turns import Turn
from patchbay.server.watchdog import RequestWatchdog

ANSWER_LIMIT = 64 * 1024 * 1024
"""Bytes of an answer that is read whole."""
MAX_ENDING = 2048
"""Bytes of a piece in which the usage of an answer is looked for."""
_UNESCAPED = "!#$%&'()*+,/:;=?@[]~"
"""Characters of the base URL's path that are not percent-encoded, beside letters and digits."""


class Upstream:
    """Sends requests below one base URL. Connections are opened when needed, in the running loop, until ``close``."""

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
        self._path = quote(urlsplit(settings.upstream).path, safe=_UNESCAPED).encode()

    async def open(
        self,
        method: str,
        tail: str,
        query: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] | None,
        *,
        length: int | None = None,
        at_root: bool = False,
    ) -> Response:
        """Send any request below the base URL; return the response once its head has come.

        ``tail`` is percent-encoded already. ``length`` is that of a streamed body (None: unknown). ``at_root``: the path is not
        below the base's ``/v1`` but beside it. Raises UpstreamError, and what reading the body raised.
        """
        target = ((self._path.removesuffix(b"/v1") if at_root else self._path) + tail.encode("latin-1", "replace")) or b"/"
        if query:
            target += b"?" + query
        try:
            return await self._client.request(method.encode("latin-1"), target, headers, body, length=length)
        except ClientError as error:
            raise self.failure(error) from error

    def failure(self, error: ClientError) -> PatchbayError:
        """Return the error that a client of the proxy sees for ``error``."""
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


class NoUpstream(Upstream):
    """The upstream of a server that has none: every request is refused."""

    async def open(self, *_: Any, **__: Any) -> NoReturn:
        """Raise NoUpstreamError."""
        raise NoUpstreamError


@dataclass(slots=True)
class ProxyRequest:
    """What answers a request that has passed the checks: its channels, the upstream, and its lines in the log, joined by ``id``.

    Its RequestState, which the proxy keeps, says what becomes of it.
    """

    id: str
    scope: Any
    receive: Receive
    reply: ResponseWriter
    watch: RequestWatchdog
    upstream: Upstream
    settings: ProxySettings
    redact: Redactor
    request_log: RequestLog | None
    turn: Turn | None = None

    @property
    def own_key(self) -> bool:
        """Whether the upstream is sent the proxy's own key."""
        return self.settings.upstream_key is not None

    def headers_for_upstream(self, own: OwnHeaders | None = None) -> Headers:
        """Return the headers for the upstream, with its key. ``own`` replace all others of the same names."""
        settings = self.settings
        # The bearer of this proxy is its own secret, and not forwarded.
        with_keys = settings.upstream_key is None and settings.api_key is None
        fixed = self.upstream.own
        return headers_for_upstream(self.scope["headers"], with_keys=with_keys, own={**fixed, **own} if own else fixed)

    def capture(self) -> BodyCapture | None:
        """Return a collector of a body for the request log, None without a log."""
        return BodyCapture() if self.request_log is not None else None

    def log(self, event: str, **fields: Any) -> None:
        """Write a line of the request log, if there is one."""
        if self.request_log is not None:
            self.request_log.record(event, self.id, redact=self.redact, **fields)

    async def read(self, response: Response, limit: int) -> bytes:
        """Return the whole body, or somewhat more than ``limit`` bytes of it. Raises UpstreamError where it is broken off."""
        self.watch.wait()
        try:
            return await response.read_up_to(limit)
        except ClientError as error:
            raise self.upstream.failure(error) from error

    async def read_rejection(self, response: Response, *, chat: bool) -> tuple[bytes, UpstreamStatusError]:
        """Return the body of an error response, decompressed and at most ERROR_LIMIT bytes, and the error that a client gets."""
        body = decompress((await self.read(response, ERROR_LIMIT))[:ERROR_LIMIT], response.coding)
        self.log("upstream_error", status=response.status, body=body)
        forwarded = upstream_error_body(
            response.status, response.header(b"content-type"), body, chat=chat, own_key=self.own_key, redact=self.redact
        )
        headers: Headers = (chat_headers_for_client if chat else headers_for_client)(response.headers)
        # The body may be another than the one these describe.
        kept = [pair for pair in headers if pair[0] not in (b"content-length", b"content-type", b"content-encoding", b"etag")]
        return body, UpstreamStatusError(response.status, forwarded, [JSON_TYPE, *kept], chat=chat)


class TruncatedResponseError(UpstreamError):
    """The upstream broke off a body whose head was already sent to the client."""


async def relay(request: ProxyRequest, response: Response, *, capture: BodyCapture | None, bodiless: bool = False) -> None:
    """Forward status, headers and body, piece by piece. Raises TruncatedResponseError where the upstream breaks off.

    Memory stays bounded: the next piece is read once the last one is written to the client.
    """
    reply, watch, turn = request.reply, request.watch, request.turn
    stream = is_event_stream(response) and not response.coding
    if not reply.started:
        await reply.send_head(response.status, headers_for_client(response.headers))
    elif not stream:
        raise UpstreamError(
            f"The upstream answered a stream with {response.content_type or 'no content type'} after a long silence."
        )
    if bodiless:
        await reply.finish()
        return
    reply.pausable = stream
    try:
        watch.wait()
        while piece := await response.read():
            if capture is not None:
                capture.add(piece)
            if turn is not None:
                turn.add_passed(piece)
            await watch.before_write()
            await reply.write(piece)
            if reply.ending is not None:
                reply.ending = reply.ending[-MAX_ENDING:] + piece[-MAX_ENDING:]
            if stream:
                reply.passed(piece)
            watch.wait()
    except ClientError as error:
        raise TruncatedResponseError(str(request.upstream.failure(error))) from error
    await watch.before_write()
    await reply.finish()


def is_event_stream(response: Response) -> bool:
    """Return whether a response is declared as SSE."""
    return response.content_type == "text/event-stream"


async def read_document(request: ProxyRequest, response: Response) -> bytes:
    """Read a response that is not a stream. Raises UpstreamError for one that is too large or not JSON."""
    body = await request.read(response, ANSWER_LIMIT)
    if len(body) > ANSWER_LIMIT:
        raise UpstreamError(f"The upstream's answer is larger than {ANSWER_LIMIT} bytes.")
    if not is_json(response) and body.lstrip()[:1] not in (b"{", b"["):
        raise _unreadable(response, request.redact(body))
    return body


def is_json(response: Response) -> bool:
    """Return whether a response is declared as JSON."""
    return "json" in response.content_type


def check_is_plain(response: Response) -> None:
    """Raise UpstreamError for a compressed response."""
    if response.coding:
        raise UpstreamError(f"The upstream compressed its answer ({response.coding}), against the request.")


def check_is_stream(response: Response, piece: bytes) -> None:
    """Accept a stream that is declared otherwise (some servers say text/plain); raise UpstreamError for anything else."""
    first = piece.lstrip(b"\xef\xbb\xbf\r\n\t ")
    if first.startswith((b"<", b"{", b"[")) or "html" in response.content_type:
        raise _unreadable(response, piece)


def _unreadable(response: Response, body: bytes) -> UpstreamError:
    """Describe an unreadable response. ``body`` is redacted already: half a key would not be recognised in an excerpt."""
    text = plain_excerpt(body) or "an empty body"
    return UpstreamError(
        f"The upstream answered HTTP {response.status} with {response.header(b'content-type') or 'no content type'}, "
        f"which is not a chat completion: {text}",
        upstream_status=response.status,
        body=body[:1000].decode("utf-8", "replace"),
    )


class Finding(Protocol):
    """The result of one check, safe to show; see ``patchbay.doctor.Finding``."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def status(self) -> str: ...  # noqa: D102
    @property
    def seen(self) -> str: ...  # noqa: D102
    @property
    def advice(self) -> str: ...  # noqa: D102


class Examine(Protocol):
    """Examines a model of the upstream ("": the first that it lists) within a limit of time of its own."""

    def __call__(self, model: str, *, begins: Any) -> AsyncGenerator[Finding, None]:
        """Yield the findings as they come; ``begins`` gets the name of each check when it begins, and the model's."""
