"""A connection killed at any point of a script, with one call and with three: tools continue, and no result is lost."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest

from patchbay.loop import TextEvent, ToolCallEvent, ToolResultEvent
from patchbay.realtime import ErrorEvent
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Quote
from patchbay.testing.realtime.script import Point
from realtime.core.playing import Played, SlowTool, playing
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


async def all_received(played: Played) -> None:
    """Wait until the session has read all that its server has sent: an error behind it is an event."""
    played.fake.send({"error": {"message": "marker"}})
    await played.until(lambda: any("marker" in str(each.error) for each in played.of(ErrorEvent)))


@pytest.mark.parametrize("knows", [True, False])
async def test_gemini_gets_the_result_of_a_call_lost_with_its_connection(knows):
    held = SlowTool()
    async with playing(FakeGemini(["Hello.", Call("slow"), Quote()], resumes_calls=knows), held.slow) as played:
        await played.session.send_text("Hello?")
        await played.until(lambda: bool(played.of(TextEvent)))
        await played.idle()
        await played.session.send_text("What is the answer?")
        await held.began.wait()
        if knows:  # a handle behind the call
            await played.fake.until(lambda: len(played.fake.handles) == 3)
        await all_received(played)
        played.fake.drop()
        await played.reconnected()
        held.may_end.set()
        await played.until(lambda: "forty-two" in played.text)
    assert int(knows) == played.fake.resumed == len(played.fake.calls[0].results)


async def test_handle_from_before_a_call_is_not_used_while_its_result_is_owed():
    """Google's documentation: what came after a handle is lost for who resumes with it."""
    held = SlowTool()
    with FakeGemini(["Hello.", Answer((Call("slow"),), kill="calls"), Quote()], resumes_calls=False) as fake:
        async with playing(fake, held.slow) as played:
            await played.session.send_text("Hello?")
            await played.until(lambda: bool(played.of(TextEvent)))
            await played.idle()
            await played.session.send_text("What is the answer?")
            await held.began.wait()
            await played.reconnected()
            held.may_end.set()
            await played.until(lambda: "forty-two" in played.text)
        assert (0, []) == (fake.resumed, fake.calls[0].results)


async def test_revoked_handle_is_forgotten():
    async with playing(FakeGemini(["Hello.", Quote()])) as played:
        await played.session.send_text("Hello?")
        await played.until(lambda: bool(played.of(TextEvent)) and played.session.idle)
        await played.fake.until(lambda: len(played.fake.handles) == 2)
        played.fake.send({"sessionResumptionUpdate": {"resumable": False}})
        await all_received(played)
        played.fake.drop()
        await played.reconnected()
        await played.session.send_text("Again?")
        await played.until(lambda: "Again?" in played.text)
    assert 0 == played.fake.resumed
    assert {} == played.fake.sessions[-1]["sessionResumption"]
