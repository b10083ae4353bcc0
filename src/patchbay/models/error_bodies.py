"""Errors on the wire: OpenAI's error bodies, and exceptions of the vendors' clients as PatchbayErrors.

Clients' exceptions are read by their attributes, so none of these packages is imported. A message holds what the server said, its
status, and the URL where that may be wrong. It never holds the API key, even if the server repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from patchbay.errors import (
    InvalidCallError,
    InvalidRequestError,
    PatchbayError,
    ResponseFormatError,
    ToolChoiceError,
    UpstreamError,
    UpstreamTimeoutError,
)
from patchbay.models.upstream_errors import subject_of
from patchbay.models.wire import decode


def error_body(error: PatchbayError | str) -> dict[str, Any]:
    """Return OpenAI's error body for an error."""
    error = as_patchbay_error(error)
    param = error.param if isinstance(error, InvalidRequestError) else None
    named = subject_of(error) or error
    return {"error": {"message": error_text(error), "type": named.kind, "code": named.code, "param": param}}


def as_patchbay_error(error: PatchbayError | str) -> PatchbayError:
    """Return the error; a text becomes an UpstreamError."""
    return UpstreamError(error) if isinstance(error, str) else error


def error_text(error: PatchbayError) -> str:
    """Return an error's message, the server's own if it sent one.

    Without lone surrogates (from a client's JSON), which UTF-8 cannot encode.
    """
    text = (error.reason if isinstance(error, UpstreamError) else "") or str(error)
    return text.encode("utf-8", "replace").decode()


def error_message(body: bytes) -> str:
    """Return the message in an upstream's error body."""
    try:
        value = decode(body)
    except (ValueError, RecursionError):
        return excerpt(body)
    return message_in(value) or excerpt(body)


def message_in(document: Any) -> str:
    """Return the message in a decoded error body: OpenAI's, {"error": "…"}, FastAPI's {"detail": …}, {"message": …}; else ""."""
    error = document.get("error") if isinstance(document, dict) else None
    for found in (error, document):
        if isinstance(found, str) and found:
            return found
        if isinstance(found, Mapping):
            for key in ("message", "detail", "error"):
                if isinstance(found.get(key), str) and found[key]:
                    return str(found[key])
    return ""


def excerpt(body: bytes) -> str:
    """Return the beginning of a body, for error messages."""
    text = body[:200].decode("utf-8", "replace").strip()
    return (text + ("…" if len(body) > 200 else "")) or "(empty)"


OURS: Final = "patchbay.error"
"""The extension of a response made here that holds its PatchbayError."""

_CLIENTS: Final = ("openai", "google.genai", "httpx", "httpcore", "aiohttp")
_TIMEOUTS: Final = ("APITimeoutError", "TimeoutException", "ServerTimeoutError")
_SHORTEST_KEY: Final = 8
"""Characters. A shorter key is a placeholder ("ollama", "none") and may be a word of the message."""
_MOST_CAUSES: Final = 8
_LONGEST_REASON: Final = 300
_REDACTED: Final = "[redacted]"
_WRONG_PLACE: Final = (404, 405)


@contextmanager
def client_errors(keys: Callable[[], Iterable[Any]]) -> Iterator[None]:
    """Raise a client's error as a PatchbayError; errors that are not about the server (a wrong argument, a bug) pass unchanged.

    ``keys`` returns the secrets to redact; it is called only on an error.
    """
    try:
        yield
    except PatchbayError:
        raise
    except Exception as error:
        ours = _to_patchbay_error(error)
        if ours is None:
            raise
        hidden = {form for key in keys() if isinstance(key, str) for form in (key, key.strip()) if len(form) >= _SHORTEST_KEY}
        if not hidden or not any(key in text for key in hidden for text in (str(ours), _body(error), *map(str, _causes(error)))):
            raise ours from error
        raise _redacted(ours, hidden) from None


