"""The smallest HTTP server of Starlette's that can be a tool's callback: JSON in, the tool, JSON out."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bench.calls import cases

PATH = "/tool_invoke"


async def _call(request: Request) -> Response:
    call = await request.json()
    return JSONResponse({"output": await cases.echo(**call["arguments"]), "is_error": False})


async def _ready(_request: Request) -> Response:
    return Response()


app = Starlette(routes=[Route(PATH, _call, methods=["POST"]), Route("/ready", _ready)])
