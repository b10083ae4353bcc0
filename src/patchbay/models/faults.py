"""Errors as they cross the wire: OpenAI's error body, and what an upstream's error says, whatever its shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchbay.errors import PatchbayError
from patchbay.models.wire import decode


def error_body(error: BaseException | str) -> dict[str, Any]:
    """OpenAI's error body for an error of ours."""
    code = error.code if isinstance(error, PatchbayError) else "upstream_error"
    status = error.status if isinstance(error, PatchbayError) else 502
    kind = "invalid_request_error" if 400 <= status < 500 else "api_error"
    return {"error": {"message": str(error), "type": kind, "code": code, "param": getattr(error, "param", None)}}


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
