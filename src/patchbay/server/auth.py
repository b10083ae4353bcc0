"""Access control of the proxy and the tool server: peer, Host, Origin, token, signed paths, and bounded bodies. Pure ASGI.

Web pages of other sites (DNS rebinding, cross-site forms) are rejected from the head of a request, before a byte of its body is
read; by the tool server also other machines and unexpected reverse proxies. Access to the registry decides what models see and
which calls run. The checks need no third-party package: a plugin host makes them too.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import os
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from patchbay._trace import adopt
from patchbay.errors import PatchbayError, RequestTooLargeError
from patchbay.loopback import is_local_peer, is_this_machine
from patchbay.models.error_bodies import error_body
from patchbay.server.errors import JSON_TYPE
from patchbay.server.http import (
    REQUEST_ID,
    VENDOR_KEYS,
    Headers,
    Receive,
    ResponseWriter,
    Send,
    check_length,
    declared_length,
    is_model_api,
    is_token,
    own_path,
    read_body,
)
from patchbay.server.request_log import CURRENT_REQUEST, begin_request, log_error_response, log_rejection, with_request_id
from patchbay.server.settings import AccessSettings, ToolsSettings
from patchbay.server.watchdog import ClientDisconnect

HeaderLists = dict[bytes, list[bytes]]
"""The headers of a request: all values of each lower-case name."""

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s/@,]+)(?::([0-9]{1,5}))?")
_FORWARDING: Final = frozenset({b"forwarded", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip"})
_JSON: Final = re.compile(rb"application/([a-z0-9.!#$&^_-]+\+)?json", re.IGNORECASE)


_HINTS: Final = {
    "untrusted_host": "--allow-host NAME takes requests to another name than this machine's",
    "untrusted_origin": "--allow-origin ORIGIN lets the web pages of a site in",
    "unexpected_proxy": "--proxy ADDRESS --token-file FILE takes requests that a reverse proxy hands on",
}
"""The flags that allow rejected requests, by error code."""


class Rejected(PatchbayError):  # noqa: N818  (a response, not a fault)
    """A rejected request: its HTTP status, a code for programs, and the reason in one sentence."""

    def __init__(self, status: int, code: str, reason: str, *, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.kind = "authentication_error" if status == 401 else "invalid_request_error"
        self.headers = headers


def _rejection_body(error: PatchbayError) -> dict[str, Any]:
    """Return the body of a rejection, as N.E.K.O's clients read it."""
    hint = f"patchbay serve {_HINTS[error.code]}" if error.code in _HINTS else None
    if error.code == "untrusted_host":
        return {"ok": False, "error_code": error.code, "error": str(error), "hint": hint}
    if error.code == "not_json":  # as FastAPI would word it, which a cross-site form must not reach
        return {"detail": [{"type": "model_attributes_type", "loc": ["body"], "msg": str(error), "input": None}]}
    return {"detail": str(error), "error_code": error.code, **({} if hint is None else {"hint": hint})}


def _encoded(error: PatchbayError, *, as_openai: bool) -> tuple[Headers, bytes]:
    """Return the headers and the body of a rejection."""
    body = error_body(error) if as_openai else _rejection_body(error)
    if as_openai and (hint := _HINTS.get(error.code)) is not None:
        body["error"]["message"] += f" ({hint})"
    return [JSON_TYPE, *(error.headers if isinstance(error, Rejected) else ())], msgspec.json.encode(body)


async def reject(scope: Any, send: Send, error: PatchbayError, *, as_openai: bool = False) -> None:
    """Answer a request, or the handshake of a WebSocket, with an error, and log it.

    A handshake gets an HTTP response where the server supports it, else a 403.
    """
    headers, body = _encoded(error, as_openai=as_openai)
    if scope["type"] != "websocket":
        request_id = CURRENT_REQUEST.get() or begin_request()
        log_error_response(scope, error.status, str(error))
        await ResponseWriter(send, [(REQUEST_ID, request_id.encode())]).whole(error.status, headers, body)
        return
    path = own_path(scope)[:_MAX_PATH_CHARS]
    log_rejection(f"A WebSocket at {path} from {peer_of(scope)} was refused: HTTP {error.status}, {error}")
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


def headers_of(scope: Any) -> HeaderLists:
    """Return the headers of an ASGI scope."""
    headers: HeaderLists = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.lower(), []).append(value)
    return headers


def peer_of(scope: Any) -> str:
    """Return the peer's address of an ASGI scope, "" if unknown."""
    return str((scope.get("client") or ("", 0))[0])


def check_caller(
    scope: Any, headers: HeaderLists, access: AccessSettings, *, any_peer: bool = False, any_origin: bool = False
) -> None:
    """Raise Rejected for a caller that may not use this server, whatever it asks for and whichever key it sends.

    Callers of other machines (``any_peer``) may use an address or a name without a dot as the Host: a page that rebinds its name
    has neither. ``any_origin`` is for servers whose answers any web page may read.
    """
    peer = peer_of(scope)
    if not any_peer:
        check_peer(peer, headers)
    check_host(headers, access.allowed_hosts, peer=peer)
    if b"origin" in headers and not any_origin:
        check_origin(headers, access.allowed_origins)


