"""The admin API: ``/api/events``, ``/api/approvals``, ``/api/audit`` and ``/api/media``, behind the AccessMiddleware.

With a token configured, clients must send it: events and files contain what people and models say. Files come from untrusted
tools: browsers may show images that cannot contain scripts, must save everything else, and run nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import SQLAlchemyError

from patchbay._redaction import Redactor
from patchbay.approvals import ApprovalRequest, ApprovalService, Permission
from patchbay.approvals.permissions import make_permission, steps_of
from patchbay.approvals.service import MAX_BY, MAX_REASON
from patchbay.audit import AuditEntry, AuditLog, AuditQuery
from patchbay.audit.entries import MAX_PAGE
from patchbay.database import reason_of
from patchbay.errors import (
    ApprovalConflictError,
    ApprovalNotFoundError,
    ConfigurationError,
    InvalidRequestError,
    PatchbayError,
)
from patchbay.media.content import IMAGE_TYPES, OCTET_STREAM, suffix_of
from patchbay.media.files import MediaError
from patchbay.media.store import SCHEME, Media, MediaStore, OpenMedia
from patchbay.server.auth import MEDIA_PATH, TRUSTED, Rejected, is_signed, unauthorized
from patchbay.server.errors import MethodNotAllowedError, NotFoundError
from patchbay.server.event_stream import EventReader, EventStream, StreamedEvent
from patchbay.server.http import Headers, ResponseWriter, Send
from patchbay.server.request_log import log_error_response
from patchbay.server.routing import KNOWN_PARAMETERS, StrictJsonRoute
from patchbay.server.sse_response import COMMENT, PING, SseResponse, sse_frame, with_comments
from patchbay.server.watchdog import ClientDisconnect
from patchbay.tools import well_formed
from patchbay.tools.threads import run_in_thread

DROPPED: Final = "stream.dropped"
"""Kind of the event in place of dropped ones; ``payload.count`` is their number."""

RECENT: Final = 100
"""Default number of requests with `all`."""

_MAX_PATTERNS: Final = 20
_NO_TOKEN: Final[dict[int | str, dict[str, Any]]] = {401: {"description": "The server has a token, which was not sent."}}
_EXAMPLE: Final = 'id: 5f0c2a11-7\ndata: {"id":"evt-7","kind":"agent.tool.exec_end","payload":{"Tool":"add"}}\n\n'


class _AuditUnavailableError(PatchbayError):
    code = "audit_unavailable"
    status = 503


class _InvalidQueryError(PatchbayError):
    code = InvalidRequestError.code
    status = 422


class _AdminRoute(StrictJsonRoute):
    """A route whose PatchbayErrors become responses; a ConfigurationError is left for the application's handler."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_errors(request: Request) -> Response:
            try:
                return await handle(request)
            except ConfigurationError:
                raise
            except PatchbayError as error:
                log_error_response(request.scope, error.status, error.code)
                return _error_response(error)

        return handle_errors


def admin_router(name: str, purpose: str, *, needs_token: bool, **options: Any) -> APIRouter:
    """Return a router at ``/api/{name}`` (or ``prefix``) that requires the token, for ``purpose``, where the server has one."""

    def require_token(request: Request) -> None:
        if needs_token and request.scope.get(TRUSTED) is not True:
            raise unauthorized(f"send the token of this server to {purpose}")

    dependencies = [Depends(require_token), *options.pop("dependencies", ())]
    prefix = options.pop("prefix", f"/api/{name}")
    return APIRouter(prefix=prefix, tags=[name], route_class=_AdminRoute, dependencies=dependencies, **options)


def _error_response(error: PatchbayError, **more: Any) -> Response:
    headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "5"}}.get(error.status)
    body = {"ok": False, "detail": well_formed(Redactor().text(str(error))), "error_code": error.code, **more}
    return _json_response(body, error.status, headers)


