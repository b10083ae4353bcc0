"""The server's own errors, and the bodies of error responses in OpenAI's shape. Bytes out, no I/O."""

from __future__ import annotations

import re
import zlib
from typing import Any

import msgspec

from patchbay._redaction import Redactor
from patchbay.errors import PatchbayError, UpstreamError
from patchbay.models import error_bodies
from patchbay.models.upstream_errors import CONTEXT, subject_of

JSON_TYPE = (b"content-type", b"application/json")
NO_RETRY = (b"x-should-retry", b"false")
HEALTH_BODY = b'{"status":"ok","service":"patchbay proxy"}'
ERROR_LIMIT = 1024 * 1024
"""Maximum bytes of an upstream's error body that are read."""
_EXCERPT_CHARS = 200
_TAGS = re.compile(r"(?is)<(script|style)\b.*?</\1>|<[^<>]{0,500}>")
_encode = msgspec.json.encode


class AuthenticationError(PatchbayError):
    """The client's key is missing or wrong."""

    code = "invalid_api_key"
    kind = "authentication_error"
    status = 401


class NotFoundError(PatchbayError):
    """Unknown path."""

    code = "not_found"
    kind = "not_found"
    status = 404


class RegistrationConflictError(PatchbayError):
    """Another server has changed a tool of this name at the same time; this server has taken its change over."""

    code = "registration_conflict"
    status = 409

    def __init__(self, name: str) -> None:
        super().__init__(f"Another server has changed the tool {name[:100]!r} at the same time: try again.")


class NoUpstreamError(NotFoundError):
    """This server has no upstream."""

    code = "no_upstream"

    def __init__(self) -> None:
        super().__init__("This server has no model to pass this on to: start it with patchbay serve --upstream URL.")


class MethodNotAllowedError(PatchbayError):
    """The path does not support the method."""

    code = "method_not_allowed"
    kind = "invalid_request_error"
    status = 405


class UnguardedError(PatchbayError):
    """A request that would reach a model past the hooks that check requests to models. ``instead`` says what they see."""

    code = "unguarded_path"
    kind = "invalid_request_error"
    status = 403

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(
            f"{what} not allowed: this server's hooks check requests to models, and do not see this one. Send {instead}; "
            f"or its operator starts it with --allow-unguarded."
        )


class NoWebSocketError(PatchbayError):
    """A WebSocket where only HTTP is spoken."""

    code = "no_websocket"
    kind = "invalid_request_error"
    status = 426

    def __init__(self) -> None:
        super().__init__("There is no WebSocket here: send POST requests.")


class StoppingError(PatchbayError):
    """The server is shutting down, and the request was not finished within the drain timeout."""

    code = "server_stopping"
    status = 503
    retryable = True

    def __init__(self) -> None:
        super().__init__("The server is stopping, and ended this request before it was done.")


class StoreUnavailableError(PatchbayError):
    """The database does not answer, and a request needs ``what`` from it."""

    code = "store_unavailable"
    status = 503
    retryable = True

    def __init__(self, what: str) -> None:
        super().__init__(f"The server's database does not answer, and {what} is in it: try again.")


class UpstreamStatusError(UpstreamError):
    """The upstream responded with an error status. ``client_body`` is already redacted.

    ``chat``: the error of a prompt that is too long gets OpenAI's status, type and code, which clients act on.
    """

    def __init__(self, status: int, client_body: bytes, headers: list[tuple[bytes, bytes]], *, chat: bool = False) -> None:
        document = _read_object(client_body)
        reason = error_bodies.message_in(document)
        message = f"The upstream answered HTTP {status}" + (f": {reason}" if reason else ".")
        if reason.startswith(("The upstream answered", "The upstream returned")):
            message = reason  # written here, and says the status
        super().__init__(message, upstream_status=status, body=client_body.decode("utf-8", "replace"))
        self.reason = reason
        self.client_body = client_body
        self.headers = headers
        is_too_long = chat and subject_of(self) is CONTEXT
        self.status = CONTEXT.status if is_too_long else status
        error = _error_in(document)
        if is_too_long and error.get("code") != CONTEXT.code:
            self.client_body = _encode({"error": {**error, "message": reason, "type": CONTEXT.kind, "code": CONTEXT.code}})


