"""Fixtures of the realtime tests."""

from __future__ import annotations

import asyncio

import pytest

from executor.virtual_time import ManualClockLoop


@pytest.fixture
def manual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an ``async def`` test in a loop whose clock ``later`` moves on: no limit passes because the machine is busy."""

    def run(main):
        with asyncio.Runner(loop_factory=ManualClockLoop) as runner:
            return runner.run(main)

    monkeypatch.setattr(asyncio, "run", run)
