"""The console: its API (``/api/console``, ``/api/turns``, ``/api/usage``, ``/api/models``), and its built pages at ``/console``.

The pages are static files without secrets. They need no token, but come from this machine's names only, as everything here does.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import dropwhile, islice
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

import patchbay
from patchbay.approvals import ApprovalRequest, ApprovalService
from patchbay.server.admin_api import admin_router
from patchbay.server.auth import CONSOLE_PATH, TRUSTED, unauthorized
from patchbay.server.console_sessions import ConsoleSessions
from patchbay.server.errors import MethodNotAllowedError, NotFoundError
from patchbay.server.http import Headers, Receive, ResponseWriter, Send, is_token, own_path
from patchbay.server.models_view import LearntModels, view_models
from patchbay.server.routing import KNOWN_PARAMETERS, json_response
from patchbay.server.turn_archive import TurnArchive
from patchbay.server.turn_views import Json, TurnQuery, attempt_detail, detail_of, encoded_for, summary_of, with_approvals
from patchbay.server.turns import Turn, TurnStore
from patchbay.server.usage import UsageCounters, Window
from patchbay.tools.threads import run_in_thread

_MOST_APPROVALS: Final = 500
"""How many of the last requests for approval are searched for those of a turn."""
_MAX_TOKEN_CHARS: Final = 4096
_NO_STORE: Final = {"cache-control": "no-store"}
_NEEDS_TOKEN: Final[dict[int | str, dict[str, Any]]] = {401: {"description": "The server has a token, which was not sent."}}


@dataclass(frozen=True)
class ConsoleFacts:
    """What the console shows of its server. ``token`` is the one to sign in with; None: no token is needed.

    ``openai_path`` is that of the OpenAI API; None where no model is served. ``approvals`` is None where no call can wait for
    one.
    """

    server: str
    upstream: str | None
    token: str | None
    openai_path: str | None
    roles: Callable[[], list[str]] = list
    approvals: ApprovalService | None = None


class SignIn(BaseModel):
    """The token of the server."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(max_length=_MAX_TOKEN_CHARS)


def make_console_router(
    facts: ConsoleFacts, sessions: ConsoleSessions, store: TurnStore, archive: TurnArchive | None = None
) -> APIRouter:
    """Return the routes that the pages need first: what the server is, and signing in and out."""
    router = admin_router("console", "use the console", needs_token=False)

    @router.get("", summary="What this server is, and whether the caller is signed in")
    async def describe(request: Request) -> Response:
        signed_in = facts.token is None or request.scope.get(TRUSTED) is True
        about: dict[str, Any] = {
            "version": patchbay.__version__,
            "server": facts.server,
            "needs_token": facts.token is not None,
            "signed_in": signed_in,
        }
        if signed_in:
            about |= {"upstream": facts.upstream, "openai_path": facts.openai_path, "roles": facts.roles()}
            about["turns"] = {
                "kept": store.most,
                "bytes": store.most_bytes,
                "archived_seconds": archive.keep if archive is not None else None,
            }
            if (approvals := facts.approvals) is not None:
                about["approvals"] = {"asks": approvals.policy.asks_people, "outlives_server": approvals.store.is_shared}
        return json_response(about, headers=_NO_STORE)

    wrong: dict[int | str, dict[str, Any]] = {401: {"description": "It is not the server's token."}}

    @router.post("/session", status_code=204, responses=wrong, summary="Sign in: the cookie that is set counts as the token")
    async def sign_in(request: Request, body: SignIn) -> Response:
        if facts.token is None:
            return Response(status_code=204)
        if not is_token(body.token.strip().encode("utf-8", "replace"), facts.token):
            raise unauthorized("the token is not the one of this server")
        return Response(status_code=204, headers={"set-cookie": sessions.begin(request.scope).decode(), **_NO_STORE})

    @router.delete("/session", status_code=204, summary="Sign out")
    async def sign_out(request: Request) -> Response:
        return Response(status_code=204, headers={"set-cookie": sessions.end(request.scope).decode(), **_NO_STORE})

    return router


