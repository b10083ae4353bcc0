"""HTTP over ASGI: headers that may be forwarded, routes, request bodies, and writing responses.

Hop-by-hop headers are not forwarded (RFC 9110 7.6.1). Nor are, towards the upstream, headers about this origin and the path to it
(cookies, Origin, X-Forwarded-*), and towards the client headers that a browser would apply to this origin (cookies, CORS, HSTS).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote

from uvicorn.protocols.http.httptools_impl import HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

from patchbay.errors import InvalidRequestError, RequestTooLargeError
from patchbay.frontends.base import KEEP_ALIVE
from patchbay.server.watchdog import ClientDisconnect, RequestWatchdog

if TYPE_CHECKING:
    from patchbay.models.exchange import Exchange

Headers = list[tuple[bytes, bytes]]
"""Headers as ASGI has them: lower-case names."""

_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"http2-settings",
    }
)  # fmt: skip
_NOT_UP = _HOP | {
    b"host", b"content-length", b"expect", b"authorization", b"cookie", b"origin", b"referer", b"forwarded", b"via", b"x-real-ip",
    b"x-client-ip", b"true-client-ip", b"x-http-method", b"x-http-method-override", b"x-method-override",
}  # fmt: skip
_NOT_UP_PREFIXES = (b"x-forwarded-", b"sec-", b"access-control-", b"cf-", b"x-amzn-", b"x-envoy-")
KEY_HEADERS = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"})
"""The headers that hold a client's key."""
_MIN_KEY_CHARS = 8
_NOT_DOWN = _HOP | {
    b"set-cookie", b"set-cookie2", b"date", b"server", b"alt-svc", b"strict-transport-security", b"clear-site-data", b"nel",
    b"report-to", b"content-security-policy", b"www-authenticate", b"http2-settings",
}  # fmt: skip
_NOT_DOWN_PREFIXES = (b"access-control-",)
# The headers that are still true of a rewritten chat response.
_CHAT_DOWN = frozenset({b"retry-after", b"retry-after-ms", b"x-should-retry"})
_CHAT_DOWN_PREFIXES = (b"x-ratelimit-", b"ratelimit", b"openai-")
REQUEST_ID = b"x-request-id"
"""The header with the id of a request to a model: that of its turn, its record and its log lines."""
UPSTREAM_REQUEST_ID = b"x-upstream-request-id"
"""The header with the id that the upstream has given its request."""
_NONE: Mapping[bytes, tuple[bytes, bytes]] = MappingProxyType({})


OwnHeaders = Mapping[bytes, tuple[bytes, bytes]]
"""Headers that replace the client's: by their lower-case names, name and value as they are sent."""


# Each returns what a header name is forwarded as, None if it is not. Clients choose the names.


@lru_cache(maxsize=512)
def _up(name: bytes) -> bytes | None:
    name = name.lower()
    return None if (name in _NOT_UP or name.startswith(_NOT_UP_PREFIXES)) and name not in KEY_HEADERS else name


@lru_cache(maxsize=512)
def _down(name: bytes) -> bytes | None:
    name = name.lower()
    if name == REQUEST_ID:
        return UPSTREAM_REQUEST_ID
    return None if name in _NOT_DOWN or name.startswith(_NOT_DOWN_PREFIXES) else name


@lru_cache(maxsize=512)
def _chat_down(name: bytes) -> bytes | None:
    name = name.lower()
    if name == REQUEST_ID:
        return UPSTREAM_REQUEST_ID
    return name if name in _CHAT_DOWN or name.startswith(_CHAT_DOWN_PREFIXES) else None


def keys_of(scope: Mapping[str, Any]) -> list[str]:
    """Return the keys in a request's headers and query, to hide them in errors; not those that may be words ("dummy")."""
    values: list[str] = []
    for name, value in scope["headers"]:
        if name in KEY_HEADERS:
            values.append(value.decode("latin-1").strip().rpartition(" ")[2])
    if b"key=" in (query := scope.get("query_string", b"")):
        values += parse_qs(query.decode("latin-1")).get("key", ())
    return values and [key for key in values if len(key) >= _MIN_KEY_CHARS and not key.isalpha()]


def own_headers(headers: Mapping[str, str]) -> OwnHeaders:
    """Encode ``headers`` for ``headers_for_upstream``."""
    return {name.lower().encode(): (name.encode(), value.encode("latin-1")) for name, value in headers.items()}


