"""Every session service behind one fixture, and a PostgreSQL server for the whole run."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.agents import DatabaseSessionService, InMemorySessionService

from .databases import postgres_server, why_no_postgres


@pytest.fixture(scope="session")
def postgres_url():
    """A database that the tests of this process share: each has ids of its own."""
    if (reason := why_no_postgres()) is not None:
        pytest.skip(reason)
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sessions.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def service(request, tmp_path):
    if request.param == "memory":
        made = InMemorySessionService()
    elif request.param == "sqlite":
        made = DatabaseSessionService(tmp_path / "sessions.db")
    else:
        made = DatabaseSessionService(request.getfixturevalue("postgres_url"))
    yield made
    asyncio.run(asyncio.wait_for(made.close(), 30))