def make_turns_router(
    store: TurnStore, approvals: ApprovalService | None = None, archive: TurnArchive | None = None, *, needs_token: bool
) -> APIRouter:
    """Return the routes over ``store`` and ``archive``, with what waited for ``approvals``."""
    router = admin_router(
        "turns", "read the turns", needs_token=needs_token, responses=_NEEDS_TOKEN, dependencies=[KNOWN_PARAMETERS]
    )
    gone: dict[int | str, dict[str, Any]] = {404: {"description": "There is no such turn, or not any more."}}

    def in_memory() -> list[Turn]:
        return [*store.newest(), *(archive.unwritten if archive is not None else ())]

    def find(turn_id: str) -> Turn | None:
        return store.get(turn_id) or next((turn for turn in in_memory() if turn.id == turn_id), None)

    async def archived(turn_id: str) -> Json:
        turn = await archive.get(turn_id) if archive is not None else None
        if turn is None:
            raise gone_error(turn_id)
        return turn

    def gone_error(turn_id: str) -> NotFoundError:
        kept = "those of --keep-turns" if archive is not None else f"the last {store.most}"
        return NotFoundError(f"There is no turn {turn_id[:100]!r} (any more): {kept} are kept.")

    async def approvals_of(turn_id: str) -> list[ApprovalRequest]:
        """Return the requests for approval of a turn's calls."""
        recent = await approvals.recent(_MOST_APPROVALS) if approvals is not None else []
        return [each for each in recent if turn_id in (each.turn, each.parent_turn)]

    @router.get("", responses=gone, summary="The last turns, the newest first")
    async def list_turns(
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
        before: Annotated[str, Query(max_length=100, description="The id of a turn: older ones.")] = "",
        session: Annotated[str, Query(description="The session's key.")] = "",
        model: str = "",
        tool: Annotated[str, Query(description="The name of a tool that was called.")] = "",
        outcome: Annotated[str, Query(pattern="^(running|done|failed)?$")] = "",
        q: Annotated[str, Query(max_length=200, description="A text in the request or in an answer, in any case.")] = "",
    ) -> Response:
        query = TurnQuery(session, model, tool, outcome, q)
        stored = in_memory()
        is_stored = before in [turn.id for turn in stored]
        if before and not is_stored and (archive is None or await archive.get(before) is None):
            raise gone_error(before)
        turns = stored
        if before:
            turns = [*dropwhile(lambda turn: turn.id != before, stored)][1:]

        def view() -> list[tuple[str, bytes]]:
            fitting = islice(filter(query.fits, turns), limit + 1)
            return [(turn.id, encoded_for(turn, summary_of(turn))) for turn in fitting]

        found = await run_in_thread(view)
        if archive is not None and len(found) <= limit:
            older = await archive.find(
                query, limit + 1 - len(found), before="" if is_stored else before, without=[turn.id for turn in stored]
            )
            found += [(each["id"], json.dumps(each).encode()) for each in older]
        following = found[limit - 1][0] if len(found) > limit else None
        summaries = b",".join(summary for _, summary in found[:limit])
        return _response(b'{"turns":[%b],"next":%b}' % (summaries, json.dumps(following).encode()))

    @router.get("/{turn_id}", responses=gone, summary="One turn: its request, its attempts, and its events")
    async def get_turn(
        turn_id: str,
        download: Annotated[bool, Query(description="As an attachment, with the requests and answers of all attempts.")] = False,  # noqa: FBT002  (a query's)
    ) -> Response:
        asked = await approvals_of(turn_id)
        if (turn := find(turn_id)) is not None:
            content = await run_in_thread(lambda: encoded_for(turn, detail_of(turn, asked, whole=download)))
        else:
            content = json.dumps(with_approvals(await archived(turn_id), asked)).encode()
        if not download:
            return _response(content)
        name = re.sub(r"[^A-Za-z0-9._-]", "_", turn_id)
        return _response(content, {"content-disposition": f'attachment; filename="turn-{name}.json"'})

    @router.get(
        "/{turn_id}/attempts/{index}", responses=gone, summary="What an attempt was sent and answered, and how that was read"
    )
    async def get_attempt(turn_id: str, index: int) -> Response:
        turn = find(turn_id)
        attempts = turn.attempts if turn is not None else (await archived(turn_id))["attempts"]
        if not 0 <= index < len(attempts):
            raise NotFoundError(f"The turn {turn_id} has no attempt {index}.")
        if turn is None:
            return _response(json.dumps(attempts[index]).encode())
        return _response(await run_in_thread(lambda: encoded_for(turn, attempt_detail(turn, index))))

    return router