def headers_for_upstream(headers: Iterable[tuple[bytes, bytes]], *, with_keys: bool, own: OwnHeaders = _NONE) -> Headers:
    """Return the client's headers that are forwarded upstream, with ``own`` replacing those of the same names.

    ``with_keys``: also the headers of the client's key, where the proxy has none of its own.
    """
    forwarded = _forwarded(headers, _up)
    return [
        *(pair for pair in forwarded if pair[0] not in own and (with_keys or pair[0] not in KEY_HEADERS)),
        *own.values(),
    ]


def headers_for_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the upstream's headers that are forwarded with an unchanged body."""
    return _forwarded(headers, _down)


def chat_headers_for_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the upstream's headers that are still true of a rewritten chat response."""
    return [(forwarded, value) for name, value in headers if (forwarded := _chat_down(name)) is not None]


def _forwarded(headers: Iterable[tuple[bytes, bytes]], forwarded_name: Callable[[bytes], bytes | None]) -> Headers:
    """Return the headers that ``forwarded_name`` forwards, without those that a Connection header declares as hop-by-hop."""
    forwarded: Headers = []
    nominated: set[bytes] = set()
    for name, value in headers:
        if (forwarded_as := forwarded_name(name)) is not None:
            forwarded.append((forwarded_as, value))
        elif name.lower() == b"connection":
            nominated.update(token.strip().lower() for token in value.split(b","))
    nominated -= {b"close", b"keep-alive"}
    return [pair for pair in forwarded if pair[0] not in nominated] if nominated else forwarded


def is_token(given: bytes, token: str) -> bool:
    """Return whether ``given`` is the secret ``token``, in constant time."""
    return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(token.encode()).digest())


CHAT = "/chat/completions"
GEMINI_BASE = "/v1beta"
VENDOR_KEYS = (b"x-api-key", b"x-goog-api-key")
"""Headers in which clients of Anthropic and Gemini send their key."""
_MAX_ENCODINGS = 4
_PARAMETERS = re.compile(r"[;?#].*")


def own_path(scope: Mapping[str, Any]) -> str:
    """Return the request's path below the mount point, still percent-encoded.

    Servers differ: ``raw_path`` may be missing, and ``path`` may or may not start with ``root_path``.
    """
    raw: bytes | None = scope.get("raw_path")
    path = raw.decode("latin-1").partition("?")[0] if raw else quote(scope["path"])
    root = scope.get("root_path") or ""
    for prefix in (root, quote(root)):
        if prefix and path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
            return path[len(prefix) :] or "/"
    return path


def find_tail(path: str, base: str) -> str | None:
    """Return the path below ``base`` ("/models", "") without trailing slashes; None for a path outside it."""
    if not path.startswith(base):
        return None
    tail = path[len(base) :].rstrip("/")
    if tail and not tail.startswith("/"):
        return None
    return None if climbs(tail) else tail


def is_model_api(path: str, base: str) -> bool:
    """Return whether a path belongs to the APIs of models: below ``base``, or to Gemini's."""
    return find_tail(path, base) is not None or find_tail(path, GEMINI_BASE) is not None


def is_chat(tail: str) -> bool:
    """Return whether ``tail`` is chat completions, also if percent-encoded."""
    return tail == CHAT or ("%" in tail and unquote(tail).rstrip("/") == CHAT)


def climbs(tail: str) -> bool:
    """Return whether a path could leave its base: dot segments, plain or repeatedly encoded, backslashes, controls.

    Paths are forwarded as written (an encoded slash in a model's name stays encoded), so this must see through any encoding.
    """
    if "%" in tail:
        if (decoded := _decoded(tail)) is None:
            return True
        tail = decoded
    if "." not in tail and "\\" not in tail and tail.isprintable():
        return False
    segments = tail.replace("\\", "/").split("/")
    # ";" ends a segment for servers that know path parameters.
    dots = any(segment.partition(";")[0] in (".", "..") for segment in segments)
    return dots or any(ord(char) < 32 or ord(char) == 127 for char in tail)


def canonical(tail: str) -> str:
    """Return the path that a server may take ``tail`` for: decoded, in small letters, without parameters and empty segments."""
    segments = (_PARAMETERS.sub("", part).strip(" .").lower() for part in (_decoded(tail) or "").replace("\\", "/").split("/"))
    return "".join(f"/{segment}" for segment in segments if segment)


