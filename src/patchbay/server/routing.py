"""FastAPI routes of this server: strict JSON bodies, known query parameters only, errors in the shapes of the contract."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from patchbay._redaction import Redactor
from patchbay.database import reason_of
from patchbay.errors import ConfigurationError, UnknownRoleError
from patchbay.schema.arguments import finite_float, refuse_constant
from patchbay.server.errors import RegistrationConflictError
from patchbay.server.request_log import log_error_response
from patchbay.tools import well_formed

_redact: Final = Redactor().text
_MAX_CHARS: Final = 200
_OPENAI_PATHS: Final = ("/chat/completions", "/responses", "/messages", "/models")
_UNREADABLE: Final = "There was an error parsing the body"
"""FastAPI's detail, with status 400, for a body that is not text or too deeply nested."""


class StrictJsonRoute(APIRoute):
    """A route whose body must be strict JSON: NaN, Infinity and 1e999 are 422. Use as a router's ``route_class``.

    Python's reader accepts them and its writers turn them into ``null``: a tool would run with other arguments.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, given a request that parses strictly."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictJsonRequest(request.scope, request.receive))

        return handle_strictly


class _StrictJsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        try:
            return json.loads(body, parse_float=finite_float, parse_constant=refuse_constant)
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise
        except ValueError as error:  # FastAPI answers a JSONDecodeError with 422 and its reason
            raise json.JSONDecodeError(str(error), "", 0) from None


def refuse_unknown(request: Request) -> None:
    """Raise RequestValidationError (422) for query parameters that the route does not have.

    An ignored parameter would look as if it had an effect.
    """
    known = {each.alias for each in request.scope["route"].dependant.query_params}
    message = f"There is no such parameter. There are: {', '.join(sorted(known))}"
    wrong: list[dict[str, Any]] = [
        {"type": "extra_forbidden", "loc": ["query", name], "msg": message, "input": value}
        for name, value in request.query_params.multi_items()
        if name not in known
    ]
    if wrong:
        raise RequestValidationError(wrong)


KNOWN_PARAMETERS: Final = Depends(refuse_unknown)
"""A dependency for routers that reject unknown query parameters."""


def handle_errors(app: FastAPI) -> None:
    """Register handlers for what routes and bodies raise, with responses in the shapes of the contract."""
    kinds = (UnknownRoleError, ConfigurationError, RegistrationConflictError, RequestValidationError, HTTPException, DBAPIError)
    for kind in kinds:
        app.add_exception_handler(kind, _respond_to)


async def _respond_to(request: Request, error: Exception) -> Response:
    """Answer a request with an error, and log it."""
    reason = str(getattr(error, "detail", None) or getattr(error, "orig", None) or error)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"  # all of it quotes the body, which may contain secrets
        response = json_response({"detail": [_plain(each) for each in error.errors()]}, 422)
    elif isinstance(error, UnknownRoleError):
        response = json_response({"detail": well_formed(str(error)), "code": error.code}, 404)
    elif isinstance(error, RegistrationConflictError):
        response = json_response({"detail": well_formed(str(error)), "error_code": error.code}, error.status)
    elif isinstance(error, ConfigurationError):
        response = json_response(error_detail("value_error", ["body"], str(error), None), 422)
    elif isinstance(error, HTTPException):
        response = _respond_to_http(request, error)
    else:
        assert isinstance(error, DBAPIError)
        why = f"The database cannot be used now: {_redact(reason_of(error))[:_MAX_CHARS]}"
        response = json_response(
            {"ok": False, "detail": why, "error_code": "database_unavailable"}, 503, headers={"retry-after": "5"}
        )
    log_error_response(request.scope, response.status_code, reason)
    return response


def _respond_to_http(request: Request, error: HTTPException) -> Response:
    if error.status_code == 400 and error.detail == _UNREADABLE:
        return json_response(error_detail("json_invalid", ["body"], "The body cannot be read as JSON", {}), 422)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # FastAPI names the methods of one route only
        matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
        headers["Allow"] = ", ".join(sorted({method for route in matching for method in getattr(route, "methods", None) or ()}))
    detail = error.detail
    if error.status_code == 404 and request.url.path.endswith(_OPENAI_PATHS):
        detail = f"Not Found: the API of models is below /v1, as in POST /v1/chat/completions, not at {request.url.path:.100}"
    return json_response({"detail": detail}, error.status_code, headers=headers)


def error_detail(kind: str, place: list[str], message: str, value: Any) -> dict[str, Any]:
    """Return the body of a 422 response, in FastAPI's shape."""
    return {"detail": [{"type": kind, "loc": place, "msg": well_formed(message), "input": value}]}


def _plain(value: Any, depth: int = 0) -> Any:
    """Return error details as sendable JSON: a quoted body may contain NaN, or be huge."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else "a very long number"
    if isinstance(value, dict) and depth < 4:
        return {_plain(str(key), depth): _plain(item, depth + 1) for key, item in list(value.items())[:_MAX_CHARS]}
    if isinstance(value, list | tuple) and depth < 4:
        return [_plain(item, depth + 1) for item in value[:_MAX_CHARS]]
    text = well_formed("..." if isinstance(value, dict | list | tuple) else str(value))
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."


def json_response(body: Any, status: int = 200, *, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response, encoded by msgspec."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
