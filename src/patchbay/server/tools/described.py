"""What ``/openapi.json`` tells beside the bodies: how requests are refused, headers that matter, and the token.

What lives here: descriptions, which change nothing that is done. What does not: the bodies themselves (``models``), and the
refusals (``guard``, ``api``), each of which stands here with the keys that it has.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI

from patchbay.server.tools.chat.role import SESSION_HEADER
from patchbay.server.tools.models import BadRequest, NoSuchRole, Refused, Unfit

Responses = dict[int | str, dict[str, Any]]

_TEXT: Final = {"schema": {"type": "string"}}

REFUSALS: Final[Responses] = {
    400: {"model": BadRequest, "description": "There is not exactly one Host header, or it is not this machine's."},
    401: {
        "model": Refused,
        "description": "The token is not the one of this server; or there is none, and the request came through a proxy.",
        "headers": {"WWW-Authenticate": {"description": "The way to show it: `Bearer`.", **_TEXT}},
    },
    403: {"model": Refused, "description": "The caller is not on this machine, or is a web page of another site."},
    404: {"model": NoSuchRole, "description": "There is no such role. Nothing was changed."},
}
"""What any request may be answered with in the place of what it asked for."""

BODY_REFUSALS: Final[Responses] = {
    408: {"model": Refused, "description": "The body did not come in time."},
    413: {"model": Refused, "description": "The body is too large."},
    422: {"model": Unfit, "description": "The body is not JSON, or does not fit. Nothing was changed."},
}
"""What a request with a body may be answered with besides."""

_LIST_HEADERS: Final = {
    "ETag": {"description": "What this list is known by; another one after each change and each start of the server.", **_TEXT},
    "Cache-Control": {"description": "`no-cache`: ask again each time, with If-None-Match.", **_TEXT},
}

LIST_RESPONSES: Final[Responses] = {
    200: {"headers": _LIST_HEADERS},
    304: {"description": "Nothing has changed since If-None-Match.", "headers": _LIST_HEADERS},
}

ROLE: Final = {
    "name": "role",
    "in": "query",
    "required": False,
    "description": "Whose tools; empty for all roles.",
    **_TEXT,
}

IF_NONE_MATCH: Final = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "The ETag of the list that the caller has: it is sent only if it is another one by now.",
    **_TEXT,
}

SESSION: Final = {
    "name": SESSION_HEADER,
    "in": "header",
    "required": False,
    "description": "The session that the call is of, for hooks, approvals and the audit: up to 200 printable characters, "
    "percent-encoded where they are not ASCII. Without it the call is of none.",
    **_TEXT,
}

_TOKEN: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "The token of the server, if it has one. Who shows it may use the sources of plugins, and needs no secrets.",
}


def describe_token(api: FastAPI) -> None:
    """Have the description say that a token may be shown, and need not be."""
    described = api.openapi

    def openapi() -> dict[str, Any]:
        description = described()
        description.setdefault("components", {})["securitySchemes"] = {"token": _TOKEN}
        description["security"] = [{}, {"token": []}]
        return description

    api.openapi = openapi  # type: ignore[method-assign]  # the framework's own way to extend it