def make_usage_router(usage: UsageCounters, *, needs_token: bool) -> APIRouter:
    """Return the routes over ``usage``. ``needs_token``: the server has a token."""
    router = admin_router(
        "usage", "read the usage", needs_token=needs_token, responses=_NEEDS_TOKEN, dependencies=[KNOWN_PARAMETERS]
    )

    @router.get("", summary="Requests, calls, errors, tokens and durations of the last hour or day, by model and by tool")
    async def read_usage(window: Window = "hour") -> Response:
        return json_response(usage.view(window), headers=_NO_STORE)

    return router


def make_models_router(usage: UsageCounters, learnt: LearntModels | None, *, needs_token: bool) -> APIRouter:
    """Return the route of what is known of the models. ``needs_token``: the server has a token."""
    doing = "read what is known of the models"
    router = admin_router("models", doing, needs_token=needs_token, responses=_NEEDS_TOKEN, dependencies=[KNOWN_PARAMETERS])

    @router.get("", summary="How each model takes tools and why, and what its requests came to")
    async def list_models() -> Response:
        return json_response({"models": view_models(usage, learnt)}, headers=_NO_STORE)

    return router


def _response(content: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(content, headers={**_NO_STORE, **(headers or {})}, media_type="application/json")


_FOLDER: Final = Path(patchbay.__file__).parent / "console"
_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".ico": b"image/x-icon",
    ".woff2": b"font/woff2",
    ".json": b"application/json",
    ".txt": b"text/plain; charset=utf-8",
}
_HASHED: Final = re.compile(r"[-.](?:[0-9A-Z]{8}|[0-9a-f]{8,64})\.[a-z0-9]+\Z")
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; font-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS: Final[Headers] = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class ConsolePages:
    """An ASGI application that serves the built pages in ``folder`` at CONSOLE_PATH.

    Any path without a file's extension is the one page, which reads it. Files with a hash in their names are cached for ever.
    """

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._folder = folder

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:  # noqa: ARG002  (a GET has no body)
        """Serve one HTTP request."""
        reply = ResponseWriter(send, _PAGE_HEADERS)
        try:
            name = self._name(scope)
            content = await asyncio.to_thread(self._read, name)
        except (NotFoundError, MethodNotAllowedError) as error:
            await reply.whole(error.status, [(b"content-type", _TYPES[".txt"])], str(error).encode())
            return
        cache = b"public, max-age=31536000, immutable" if _HASHED.search(name) else b"no-cache"
        await reply.whole(200, [(b"content-type", _TYPES[Path(name).suffix]), (b"cache-control", cache)], content)

    def _name(self, scope: Any) -> str:
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowedError(f"The method {scope['method']} is not allowed here.")
        name = own_path(scope).removeprefix(CONSOLE_PATH).strip("/")
        return name if Path(name).suffix else "index.html"

    def _read(self, name: str) -> bytes:
        if not _NAME.fullmatch(name) or Path(name).suffix not in _TYPES:
            raise NotFoundError(f"The console has no file {name[:100]!r}.")
        try:
            return (self._folder / name).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            if name == "index.html":
                raise NotFoundError("This installation has no console: its pages were not built.") from None
            raise NotFoundError(f"The console has no file {name[:100]!r}.") from None
