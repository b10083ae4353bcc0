"""The usage API for the console: ``/api/usage`` and ``/api/models``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from patchbay.server.admin_api import admin_router
from patchbay.server.models_view import LearntModels, view_of
from patchbay.server.routing import KNOWN_PARAMETERS, json_response
from patchbay.server.usage import UsageCounters, Window


def make_usage_router(usage: UsageCounters, *, needs_token: bool) -> APIRouter:
    """Return the routes over ``usage``. ``needs_token``: the server has a token."""
    responses: dict[int | str, dict[str, Any]] = {401: {"description": "The server has a token, which was not sent."}}
    router = admin_router(
        "usage", "read the usage", needs_token=needs_token, responses=responses, dependencies=[KNOWN_PARAMETERS]
    )

    @router.get("", summary="Requests, calls, errors, tokens and durations of the last hour or day, by model and by tool")
    async def read_usage(window: Window = "hour") -> Response:
        return json_response(usage.view(window), headers={"cache-control": "no-store"})

    return router


def make_models_router(usage: UsageCounters, learnt: LearntModels | None, *, needs_token: bool) -> APIRouter:
    """Return the route of what is known of the models. ``needs_token``: the server has a token."""
    responses: dict[int | str, dict[str, Any]] = {401: {"description": "The server has a token, which was not sent."}}
    router = admin_router(
        "models",
        "read what is known of the models",
        needs_token=needs_token,
        responses=responses,
        dependencies=[KNOWN_PARAMETERS],
    )

    @router.get("", summary="How each model takes tools and why, and what its requests came to")
    async def list_models() -> Response:
        return json_response({"models": view_of(usage, learnt)}, headers={"cache-control": "no-store"})

    return router