def _to_patchbay_error(error: Exception) -> PatchbayError | None:
    """Convert a client's error; None for any other exception."""
    if isinstance(error, json.JSONDecodeError):
        return UpstreamError(f"The model's server sent what is not JSON: {excerpt(error.doc.encode('utf-8', 'replace'))}")
    # No timeout of Patchbay's is inside, so any TimeoutError is the client's.
    timed_out = isinstance(error, TimeoutError)
    if not timed_out and not type(error).__module__.startswith(_CLIENTS):
        return None
    response = getattr(error, "response", None)
    made_here = getattr(response, "extensions", None)
    if isinstance(made_here, Mapping) and isinstance(ours := made_here.get(OURS), PatchbayError):
        return ours
    status, body = _status(error), _body(error)
    if timed_out or any(base.__name__ in _TIMEOUTS for base in type(error).__mro__):
        message = f"The model's server did not answer in time{_location(error)}."
        return UpstreamTimeoutError(message, upstream_status=status, body=body)
    if status is not None:
        return UpstreamError(_describe_response(error, response, status, body), upstream_status=status, body=body)
    if not body:
        return UpstreamError(_describe_unreached(error))
    message = error_message(body.encode("utf-8", "replace"))
    # An error in mid-stream: Patchbay's own have their codes.
    unmet = {kind.code: kind for kind in (ToolChoiceError, ResponseFormatError, InvalidCallError)}.get(
        str(getattr(error, "code", None))
    )
    return unmet(message) if unmet is not None else UpstreamError(message, body=body)


def _describe_response(error: Exception, response: Any, status: int, body: str) -> str:
    """Describe an error response of the server."""
    if 300 <= status < 400:
        target = str((getattr(response, "headers", None) or {}).get("location", "nowhere")).partition("?")[0]
        return f"The model's server answered with a redirect (HTTP {status}) to {target}: use that address."
    said = error_message(body.encode("utf-8", "replace")) if body else str(error) or type(error).__name__
    where = f" at {_address(response)}" if status in _WRONG_PLACE and _address(response) else ""
    if getattr(response, "history", None):
        where = f", after a redirect to {_address(response)}: use that address. It said"
    return f"The model's server answered HTTP {status}{where}: {said}"


def _describe_unreached(error: Exception) -> str:
    """Describe a failed connection: the client's message, and the system's error that caused it."""
    # aiohttp's own message shows its objects.
    reasons = [str(getattr(one, "os_error", None) or one) for one in _causes(error)]
    said = reasons[0] or type(error).__name__
    if reasons[-1] and reasons[-1] not in said:
        said = f"{said.rstrip('.')}: {reasons[-1]}"
    return f"The model's server could not be reached{_location(error)}, or left before it had answered: {said[:_LONGEST_REASON]}"


def _location(error: Exception) -> str:
    try:
        address = _address(getattr(error, "request", None))
    except RuntimeError:  # httpx: "The request instance has not been set"
        address = ""
    if not address and isinstance(host := getattr(error, "host", None), str):
        address = f"{host}:{getattr(error, 'port', '')}"
    return f" ({address})" if address else ""


def _address(holder: Any) -> str:
    """Return the URL of a request or a response without its query, which may hold secrets."""
    return str(getattr(holder, "url", None) or "").partition("?")[0]


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, the nearest first."""
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in found and len(found) < _MOST_CAUSES:
        found.append(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return found


def _redacted(error: PatchbayError, keys: Iterable[str]) -> PatchbayError:
    """Copy an error with the keys redacted."""

    def clean(text: str) -> str:
        for key in sorted(keys, key=len, reverse=True):
            text = text.replace(key, _REDACTED)
        return text

    if isinstance(error, UpstreamError):
        return type(error)(clean(str(error)), upstream_status=error.upstream_status, body=clean(error.body))
    return type(error)(clean(str(error)))


def _status(error: Exception) -> int | None:
    for name in ("status_code", "code"):  # (openai, google-genai)
        value = getattr(error, name, None)
        if isinstance(value, int):
            return value
    return None


def _body(error: Exception) -> str:
    body: Any = getattr(error, "body", None)
    if body is None:
        body = getattr(error, "details", None)
    if isinstance(body, str):
        return body
    return "" if body is None else json.dumps(body, default=str, ensure_ascii=False)
