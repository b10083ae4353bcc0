"""``GET /api/events``: what happens in the server's turns, as server-sent events. Described by ``/openapi.json``.

What lives here: the route and the bytes. What does not: what is told of turns (``event_stream``), and who is let in at all
(``patchbay.server.tools.guard``, which stands before all of this). What people and models say is in it: where a token is
configured, it must be shown.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from patchbay.server.event_stream import EventStream, Reader, Shown, TooManyReadersError
from patchbay.server.parameters import KNOWN_PARAMETERS
from patchbay.server.tools.guard import TRUSTED

PING: Final = 15.0
"""Seconds of nothing after which a comment is sent."""

DROPPED: Final = "stream.dropped"
"""The kind that stands where events are missing; ``payload.count`` says how many."""

_KINDS: Final = 20
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    401: {"description": "The server has a token, and it was not shown."},
    503: {"description": "As many read already as may."},
}
_EXAMPLE: Final = 'id: 5f0c2a11-7\ndata: {"id":"evt-7","kind":"agent.tool.exec_end","payload":{"Tool":"add"}}\n\n'


def make_events_router(stream: EventStream, *, needs_token: bool, ping: float = PING) -> APIRouter:
    """Return the route over ``stream``. ``needs_token``: the server has one."""
    router = APIRouter(prefix="/api/events", tags=["events"], responses=_REFUSALS, dependencies=[KNOWN_PARAMETERS])

    @router.get(
        "",
        summary="What happens in the turns of this server, as server-sent events",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {"example": _EXAMPLE}}, "description": "One event after the other."}},
    )
    async def events(
        request: Request,
        kind: Annotated[
            list[str] | None,
            Query(max_length=_KINDS, description="Only events of these kinds; patterns such as `agent.tool.*`."),
        ] = None,
        session: Annotated[str | None, Query(description="Only events of this session.")] = None,
        last_event_id: Annotated[
            str, Header(alias="Last-Event-ID", max_length=100, description="The id of the last event that was read before.")
        ] = "",
    ) -> Response:
        if needs_token and request.scope.get(TRUSTED) is not True:
            return _refused(401, "Unauthorized: whoever reads the events must show the token of this server.", "wrong_token")
        try:
            reader = stream.join(kinds=kind or (), session=session, last_id=last_event_id)
        except TooManyReadersError as error:
            return _refused(error.status, str(error), error.code)
        return _Events(reader, ping)

    return router


class _Events(StreamingResponse):
    """The answer; however it ends, the reader is gone then."""

    def __init__(self, reader: Reader, ping: float) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(_written(reader, ping), media_type="text/event-stream", headers=headers)
        self._reader = reader

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reader.close()


async def _written(reader: Reader, ping: float) -> AsyncIterator[bytes]:
    """Yield bytes until the stream ends; a comment at once, by which a client knows that it is heard, and where it is quiet."""
    yield b": \n\n"
    while (events := await reader.read(ping)) is not None:
        yield b"".join(map(_event, events)) or b": \n\n"


def _event(event: Shown | int) -> bytes:
    if isinstance(event, int):
        dropped = {"kind": DROPPED, "severity": "warn", "payload": {"count": event}}
        return b"data: " + json.dumps(dropped).encode() + b"\n\n"
    return b"id: " + event.id.encode() + b"\ndata: " + event.data + b"\n\n"


def _refused(status: int, detail: str, code: str) -> Response:
    headers = {"www-authenticate": "Bearer"} if status == 401 else {"retry-after": "5"}
    body = json.dumps({"ok": False, "detail": detail, "error_code": code}).encode()
    return Response(body, status, headers, media_type="application/json")
