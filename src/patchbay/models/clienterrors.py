"""Errors of the vendors' clients as errors of ours, read by their attributes: none of these packages is imported for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from patchbay.errors import UpstreamError, UpstreamTimeoutError

_CLIENTS: Final = ("openai", "google.genai", "httpx", "httpcore", "aiohttp")
_TIMEOUTS: Final = ("APITimeoutError", "TimeoutException", "ServerTimeoutError")


@contextmanager
def client_errors() -> Iterator[None]:
    """Raise a client's error as one of ours; what is not about the server (a wrong argument, a bug) stays what it is."""
    try:
        yield
    except Exception as error:
        if isinstance(error, json.JSONDecodeError):
            raise UpstreamError(f"The upstream's answer is not JSON: {error}") from error
        # No timeout of ours is inside: this one is the client's own, whatever it is called.
        timed_out = isinstance(error, TimeoutError)
        if not timed_out and not type(error).__module__.startswith(_CLIENTS):
            raise
        timed_out = timed_out or any(base.__name__ in _TIMEOUTS for base in type(error).__mro__)
        raise (UpstreamTimeoutError if timed_out else UpstreamError)(
            str(error) or type(error).__name__, upstream_status=_status(error), body=_body(error)
        ) from error


def _status(error: Exception) -> int | None:
    for name in ("status_code", "code"):  # openai's word, google-genai's
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
    return "" if body is None else json.dumps(body, default=str)
