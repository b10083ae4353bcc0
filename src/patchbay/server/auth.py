"""Who may talk to a server that is this machine's alone: read off the head of a request, before a byte of its body.

What lives here: one check for each thing that a request says of where it comes from; the tool server's guard and the plugin
host's callback both make them. What does not: statuses, bodies and tokens, which are each door's own. No third-party package is
needed, so that a plugin host need not load what the tool server is made of.

What they keep out: other machines, web pages of other sites (which reach a local server through the user's browser: by a name
that resolves to it, or by a form), and what came through a proxy that nobody spoke of.

Signed, short-lived paths of ``/api/media``: what a browser can fetch, which sends no token with an image or a link.

The key is the process's own: refs end with the process too.

Who is let in to the tools: decided from the head of a request, before a byte of its body is read. Pure ASGI.

What lives here: the token, proxies that are known, and the answers to those who are turned away; a body is taken in whole,
bounded, once its sender is known. A WebSocket comes in by the same checks, and must show the token where there is one. What does
not: what a request's head tells of where it comes from (``admission``).

Whoever reaches the registry decides what models are told and what is called.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import time
from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from patchbay.errors import InvalidRequestError, RequestTooLargeError
from patchbay.loopback import is_local_peer, is_this_machine
from patchbay.media import SCHEME
from patchbay.server.http import Receive, ResponseWriter, Send, check_length, declared_length, find_tail, own_path, read_body
from patchbay.server.request_log import REJECTIONS
from patchbay.server.settings import ToolsSettings
from patchbay.server.watchdog import ClientDisconnect

HeaderLists = dict[bytes, list[bytes]]
"""The headers of a request: all values of each lower-case name."""

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s/@,]+)(?::([0-9]{1,5}))?")
_FORWARDING: Final = frozenset({b"forwarded", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip"})
_JSON: Final = re.compile(rb"application/([a-z0-9.!#$&^_-]+\+)?json", re.IGNORECASE)


class NotAdmittedError(Exception):
    """A request may not come in. ``str`` says why in half a sentence; ``code`` is for programs, ``status`` for HTTP."""

    def __init__(self, status: int, code: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.code = code


def headers_of(scope: Any) -> HeaderLists:
    """Return the headers of an ASGI scope."""
    headers: HeaderLists = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.lower(), []).append(value)
    return headers


def peer_of(scope: Any) -> str:
    """Return the address that the connection of an ASGI scope comes from, "" where it is not known."""
    return str((scope.get("client") or ("", 0))[0])


def check_peer(peer: str, headers: HeaderLists) -> None:
    """Raise NotAdmittedError for what comes from another machine, or says that it came through a proxy."""
    if not is_local_peer(peer):
        raise NotAdmittedError(403, "not_local", "only programs on this machine are let in")
    for name in headers:
        if name in _FORWARDING or name.startswith(b"x-forwarded-"):
            raise NotAdmittedError(403, "unexpected_proxy", "this came through a proxy, and no proxy is configured here")


def check_host(headers: HeaderLists, allowed: Collection[str] = ()) -> None:
    """Raise NotAdmittedError unless there is one Host, this machine or one ``allowed`` (``*.example.com``: all below it)."""
    values = headers.get(b"host", [])
    name, is_local = _read_host(values[0]) if len(values) == 1 else (None, False)
    if name is None or not (is_local or any(_fits(name, pattern) for pattern in allowed)):
        raise NotAdmittedError(400, "untrusted_host", "Invalid Host header")


def check_origin(headers: HeaderLists, allowed: Collection[str] = ()) -> None:
    """Raise NotAdmittedError for a web page of another site, unless its origin is ``allowed`` (written in lower case)."""
    values = headers.get(b"origin")
    if values is None:
        return
    origin = values[0].decode("latin-1").lower()
    if len(values) > 1 or not (origin in allowed or _is_local_origin(origin)):
        raise NotAdmittedError(403, "untrusted_origin", "web pages of other sites are not let in")


def check_json(headers: HeaderLists) -> None:
    """Raise NotAdmittedError for a body that is not declared to be JSON: a form of another site can send all others."""
    kinds = headers.get(b"content-type", [])
    if len(kinds) != 1 or not _JSON.fullmatch(kinds[0].partition(b";")[0].strip()):
        raise NotAdmittedError(422, "not_json", "The body must be JSON: send Content-Type: application/json")


@lru_cache(maxsize=64)  # every request of a client has the same one
def _read_host(value: bytes) -> tuple[str | None, bool]:
    """Return the name in a Host header, None where it is none, and whether it is this machine's."""
    match = _HOST.fullmatch(value.decode("latin-1"))
    if match is None or not (match[2] is None or 0 < int(match[2]) < 65536):
        return None, False
    name = match[1].strip("[]").removesuffix(".").lower()
    return name, is_this_machine(name)