def error_headers(error: PatchbayError) -> list[tuple[bytes, bytes]]:
    """Return the headers for ``encoded_error_body``: its type, and whether the client may retry."""
    if isinstance(error, UpstreamStatusError):
        return error.headers
    return [JSON_TYPE] if error.retryable else [JSON_TYPE, NO_RETRY]


def encoded_error_body(error: PatchbayError) -> bytes:
    """Return ``error`` as OpenAI's error body."""
    if isinstance(error, UpstreamStatusError):
        return error.client_body
    return _encode(error_bodies.error_body(error))


def error_object(message: str, *, kind: str, code: str | None) -> bytes:
    """Return OpenAI's error body from its fields."""
    return _encode({"error": {"message": message, "type": kind, "code": code, "param": None}})


def upstream_error_body(status: int, content_type: str, body: bytes, *, chat: bool, own_key: bool, redact: Redactor) -> bytes:
    """Return the client's body for an upstream's error response: JSON unchanged, anything else described.

    ``chat``: JSON of another shape is converted to OpenAI's too. ``own_key``: the upstream was sent the proxy's key, not the
    client's; for 401 and 403 the message then says whose key was refused, and keeps the upstream's reason (a 403 is often a
    quota).
    """
    body = redact(body)
    document = _read_object(body)
    if status in (401, 403):
        return _refused_key(status, document, own_key=own_key)
    if document is not None and (not chat or isinstance(document.get("error"), dict)):
        return body
    message = error_bodies.message_in(document)  # of another shape than OpenAI's, which is all that a chat client knows
    if not message and body.strip():
        message = f"The upstream answered HTTP {status} ({content_type or 'no content type'}): {plain_excerpt(body)}"
        if status == 404:
            message += " (Is the upstream's URL its base URL, which mostly ends in /v1?)"
    elif not message:
        message = f"The upstream returned HTTP {status} without a message."
    return error_object(message, kind="upstream_error", code="upstream_error")


def _refused_key(status: int, document: dict[str, Any] | None, *, own_key: bool) -> bytes:
    whose = "the proxy's API key for it" if own_key else "the API key of this request"
    verb = "refused" if status == 401 else "does not allow this request with"
    message = f"The upstream {verb} {whose} (HTTP {status})"
    reason, error = error_bodies.message_in(document), _error_in(document)
    message += f": {reason}" if reason else "."
    kind, code = error.get("type"), error.get("code")
    return error_object(
        message,
        kind=kind if isinstance(kind, str) else "upstream_error",
        code=code if isinstance(code, str) else "upstream_authentication",
    )


def _error_in(document: dict[str, Any] | None) -> dict[str, Any]:
    error = (document or {}).get("error", document)
    return error if isinstance(error, dict) else {}


def _read_object(body: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def plain_excerpt(body: bytes) -> str:
    """Return the beginning of a body as text without markup, for an error message."""
    text = _TAGS.sub(" ", body[:8192].decode("utf-8", "replace"))
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= _EXCERPT_CHARS else text[:_EXCERPT_CHARS] + "…"


def decompress(body: bytes, coding: str) -> bytes:
    """Return at most ERROR_LIMIT decompressed bytes of an error body; empty where it cannot be read.

    A compressed body is not forwarded: a key that it quotes could not be redacted.
    """
    if not coding:
        return body
    for window in {"gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}.get(coding, ()):
        try:
            return zlib.decompressobj(window).decompress(body, ERROR_LIMIT)
        except zlib.error:
            continue
    return b""
