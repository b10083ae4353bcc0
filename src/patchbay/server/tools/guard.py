"""Who is let in to the tools: decided from the head of a request, before a byte of its body is read. Pure ASGI.

What lives here: the token, proxies that are known, and the answers to those who are turned away; a body is taken in whole,
bounded, once its sender is known. A WebSocket comes in by the same checks, and must show the token where there is one. What does
not: what a request's head tells of where it comes from (``admission``).

Whoever reaches the registry decides what models are told and what is called.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from patchbay.errors import InvalidRequestError, RequestTooLargeError
from patchbay.server import refusals
from patchbay.server.body import Receive, check_length, declared_length, read_body
from patchbay.server.media_urls import is_signed
from patchbay.server.reply import Reply, Send
from patchbay.server.routes import find_tail, own_path
from patchbay.server.tools.admission import (
    HeaderLists,
    NotAdmittedError,
    check_host,
    check_json,
    check_origin,
    check_peer,
    headers_of,
    peer_of,
)
from patchbay.server.tools.settings import ToolsSettings
from patchbay.server.watch import ClientLeftError

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


class Refusal(Exception):  # noqa: N818  (an answer, not a fault)
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


class Guard:
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
        except Refusal as refusal:
            refusals.REFUSALS.report(scope, refusal.status, refusal.reason)
            body = msgspec.json.encode(_in_openais_words(refusal) if self._is_openais(scope) else refusal.body)
            await Reply(send, []).whole(refusal.status, [(b"content-type", b"application/json"), *refusal.headers], body)
        except ClientLeftError:
            return
        else:
            await self._app(scope, receive, send)

    async def _open(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve a WebSocket. One that is turned away is answered before it is one."""
        if self._sockets is None:
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal: Refusal | None = None
        try:
            scope[TRUSTED] = self._admit(scope)
        except Refusal as refused:
            refusal = refused
        else:
            if self._digest is not None and not scope[TRUSTED]:
                refusal = _unauthorized("a session must show the token")
        if refusal is not None:
            await turn_away(scope, send, refusal)
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
            raise _refusal(error) from None
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
            raise Refusal(error.status, {"detail": detail}) from None
        lengths = headers.get(b"content-length")
        try:
            check_length(declared_length(lengths[0] if lengths else None), self._settings.max_body_size)
        except InvalidRequestError as error:
            raise Refusal(error.status, {"detail": str(error), "error_code": error.code}) from None

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


def _refusal(error: NotAdmittedError) -> Refusal:
    hint = _HINTS.get(error.code)
    if error.status == 400:
        return Refusal(400, {"ok": False, "error_code": error.code, "error": str(error), "hint": hint})
    more = {} if hint is None else {"hint": hint}
    return Refusal(error.status, {"detail": f"Forbidden: {error}.", "error_code": error.code, **more})


def _unread(status: int, code: str, why: str) -> Refusal:
    """Refuse a body of which the rest is not read: the connection cannot be used again."""
    return Refusal(status, {"detail": why, "error_code": code}, headers=((b"connection", b"close"),))


async def turn_away(scope: Any, send: Send, refusal: Refusal) -> None:
    """Answer a handshake with HTTP, where the server can; else all that is told is 403. The log is told why, too."""
    path = own_path(scope)[:_LONGEST_PATH]
    refusals.REFUSALS.tell(f"A WebSocket at {path} from {peer_of(scope)} was refused: HTTP {refusal.status}, {refusal.reason}")
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


def _in_openais_words(refusal: Refusal) -> dict[str, Any]:
    kind = "authentication_error" if refusal.status == 401 else "invalid_request_error"
    code = refusal.body.get("error_code", "not_json")
    return {"error": {"message": refusal.reason, "type": kind, "code": code, "param": None}}


def _unauthorized(why: str) -> Refusal:
    body = {"detail": f"Unauthorized: {why}.", "error_code": "wrong_token"}
    return Refusal(401, body, headers=((b"www-authenticate", b"Bearer"),))


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
