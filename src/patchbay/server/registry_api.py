"""The routes of ``/api/tools``, and how ``/openapi.json`` describes them."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from patchbay.errors import InvalidRequestError
from patchbay.server.auth import TRUSTED
from patchbay.server.callback_hosts import CallbackHosts
from patchbay.server.callbacks import CallbackUrlError, check_port, read_callback_url
from patchbay.server.chat.handler import SESSION_HEADER, session_of
from patchbay.server.registry_models import (
    BadRequest,
    CallBody,
    Called,
    ClearBody,
    Cleared,
    Listing,
    NoSuchRole,
    Refused,
    RegisterBody,
    Registered,
    Unfit,
    UnregisterBody,
    Unregistered,
)
from patchbay.server.registry_service import RegistryService
from patchbay.server.request_log import log_error_response
from patchbay.server.routing import StrictJsonRoute, error_detail, json_response
from patchbay.server.watchdog import ClientDisconnect, RequestWatchdog

Responses = dict[int | str, dict[str, Any]]

_TEXT: Final = {"schema": {"type": "string"}}

REFUSALS: Final[Responses] = {
    400: {"model": BadRequest, "description": "There is not exactly one Host header, or it is not this machine's."},
    401: {
        "model": Refused,
        "description": "The token is not the one of this server; or there is none, and the request came through a proxy.",
        "headers": {"WWW-Authenticate": {"description": "The scheme to send it with: `Bearer`.", **_TEXT}},
    },
    403: {"model": Refused, "description": "The caller is not on this machine, or is a web page of another site."},
    404: {"model": NoSuchRole, "description": "There is no such role. Nothing was changed."},
}
"""Error responses of every route."""

BODY_REFUSALS: Final[Responses] = {
    408: {"model": Refused, "description": "The body did not come in time."},
    413: {"model": Refused, "description": "The body is too large."},
    409: {"model": Refused, "description": "Another server with the same database has changed a tool of this name: try again."},
    422: {"model": Unfit, "description": "The body is not JSON, or does not fit. Nothing was changed."},
}
"""Further error responses of routes with a body."""

_LIST_HEADERS: Final = {
    "ETag": {"description": "The version of this list; it changes with each change and each `instance_id`.", **_TEXT},
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
    "description": "The role whose tools to list; empty for all roles.",
    **_TEXT,
}

IF_NONE_MATCH: Final = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "The ETag of the caller's list: the list is sent only if it has changed.",
    **_TEXT,
}

SESSION: Final = {
    "name": SESSION_HEADER,
    "in": "header",
    "required": False,
    "description": "The call's session, for hooks, approvals and the audit: up to 200 printable characters, "
    "percent-encoded where they are not ASCII. Without it the call has no session.",
    **_TEXT,
}

_TOKEN: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "The token of the server, if it has one. Callers that send it may use the sources of plugins, and need "
    "no secrets.",
}


def describe(api: FastAPI, *, has_callback_hosts: bool) -> None:
    """Describe the token in the OpenAPI document, as optional, and callbacks of any host where there can be others."""
    described = api.openapi

    def openapi() -> dict[str, Any]:
        description = described()
        if has_callback_hosts:
            description["components"]["schemas"]["RegisterBody"]["properties"]["callback_url"].pop("pattern", None)
        description.setdefault("components", {})["securitySchemes"] = {"token": _TOKEN}
        description["security"] = [{}, {"token": []}]
        return description

    api.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def make_router(service: RegistryService, *, callback_ports: frozenset[int] | None, callback_hosts: CallbackHosts) -> APIRouter:
    """Return the routes over ``service``. ``callback_ports``: those allowed, None for any but the server's own."""
    router = APIRouter(prefix="/api/tools", tags=["tools"], route_class=StrictJsonRoute)
    posted: dict[str, Any] = {"responses": {**REFUSALS, **BODY_REFUSALS}}
    listed: dict[str, Any] = {"responses": {**REFUSALS, **LIST_RESPONSES}, "openapi_extra": {"parameters": [ROLE, IF_NONE_MATCH]}}

    @router.post(
        "/register", response_model=Registered, operation_id="register_tool", summary="Register a tool, or replace it", **posted
    )
    async def register(body: RegisterBody, request: Request) -> Response:
        own = (request.scope.get("server") or ("", None))[1]
        try:
            callback = read_callback_url(body.callback_url, callback_hosts)
            check_port(callback, own=() if own is None else (own,), allowed=callback_ports)
        except CallbackUrlError as error:
            raise _invalid("callback_url", body.callback_url, str(error)) from None
        answer = await service.register(body, trusted=_is_trusted(request))
        if not answer["ok"]:
            codes = dict.fromkeys(failure["code"] for failure in answer["failed_roles"])
            log_error_response(request.scope, 200, f"refused: {', '.join(codes)}")
        return json_response(answer)

    @router.post(
        "/unregister", response_model=Unregistered, operation_id="unregister_tool", summary="Unregister a tool", **posted
    )
    async def unregister(body: UnregisterBody, request: Request) -> Response:
        return json_response(await service.unregister(body, trusted=_is_trusted(request)))

    @router.post(
        "/clear", response_model=Cleared, operation_id="clear_tools", summary="Unregister all tools of a source", **posted
    )
    async def clear(body: ClearBody, request: Request) -> Response:
        return json_response(await service.clear(body, trusted=_is_trusted(request)))

    @router.post(
        "/call",
        response_model=Called,
        operation_id="call_tool",
        summary="Run one call, for tests and scripts",
        openapi_extra={"parameters": [SESSION]},
        **posted,
    )
    async def call(body: CallBody, request: Request) -> Response:
        session = _session(request)
        try:
            with RequestWatchdog(request.receive):
                return json_response(await service.call(body, session=session))
        except ClientDisconnect as error:  # the tool was stopped, and pending approvals were withdrawn
            return Response(status_code=error.status)

    @router.get("", response_model=Listing, operation_id="list_tools", summary="List the tools", **listed)
    async def list_tools(request: Request) -> Response:
        role = request.query_params.get("role") or None
        trusted = _is_trusted(request)
        etag = f'"{service.etag(role, trusted=trusted)}"'
        headers = {"etag": etag, "cache-control": "no-cache"}
        if _is_among(etag, request.headers.getlist("if-none-match")):
            return Response(status_code=304, headers=headers)
        return Response(service.listing(role, trusted=trusted), media_type="application/json", headers=headers)

    return router


def _invalid(field: str, value: Any, message: str) -> RequestValidationError:
    [detail] = error_detail("value_error", ["body", field], f"Value error, {message}", value)["detail"]
    return RequestValidationError([{**detail, "ctx": {"error": message}}])


def _session(request: Request) -> str:
    """Return the session that a call is of, as in the chat. Raises RequestValidationError."""
    header = request.headers.get(SESSION_HEADER)
    try:
        return session_of(header.encode("latin-1") if header else None)
    except InvalidRequestError as error:
        detail = error_detail("value_error", ["header", SESSION_HEADER], str(error), header)["detail"]
        raise RequestValidationError(detail) from None


def _is_trusted(request: Request) -> bool:
    return request.scope.get(TRUSTED) is True


def _is_among(etag: str, values: list[str]) -> bool:
    tags = [tag.strip().removeprefix("W/") for value in values for tag in value.split(",")]
    return etag in tags or "*" in tags