def _json_response(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # ASCII: arguments may have lone surrogates, which UTF-8 cannot encode.
    return Response(json.dumps(body).encode(), status, headers, media_type="application/json")


def make_events_router(stream: EventStream, *, needs_token: bool) -> APIRouter:
    """Return the route over ``stream``. ``needs_token``: the server has a token."""
    responses = {**_NO_TOKEN, 503: {"description": "The maximum number of readers is reached."}}
    router = admin_router(
        "events", "read the events", needs_token=needs_token, responses=responses, dependencies=[KNOWN_PARAMETERS]
    )

    @router.get(
        "",
        summary="What happens in the turns of this server, as server-sent events",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {"example": _EXAMPLE}}, "description": "One event after the other."}},
    )
    async def events(
        kind: Annotated[
            list[str] | None,
            Query(max_length=_MAX_PATTERNS, description="Only events of these kinds; patterns such as `agent.tool.*`."),
        ] = None,
        session: Annotated[str | None, Query(description="Only events of this session.")] = None,
        last_event_id: Annotated[
            str, Header(alias="Last-Event-ID", max_length=100, description="The id of the last event that was read before.")
        ] = "",
    ) -> Response:
        reader = stream.join(kinds=kind or (), session=session, last_id=last_event_id)
        return SseResponse(_event_frames(reader), reader.close)

    return router


async def _event_frames(reader: EventReader) -> AsyncIterator[bytes]:
    """Yield frames until the stream ends; a comment first, as a sign of life, and while nothing happens."""
    yield COMMENT
    while (events := await reader.read(PING)) is not None:
        yield b"".join(map(_event_frame, events)) or COMMENT


def _event_frame(event: StreamedEvent | int) -> bytes:
    if isinstance(event, int):
        return sse_frame(json.dumps({"kind": DROPPED, "severity": "warn", "payload": {"count": event}}).encode())
    return sse_frame(event.data, id=event.id)


class DecisionBody(BaseModel):
    """A decision. Unknown members are refused."""

    model_config = ConfigDict(extra="forbid")

    decision: Literal["approve", "deny", "approve_session", "approve_always"] = Field(
        description="`approve_session` is for other calls of the session too, as `session` of the request says; `approve_always` "
        "writes a standing permission."
    )
    reason: str = Field("", max_length=MAX_REASON, description="The reason, which the model gets.")
    by: str = Field("", max_length=MAX_BY, description="Who, for the record.")
    arguments: dict[str, Any] | None = Field(
        None, description="Other arguments to approve the call with. They must fit `parameters`; what runs has them."
    )
    permission: dict[str, dict[str, dict[str, Any]]] | None = Field(
        None,
        description="With `approve_always`: steps of GET /api/approvals/{id}/permission. What it leaves out is the narrowest.",
    )
    digest: str = Field("", max_length=100, description="The digest of the reviewed request: refused if it is another call's.")


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


class _ApprovalBody(BaseModel):
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    ok: Literal[True]


class ApprovalList(_ApprovalBody):
    """Requests for approval."""

    approvals: list[RequestModel]


class ApprovalDetail(_ApprovalBody):
    """One request for approval."""

    approval: RequestModel


class SessionApprovalList(_ApprovalBody):
    """The session approvals in force."""

    sessions: list[GrantModel]


class PermissionList(_ApprovalBody):
    """The standing permissions. Without a database they end with the server (`outlives_server`)."""

    permissions: list[Permission]
    outlives_server: bool


class PermissionProposal(_ApprovalBody):
    """The narrowest permission for a request, and the wider criteria for each argument and fact, step by step."""

    permission: Permission
    steps: dict[str, dict[str, list[dict[str, Any]]]]
    outlives_server: bool


class RevokedPermission(_ApprovalBody):
    """A standing permission that was revoked."""

    revoked: Permission


class RevokedApproval(_ApprovalBody):
    """A session approval that was revoked."""

    revoked: GrantModel