def _decoded(tail: str) -> str | None:
    """Return a path without percent-encoding, however often it is encoded; None for more than _MAX_ENCODINGS times."""
    for _ in range(_MAX_ENCODINGS):
        tail, encoded = unquote(tail), tail
        if tail == encoded:
            return tail
    return None  # hostile: each further pass costs the length of the path


Receive = Callable[[], Awaitable[Any]]


def declared_length(header: bytes | None) -> int | None:
    """Parse a Content-Length header. Raises InvalidRequestError."""
    if header is None:
        return None
    if not header.isdigit():
        raise InvalidRequestError("The Content-Length header is not a number.")
    return int(header)


def check_length(length: int | None, limit: int) -> None:
    """Raise RequestTooLargeError for a declared length above ``limit`` bytes."""
    if length is not None and length > limit:
        raise RequestTooLargeError(f"The request body has {length} bytes; the limit is {limit} bytes.")


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return the whole body. Raises RequestTooLargeError as soon as it exceeds ``limit``, and ClientDisconnect."""
    pieces: list[bytes] = []
    size, more = 0, True
    while more:
        message = await _next_message(receive)
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise RequestTooLargeError(f"The request body is larger than the limit of {limit} bytes.")
        more = message.get("more_body", False)
    return b"".join(pieces)


async def stream_body(
    receive: Receive, watch: RequestWatchdog, *, note: Callable[[bytes], None] | None = None
) -> bytes | AsyncIterator[bytes]:
    """Return the body as it arrives: bytes if it came in one piece, else an iterator over the pieces.

    The iterator detects a disconnect in place of the watchdog while it reads.
    """
    watch.listening = False
    message = await _next_message(receive)
    body: bytes = message.get("body", b"")
    if note is not None:
        note(body)
    if not message.get("more_body", False):
        watch.listening = True
        return body
    return _stream_rest(receive, watch, body, note)


async def _stream_rest(
    receive: Receive, watch: RequestWatchdog, first: bytes, note: Callable[[bytes], None] | None
) -> AsyncIterator[bytes]:
    more = True
    try:
        if first:
            yield first
        while more:
            watch.waiting_since = 0.0  # the client is waited for
            try:
                message = await _next_message(receive)
            except ClientDisconnect:
                watch.disconnect()  # this runs in the upload's task: the work may be waiting elsewhere
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


async def _next_message(receive: Receive) -> Any:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect("The client left before its request was complete.")
    return message


class StreamDone(Exception):  # noqa: N818  (control flow, not a fault)
    """The exchange wants no more of the upstream's stream."""


def write_whole(send: Any, status: int, headers: Headers, body: bytes) -> bool:
    """Write a complete response, Content-Length among ``headers``, in one system call. False: it was not written."""
    cycle = getattr(send, "__self__", None)
    if (
        type(cycle) is not RequestResponseCycle
        or cycle.response_started
        or cycle.disconnected
        or cycle.flow.write_paused
        or cycle.access_log
        or cycle.scope["method"] == "HEAD"
    ):
        return False
    head = STATUS_LINE[status]
    for name, value in (*cycle.default_headers, *headers):
        if HEADER_VALUE_RE.search(value) is not None:
            return False
        head += b"%b: %b\r\n" % (name, value)
    keep_alive = cycle.keep_alive
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(b"%b%b\r\n%b" % (head, b"" if keep_alive else b"connection: close\r\n", body))
    cycle.message_event.set()
    if not keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


TO_CONSOLE: Headers = [(b"location", b"/console"), (b"vary", b"accept"), (b"cache-control", b"no-store")]
"""The headers of the redirect to the console."""


def wants_page(scope: Mapping[str, Any]) -> bool:
    """Return whether a browser asks for a page at this server's root, and not a program for JSON."""
    is_get = scope["method"] == "GET" and not scope.get("root_path")
    return is_get and any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LAST_EVENT = b"[DONE]"
_MOST_LAST = 16
"""Bytes: the last event, and the line breaks after it."""

Send = Callable[[Any], Awaitable[None]]


