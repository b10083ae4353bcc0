"""The routes of ``/api/approvals``: requests, decisions and session approvals, all behind the server's token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from patchbay.approvals import ApprovalRequest, ApprovalService
from patchbay.approvals.service import MAX_BY, MAX_REASON
from patchbay.errors import (
    ApprovalConflictError,
    ApprovalForbiddenError,
    ApprovalNotFoundError,
    InvalidRequestError,
    PatchbayError,
)
from patchbay.server.strict_json import StrictJsonRoute
from patchbay.server.tools.guard import TRUSTED
from patchbay.tools import well_formed

RECENT: Final = 100
"""Default number of requests with `all`."""

_PING: Final = 15.0


class DecisionBody(BaseModel):
    """A decision. Unknown members are refused."""

    model_config = ConfigDict(extra="forbid")

    decision: Literal["approve", "deny", "approve_session"] = Field(
        description="`approve_session` is for other calls of the session too, as `session` of the request says."
    )
    reason: str = Field("", max_length=MAX_REASON, description="Why; the model is told.")
    by: str = Field("", max_length=MAX_BY, description="Who, for the record.")
    arguments: dict[str, Any] | None = Field(
        None, description="Other arguments to approve the call with. They must fit `parameters`; what runs has them."
    )
    digest: str = Field("", max_length=100, description="The digest of what was looked at: refused if it is another call's.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestModel(ApprovalRequest):
    """A tool call that waits for approval, or did."""

    arguments: dict[str, Any] | None = field(  # type: ignore[assignment]  # as JSON, and not as text
        metadata={"description": "The arguments that the tool receives; null if they are cut."}
    )
    arguments_text: str = field(metadata={"description": "The arguments as JSON text; if they are long, its beginning."})
    is_cut: bool = field(metadata={"description": "True if there is more: GET /api/approvals/{id} returns all."})


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantModel(RequestModel):
    """A request that was approved for its session: further calls in the scope of `session` are not asked about."""

    until: float = field(metadata={"description": "In seconds since 1970."})


class _Body(BaseModel):
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    ok: Literal[True]


class Listed(_Body):
    """Requests for approval."""

    approvals: list[RequestModel]


class Decided(_Body):
    """One request for approval."""

    approval: RequestModel


class Sessions(_Body):
    """The session approvals in force."""

    sessions: list[GrantModel]


class Revoked(_Body):
    """A session approval that was revoked."""

    revoked: GrantModel


class Refused(BaseModel):
    """An error."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    ok: Literal[False]
    detail: str
    error_code: str


class Conflict(Refused):
    """A decision that is not possible, and the request as it is."""

    approval: RequestModel | None


_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    401: {"model": Refused, "description": "The server has a token, and it was not shown."},
}
_ONE: Final[dict[int | str, dict[str, Any]]] = {404: {"model": Refused, "description": "There is no such request."}}
_DECIDING: Final[dict[int | str, dict[str, Any]]] = {
    **_ONE,
    403: {"model": Refused, "description": "Its rule does not let it be decided over HTTP."},
    409: {"model": Conflict, "description": "It is decided already, its time was up, or what was looked at is another call."},
}