class ApprovalFailure(BaseModel):
    """An error."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    ok: Literal[False]
    detail: str
    error_code: str


class ApprovalConflict(ApprovalFailure):
    """A decision that is not possible, and the request as it is."""

    approval: RequestModel | None


_ONE: Final[dict[int | str, dict[str, Any]]] = {404: {"model": ApprovalFailure, "description": "There is no such request."}}
_DECIDING: Final[dict[int | str, dict[str, Any]]] = {
    **_ONE,
    403: {"model": ApprovalFailure, "description": "Its rule does not let it be decided over HTTP."},
    409: {
        "model": ApprovalConflict,
        "description": "It is decided already, it has expired, or the digest is that of another call.",
    },
}


def make_approvals_router(service: ApprovalService, *, needs_token: bool) -> APIRouter:
    """Return the routes over ``service``, and let people decide over HTTP; ``needs_token``: only with the server's token."""
    service.accept_decisions("http")
    unauthorized = {401: {"model": ApprovalFailure, **_NO_TOKEN[401]}}
    router = admin_router("approvals", "review approvals", needs_token=needs_token, responses=unauthorized)

    @router.get("", response_model=ApprovalList, summary="List pending approvals")
    async def list_approvals(
        everything: Annotated[bool, Query(alias="all", description="The last requests, decided ones included.")] = False,  # noqa: FBT002  (a query's)
        limit: Annotated[int, Query(ge=1, le=1000, description="With `all`: how many.")] = RECENT,
    ) -> Response:
        found = await service.recent(limit) if everything else await service.pending()
        return _json_response({"ok": True, "approvals": [each.as_json() for each in found]})

    @router.get(
        "/events", summary="New and decided requests for approval, as server-sent events", response_class=StreamingResponse
    )
    async def events() -> Response:
        return SseResponse(with_comments(_approval_frames(service)))

    @router.get("/sessions", response_model=SessionApprovalList, summary="List the session approvals in force")
    async def list_sessions() -> Response:
        return _json_response({"ok": True, "sessions": [each.as_json() for each in await service.sessions()]})

    @router.delete("/sessions/{request_id}", response_model=RevokedApproval, responses=_ONE, summary="Revoke a session approval")
    async def revoke(request_id: str) -> Response:
        return _json_response({"ok": True, "revoked": (await service.revoke(request_id)).as_json()})

    @router.get("/permissions", response_model=PermissionList, summary="List the standing permissions")
    async def list_permissions() -> Response:
        found = [each.as_json() for each in await service.permissions()]
        return _json_response({"ok": True, "permissions": found, "outlives_server": service.store.is_shared})

    @router.delete(
        "/permissions/{permission_id}", response_model=RevokedPermission, responses=_ONE, summary="Revoke a standing permission"
    )
    async def revoke_permission(permission_id: str) -> Response:
        return _json_response({"ok": True, "revoked": (await service.revoke_permission(permission_id)).as_json()})

    never: dict[int | str, dict[str, Any]] = {409: {"model": ApprovalFailure, "description": "It cannot be allowed for good."}}

    @router.get(
        "/{request_id}/permission",
        response_model=PermissionProposal,
        responses={**_ONE, **never},
        summary="The standing permissions that a request can be approved with",
    )
    async def propose(request_id: str) -> Response:
        request = await service.get(request_id)
        narrowest = make_permission(request, by="", now=time.time()).as_json()
        proposal = {"permission": narrowest, "steps": steps_of(request), "outlives_server": service.store.is_shared}
        return _json_response({"ok": True, **proposal})

    @router.get("/{request_id}", response_model=ApprovalDetail, responses=_ONE, summary="One request, with all of its arguments")
    async def get_approval(request_id: str) -> Response:
        return _json_response({"ok": True, "approval": (await service.get(request_id)).as_json(whole=True)})

    @router.post("/{request_id}", response_model=ApprovalDetail, responses=_DECIDING, summary="Decide a request")
    async def decide(request_id: str, body: DecisionBody) -> Response:
        try:
            decided = await service.decide(
                request_id,
                body.decision,
                reason=body.reason,
                by=body.by,
                digest=body.digest,
                arguments=body.arguments,
                permission=body.permission,
            )
        except ApprovalConflictError as error:
            return _error_response(error, approval=await _find_request(service, request_id))
        return _json_response({"ok": True, "approval": decided.as_json()})

    return router