class ResponseWriter:
    """Writes one response through ASGI's ``send``. ``started``: the head is sent and the status can no longer change.

    A stream may have to start before the upstream has answered (the heartbeat), so the first writer starts it.
    """

    __slots__ = (
        "_last", "_redact", "_send", "before_end", "common", "ending", "finished", "keep_alive", "pausable", "started", "status",
    )  # fmt: skip

    def __init__(self, send: Send, common: Headers, redact: Callable[[bytes], bytes] = bytes) -> None:
        self._send = send
        self.common = common
        """The first headers of the response."""
        self._redact = redact
        self._last = b""
        self.started = False
        self.finished = False
        self.status = 0
        self.pausable = True
        """Whether a comment may be written now: only between two events."""
        self.before_end: Callable[[], Awaitable[None]] | None = None
        """Awaited before the end is sent: what the client reads there has been done."""
        self.keep_alive = KEEP_ALIVE
        """The bytes that an idle stream gets."""
        self.ending: bytes | None = None
        """The last bytes of a body that is passed on, for its usage; None if it is not an answer of a model."""

    @property
    def is_complete(self) -> bool:
        """Whether the client has all of the response: it may leave after the last event of a stream, before its end."""
        return self.finished or self._last.rstrip().endswith(_LAST_EVENT)

    async def send_head(self, status: int, headers: Headers) -> None:
        """Send the head, without secrets that the upstream repeats in it."""
        headers = self._without_secrets(headers)
        self.started = True
        self.status = status
        await self._out({"type": "http.response.start", "status": status, "headers": self.common + headers})

    def _without_secrets(self, headers: Headers) -> Headers:
        values = b"\n".join([value for _, value in headers])
        if self._redact(values) == values:  # one search instead of many
            return headers
        return [(name, self._redact(value)) for name, value in headers]

    def write(self, data: bytes) -> Awaitable[None]:
        """Send a piece of the body; waits while the client reads slowly."""
        return self._out({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """Send the last piece of the body."""
        if self.before_end is not None:
            await self._before_end()
        self.finished = True
        await self._out({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete response."""
        if self.before_end is not None:
            await self._before_end()
        headers = [*self._without_secrets(headers), (b"content-length", b"%d" % len(body))]
        if write_whole(self._send, status, self.common + headers, body):
            self.started = self.finished = True
            self.status = status
            return
        await self.send_head(status, headers)
        await self.finish(body)

    async def _before_end(self) -> None:
        done, self.before_end = self.before_end, None
        assert done is not None
        await done()

    async def heartbeat(self) -> None:
        """Write ``keep_alive`` on an idle stream; starts the stream if necessary."""
        if not self.started:
            await self.send_head(200, EVENT_STREAM)
        if self.pausable and not self.finished:
            await self.write(self.keep_alive)

    def direct_sink(
        self, exchange: Exchange[bytes], watch: RequestWatchdog, capture: Callable[[bytes], object] | None
    ) -> Callable[[bytes], bool] | None:
        """Return a sink that feeds pieces of a started stream and writes the results straight to uvicorn's transport.

        It returns False, without feeding, where the client cannot take a piece now. A chunk goes from the upstream's socket to
        the client's within one network callback: waking a task for each would cost more than all other work. None where ``send``
        is not uvicorn's own: middleware, or the log of requests at level DEBUG, must see each chunk. The sink raises what
        ``feed`` raises, and StreamDone.
        """
        cycle = getattr(self._send, "__self__", None)
        if not self.started or type(cycle) is not RequestResponseCycle or not cycle.chunked_encoding:
            return None
        flow, write = cycle.flow, cycle.transport.write
        feed, passed = exchange.feed, watch.passed

        def sink(piece: bytes) -> bool:
            if flow.write_paused or cycle.disconnected:
                return False
            out = feed(piece)
            if out:
                write(b"%x\r\n%b\r\n" % (len(out), out))
                if capture is not None:
                    capture(out)
            passed(out)
            if exchange.finished:
                raise StreamDone
            return True

        return sink

    def passed(self, data: bytes) -> None:
        """Note forwarded bytes of a stream, to know whether they end with a complete event, and with the last one."""
        self._last = (self._last + data[-_MOST_LAST:])[-_MOST_LAST:]
        self.pausable = data.endswith(_EVENT_ENDS)

    async def _out(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError as error:  # ASGI 2.4: a send to a client that has gone
            raise ClientDisconnect("The client left.") from error
