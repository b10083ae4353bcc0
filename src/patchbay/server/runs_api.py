"""The routes of durable runs: ``/api/agents/{name}/runs``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Path, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from patchbay.agents import BaseAgent, Runner
from patchbay.errors import RunNotFoundError
from patchbay.server.admin_api import admin_router
from patchbay.server.registry_models import Text
from patchbay.server.routing import KNOWN_PARAMETERS
from patchbay.server.sse_response import SseResponse, sse_frame, with_comments

if TYPE_CHECKING:
    from patchbay.agents.durable import DurableRuns
    from patchbay.agents.durable.runs import DurableRun
    from patchbay.server.governance import Governance

_Name = Annotated[str, Path(description="The agent's name.", max_length=200)]
_Id = Annotated[str, Path(description="The run's id.", max_length=200)]
_NO_TOKEN: Final[dict[int | str, dict[str, Any]]] = {401: {"description": "The server has a token, which was not sent."}}
_NO_RUN: Final[dict[int | str, dict[str, Any]]] = {**_NO_TOKEN, 404: {"description": "This agent has no such run."}}
_NO_AGENT: Final[dict[int | str, dict[str, Any]]] = {
    **_NO_TOKEN,
    400: {"description": "There is no such agent, or a name is invalid."},
    409: {"description": "The id is that of another run."},
}


class RunBody(BaseModel):
    """A message for an agent. Unknown members are refused."""

    model_config = ConfigDict(extra="forbid")

    message: Text = Field(description="The user's message.")
    id: Text | None = Field(
        None,
        min_length=1,
        max_length=200,
        pattern=r"^[^/]*[^/.][^/]*$",
        description="The run's id: sent again, it adds no second run. By default a new one.",
    )
    session: Text | None = Field(
        None, min_length=1, max_length=200, description="The session that goes on; by default a new one."
    )
    user: Text = Field("user", min_length=1, max_length=200, description="The session's user.")


def add_durable_agents(runs: DurableRuns, agents: Iterable[BaseAgent], governance: Governance) -> list[Runner]:
    """Add agents to ``runs``, with the hooks of ``governance``; return their runners, which the caller closes."""
    runners = [Runner(each, each.name, runs.sessions, hooks=governance.hooks, media=governance.media) for each in agents]
    for runner in runners:
        runs.add(runner)
    return runners


def make_runs_router(runs: DurableRuns, *, needs_token: bool) -> APIRouter:
    """Return the routes over ``runs``. ``needs_token``: the server has a token."""
    router = admin_router("agents", "use the runs of agents", needs_token=needs_token, dependencies=[KNOWN_PARAMETERS])

    async def find(name: str, run_id: str) -> DurableRun:
        run = await runs.get(run_id)
        if run.agent != name:
            raise RunNotFoundError(run_id)
        return run

    @router.post("/{name}/runs", summary="Add a durable run of an agent", status_code=202, responses=_NO_AGENT)
    async def add_run(name: _Name, body: RunBody) -> Response:
        run = await runs.submit(name, body.message, run_id=body.id, session=body.session, user=body.user)
        return _response(run, 202)

    @router.get("/{name}/runs/{run_id}", summary="The status of a run, and its result", responses=_NO_RUN)
    async def read_run(name: _Name, run_id: _Id) -> Response:
        return _response(await find(name, run_id))

    @router.post("/{name}/runs/{run_id}/cancel", summary="Cancel a run that is not over", responses=_NO_RUN)
    async def cancel_run(name: _Name, run_id: _Id) -> Response:
        await find(name, run_id)
        return _response(await runs.cancel(run_id))

    @router.get(
        "/{name}/runs/{run_id}/events",
        summary="The recorded steps of a run as server-sent events, from the first one on; the last one is `end`, with the run",
        response_class=StreamingResponse,
        responses=_NO_RUN,
    )
    async def stream_steps(name: _Name, run_id: _Id) -> Response:
        await find(name, run_id)
        return SseResponse(with_comments(frames(run_id)))

    async def frames(run_id: str) -> AsyncGenerator[bytes, None]:
        async with aclosing(runs.steps(run_id)) as steps:
            async for step in steps:
                yield sse_frame(json.dumps(step).encode(), event=step["kind"], id=str(step["id"]))
        if (run := await runs.get(run_id)).is_over:
            yield sse_frame(json.dumps(dataclasses.asdict(run)).encode(), event="end")

    return router


def _response(run: DurableRun, status: int = 200) -> Response:
    return Response(json.dumps(dataclasses.asdict(run)), status, media_type="application/json")
