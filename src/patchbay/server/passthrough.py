"""Everything under the base path that is not a chat completion: passed through, both ways, as it arrives."""

from __future__ import annotations

from typing import Any, Final

from patchbay.server.answers import NotFoundError
from patchbay.server.body import declared_length, stream_body
from patchbay.server.headers import Headers
from patchbay.server.journal import Capture
from patchbay.server.relay import read_refusal, refusal, relay
from patchbay.server.request import Request
from patchbay.server.routes import CHAT

_UNSERVED: Final = {"responses": "OpenAI's Responses API", "messages": "Anthropic's Messages API"}
"""Protocols of other clients, by the first segment of their paths."""

_LOGGED_TYPES = (b"application/json", b"text/")


async def run_passthrough(request: Request, tail: str) -> None:
    """Send the request to ``tail`` below the upstream's base and pass the answer on. Raises PatchbayError."""
    scope, watch, reply, journal = request.scope, request.watch, request.reply, request.journal
    method: str = scope["method"]
    incoming = _read_headers(scope["headers"])
    headers = request.upward()
    sent = Capture() if journal is not None and _is_text(incoming.get(b"content-type")) else None
    body, length = None, None
    if b"content-length" in incoming or b"transfer-encoding" in incoming:
        body = await stream_body(request.receive, watch, note=sent.add if sent is not None else None)
        length = declared_length(incoming.get(b"content-length"))
    if journal is not None:
        journal.record("upstream_request", request.id, method=method, path=tail)
    watch.wait()
    answer = await request.upstream.open(method, tail, scope.get("query_string", b""), headers, body, length=length)
    try:
        if journal is not None and sent is not None:
            journal.record("upstream_request_body", request.id, **sent.fields())
        if answer.status >= 400 and method != "HEAD":
            told = await read_refusal(answer, watch, request.upstream)
            if journal is not None:
                journal.record("upstream_error", request.id, status=answer.status, body=told)
            if answer.status == 404 and (protocol := _UNSERVED.get(tail.split("/")[1] if tail else "")):
                base = request.settings.base_path
                raise NotFoundError(
                    f"{protocol} is not served here: the upstream answered HTTP 404 to {method} {base}{tail}. "
                    f"Tools work at POST {base}{CHAT}; any other path below {base} is passed on to the upstream."
                )
            raise refusal(answer, told, chat=False, own_key=request.own_key, redact=request.redact)
        shown = answer.content_type.encode("latin-1").startswith(_LOGGED_TYPES) and not answer.header(b"content-encoding")
        capture = request.capture() if shown else None
        bodiless = method == "HEAD" or answer.status in (204, 304)
        await relay(answer, reply, watch, request.upstream, capture=capture, bodiless=bodiless)
        if journal is not None:
            fields: dict[str, Any] = capture.fields() if capture is not None else {}
            journal.record("response", request.id, status=answer.status, path=tail, **fields)
    finally:
        answer.close()


def _read_headers(headers: Headers) -> dict[bytes, bytes]:
    return dict(headers)


def _is_text(content_type: bytes | None) -> bool:
    return content_type is not None and content_type.lower().startswith(_LOGGED_TYPES)
