"""Results that are unsent when a session ends are dropped, each with an event."""

from __future__ import annotations

import asyncio

from patchbay.loop import ToolResultEvent
from patchbay.realtime import ConnectionEvent, DroppedEvent, InterruptedEvent
from patchbay.testing.realtime import Call, FakeOpenAI, Quote

from .peers import Peer, created, done, served, text_delta
from .playing import Played, SlowTool, playing


def quick() -> str:
    return "at once"


async def slow() -> None:
    await asyncio.sleep(30)


def dropped(played: Played) -> list[tuple[str, str]]:
    """List the tools of dropped results; their events precede the end."""
    assert isinstance(played.events[-1], ConnectionEvent)
    outcome = [(each.call_id, each.tool) for each in played.of(DroppedEvent) if each.what == "result"]
    assert outcome == [(each.call.id, each.call.name) for each in played.session.dropped]
    return [(each.call.name, each.content) for each in played.session.dropped]


async def test_text_waiting_for_silence_is_dropped_at_the_end_of_a_session():
    async def conduct(peer: Peer) -> None:
        await peer.until("response.create")
        await peer.send(created("r1"), done("r1", "completed", "slow"))
        await peer.until("response.create")
        await peer.send(created("r2"), text_delta("r2", "Wait."), done("r2"))
        await peer.send({"type": "input_audio_buffer.speech_started"})

    held = SlowTool()
    async with served(conduct, held.slow, slow_after=0.01) as (played, peers):
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(InterruptedEvent)))
        held.may_end.set()
        await played.until(lambda: bool(played.of(ToolResultEvent)))
        assert () == played.session.dropped
    assert [("slow", "forty-two")] == dropped(played)
    assert ["Go."] == peers[0].lines()


async def test_result_waiting_for_a_sibling_call_is_dropped_at_the_end_of_a_session():
    async with playing(FakeOpenAI([[Call("quick"), Call("slow")], Quote()]), quick, slow) as played:
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(ToolResultEvent)))
    first, second = dropped(played)
    assert ("quick", "at once") == first
    assert "slow" == second[0]  # ended with the session, and dropped then


async def test_sent_results_are_not_reported_as_dropped_at_the_end():
    async with playing(FakeOpenAI([Call("quick"), Quote()]), quick) as played:
        await played.session.send_text("Go.")
        await played.until(lambda: "at once" in played.text)
    assert [] == dropped(played)