async def _approval_frames(service: ApprovalService) -> AsyncGenerator[bytes, None]:
    """Yield pending requests, then changes."""
    async with aclosing(service.watch()) as changes:
        coming = asyncio.ensure_future(anext(changes, None))  # before the list is read, so that no change is missed
        try:
            await asyncio.sleep(0)
            for each in await service.pending():
                yield _approval_frame(each)
            while (change := await coming) is not None:
                yield _approval_frame(change)
                coming = asyncio.ensure_future(anext(changes, None))
        finally:
            coming.cancel()
            await asyncio.wait([coming])


def _approval_frame(request: ApprovalRequest) -> bytes:
    return sse_frame(json.dumps(request.as_json()).encode(), event="approval")


async def _find_request(service: ApprovalService, request_id: str) -> dict[str, Any] | None:
    try:
        return (await service.get(request_id)).as_json()
    except ApprovalNotFoundError:
        return None


class AuditPage(BaseModel):
    """Entries of the audit."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    ok: Literal[True]
    entries: list[AuditEntry]
    cursor: int | None = Field(description="The `before` of the next page; null where there is none.")


def make_audit_router(log: AuditLog, *, needs_token: bool) -> APIRouter:
    """Return the route over ``log``; ``needs_token``: only for clients that sent the server's token."""
    responses = {**_NO_TOKEN, 503: {"description": "The audit's database does not answer."}}
    router = admin_router(
        "audit", "read the audit", needs_token=needs_token, responses=responses, dependencies=[KNOWN_PARAMETERS]
    )

    @router.get("", response_model=AuditPage, summary="Calls that have settled, the newest first")
    async def list_entries(
        since: Annotated[
            float | None, Query(allow_inf_nan=False, description="From this time on, in seconds since 1970.")
        ] = None,
        until: Annotated[float | None, Query(allow_inf_nan=False, description="Before this time.")] = None,
        tool: Annotated[
            list[str] | None, Query(max_length=_MAX_PATTERNS, description="Names or patterns (`fs_*`), of which one must fit.")
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
        try:
            query = AuditQuery(
                since, until, tuple(tool or ()), source, agent, session, turn, errors, denied, limit, before, after
            )
        except InvalidRequestError as error:
            raise _InvalidQueryError(str(error)) from None
        try:
            page = await log.query(query)
        except (ConfigurationError, SQLAlchemyError) as error:  # not the client's mistake
            raise _AuditUnavailableError(f"The audit cannot be read now: {reason_of(error)}") from error
        # In a thread: a page of long entries is many megabytes.
        return await run_in_thread(
            lambda: _json_response({"ok": True, "entries": [each.as_json() for each in page.entries], "cursor": page.cursor})
        )

    return router


_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.IGNORECASE)
_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ALWAYS: Final[Headers] = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; sandbox"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"private, no-store"),
]
# What a browser could take for a page, a script or a style, whatever its headers say.
_ACTIVE: Final = re.compile(r"html|script|\bxml\b|\bxsl|\bcss\b|wasm|flash|manifest|^multipart/|^message/")

_logger = logging.getLogger(__name__)


