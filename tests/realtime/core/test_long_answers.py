"""An answer that arrives faster than it is read is complete, and an interruption still reaches the reader."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.loop import TextEvent
from patchbay.realtime import (
    AudioEvent,
    ChatSession,
    DroppedEvent,
    IdleEvent,
    InterruptedEvent,
    RealtimeEvent,
    RealtimeSession,
    TranscriptEvent,
)
from patchbay.testing import ScriptedUpstream, Text
from patchbay.testing.realtime import FakeOpenAI, FakeRealtime, Say
from support.realtime_fakes import FakeGemini

from .playing import bounded

WORDS = "".join(f"{number:04d} " for number in range(6_000))
FIVE_MINUTES = bytes(range(250)) * (24_000 * 2 * 300 // 250)


async def read_late(session: RealtimeSession | ChatSession) -> list[RealtimeEvent]:
    """Read one event, and the rest up to the idle event once all have arrived."""
    events, got = session.events(), []
    got.append(await anext(events))
    while not session.idle:
        await asyncio.sleep(0.01)
    async for event in events:
        got.append(event)
        if isinstance(event, IdleEvent):
            break
    return got


@pytest.mark.parametrize("fake", [FakeOpenAI, FakeGemini])
async def test_five_minutes_of_unread_speech_are_complete(fake: type[FakeRealtime]):
    with fake([Say(WORDS, audio=FIVE_MINUTES)]) as server:
        session = RealtimeSession("m", provider=server.provider, url=server.url, api_key="a-secret-key")
        async with session:
            await session.send_text("Go on.")
            got = await read_late(session)
    assert [] == [event for event in got if isinstance(event, DroppedEvent)]
    assert FIVE_MINUTES == b"".join(event.audio for event in got if isinstance(event, AudioEvent))
    spoken = [event for event in got if isinstance(event, TranscriptEvent) and event.role == "assistant"]
    assert WORDS == "".join(event.text for event in spoken if not event.whole)


async def test_long_unread_text_of_a_chat_is_complete():
    with ScriptedUpstream([Text(WORDS)]) as upstream:
        async with ChatSession(f"{upstream.url}#m") as session:
            await session.send_text("Go on.")
            got = await read_late(session)
    assert [] == [event for event in got if isinstance(event, DroppedEvent)]
    assert WORDS == "".join(event.delta for event in got if isinstance(event, TextEvent))


async def test_speech_interrupts_a_long_answer_despite_unread_audio():
    with FakeOpenAI([Say(WORDS, audio=FIVE_MINUTES), "Yes?"]) as fake:
        session = RealtimeSession("m", provider="openai", url=fake.url, api_key="a-secret-key")
        async with session:
            await session.send_text("Go on.")
            events = session.events()
            while not isinstance(await bounded(anext(events)), AudioEvent):  # it reads, and then plays this for a while
                pass
            while not session.idle:
                await asyncio.sleep(0.01)
            unread = session.unread
            await asyncio.to_thread(fake.speak, "No, wait.")
            while session.unread >= unread:  # until the interruption has discarded the unread audio
                await asyncio.sleep(0.01)
            before = []
            while not isinstance(event := await bounded(anext(events)), InterruptedEvent):
                before.append(event)
    assert [] == [event for event in before if isinstance(event, AudioEvent | DroppedEvent)]
