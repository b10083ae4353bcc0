"""The routes of ``/api/approvals``: what waits for somebody's yes, and deciding it. Described by ``/openapi.json``.

What lives here: paths, bodies, statuses. What does not: what a decision does (``patchbay.approvals``), and who is let in at all
(``patchbay.server.tools.guard``, which stands before all of this). What calls are about to do is no business of everybody's, and
less so to allow it: where a token is configured, it must be shown for all of these.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from patchbay.approvals import ApprovalDesk, ApprovalRequest
from patchbay.approvals.desk import MOST_BY, MOST_REASON
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
"""How many requests are listed where all are asked for, and nothing else is said."""

_PING: Final = 15.0


class DecisionBody(BaseModel):
    """What somebody decided. A member that is not known is refused: it may have been meant to say something."""

    model_config = ConfigDict(extra="forbid")

    decision: Literal["approve", "deny", "approve_session"] = Field(
        description="`approve_session` is for other calls of the session too, as `session` of the request says."
    )
    reason: str = Field("", max_length=MOST_REASON, description="Why; the model is told.")
    by: str = Field("", max_length=MOST_BY, description="Who, for the record.")
    arguments: dict[str, Any] | None = Field(
        None, description="Other arguments to approve the call with. They must fit `parameters`; what runs has them."
    )
    digest: str = Field("", max_length=100, description="The digest of what was looked at: refused if it is another call's.")


class RequestModel(BaseModel):
    """A call that waits for somebody's yes, or did."""

    id: str
    state: Literal["pending", "approved", "denied", "expired", "withdrawn"]
    created: float = Field(description="Seconds since 1970.")
    deadline: float = Field(description="When silence is an answer, in seconds since 1970.")
    at_deadline: Literal["deny", "allow"] = Field(description="Which one.")
    tool: str
    arguments: dict[str, Any] | None = Field(description="What the tool will be given; null where it is cut.")
    arguments_text: str = Field(description="The same as JSON text; where it is long, its beginning.")
    is_cut: bool = Field(description="Whether there is more: GET /api/approvals/{id} has it.")
    facts: dict[str, Any] = Field(description="What the tool has found out about the call. It runs only if they are still so.")
    digest: str = Field(description="Of tool, arguments and facts. What runs has this digest.")
    source: str = Field(description="Who the tool is from; empty for the server's own.")
    endpoint: str = Field(description="The address that its calls are sent to; empty for the server's own.")
    call_id: str
    role: str = Field(description="The role that the turn is for.")
    agent: str
    session_key: str
    turn: str
    parent_turn: str = Field(description="The turn that a sub-agent works for.")
    rule: str = Field(description="The policy's rule that asks.")
    why: str = Field(description="Which hooks want a person to decide, and for what reason; empty where the policy alone asks.")
    who: list[str] = Field(description="Who may decide.")
    session: Literal["tool", "call", "never"] = Field(description="What an approval for the session would be for.")
    meta: dict[str, Any]
    parameters: dict[str, Any] | None = Field(description="The JSON Schema of the arguments; null where it is too long.")
    edited: dict[str, Any] | None = Field(description="The arguments that the call was approved with, where they are others.")
    decided: float | None
    by: str
    reason: str
    for_session: bool
    used: float | None = Field(description="When a run was given the decision; null while none was.")
    awaited: bool = Field(
        description="Whether a run waits for it. If none does, the same call of the session, when it comes again."
    )


class Listed(BaseModel):
    """Requests for approval."""

    ok: Literal[True]
    approvals: list[RequestModel]


class Decided(BaseModel):
    """One request for approval."""

    ok: Literal[True]
    approval: RequestModel


class GrantModel(RequestModel):
    """The request that was approved for its session: as `session` says, calls like it are not asked about."""

    until: float = Field(description="In seconds since 1970.")


class Sessions(BaseModel):
    """The approvals for a session that hold."""

    ok: Literal[True]
    sessions: list[GrantModel]


class Revoked(BaseModel):
    """One that does not hold any more."""

    ok: Literal[True]
    revoked: GrantModel