def check_peer(peer: str, headers: HeaderLists) -> None:
    """Raise Rejected for a request from another machine, or through a reverse proxy."""
    if not is_local_peer(peer):
        raise Rejected(403, "not_local", "Forbidden: only programs on this machine are allowed.")
    for name in headers:
        if name in _FORWARDING or name.startswith(b"x-forwarded-"):
            raise Rejected(403, "unexpected_proxy", "Forbidden: this came through a proxy, and no proxy is configured here.")


def check_host(headers: HeaderLists, allowed: Collection[str] = (), *, peer: str | None = None) -> None:
    """Raise Rejected unless there is one Host, this machine or ``allowed`` (``*.example.com``: all below it).

    For a ``peer`` on another machine also any address, and any name without a dot.
    """
    values = headers.get(b"host", [])
    name, is_local = _read_host(values[0]) if len(values) == 1 else (None, False)
    if name is None or not (is_local or any(_fits(name, pattern) for pattern in allowed) or _is_bare(name, peer)):
        raise Rejected(400, "untrusted_host", "Invalid Host header")


def check_origin(headers: HeaderLists, allowed: Collection[str] = ()) -> None:
    """Raise Rejected for a web page of another site, unless its origin is ``allowed`` (in lower case)."""
    values = headers.get(b"origin")
    if values is None:
        return
    origin = values[0].decode("latin-1").lower()
    if len(values) > 1 or not (origin in allowed or _is_local_origin(origin)):
        raise Rejected(403, "untrusted_origin", "Forbidden: web pages of other sites are not allowed.")


def check_json(headers: HeaderLists) -> None:
    """Raise Rejected for a body that is not declared as JSON: cross-site forms can send all other types."""
    kinds = headers.get(b"content-type", [])
    if len(kinds) != 1 or not _JSON.fullmatch(kinds[0].partition(b";")[0].strip()):
        raise Rejected(422, "not_json", "The body must be JSON: send Content-Type: application/json")


@lru_cache(maxsize=64)  # a client sends the same one each time
def _read_host(value: bytes) -> tuple[str | None, bool]:
    """Return the name in a Host header, None if it is invalid, and whether it is this machine's."""
    match = _HOST.fullmatch(value.decode("latin-1"))
    if match is None or not (match[2] is None or 0 < int(match[2]) < 65536):
        return None, False
    name = match[1].strip("[]").removesuffix(".").lower()
    return name, is_this_machine(name)


