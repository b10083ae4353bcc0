"""That nothing is under way any more is told: once, behind all else, and never while an answer is owed."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.realtime.events import ConnectionEvent, IdleEvent, TranscriptEvent
from patchbay.testing.realtime import Answer, Call, FakeGemini, FakeGLM, FakeOpenAI, FakeQwen, FakeStepFun, Quote, Say

from .peers import Peer, content, created, done, says, served
from .playing import Held, Played, limits, playing

PROVIDERS = [FakeOpenAI, FakeQwen, FakeGLM, FakeStepFun, FakeGemini]


async def told(played: Played, times: int = 1) -> list[str]:
    """Wait until it was told so often; return what was, from the opening on."""
    await played.until(lambda: len(played.of(IdleEvent)) >= times)
    for _ in range(5):  # what is told in the same moment
        await asyncio.sleep(0)
    assert times == len(played.of(IdleEvent))
    return [event.type for event in played.events[1:]]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_it_is_told_once_behind_all_that_belongs_to_a_turn_and_not_when_the_session_is_opened(provider):
    async def look() -> str:
        assert not session_of[0].idle
        return "found"

    session_of = []
    with provider([[Call("look"), Call("look")], Call("look"), Quote(), "Again."]) as fake:
        async with playing(fake, look) as played:
            session_of.append(played.session)
            await played.until(lambda: bool(played.of(ConnectionEvent)))
            assert [ConnectionEvent("open")] == played.events
            await played.session.send_text("Go.")
            assert ("idle", 1, 3) == (
                (kinds := await told(played))[-1],
                kinds.count("idle"),
                kinds.count("tool_result"),
            )
            assert played.session.idle
            await played.session.send_text("Again?")
            assert "idle" == (await told(played, 2))[-1]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_it_is_told_behind_an_interruption_also_where_nothing_was_under_way(provider):
    with provider(["Never mind.", Answer((Say("Long."),), late=0.05)]) as fake:
        async with playing(fake) as played:
            await played.session.interrupt()
            assert ["interrupted", "idle"] == await told(played)
            await played.session.send_text("Go.")
            await played.session.interrupt()
            kinds = await told(played, 2)
            assert "idle" == kinds[-1]
            assert "text" not in kinds


async def test_it_is_told_behind_what_became_of_a_tool_that_was_told_as_running():
    held = Held("the end")
    with FakeOpenAI([Call("slow"), "I am at it.", Quote()]) as fake:
        async with playing(fake, held.slow, limits=limits(slow_after=0.01)) as played:
            await played.session.send_text("Go.")
            await played.until(lambda: [event.type for event in played.events].count("response_end") == 2)
            assert [] == played.of(IdleEvent)
            held.may_end.set()
            kinds = await told(played)
            assert ("idle", 3) == (kinds[-1], kinds.count("response_end"))


async def test_a_connection_that_is_lost_while_nothing_is_under_way_is_no_reason_to_tell_it():
    with FakeOpenAI(["Hello."]) as fake:
        async with playing(fake) as played:
            await asyncio.to_thread(fake.drop)
            await played.until(lambda: played.states == ["open", "lost", "open"])
            await played.session.send_text("Go.")
            await told(played)


async def test_while_a_text_waits_for_the_next_connection_it_is_not_told():
    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await peer.until("response.create")
            peer.kill()
            return
        await peer.until("response.create")
        await peer.send(created("r"), says("r", "Here."), done("r"))

    async with served(conduct) as (played, _):
        await played.session.send_text("Go.")
        assert ["connection", "connection", "text", "response_end", "idle"] == await told(played)


async def test_what_a_server_hears_and_does_not_answer_is_followed_by_it_too():
    async def conduct(peer: Peer) -> None:
        await peer.send(content(inputTranscription={"text": "Hm."}))

    async with served(conduct, provider="gemini", done=0.05) as (played, _):
        assert ["transcript", "idle"] == await told(played)
        assert ["Hm."] == [each.text for each in played.of(TranscriptEvent)]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("is_begun", [True, False])
async def test_the_program_that_interrupts_a_tool_hears_nothing_before_it_goes_on(provider, is_begun):
    """Gemini answers by itself to the result that the call has been given up."""
    held = Held()
    with provider([Answer((Call("slow"),), late=0.02), Say("Unasked."), Say("Asked.")]) as fake:
        async with playing(fake, held.slow) as played:
            await played.session.send_text("Go.")
            if is_begun:
                await held.began.wait()
            await played.session.interrupt()
            assert "idle" == (await told(played))[-1]
            await fake.until(lambda: not fake.unanswered)
            assert "" == played.text
            await played.session.send_text("And now?")
            await told(played, 2)
            assert "sked." in played.text


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_program_that_interrupts_a_tool_and_goes_on_at_once_is_answered(provider):
    held = Held()
    with provider([Call("slow"), Quote(), Quote()]) as fake:
        async with playing(fake, held.slow) as played:
            await played.session.send_text("Go.")
            await held.began.wait()
            await played.session.interrupt()
            await played.session.send_text("And now?")
            await played.until(lambda: "And now?" in played.text)
            await played.idle()