def make_approvals_router(service: ApprovalService, *, needs_token: bool) -> APIRouter:
    """Return the routes over ``service``, and let people decide over HTTP; ``needs_token``: only with the server's token."""
    service.open_door("http")
    router = APIRouter(prefix="/api/approvals", tags=["approvals"], responses=_REFUSALS, route_class=StrictJsonRoute)

    def is_refused(request: Request) -> bool:
        return needs_token and request.scope.get(TRUSTED) is not True

    @router.get("", response_model=Listed, summary="List what waits to be approved")
    async def list_approvals(
        request: Request,
        everything: Annotated[bool, Query(alias="all", description="The last requests, whatever became of them.")] = False,  # noqa: FBT002  (a query's)
        limit: Annotated[int, Query(ge=1, le=1000, description="With `all`: how many.")] = RECENT,
    ) -> Response:
        if is_refused(request):
            return _unauthorized()
        found = await service.recent(limit) if everything else await service.pending()
        return _json({"ok": True, "approvals": [each.as_json() for each in found]})

    @router.get(
        "/events", summary="Requests as they come and are decided, as server-sent events", response_class=StreamingResponse
    )
    async def events(request: Request) -> Response:
        if is_refused(request):
            return _unauthorized()
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(_events(service), media_type="text/event-stream", headers=headers)

    @router.get("/sessions", response_model=Sessions, summary="List the approvals for a session that hold")
    async def list_sessions(request: Request) -> Response:
        if is_refused(request):
            return _unauthorized()
        return _json({"ok": True, "sessions": [each.as_json() for each in await service.sessions()]})

    @router.delete(
        "/sessions/{request_id}", response_model=Revoked, responses=_ONE, summary="Take back an approval for a session"
    )
    async def revoke(request_id: str, request: Request) -> Response:
        if is_refused(request):
            return _unauthorized()
        try:
            revoked = await service.revoke(request_id)
        except ApprovalNotFoundError as error:
            return _refused(error)
        return _json({"ok": True, "revoked": revoked.as_json()})

    @router.get("/{request_id}", response_model=Decided, responses=_ONE, summary="One request, with all of its arguments")
    async def get_approval(request_id: str, request: Request) -> Response:
        if is_refused(request):
            return _unauthorized()
        try:
            found = await service.get(request_id)
        except ApprovalNotFoundError as error:
            return _refused(error)
        return _json({"ok": True, "approval": found.as_json(whole=True)})

    @router.post("/{request_id}", response_model=Decided, responses=_DECIDING, summary="Decide a request")
    async def decide(request_id: str, body: DecisionBody, request: Request) -> Response:
        if is_refused(request):
            return _unauthorized()
        try:
            decided = await service.decide(
                request_id, body.decision, reason=body.reason, by=body.by, digest=body.digest, arguments=body.arguments
            )
        except (ApprovalNotFoundError, ApprovalForbiddenError, InvalidRequestError) as error:
            return _refused(error)
        except ApprovalConflictError as error:
            return _refused(error, approval=await _find_request(service, request_id))
        return _json({"ok": True, "approval": decided.as_json()})

    return router


async def _events(service: ApprovalService) -> AsyncIterator[bytes]:
    """Yield pending requests, then changes; with comments in between, so that a lost client is noticed."""
    async with aclosing(service.watch()) as changes:
        coming = asyncio.ensure_future(anext(changes, None))  # before the list is read, so that no change is missed
        try:
            await asyncio.sleep(0)
            for each in await service.pending():
                yield _event(each)
            while True:
                await asyncio.wait([coming], timeout=_PING)
                if not coming.done():
                    yield b": \n\n"
                    continue
                if (change := coming.result()) is None:
                    return
                yield _event(change)
                coming = asyncio.ensure_future(anext(changes, None))
        finally:
            coming.cancel()
            await asyncio.wait([coming])


def _event(request: ApprovalRequest) -> bytes:
    return b"event: approval\ndata: " + _encoded(request.as_json()) + b"\n\n"


async def _find_request(service: ApprovalService, request_id: str) -> dict[str, Any] | None:
    try:
        return (await service.get(request_id)).as_json()
    except ApprovalNotFoundError:
        return None


def _refused(error: PatchbayError, **more: Any) -> Response:
    return _json({"ok": False, "detail": well_formed(str(error)), "error_code": error.code, **more}, error.status)


def _unauthorized() -> Response:
    words = "Unauthorized: send the token of this server to review approvals."
    response = _json({"ok": False, "detail": words, "error_code": "wrong_token"}, 401)
    response.headers["www-authenticate"] = "Bearer"
    return response


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(_encoded(body), status, media_type="application/json")


def _encoded(body: dict[str, Any]) -> bytes:
    # ASCII: arguments may have lone surrogates, which UTF-8 cannot encode.
    return json.dumps(body).encode()