class Refused(BaseModel):
    """Why it was not done."""

    ok: Literal[False]
    detail: str
    error_code: str


class Conflict(Refused):
    """Why it cannot be decided like this, and how it stands."""

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


def make_approvals_router(desk: ApprovalDesk, *, needs_token: bool) -> APIRouter:
    """Return the routes over ``desk``, which can ask people over HTTP from now on. ``needs_token``: the server has one."""
    desk.open_door("http")
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
        found = await desk.recent(limit) if everything else await desk.pending()
        return _json({"ok": True, "approvals": [each.as_json() for each in found]})

    @router.get(
        "/events", summary="Requests as they come and are decided, as server-sent events", response_class=StreamingResponse
    )
    async def events(request: Request) -> Response:
        if is_refused(request):
            return _unauthorized()
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(_events(desk), media_type="text/event-stream", headers=headers)

    @router.get("/sessions", response_model=Sessions, summary="List the approvals for a session that hold")
    async def list_sessions(request: Request) -> Response:
        if is_refused(request):
            return _unauthorized()
        return _json({"ok": True, "sessions": [each.as_json() for each in await desk.sessions()]})

    @router.delete(
        "/sessions/{request_id}", response_model=Revoked, responses=_ONE, summary="Take back an approval for a session"
    )
    async def revoke(request_id: str, request: Request) -> Response:
        if is_refused(request):
            return _unauthorized()
        try:
            revoked = await desk.revoke(request_id)
        except ApprovalNotFoundError as error:
            return _refused(error)
        return _json({"ok": True, "revoked": revoked.as_json()})

    @router.get("/{request_id}", response_model=Decided, responses=_ONE, summary="One request, with all of its arguments")
    async def get_approval(request_id: str, request: Request) -> Response:
        if is_refused(request):
            return _unauthorized()
        try:
            found = await desk.get(request_id)
        except ApprovalNotFoundError as error:
            return _refused(error)
        return _json({"ok": True, "approval": found.as_json(whole=True)})

    @router.post("/{request_id}", response_model=Decided, responses=_DECIDING, summary="Decide a request")
    async def decide(request_id: str, body: DecisionBody, request: Request) -> Response:
        if is_refused(request):
            return _unauthorized()
        try:
            decided = await desk.decide(
                request_id, body.decision, reason=body.reason, by=body.by, digest=body.digest, arguments=body.arguments
            )
        except (ApprovalNotFoundError, ApprovalForbiddenError, InvalidRequestError) as error:
            return _refused(error)
        except ApprovalConflictError as error:
            return _refused(error, approval=await _as_it_stands(desk, request_id))
        return _json({"ok": True, "approval": decided.as_json()})

    return router


async def _events(desk: ApprovalDesk) -> AsyncIterator[bytes]:
    """Yield what is pending, then what comes; a comment now and then, by which a client that is gone is noticed."""
    async with aclosing(desk.watch()) as changes:
        coming = asyncio.ensure_future(anext(changes, None))  # it listens before it is listed: nothing falls between
        try:
            await asyncio.sleep(0)
            for each in await desk.pending():
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


async def _as_it_stands(desk: ApprovalDesk, request_id: str) -> dict[str, Any] | None:
    try:
        return (await desk.get(request_id)).as_json()
    except ApprovalNotFoundError:
        return None


def _refused(error: PatchbayError, **more: Any) -> Response:
    return _json({"ok": False, "detail": well_formed(str(error)), "error_code": error.code, **more}, error.status)


def _unauthorized() -> Response:
    words = "Unauthorized: whoever looks after approvals must show the token of this server."
    response = _json({"ok": False, "detail": words, "error_code": "wrong_token"}, 401)
    response.headers["www-authenticate"] = "Bearer"
    return response


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(_encoded(body), status, media_type="application/json")


def _encoded(body: dict[str, Any]) -> bytes:
    # ASCII: arguments may hold half of a surrogate pair, which no UTF-8 can.
    return json.dumps(body).encode()
