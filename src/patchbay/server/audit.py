"""``GET /api/audit``: finished tool calls. With a token configured, the client must send it."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import SQLAlchemyError

from patchbay.audit import AuditEntry, AuditLog, AuditQuery
from patchbay.audit.entries import MAX_PAGE
from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.server.parameters import KNOWN_PARAMETERS
from patchbay.server.tools.guard import TRUSTED
from patchbay.tools.threads import run_in_thread

_PATTERNS: Final = 20


class Listed(BaseModel):
    """Entries of the audit."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    ok: Literal[True]
    entries: list[AuditEntry]
    cursor: int | None = Field(description="The `before` of the next page; null where there is none.")


_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    401: {"description": "The server has a token, and it was not shown."},
    503: {"description": "The audit's database does not answer."},
}


def make_audit_router(log: AuditLog, *, needs_token: bool) -> APIRouter:
    """Return the route over ``log``; ``needs_token``: only for clients that sent the server's token."""
    router = APIRouter(prefix="/api/audit", tags=["audit"], responses=_REFUSALS, dependencies=[KNOWN_PARAMETERS])

    @router.get("", response_model=Listed, summary="Calls that have settled, the newest first")
    async def list_entries(
        request: Request,
        since: Annotated[
            float | None, Query(allow_inf_nan=False, description="From this time on, in seconds since 1970.")
        ] = None,
        until: Annotated[float | None, Query(allow_inf_nan=False, description="Before this time.")] = None,
        tool: Annotated[
            list[str] | None, Query(max_length=_PATTERNS, description="Names or patterns (`fs_*`), of which one must fit.")
        ] = None,
        source: Annotated[str | None, Query(description="Where the tool is from.")] = None,
        agent: str | None = None,
        session: Annotated[str | None, Query(description="The session's key.")] = None,
        turn: Annotated[str | None, Query(description="The turn's id; calls of sub-agents are found too.")] = None,
        errors: Annotated[bool, Query(description="Only calls that failed.")] = False,  # noqa: FBT002  (a query's)
        denied: Annotated[bool, Query(description="Only calls that were refused.")] = False,  # noqa: FBT002
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        before: Annotated[int | None, Query(ge=0, lt=2**63, description="The cursor of a page: older entries.")] = None,
        after: Annotated[
            int | None, Query(ge=0, lt=2**63, description="An id: newer entries, and then the oldest come first.")
        ] = None,
    ) -> Response:
        if needs_token and request.scope.get(TRUSTED) is not True:
            words = "Unauthorized: send the token of this server to read the audit."
            body = {"ok": False, "detail": words, "error_code": "wrong_token"}
            return _json(body, 401, {"www-authenticate": "Bearer"})
        try:
            query = AuditQuery(
                since, until, tuple(tool or ()), source, agent, session, turn, errors, denied, limit, before, after
            )
        except InvalidRequestError as error:
            return _json({"ok": False, "detail": str(error), "error_code": error.code}, 422)
        try:
            page = await log.query(query)
        except (ConfigurationError, SQLAlchemyError) as error:  # not the client's mistake
            why = getattr(error, "orig", None) or error
            body = {"ok": False, "detail": f"The audit cannot be read now: {why}", "error_code": "audit_unavailable"}
            return _json(body, 503, {"retry-after": "5"})
        # In a thread: a page of long entries is many megabytes.
        listed = await run_in_thread(
            lambda: _encoded({"ok": True, "entries": [each.as_json() for each in page.entries], "cursor": page.cursor})
        )
        return Response(listed, media_type="application/json")

    return router


def as_parameters(query: AuditQuery) -> list[tuple[str, str]]:
    """Return a query as URL parameters of the route."""
    parameters: list[tuple[str, str]] = [("tool", pattern) for pattern in query.tools]
    for each in fields(query):
        value = getattr(query, each.name)
        if each.name != "tools" and value is not None and value is not False:
            parameters.append((each.name, "true" if value is True else repr(value) if isinstance(value, float) else str(value)))
    return parameters


def _json(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encoded(body), status, headers, media_type="application/json")


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
