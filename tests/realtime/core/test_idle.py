"""The idle event: once, after all others, and never while an answer is due."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.realtime import ConnectionEvent, IdleEvent, TranscriptEvent
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Quote, Say
from support.realtime_fakes import FakeGemini

from .peers import Peer, content, created, done, served, text_delta
from .playing import Played, SlowTool, limits, playing

PROVIDERS = [FakeOpenAI, FakeGemini]


async def event_kinds(played: Played, times: int = 1) -> list[str]:
    """Wait for ``times`` idle events; return the kinds of all events since the opening."""
    await played.until(lambda: len(played.of(IdleEvent)) >= times)
    for _ in range(5):  # events of the same tick
        await asyncio.sleep(0)
    assert times == len(played.of(IdleEvent))
    return [event.type for event in played.events[1:]]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_idle_event_comes_once_after_each_turn_and_not_at_open(provider):
    async def look() -> str:
        assert not session_of[0].idle
        return "found"

    session_of = []
    async with playing(provider([[Call("look"), Call("look")], Call("look"), Quote(), "Again."]), look) as played:
        session_of.append(played.session)
        await played.until(lambda: bool(played.of(ConnectionEvent)))
        assert [ConnectionEvent("open")] == played.events
        await played.session.send_text("Go.")
        assert ("idle", 1, 3) == (
            (kinds := await event_kinds(played))[-1],
            kinds.count("idle"),
            kinds.count("tool_result"),
        )
        assert played.session.idle
        await played.session.send_text("Again?")
        assert "idle" == (await event_kinds(played, 2))[-1]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_idle_event_follows_an_interruption_even_without_a_response(provider):
    async with playing(provider(["Never mind.", Answer((Say("Long."),), late=0.05)])) as played:
        await played.session.interrupt()
        assert ["interrupted", "idle"] == await event_kinds(played)
        await played.session.send_text("Go.")
        await played.session.interrupt()
        kinds = await event_kinds(played, 2)
        assert "idle" == kinds[-1]
        assert "text" not in kinds


async def test_idle_event_follows_the_late_result_of_a_slow_tool():
    held = SlowTool("the end")
    async with playing(FakeOpenAI([Call("slow"), "I am at it.", Quote()]), held.slow, limits=limits(slow_after=0.01)) as played:
        await played.session.send_text("Go.")
        await played.until(lambda: [event.type for event in played.events].count("response_end") == 2)
        assert [] == played.of(IdleEvent)
        held.may_end.set()
        kinds = await event_kinds(played)
        assert ("idle", 3) == (kinds[-1], kinds.count("response_end"))


async def test_connection_loss_while_idle_emits_no_idle_event():
    async with playing(FakeOpenAI(["Hello."])) as played:
        await asyncio.to_thread(played.fake.drop)
        await played.reconnected()
        await played.session.send_text("Go.")
        await event_kinds(played)


async def test_no_idle_event_while_a_text_awaits_reconnection():
    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await peer.until("response.create")
            peer.kill()
            return
        await peer.until("response.create")
        await peer.send(created("r"), text_delta("r", "Here."), done("r"))

    async with served(conduct) as (played, _):
        await played.session.send_text("Go.")
        assert ["connection", "connection", "text", "response_end", "idle"] == await event_kinds(played)


async def test_unanswered_speech_is_requested_from_the_server():
    async def conduct(peer: Peer) -> None:
        await peer.send(content(inputTranscription={"text": "Hm."}))

    async with served(conduct, provider="gemini", done=0.05) as (played, _):
        assert ["transcript", "idle"] == await event_kinds(played)
        assert ["Hm."] == [each.text for each in played.of(TranscriptEvent)]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("is_begun", [True, False])
async def test_program_interruption_of_a_tool_requests_no_response(provider, is_begun):
    """Gemini answers the result of an abandoned call unprompted."""
    held = SlowTool()
    async with playing(provider([Answer((Call("slow"),), late=0.02), Say("Unasked."), Say("Asked.")]), held.slow) as played:
        await played.session.send_text("Go.")
        if is_begun:
            await held.began.wait()
        await played.session.interrupt()
        assert "idle" == (await event_kinds(played))[-1]
        await played.fake.until(lambda: not played.fake.unanswered)
        assert "" == played.text
        await played.session.send_text("And now?")
        await event_kinds(played, 2)
        assert "sked." in played.text