def _fits(name: str, pattern: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern


def _is_bare(name: str, peer: str | None) -> bool:
    if peer is None or is_local_peer(peer):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name
    return True


def _is_local_origin(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    plain = parts.scheme in ("http", "https") and not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    return plain and host is not None and is_this_machine(host)


MEDIA_PATH: Final = "/api/media/"
SIGNED_SECONDS: Final = 900
"""Lifetime of a signed path."""

_keys: Final = [os.urandom(32)]
_QUERY: Final = re.compile(rb"expires=([0-9]{1,12})&signature=([0-9a-f]{64})")


def signed_path(ref: str) -> str:
    """Return a path with a signature that allows fetching the file of ``ref`` without a token for SIGNED_SECONDS."""
    from patchbay.media import SCHEME  # which a plain proxy does not load

    name = ref.removeprefix(SCHEME)
    expires = int(time.time()) + SIGNED_SECONDS
    return f"{MEDIA_PATH}{name}?expires={expires}&signature={_signature(name, expires)}"


def sign_with(key: bytes) -> None:
    """Sign paths with a key that other servers have too."""
    _keys[0] = key


def is_signed(scope: Any) -> bool:
    """Return whether a scope has a valid signed path that has not expired."""
    match = _QUERY.fullmatch(scope.get("query_string", b""))
    before, _, name = scope["path"].rpartition("/")
    if match is None or not f"{before}/".endswith(MEDIA_PATH):
        return False
    expires = int(match[1])
    return hmac.compare_digest(_signature(name, expires).encode(), match[2]) and time.time() < expires


def _signature(name: str, expires: int) -> str:
    return hmac.new(_keys[0], f"{name}\n{expires}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


TRUSTED = "patchbay.trusted"
"""The scope's key for whether the caller has sent the token."""

OPENAI_BASE = "/v1"
"""The base path of OpenAI's API."""

BEARER: Final = "bearer."
"""Prefix of a token sent as a WebSocket subprotocol: a web page can set no other header."""

_MAX_PATH_CHARS: Final = 200
_NOT_REUSED: Final = ((b"connection", b"close"),)
"""The header of a response to a body of which the rest is not read."""

CONSOLE_PATH: Final = "/console"
"""The console's pages, which need no token: they ask for it."""
CONSOLE_API: Final = "/api/console"
"""What the pages need before they have the token."""
METRICS_PATH: Final = "/metrics"
_OPEN_PATHS: Final = (CONSOLE_PATH, CONSOLE_API)

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class AccessMiddleware:
    """Passes on to ``app`` what may come in. ``scope[TRUSTED]`` says whether the caller has sent the token.

    A cookie for which ``has_signed_in`` is true counts as the token. Below OPENAI_BASE a bearer other than the token is the
    client's key for the upstream, and rejections have OpenAI's error body. ``sockets`` serves WebSockets; without it all are
    rejected.
    """

    def __init__(
        self,
        app: AsgiApp,
        settings: ToolsSettings,
        *,
        has_signed_in: Callable[[Any, HeaderLists], bool] | None = None,
        sockets: AsgiApp | None = None,
    ) -> None:
        self._app = app
        self._sockets = sockets
        self._settings = settings
        self._has_signed_in = has_signed_in

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._app(scope, receive, send)
            return
        app = self._app if kind == "http" else self._sockets
        if app is None:
            await send({"type": "websocket.close", "code": 1008})
            return
        is_model = is_model_api(own_path(scope), OPENAI_BASE)
        try:
            scope[TRUSTED] = self._admit(scope, is_model=is_model)
            if kind == "websocket" and self._settings.token is not None and not scope[TRUSTED] and not is_model:
                raise unauthorized("a session must send the token")
            if scope.get("method") == "POST":
                receive = await self._read_body(receive)
        except ClientDisconnect:
            return
        except PatchbayError as error:
            await reject(scope, send, error, as_openai=is_model)
        else:
            if kind == "http" and not is_model:
                send = with_request_id(send)
                adopt(scope["headers"])
            await app(scope, receive, send)

    def _admit(self, scope: Any, *, is_model: bool) -> bool:
        """Return whether the caller is trusted. Raises PatchbayError."""
        headers = headers_of(scope)
        through_proxy = peer_of(scope) in self._settings.proxies
        check_caller(scope, headers, self._settings, any_peer=through_proxy)
        authorization = headers.get(b"authorization", [])
        if not authorization and scope["type"] == "websocket":
            authorization = _by_subprotocol(scope)
        if not authorization and is_model:
            authorization = [b"Bearer " + key for name in VENDOR_KEYS for key in headers.get(name, [])]
        trusted = self._is_trusted(authorization, or_key=is_model)
        if not authorization and self._settings.token is not None and self._has_signed_in is not None:
            trusted = self._has_signed_in(scope, headers)
        if (
            through_proxy
            and not trusted
            and not (scope["type"] == "http" and (is_signed(scope) or is_below(own_path(scope), _OPEN_PATHS)))
        ):
            raise unauthorized("what comes through a proxy must send the token")
        if scope.get("method") == "POST":
            check_json(headers)
            lengths = headers.get(b"content-length")
            check_length(declared_length(lengths[0] if lengths else None), self._settings.max_body_size)
        return trusted

    def _is_trusted(self, values: list[bytes], *, or_key: bool) -> bool:
        """Return whether the token was sent; with ``or_key`` another bearer is allowed."""
        if self._settings.token is None or not values:
            return False
        scheme, _, token = values[0].partition(b" ")
        right = is_token(token.strip(), self._settings.token)
        if or_key and len(values) == 1 and not right:
            return False
        if len(values) > 1 or scheme.lower() != b"bearer" or not right:
            raise unauthorized("the token is not the one of this server")
        return True

    async def _read_body(self, receive: Receive) -> Receive:
        """Read the body, and return a ``receive`` that replays it."""
        try:
            async with asyncio.timeout(self._settings.body_timeout):
                body = await read_body(receive, self._settings.max_body_size)
        except RequestTooLargeError as error:
            raise Rejected(error.status, error.code, str(error), headers=_NOT_REUSED) from None
        except TimeoutError:
            why = f"The request body did not come within {self._settings.body_timeout:g} s."
            raise Rejected(408, "body_timeout", why, headers=_NOT_REUSED) from None
        message: Any = {"type": "http.request", "body": body, "more_body": False}

        async def replay() -> Any:
            nonlocal message
            if message is None:
                return await receive()
            body_message, message = message, None
            return body_message

        return replay


def is_below(path: str, prefixes: Iterable[str]) -> bool:
    """Return whether a path is one of ``prefixes``, or below it."""
    return any(path == each or path.startswith(f"{each}/") for each in prefixes)


def _by_subprotocol(scope: Any) -> list[bytes]:
    """Return a token offered as a subprotocol, in the form of an Authorization header."""
    offered = [each.removeprefix(BEARER) for each in scope.get("subprotocols") or () if each.startswith(BEARER)]
    return [b"Bearer " + each.encode("utf-8", "replace") for each in offered]


def unauthorized(why: str) -> Rejected:
    """Return the rejection of a request without the token."""
    return Rejected(401, "wrong_token", f"Unauthorized: {why}.", headers=((b"www-authenticate", b"Bearer"),))