class MediaApp:
    """An ASGI app that serves the files of ``store``, or one byte range of a file, as players request.

    ``needs_token``: a request needs the token or a signed path. Files have no ETag and no date: ``If-Range`` gets the whole file,
    and other conditions are ignored.
    """

    def __init__(self, store: MediaStore, *, needs_token: bool = False) -> None:
        self._store = store
        self._needs_token = needs_token

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:  # noqa: ARG002  (a GET has no body)
        """Serve one HTTP request. Raises OSError where a file ends early: the connection must be cut."""
        reply = ResponseWriter(send, _ALWAYS)
        try:
            file = await asyncio.to_thread(self._opened, scope)
        except PatchbayError as error:
            if not isinstance(error, MediaError):
                log_error_response({**scope, "root_path": scope.get("app_root_path", "")}, error.status, error.code)
            await _media_error(reply, error)
            return
        try:
            wanted = _range(scope, file.size)
            if wanted is None:
                await reply.whole(416, [(b"content-range", b"bytes */%d" % file.size)], b"")
                return
            start, end = wanted
            headers = [*_media_headers(file.media), (b"accept-ranges", b"bytes"), (b"content-length", b"%d" % (end - start))]
            is_all = end - start == file.size
            if not is_all:
                headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, file.size)))
            await reply.send_head(200 if is_all else 206, headers)
            if scope["method"] == "GET":
                pieces = file.pieces(start, end - start)
                while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                    await reply.write(piece)
            await reply.finish()
        except ClientDisconnect:
            return
        except MediaError as error:
            _logger.warning("A file could not be sent to its end: %s", error)
            raise OSError(str(error)) from error
        finally:
            file.close()

    def _opened(self, scope: Any) -> OpenMedia:
        if self._needs_token and scope.get(TRUSTED) is not True and not is_signed(scope):
            raise unauthorized("send the token of this server, or use a signed path that has not expired")
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowedError(f"The method {scope['method']} is not allowed here.")
        name = scope["path"].rpartition("/")[2]
        if not scope["path"].endswith(MEDIA_PATH + name) or not _ID.fullmatch(name):
            raise NotFoundError("Not found.")
        return self._store.open(SCHEME + name)


def _range(scope: Any, size: int) -> tuple[int, int] | None:
    """Return the requested byte range, start and end; None if the file has none of it.

    The whole file without a range, with several, and with an invalid one.
    """
    ranges = [value for name, value in scope["headers"] if name == b"range"]
    is_plain = scope["method"] == "GET" and len(ranges) == 1 and not any(name == b"if-range" for name, _ in scope["headers"])
    found = _RANGE.fullmatch(ranges[0].decode("latin-1").strip()) if is_plain else None
    first, last = found.groups() if found is not None else ("", "")
    if not (first or last) or (first and last and int(last) < int(first)):
        return 0, size
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last) + 1, size) if first and last else size
    return (start, end) if start < end else None


async def _media_error(reply: ResponseWriter, error: PatchbayError) -> None:
    # What is wrong with a file names paths of this machine: that is for its operator.
    status = 404 if isinstance(error, MediaError) else error.status
    if isinstance(error, MediaError):
        _logger.info("A requested file does not exist: %s", error)
    headers: Headers = [(b"content-type", b"application/json")]
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", b"GET, HEAD"))
    if isinstance(error, Rejected):
        headers += error.headers
    detail = "There is no such file (any more)." if isinstance(error, MediaError) else str(error)
    try:
        await reply.whole(status, headers, msgspec.json.encode({"detail": detail, "error_code": error.code}))
    except ClientDisconnect:
        return


def _media_headers(media: Media) -> Headers:
    kind = media.media_type
    name = media.filename or f"{media.kind}{suffix_of(kind)}"
    plain = re.sub(r"[^A-Za-z0-9 ._-]", "_", name)[:100]
    how = "inline" if kind in IMAGE_TYPES else "attachment"
    disposition = f"{how}; filename=\"{plain}\"; filename*=UTF-8''{quote(name.encode('utf-8', 'replace')[:200], safe='')}"
    content_type = OCTET_STREAM if _ACTIVE.search(kind) else kind
    return [(b"content-type", content_type.encode("ascii")), (b"content-disposition", disposition.encode("ascii"))]
