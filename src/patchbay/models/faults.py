"""Errors as they cross the wire: OpenAI's error body, and what an upstream's error says, whatever its shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchbay.errors import InvalidRequestError, PatchbayError, UpstreamError
from patchbay.models.wire import decode


def error_body(error: PatchbayError | str) -> dict[str, Any]:
    """OpenAI's error body for an error of ours."""
    if isinstance(error, str):
        error = UpstreamError(error)
    # A lone surrogate (from a client's JSON) has no UTF-8 form.
    message = str(error).encode("utf-8", "replace").decode()
    param = error.param if isinstance(error, InvalidRequestError) else None
    return {"error": {"message": message, "type": error.kind, "code": error.code, "param": param}}


def error_message(body: bytes) -> str:
    """What an upstream's error body says."""
    try:
        value = decode(body)
    except (ValueError, RecursionError):
        return shown(body)
    error = value.get("error") if isinstance(value, dict) else None
    for found in (error, value):
        if isinstance(found, str) and found:
            return found
        if isinstance(found, Mapping):
            for key in ("message", "detail", "error"):
                if isinstance(found.get(key), str) and found[key]:
                    return str(found[key])
    return shown(body)


def shown(body: bytes) -> str:
    """The beginning of a body, for a message to people."""
    text = body[:200].decode("utf-8", "replace").strip()
    return (text + ("…" if len(body) > 200 else "")) or "(empty)"
