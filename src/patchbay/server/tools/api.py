"""The routes of ``/api/tools``, described by ``/openapi.json``.

What lives here: paths, statuses, and what is told of a body that cannot be taken. What does not: what is done (``desk``), and
who is let in (``guard``, which stands before all of this).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from patchbay.errors import ConfigurationError, InvalidRequestError, UnknownRoleError
from patchbay.server import refusals
from patchbay.server.strict_json import StrictJsonRoute
from patchbay.server.tools.callback_url import CallbackUrlError, check_port, read_callback_url
from patchbay.server.tools.chat.role import SESSION_HEADER, session_of
from patchbay.server.tools.described import BODY_REFUSALS, IF_NONE_MATCH, LIST_RESPONSES, REFUSALS, ROLE, SESSION
from patchbay.server.tools.desk import Desk
from patchbay.server.tools.guard import TRUSTED
from patchbay.server.tools.models import (
    CallBody,
    Called,
    ClearBody,
    Cleared,
    Listing,
    RegisterBody,
    Registered,
    UnregisterBody,
    Unregistered,
)
from patchbay.server.watch import ClientLeftError, Watch
from patchbay.tools import well_formed

_SHOWN: Final = 200
_OF_OPENAI: Final = ("/chat/completions", "/responses", "/messages", "/models")
_UNREADABLE: Final = "There was an error parsing the body"
"""What the framework says, with status 400, of a body that is not even text, or too deep to be read."""


def make_router(desk: Desk, *, callback_ports: frozenset[int] | None) -> APIRouter:
    """Return the routes over ``desk``. ``callback_ports``: all that callbacks may have, None for any but the server's own."""
    router = APIRouter(prefix="/api/tools", tags=["tools"], route_class=StrictJsonRoute)
    posted: dict[str, Any] = {"responses": {**REFUSALS, **BODY_REFUSALS}}
    listed: dict[str, Any] = {"responses": {**REFUSALS, **LIST_RESPONSES}, "openapi_extra": {"parameters": [ROLE, IF_NONE_MATCH]}}

    @router.post(
        "/register", response_model=Registered, operation_id="register_tool", summary="Register a tool, or replace it", **posted
    )
    async def register(body: RegisterBody, request: Request) -> Response:
        own = (request.scope.get("server") or ("", None))[1]
        try:
            check_port(read_callback_url(body.callback_url), own=() if own is None else (own,), allowed=callback_ports)
        except CallbackUrlError as error:
            raise _invalid("callback_url", body.callback_url, str(error)) from None
        return _json(await desk.register(body, trusted=_is_trusted(request)))

    @router.post("/unregister", response_model=Unregistered, operation_id="unregister_tool", summary="Take a tool away", **posted)
    async def unregister(body: UnregisterBody, request: Request) -> Response:
        return _json(await desk.unregister(body, trusted=_is_trusted(request)))

    @router.post(
        "/clear", response_model=Cleared, operation_id="clear_tools", summary="Take all tools of a source away", **posted
    )
    async def clear(body: ClearBody, request: Request) -> Response:
        return _json(await desk.clear(body, trusted=_is_trusted(request)))

    @router.post(
        "/call",
        response_model=Called,
        operation_id="call_tool",
        summary="Carry out one call, for tests and scripts",
        openapi_extra={"parameters": [SESSION]},
        **posted,
    )
    async def call(body: CallBody, request: Request) -> Response:
        session = _session(request)
        try:
            with Watch(request.receive, silence=0, interval=0):
                return _json(await desk.call(body, session=session))
        except ClientLeftError as error:  # the tool was stopped, and what waited for approval withdrawn
            return Response(status_code=error.status)

    @router.get("", response_model=Listing, operation_id="list_tools", summary="List the tools", **listed)
    async def list_tools(request: Request) -> Response:
        role = request.query_params.get("role") or None
        etag = f'"{desk.etag(role)}"'
        headers = {"etag": etag, "cache-control": "no-cache"}
        if _is_among(etag, request.headers.getlist("if-none-match")):
            return Response(status_code=304, headers=headers)
        return Response(desk.listing(role), media_type="application/json", headers=headers)

    return router


