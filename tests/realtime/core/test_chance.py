"""Whatever a server does, in whatever order: no rule of its wire is broken, each call has one result, and the session comes to rest.

The fakes' own property tests and the suite's long runs use more scripts; these are here so that a change of the core is seen at once.
"""

from __future__ import annotations

import asyncio

import pytest

from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.events import ErrorEvent
from patchbay.testing.realtime import FakeGemini, FakeGLM, FakeOpenAI, FakeQwen, FakeStepFun, random_script

from .playing import Played, answered, connected, limits


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("provider", [FakeOpenAI, FakeQwen, FakeGLM, FakeStepFun, FakeGemini])
async def test_random_scripts_end_with_no_violation_and_nothing_under_way(provider, seed):
    async def get_weather(city: str) -> str:
        await asyncio.sleep(0.01 * (seed % 3))
        return f"sunny in {city}"

    script, faults = random_script(seed, provider=provider)
    slow_after = (None, 0.005, 5.0)[seed // 2]
    with provider(script, faults=faults) as fake:
        bounds = limits(created=1.0, done=1.0, slow_after=slow_after)
        settings = RealtimeSettings(model="m", provider=fake.provider, url=fake.url, api_key="a-secret-key", limits=bounds)
        session = await connected(settings, tools=[get_weather])
        played = Played(session)
        reader = asyncio.ensure_future(played.read())
        for number in range(3):
            await session.send_text(f"Question {number}")
            for _ in range(3):  # what the server does by itself may begin again
                await played.until(lambda: session.idle)
                await asyncio.sleep(0.01)
        await session.close()
        await reader
        await answered(fake)
        assert [] == fake.violations, fake.violations
        assert all(len(call.results) <= 1 for call in fake.calls)
        assert [] == [event for event in played.of(ErrorEvent) if "went wrong here" in str(event.error)]
