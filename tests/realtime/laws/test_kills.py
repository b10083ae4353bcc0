"""A connection killed at any point of a script, with one call and with three: tools continue, and no result is lost."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest

from patchbay.loop import ToolCallEvent, ToolResultEvent
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Quote
from patchbay.testing.realtime.script import Point
from realtime.core.playing import playing
from support.realtime_fakes import FakeGemini, FakeGLM, FakeQwen, FakeStepFun

ALL = [FakeOpenAI, FakeQwen, FakeGLM, FakeStepFun, FakeGemini]
BEFORE_THE_END = ("asked", "created", "deltas", "calls")
"""Points before the end of the response: no tool has run."""


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("point", get_args(Point))
@pytest.mark.parametrize("provider", ALL)
async def test_each_tool_runs_at_most_once_and_no_result_is_lost_at_any_kill(provider, point, count):
    ran: list[str] = []

    async def pay(to: str) -> str:
        await asyncio.sleep(0)
        ran.append(to)
        return f"receipt of {to}"

    calls = tuple(Call("pay", {"to": f"payee {number}"}) for number in range(count))
    async with playing(provider([Answer(calls, kill=point), Quote(), Quote()]), pay) as played:
        await played.session.send_text("Pay them.")
        await played.until(lambda: "open" in played.states[1:])
        await played.until(lambda: "was told" in played.text)
        await played.idle()
        assert ran or "Pay them." in played.text
    assert len(ran) == len(set(ran))
    # Gemini tells its calls as soon as it makes them: there they begin before the end.
    if point in BEFORE_THE_END and played.fake.provider != "gemini":
        assert [] == ran
    assert len(played.of(ToolCallEvent)) == len(played.of(ToolResultEvent)) == len(ran)
    outcome = " ".join(each.text for each in played.fake.heard)
    assert [] == [name for name in ran if f"receipt of {name}" not in outcome]
    assert all(len(call.results) <= 1 for call in played.fake.calls)