def _fits(name: str, pattern: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern


def _is_local_origin(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    plain = parts.scheme in ("http", "https") and not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    return plain and host is not None and is_this_machine(host)


PATH: Final = "/api/media/"
SECONDS: Final = 900
"""How long a signed path is good for."""

_KEY: Final = os.urandom(32)
_QUERY: Final = re.compile(rb"expires=([0-9]{1,12})&signature=([0-9a-f]{64})")


def signed_path(ref: str) -> str:
    """Return the path and query at which the file of ``ref`` can be fetched without a token for SECONDS."""
    name = ref.removeprefix(SCHEME)
    expires = int(time.time()) + SECONDS
    return f"{PATH}{name}?expires={expires}&signature={_signature(name, expires)}"


def is_signed(scope: Any) -> bool:
    """Whether an HTTP scope asks for a file by a signed path that has not expired."""
    match = _QUERY.fullmatch(scope.get("query_string", b""))
    before, _, name = scope["path"].rpartition("/")
    if match is None or not f"{before}/".endswith(PATH):
        return False
    expires = int(match[1])
    return hmac.compare_digest(_signature(name, expires).encode(), match[2]) and time.time() < expires


def _signature(name: str, expires: int) -> str:
    return hmac.new(_KEY, f"{name}\n{expires}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


TRUSTED = "patchbay.trusted"
"""The key of the ASGI scope that says whether the caller has shown the token."""

OPENAI_BASE = "/v1"
"""The path below which the server speaks OpenAI's API."""

_HINTS: Final = {
    "untrusted_host": "patchbay serve --allow-host NAME takes requests to another name than this machine's",
    "untrusted_origin": "patchbay serve --allow-origin ORIGIN lets the web pages of a site in",
    "unexpected_proxy": "patchbay serve --proxy ADDRESS --token-file FILE takes requests that a reverse proxy hands on",
}
"""What an operator who wants such requests has to say."""

BEARER: Final = "bearer."
"""What stands before the token where it comes as a subprotocol of a WebSocket: a web page can set no other header."""

_LONGEST_PATH: Final = 200

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class Rejected(Exception):  # noqa: N818  (a response, not a fault)
    """A request is turned away with ``status`` and ``body`` (JSON)."""

    def __init__(self, status: int, body: dict[str, Any], *, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(str(body))
        self.status = status
        self.body = body
        self.headers = headers

    @property
    def reason(self) -> str:
        """Why, in one sentence."""
        reason = self.body.get("detail", self.body.get("error", ""))
        return reason if isinstance(reason, str) else str(reason[0]["msg"])


class AccessMiddleware:
    """Stands before ``app``, and passes on what may come in. ``scope[TRUSTED]`` says whether it has shown the token.

    Below ``openai_base`` clients of OpenAI's API come in: a bearer that is not the token is their key for a model's server, and
    they are turned away with OpenAI's error body. ``sockets`` is for WebSockets; without it none is let in.
    """

    def __init__(
        self, app: AsgiApp, settings: ToolsSettings, *, openai_base: str = OPENAI_BASE, sockets: AsgiApp | None = None
    ) -> None:
        self._app = app
        self._sockets = sockets
        self._settings = settings
        self._openai_base = openai_base
        self._digest = _digest(settings.token.encode()) if settings.token is not None else None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._open(scope, receive, send)
            return
        try:
            scope[TRUSTED] = self._admit(scope)
            if scope["method"] == "POST":
                receive = await self._taken_in(receive)
        except Rejected as refusal:
            REJECTIONS.report(scope, refusal.status, refusal.reason)
            body = msgspec.json.encode(_in_openais_words(refusal) if self._is_openais(scope) else refusal.body)
            await ResponseWriter(send, []).whole(refusal.status, [(b"content-type", b"application/json"), *refusal.headers], body)
        except ClientDisconnect:
            return
        else:
            await self._app(scope, receive, send)

    async def _open(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve a WebSocket. One that is turned away is answered before it is one."""
        if self._sockets is None:
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal: Rejected | None = None
        try:
            scope[TRUSTED] = self._admit(scope)
        except Rejected as refused:
            refusal = refused
        else:
            if self._digest is not None and not scope[TRUSTED]:
                refusal = _unauthorized("a session must show the token")
        if refusal is not None:
            await reject_websocket(scope, send, refusal)
        else:
            await self._sockets(scope, receive, send)

    def _admit(self, scope: Any) -> bool:
        """Say whether the caller is trusted; raises Refusal for one who may not come in."""
        headers = headers_of(scope)
        peer = peer_of(scope)
        through_proxy = peer in self._settings.proxies
        try:
            if not through_proxy:
                check_peer(peer, headers)
            check_host(headers, self._settings.allowed_hosts)
            check_origin(headers, self._settings.allowed_origins)
        except NotAdmittedError as error:
            raise _rejected_by(error) from None
        shown = headers.get(b"authorization", [])
        if not shown and scope["type"] == "websocket":
            shown = _by_subprotocol(scope)
        trusted = self._is_trusted(shown, or_key=self._is_openais(scope))
        if through_proxy and not trusted and not (scope["type"] == "http" and is_signed(scope)):
            raise _unauthorized("what comes through a proxy must show the token")
        if scope.get("method") == "POST":
            self._check_body(headers)
        return trusted

    def _is_openais(self, scope: Any) -> bool:
        return find_tail(own_path(scope), self._openai_base) is not None

    def _is_trusted(self, values: list[bytes], *, or_key: bool) -> bool:
        """Say whether the token was shown; with ``or_key`` something else may have been."""
        if self._digest is None or not values:
            return False
        scheme, _, token = values[0].partition(b" ")
        # Both digests have one length, and what differs takes as long as what is equal.
        right = hmac.compare_digest(_digest(token.strip()), self._digest)
        if or_key and len(values) == 1 and not right:
            return False
        if len(values) > 1 or scheme.lower() != b"bearer" or not right:
            raise _unauthorized("the token is not the one of this server")
        return True

    def _check_body(self, headers: HeaderLists) -> None:
        try:
            check_json(headers)
        except NotAdmittedError as error:
            # As the framework behind would say it, had it been asked: a form of another site must not get that far.
            detail = [{"type": "model_attributes_type", "loc": ["body"], "msg": str(error), "input": None}]
            raise Rejected(error.status, {"detail": detail}) from None
        lengths = headers.get(b"content-length")
        try:
            check_length(declared_length(lengths[0] if lengths else None), self._settings.max_body_size)
        except InvalidRequestError as error:
            raise Rejected(error.status, {"detail": str(error), "error_code": error.code}) from None

    async def _taken_in(self, receive: Receive) -> Receive:
        """Read the body, and return a ``receive`` that gives it again."""
        try:
            async with asyncio.timeout(self._settings.body_timeout):
                body = await read_body(receive, self._settings.max_body_size)
        except RequestTooLargeError as error:
            raise _unread(error.status, error.code, str(error)) from None
        except TimeoutError:
            why = f"The request body did not come within {self._settings.body_timeout:g} s."
            raise _unread(408, "body_timeout", why) from None
        message: Any = {"type": "http.request", "body": body, "more_body": False}

        async def again() -> Any:
            nonlocal message
            if message is None:
                return await receive()
            given, message = message, None
            return given

        return again


def _rejected_by(error: NotAdmittedError) -> Rejected:
    hint = _HINTS.get(error.code)
    if error.status == 400:
        return Rejected(400, {"ok": False, "error_code": error.code, "error": str(error), "hint": hint})
    more = {} if hint is None else {"hint": hint}
    return Rejected(error.status, {"detail": f"Forbidden: {error}.", "error_code": error.code, **more})


def _unread(status: int, code: str, why: str) -> Rejected:
    """Refuse a body of which the rest is not read: the connection cannot be used again."""
    return Rejected(status, {"detail": why, "error_code": code}, headers=((b"connection", b"close"),))


async def reject_websocket(scope: Any, send: Send, refusal: Rejected) -> None:
    """Answer a handshake with HTTP, where the server can; else all that is told is 403. The log is told why, too."""
    path = own_path(scope)[:_LONGEST_PATH]
    REJECTIONS.tell(f"A WebSocket at {path} from {peer_of(scope)} was refused: HTTP {refusal.status}, {refusal.reason}")
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"application/json"), *refusal.headers]
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": msgspec.json.encode(refusal.body)})


def _by_subprotocol(scope: Any) -> list[bytes]:
    """Return the token that is offered as a subprotocol, as an Authorization header says it."""
    offered = [each.removeprefix(BEARER) for each in scope.get("subprotocols") or () if each.startswith(BEARER)]
    return [b"Bearer " + each.encode("utf-8", "replace") for each in offered]


def _in_openais_words(refusal: Rejected) -> dict[str, Any]:
    kind = "authentication_error" if refusal.status == 401 else "invalid_request_error"
    code = refusal.body.get("error_code", "not_json")
    return {"error": {"message": refusal.reason, "type": kind, "code": code, "param": None}}


def _unauthorized(why: str) -> Rejected:
    body = {"detail": f"Unauthorized: {why}.", "error_code": "wrong_token"}
    return Rejected(401, body, headers=((b"www-authenticate", b"Bearer"),))


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
