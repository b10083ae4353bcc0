"""Speech of the user and the model, and results that are too long to be sent whole."""

from __future__ import annotations

import asyncio
import base64

import pytest

from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.hooks import HookManager
from patchbay.loop import ToolResultEvent
from patchbay.realtime import AudioEvent, RealtimeSession, TranscriptEvent
from patchbay.testing.realtime import Call, FakeOpenAI, Quote, Say
from patchbay.tools import ToolContext

from .peers import Peer, served
from .playing import Played, bounded, limits, playing


async def test_audio_without_whole_samples_is_rejected_and_not_sent():
    async def conduct(peer: Peer) -> None:
        pass

    async with served(conduct) as (played, peers):
        session = played.session
        for bad in (b"", b"\x01\x02\x03", bytearray(5), "text", None, [1, 2], 4):
            with pytest.raises(InvalidRequestError, match="Audio is 16-bit PCM: a whole number of samples, at least one") as text:
                await session.send_audio(bad)
            assert "audio" == text.value.param
        for good in (b"abcd", bytearray(b"efgh"), memoryview(b"ijkl")):
            await session.send_audio(good)
        await played.until(lambda: 3 == peers[0].kinds().count("input_audio_buffer.append"))
        sent = [each["audio"] for each in peers[0].came if each["type"] == "input_audio_buffer.append"]
        assert [b"abcd", b"efgh", b"ijkl"] == [base64.b64decode(each) for each in sent]


async def test_speech_arrives_as_audio_with_its_transcript():
    with FakeOpenAI([Say("Good morning", audio=b"\x01\x00" * 50, piece=4)]) as fake:
        session = RealtimeSession("openai/gpt-realtime", url=fake.url, api_key="a-secret-key", limits=limits())
        played = Played(session)
        async with session:
            reader = asyncio.ensure_future(played.read())
            await session.send_text("Hello.")
            await played.answers(1)
        await bounded(reader)
        assert (24_000, b"\x01\x00" * 50) == (
            session.input_rate,
            b"".join(each.audio for each in played.of(AudioEvent))[:100],
        )
        pieces = [each.text for each in played.of(TranscriptEvent) if not each.whole]
        assert ["Good", " mor", "ning"] == pieces
        assert ["Good morning"] == [each.text for each in played.of(TranscriptEvent) if each.whole]
        assert [] == fake.violations


async def test_long_result_adds_a_tool_that_reads_it():
    def much() -> str:
        return "x" * 60_000 + "the end" + "y" * 60_000

    script = [Call("much"), Call("read_result", {"result_id": "result_1", "find": "the end"}), Quote(), Call("much"), Quote()]
    async with playing(FakeOpenAI(script), much) as played:
        await played.say("Go.", answers=3)
        assert ["much", "read_result"] == played.fake.tools
        first, second = (each.execution for each in played.of(ToolResultEvent))
        assert len(first.content) < 60_000
        assert "the end" in second.content
        await played.say("Again.", answers=5)
        assert ["much", "read_result"] == played.fake.tools


CONTEXT = {"inbound": {"channel": "session"}}


async def test_every_call_is_recorded_with_its_turn_and_context():
    hooks = HookManager()
    records = []
    hooks.recorders.append(records.append)
    seen = []

    def look(context: ToolContext) -> str:
        seen.append([message.get("content") for message in context.messages])
        return "found"

    with FakeOpenAI([[Call("look"), Call("nobody")], Quote()]) as fake:
        async with playing(
            fake, look, hooks=hooks, agent_id="ann", session_key="s1", context=CONTEXT, limits=limits(flood_calls=1)
        ) as played:
            await played.say("Go.", answers=2)
    assert [("look", "", "ann", "s1"), ("nobody", "rate_limited", "ann", "s1")] == sorted(
        (each.tool, each.code, each.meta.agent_id, each.meta.session_key) for each in records
    )
    assert [CONTEXT] * 2 == [each.context for each in records]
    assert [["Go.", None]] == seen


def test_settings_are_sent_once():
    from patchbay.realtime import RealtimeSettings

    with pytest.raises(ConfigurationError, match="voice"):
        RealtimeSession(RealtimeSettings(model="openai/x"), voice="alloy")
