"""Every session service behind one fixture, and processes with a session."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from patchbay.agents import DatabaseSessionService, InMemorySessionService
from patchbay.agents.content import new_id
from support.processes import Process

ROOT = Path(__file__).parents[2]


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


@pytest.fixture
def session_id():
    return new_id()


@pytest.fixture
def spawn():
    """Start processes of ``child.py``: ``spawn(url, session_id, command, ...)``. All are killed in the end."""
    children: list[Process] = []

    def start(*arguments: object) -> Process:
        command = [sys.executable, "-m", "tests.agents.child", *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        children.append(Process(command, text=True, cwd=ROOT, **pipes))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.communicate(timeout=30)
