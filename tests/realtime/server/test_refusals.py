"""Rejected WebSocket handshakes in the log, rate-limited."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from patchbay._ratelimit import LogRateLimiter
from patchbay.server import ToolsSettings, request_log
from patchbay.server.auth import AccessMiddleware
from patchbay.server.request_log import log_rejection

from .rig import foreign_scope, never
from .test_sockets import HANDSHAKE, read_until, served


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the rate limiter."""
    now = [0.0]
    monkeypatch.setattr(request_log, "_rejections", LogRateLimiter(request_log._rejections._log, lambda: now[0]))
    return now


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_repeated_rejections_are_rate_limited_in_the_log(clock, caplog):
    async def send(_message: Any) -> None:
        pass

    async def knock(times: int) -> None:
        guard = AccessMiddleware(never, ToolsSettings(), sockets=never)
        for _ in range(times):
            await guard(foreign_scope(), never, send)

    asyncio.run(knock(200))
    assert 20 == len(warned(caplog))
    clock[0] = 1.0
    asyncio.run(knock(1))
    *_, counted, last = warned(caplog)
    assert 22 == len(warned(caplog))
    assert ("180 lines" in counted, "10.0.0.1 was refused" in last) == (True, True), (counted, last)


async def test_repeated_invalid_handshakes_are_rate_limited_in_the_log(clock, caplog):
    async def knock() -> None:
        async def never(_receive: Any, _send: Any) -> None:
            raise AssertionError

        head = HANDSHAKE.replace(b"Sec-WebSocket-Key", b"X-Key")
        async with served(never, head) as (_server, client):
            await read_until(client, b"HTTP/1.1 400 ")

    for _ in range(22):
        await knock()
    assert 20 == sum("could not be opened" in line for line in warned(caplog))


def test_rejection_log_line_is_escaped_and_bounded(clock, caplog):
    log_rejection("one\n\x1b[2J" + "x" * 5_000)
    (line,) = warned(caplog)
    assert (True, True) == (line.isprintable(), len(line) < 600)
