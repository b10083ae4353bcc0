"""The common interface of both kinds of sessions: refused input, and when events can be read."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.realtime import AudioEvent, ChatSession, ConnectionEvent, IdleEvent, RealtimeSession, TranscriptEvent
from patchbay.testing import ScriptedModel
from patchbay.testing.realtime import FakeOpenAI, Say
from support.realtime_fakes import FakeGLM

from .peers import Peer, served
from .playing import Played, bounded, limits


@asynccontextmanager
async def made(kind: str) -> AsyncIterator[RealtimeSession | ChatSession]:
    """A session that is not connected, whose model answers once."""
    if kind == "offline":
        yield ChatSession(ScriptedModel(["Yes."]))
        return
    with FakeGLM(["Yes."]) as fake:
        yield RealtimeSession("glm/m", url=fake.url, api_key="a-secret-key")
        assert [] == fake.violations
        assert ["Hello?"] == [outcome.text for outcome in fake.heard]


KINDS = pytest.mark.parametrize("kind", ["realtime", "offline"])


@KINDS
async def test_empty_text_is_not_sent_and_interrupts_nothing(kind):
    async with made(kind) as session, session:
        for text in ("", " \n\t", "\u2003", None, b"Hello?"):
            with pytest.raises(InvalidRequestError, match="must be a text, and not empty") as caught:
                await session.send_text(text)
            assert "text" == caught.value.param
        await session.send_text("Hello?")
        kinds = []
        async for event in session.events():
            kinds.append(event.type)
            if isinstance(event, IdleEvent):
                break
        assert "interrupted" not in kinds
        assert "response_end" in kinds


@KINDS
async def test_reading_events_before_connect_is_an_error(kind):
    async with made(kind) as session:
        events = session.events()
        for use in (anext(events), session.send_text("Hello?")):
            with pytest.raises(ConfigurationError, match="not open"):
                await bounded(use)
        reading = asyncio.ensure_future(anext(events))  # it has its first moment when the session connects
        await session.connect()
        assert ConnectionEvent("open") == await bounded(reading)
        await session.send_text("Hello?")
        async for event in events:  # the same reader goes on
            if isinstance(event, IdleEvent):
                break
        await session.close()


@pytest.mark.parametrize("make", [lambda: ChatSession(ScriptedModel([])), lambda: RealtimeSession("glm/m", api_key="k")])
async def test_session_closed_before_connect_has_a_closed_event(make):
    session = make()
    await session.close()
    assert ["closed"] == [event.state async for event in session.events()]


@KINDS
async def test_ended_session_error_does_not_suggest_connecting(kind):
    async with made(kind) as session:
        async with session:
            with pytest.raises(ConfigurationError, match="once"):
                await session.connect()
            await session.send_text("Hello?")
            async for event in session.events():
                if isinstance(event, IdleEvent):
                    break
        await session.close()  # once more, which does nothing
        assert not session.idle
        uses = [session.send_text("x"), session.respond(), session.interrupt()]
        for use in [*uses, session.send_audio(b"xx")] if kind == "realtime" else uses:
            with pytest.raises(ConfigurationError, match=r"not open any more.*make another one") as caught:
                await use
            assert "async with" not in str(caught.value)


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


def test_settings_are_sent_once():
    from patchbay.realtime import RealtimeSettings

    with pytest.raises(ConfigurationError, match="voice"):
        RealtimeSession(RealtimeSettings(model="openai/x"), voice="alloy")
