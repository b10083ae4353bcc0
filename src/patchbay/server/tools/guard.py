"""Who is let in to the tools: decided from the head of a request, before a byte of its body is read. Pure ASGI.

Whoever reaches the registry decides what models are told and what is called, so the guard keeps out other machines, web pages of
other sites (which reach a local server through the user's browser: by a name that resolves to it, or by a form), and what came
through a proxy that nobody spoke of. A body is taken in whole, bounded, once its sender is known.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from patchbay.errors import InvalidRequestError, RequestTooLargeError
from patchbay.server.body import Receive, check_length, declared_length, read_body
from patchbay.server.reply import Reply, Send
from patchbay.server.tools.loopback import is_local_peer, is_this_machine
from patchbay.server.tools.settings import ToolsSettings
from patchbay.server.watch import ClientLeftError

TRUSTED = "patchbay.trusted"
"""The key of the ASGI scope that says whether the caller has shown the token."""

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s/@,]+)(?::([0-9]{1,5}))?")
_FORWARDING = (b"forwarded", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip")
_JSON = re.compile(rb"application/([a-z0-9.!#$&^_-]+\+)?json", re.IGNORECASE)

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class Refusal(Exception):  # noqa: N818  (an answer, not a fault)
    """A request is turned away with ``status`` and ``body`` (JSON)."""

    def __init__(self, status: int, body: dict[str, Any], *, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(str(body))
        self.status = status
        self.body = body
        self.headers = headers


class Guard:
    """Stands before ``app``, and passes on what may come in. ``scope[TRUSTED]`` says whether it has shown the token."""

    def __init__(self, app: AsgiApp, settings: ToolsSettings) -> None:
        self._app = app
        self._settings = settings
        self._digest = _digest(settings.token.encode()) if settings.token is not None else None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            scope[TRUSTED] = self._admit(scope)
            if scope["method"] == "POST":
                receive = await self._taken_in(receive)
        except Refusal as refusal:
            body = msgspec.json.encode(refusal.body)
            await Reply(send, []).whole(refusal.status, [(b"content-type", b"application/json"), *refusal.headers], body)
        except ClientLeftError:
            return
        else:
            await self._app(scope, receive, send)

    def _admit(self, scope: Any) -> bool:
        """Say whether the caller is trusted; raises Refusal for one who may not come in."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        peer = (scope.get("client") or ("", 0))[0]
        through_proxy = peer in self._settings.proxies
        if not through_proxy:
            if not is_local_peer(peer):
                raise _forbidden("only programs on this machine are let in", "not_local")
            if any(name in _FORWARDING or name.startswith(b"x-forwarded-") for name in headers):
                raise _forbidden("this came through a proxy, and no proxy is configured here", "unexpected_proxy")
        self._check_host(headers.get(b"host", []))
        self._check_origin(headers.get(b"origin", []))
        trusted = self._is_trusted(headers.get(b"authorization", []))
        if through_proxy and not trusted:
            raise _unauthorized("what comes through a proxy must show the token")
        if scope["method"] == "POST":
            self._check_body(headers)
        return trusted

    def _check_host(self, values: list[bytes]) -> None:
        match = _HOST.fullmatch(values[0].decode("latin-1")) if len(values) == 1 else None
        if match is not None and (match[2] is None or 0 < int(match[2]) < 65536):
            name = match[1].strip("[]").removesuffix(".").lower()
            if is_this_machine(name) or any(_fits(name, pattern) for pattern in self._settings.allowed_hosts):
                return
        raise Refusal(400, {"ok": False, "error_code": "untrusted_host", "error": "Invalid Host header"})

    def _check_origin(self, values: list[bytes]) -> None:
        if not values:
            return
        origin = values[0].decode("latin-1").lower()
        if len(values) > 1 or not (origin in self._settings.allowed_origins or _is_local_origin(origin)):
            raise _forbidden("web pages of other sites are not let in", "untrusted_origin")

    def _is_trusted(self, values: list[bytes]) -> bool:
        if self._digest is None or not values:
            return False
        scheme, _, token = values[0].partition(b" ")
        # Both digests have one length, and what differs takes as long as what is equal.
        right = hmac.compare_digest(_digest(token.strip()), self._digest)
        if len(values) > 1 or scheme.lower() != b"bearer" or not right:
            raise _unauthorized("the token is not the one of this server")
        return True

    def _check_body(self, headers: dict[bytes, list[bytes]]) -> None:
        kinds = headers.get(b"content-type", [])
        if len(kinds) != 1 or not _JSON.fullmatch(kinds[0].partition(b";")[0].strip()):
            # As the framework behind would say it, had it been asked: a form of another site must not get that far.
            message = "The body must be JSON: send Content-Type: application/json"
            detail = [{"type": "model_attributes_type", "loc": ["body"], "msg": message, "input": None}]
            raise Refusal(422, {"detail": detail})
        lengths = headers.get(b"content-length")
        try:
            check_length(declared_length(lengths[0] if lengths else None), self._settings.max_body_size)
        except InvalidRequestError as error:
            raise Refusal(error.status, {"detail": str(error), "error_code": error.code}) from None

    async def _taken_in(self, receive: Receive) -> Receive:
        """Read the body, and return a ``receive`` that gives it again."""
        try:
            body = await read_body(receive, self._settings.max_body_size)
        except RequestTooLargeError as error:
            # The rest is not read: the connection cannot be used again.
            headers = ((b"connection", b"close"),)
            raise Refusal(error.status, {"detail": str(error), "error_code": error.code}, headers=headers) from None
        message: Any = {"type": "http.request", "body": body, "more_body": False}

        async def again() -> Any:
            nonlocal message
            if message is None:
                return await receive()
            given, message = message, None
            return given

        return again


def _forbidden(why: str, code: str) -> Refusal:
    return Refusal(403, {"detail": f"Forbidden: {why}.", "error_code": code})


def _unauthorized(why: str) -> Refusal:
    body = {"detail": f"Unauthorized: {why}.", "error_code": "wrong_token"}
    return Refusal(401, body, headers=((b"www-authenticate", b"Bearer"),))


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


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
