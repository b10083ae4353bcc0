"""Runs each asynchronous test of the client in both event loops that the client is used in."""

from __future__ import annotations

import asyncio
import inspect

import pytest
import uvloop


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("event_loop")
        metafunc.parametrize("event_loop", ["asyncio", "uvloop"], indirect=True)


@pytest.fixture
def event_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "uvloop":
        monkeypatch.setattr(asyncio, "run", uvloop.run)
