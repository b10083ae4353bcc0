"""Every session service behind one fixture."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.agents import DatabaseSessionService, InMemorySessionService


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sessions.db'}"
    return request.getfixturevalue("postgres_url")


def _session_service(request, tmp_path):
    if request.param == "memory":
        made = InMemorySessionService()
    elif request.param == "sqlite":
        made = DatabaseSessionService(tmp_path / "sessions.db")
    else:
        made = DatabaseSessionService(request.getfixturevalue("postgres_url"))
    yield made
    asyncio.run(asyncio.wait_for(made.close(), 30))


service = pytest.fixture(params=["memory", "sqlite", "postgres"])(_session_service)
local_service = pytest.fixture(params=["memory", "sqlite"])(_session_service)
