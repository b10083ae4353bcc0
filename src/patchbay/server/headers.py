"""Which HTTP headers cross the proxy, in either direction. Names only; values pass as they are.

Both ways the headers of one hop stay on their hop (RFC 9110 7.6.1). Towards the upstream nothing goes that speaks of this
origin or of the way to it (cookies, Origin, X-Forwarded-*); back comes nothing that speaks for the upstream's origin (cookies,
CORS, Strict-Transport-Security).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

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
    b"x-client-ip", b"true-client-ip", b"x-http-method-override",
}  # fmt: skip
_NOT_UP_PREFIXES = (b"x-forwarded-", b"sec-", b"access-control-", b"cf-", b"x-amzn-", b"x-envoy-")
KEY_HEADERS = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"})
"""The headers that hold a client's key."""
_NOT_DOWN = _HOP | {
    b"set-cookie", b"set-cookie2", b"date", b"server", b"alt-svc", b"strict-transport-security", b"clear-site-data", b"nel",
    b"report-to", b"content-security-policy", b"www-authenticate", b"http2-settings",
}  # fmt: skip
_NOT_DOWN_PREFIXES = (b"access-control-",)
# Of a chat answer that is written anew only these are still true.
_CHAT_DOWN = frozenset({b"retry-after", b"retry-after-ms", b"x-request-id", b"x-should-retry"})
_CHAT_DOWN_PREFIXES = (b"x-ratelimit-", b"ratelimit", b"openai-")
_MEMORY = 512
_NONE: Mapping[bytes, tuple[bytes, bytes]] = MappingProxyType({})


OwnHeaders = Mapping[bytes, tuple[bytes, bytes]]
"""Headers that replace the client's: by their lower-case names, name and value as they are sent."""


class _Verdicts(dict[bytes, bytes | None]):
    """Remembers for each header name what it becomes (None: it stays here). Bounded, since names come from outside."""

    def remember(self, name: bytes, verdict: bytes | None) -> None:
        if len(self) >= _MEMORY:
            self.clear()
        self[name] = verdict


_up = _Verdicts()
_down = _Verdicts()
_chat_down = _Verdicts()


def own_headers(headers: Mapping[str, str]) -> OwnHeaders:
    """Return ``headers`` as ``upward`` takes them."""
    return {name.lower().encode(): (name.encode(), value.encode("latin-1")) for name, value in headers.items()}


def upward(headers: Iterable[tuple[bytes, bytes]], *, with_keys: bool, own: OwnHeaders = _NONE) -> Headers:
    """Return the client's headers that may go to the upstream, and ``own``, which replace those of the same names.

    ``with_keys``: also those that hold the client's own key (where the proxy has no key of its own for the upstream).
    """
    forwarded: Headers = []
    nominated: set[bytes] | None = None
    for pair in headers:
        name = pair[0]
        try:
            verdict = _up[name]
        except KeyError:
            verdict = None if (name in _NOT_UP or name.startswith(_NOT_UP_PREFIXES)) and name not in KEY_HEADERS else name
            _up.remember(name, verdict)
        if verdict is not None:
            if name not in own and (with_keys or name not in KEY_HEADERS):
                forwarded.append(pair)
        elif name == b"connection":
            nominated = _nominated(pair[1], nominated)
    if nominated:
        forwarded = [pair for pair in forwarded if pair[0] not in nominated]
    forwarded.extend(own.values())
    return forwarded


def downward(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the upstream's headers that may go to the client with a body that is passed on as it is."""
    forwarded: Headers = []
    nominated: set[bytes] | None = None
    for name, value in headers:
        try:
            verdict = _down[name]
        except KeyError:
            lowered = name.lower()
            verdict = None if lowered in _NOT_DOWN or lowered.startswith(_NOT_DOWN_PREFIXES) else lowered
            _down.remember(name, verdict)
        if verdict is not None:
            forwarded.append((verdict, value))
        elif name.lower() == b"connection":
            nominated = _nominated(value, nominated)
    if nominated:
        forwarded = [pair for pair in forwarded if pair[0] not in nominated]
    return forwarded


def chat_downward(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the upstream's headers that are still true of a chat answer which was written anew."""
    forwarded: Headers = []
    for name, value in headers:
        try:
            verdict = _chat_down[name]
        except KeyError:
            lowered = name.lower()
            verdict = lowered if lowered in _CHAT_DOWN or lowered.startswith(_CHAT_DOWN_PREFIXES) else None
            _chat_down.remember(name, verdict)
        if verdict is not None:
            forwarded.append((verdict, value))
    return forwarded


def _nominated(connection: bytes, so_far: set[bytes] | None) -> set[bytes]:
    """Return the names that a Connection header declares to be of this hop only."""
    names = {token.strip().lower() for token in connection.split(b",")} - {b"close", b"keep-alive", b""}
    return names | (so_far or set())