def handle_errors(app: FastAPI) -> None:
    """Have ``app`` answer what routes and bodies raise, in the shapes of the contract."""
    handlers: dict[type[Exception], Callable[[Request, Any], Awaitable[Response]]] = {
        UnknownRoleError: _unknown_role,
        ConfigurationError: _impossible,
        RequestValidationError: _unprocessable,
        HTTPException: _refused,
        DBAPIError: _no_database,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, _reporting(handler))


def _reporting(handler: Callable[[Request, Any], Awaitable[Response]]) -> Callable[[Request, Any], Awaitable[Response]]:
    """Return ``handler`` with a line in the log for what it answers."""

    async def handle(request: Request, error: Any) -> Response:
        response = await handler(request, error)
        if isinstance(error, RequestValidationError):  # its text quotes the body, where secrets are
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        else:
            reason = str(getattr(error, "detail", None) or getattr(error, "orig", None) or error)
        refusals.REFUSALS.report(request.scope, response.status_code, reason)
        return response

    return handle


async def _unknown_role(_request: Request, error: UnknownRoleError) -> Response:
    return _json({"detail": well_formed(str(error)), "code": error.code}, 404)


async def _impossible(_request: Request, error: ConfigurationError) -> Response:
    return _json(_detail("value_error", ["body"], str(error), None), 422)


async def _unprocessable(_request: Request, error: RequestValidationError) -> Response:
    return _json({"detail": [_plain(each) for each in error.errors()]}, 422)


async def _no_database(_request: Request, error: DBAPIError) -> Response:
    why = " ".join(str(error.orig).split())[:_SHOWN]
    body = {"ok": False, "detail": f"The database cannot be used now: {why}", "error_code": "database_unavailable"}
    return Response(msgspec.json.encode(body), 503, {"retry-after": "5"}, media_type="application/json")


async def _refused(request: Request, error: HTTPException) -> Response:
    if error.status_code == 400 and error.detail == _UNREADABLE:
        return _json(_detail("json_invalid", ["body"], "The body cannot be read as JSON", {}), 422)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # the framework names the methods of one route, where several have the path
        matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
        headers["Allow"] = ", ".join(sorted({method for route in matching for method in getattr(route, "methods", None) or ()}))
    detail = error.detail
    if error.status_code == 404 and request.url.path.endswith(_OF_OPENAI):
        detail = f"Not Found: the API of models is below /v1, as in POST /v1/chat/completions, not at {request.url.path:.100}"
    body = msgspec.json.encode({"detail": detail})
    return Response(body, error.status_code, {**headers, "content-type": "application/json"})


def _invalid(field: str, value: Any, message: str) -> RequestValidationError:
    [detail] = _detail("value_error", ["body", field], f"Value error, {message}", value)["detail"]
    return RequestValidationError([{**detail, "ctx": {"error": message}}])


def _session(request: Request) -> str:
    """Return the session that a call is of, as in the chat. Raises RequestValidationError."""
    header = request.headers.get(SESSION_HEADER)
    try:
        return session_of(header.encode("latin-1") if header else None)
    except InvalidRequestError as error:
        detail = _detail("value_error", ["header", SESSION_HEADER], str(error), header)["detail"]
        raise RequestValidationError(detail) from None


def _detail(kind: str, place: list[str], message: str, value: Any) -> dict[str, Any]:
    return {"detail": [{"type": kind, "loc": place, "msg": well_formed(message), "input": value}]}


def _plain(value: Any, depth: int = 0) -> Any:
    """Return what is told of an error as JSON that can be sent: the body that it quotes may hold NaN, or be endless."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else "a very long number"
    if isinstance(value, dict) and depth < 4:
        return {_plain(str(key), depth): _plain(item, depth + 1) for key, item in list(value.items())[:_SHOWN]}
    if isinstance(value, list | tuple) and depth < 4:
        return [_plain(item, depth + 1) for item in value[:_SHOWN]]
    text = well_formed("..." if isinstance(value, dict | list | tuple) else str(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _is_trusted(request: Request) -> bool:
    return request.scope.get(TRUSTED) is True


def _is_among(etag: str, values: list[str]) -> bool:
    tags = [tag.strip().removeprefix("W/") for value in values for tag in value.split(",")]
    return etag in tags or "*" in tags


def _json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
