"""A lost connection: another is opened, tools continue, and each result is sent once."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.errors import ConfigurationError
from patchbay.realtime import RealtimeSession, RealtimeSettings
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Faults, Quote, Say
from support.realtime_fakes import FakeGLM

from .playing import Played, limits, playing


@pytest.mark.parametrize("provider", [FakeOpenAI, FakeGLM])
async def test_new_connection_gets_finished_results_and_running_calls(provider):
    may_end = asyncio.Event()

    async def quick(name: str) -> str:
        return f"the result of {name}"

    async def slow() -> str:
        await may_end.wait()
        return "forty-two"

    script = [
        Answer((Call("quick", {"name": "one"}), Call("slow"), Call("quick", {"name": "two"})), kill="running"),
        Say("Two are there."),
        Say("That was all."),
    ]
    async with playing(provider(script), quick, slow) as played:
        await played.say("What is the answer?", answers=2)
        assert ["open", "lost", "open"] == played.states
        may_end.set()
        await played.answers(3)
        await played.idle()
    asked = [frame["type"] for connection, frame in played.fake.frames if connection == 2].count("response.create")
    outcome = [(each.kind, each.text) for each in played.fake.heard if each.connection == 2]
    assert 2 == asked  # once for the two that were there
    assert [
        ("user", "What is the answer?"),
        ("user", '[The tool quick returned] "the result of one"'),
        ("user", '[The tool quick returned] "the result of two"'),
        ("user", '[The tool slow returned] "forty-two"'),
    ] == outcome


@pytest.mark.parametrize("reconnects", [0, 2])
async def test_server_that_stays_unavailable_ends_the_session(reconnects):
    async with playing(FakeOpenAI(), limits=limits(reconnects=reconnects)) as played:
        played.fake.faults = Faults(refuse=1000)
        played.fake.drop()
        await played.until(lambda: "closed" in played.states)
        assert not played.session.is_open
        with pytest.raises(ConfigurationError, match="not open"):
            await played.session.send_text("Hello?")
    assert 1 + reconnects == played.fake.attempts


def session_at(url: str, **fields: object) -> RealtimeSession:
    from patchbay.realtime.providers.event_providers import OpenAIDialect

    return RealtimeSession(RealtimeSettings(model="m", url=url, **{"api_key": "a-secret-key", **fields}), dialect=OpenAIDialect)


async def test_text_with_lone_surrogates_is_sent_and_the_session_continues():
    def odd() -> str:
        return "odd \ud800 result"

    script = [Quote("1: "), Quote("2: "), Call("odd"), Quote("3: ")]
    async with playing(FakeOpenAI(script), odd, settings={"instructions": "Be \udfff kind."}) as played:
        await played.session.send_text("half \ud800 a character")
        await played.until(lambda: "half" in played.text)
        played.fake.drop()
        await played.reconnected()
        await played.session.send_text("Go on.")
        await played.until(lambda: "2: " in played.text)
        await played.session.send_text("Go.")
        await played.until(lambda: "odd" in played.text)


async def test_failed_history_replay_closes_the_session():
    from patchbay.realtime.providers.event_providers import OpenAIDialect

    class Forgetful(OpenAIDialect):
        def history_frames(self, opening):
            raise ValueError("It is all gone.")

    with FakeOpenAI([Say("Hello.")]) as fake:
        session = RealtimeSession("m", url=fake.url, api_key="a-secret-key", output="text", limits=limits(), dialect=Forgetful)
        played = Played(session)
        async with session:
            reader = asyncio.ensure_future(played.read())
            await session.send_text("Hello?")
            await played.answers(1)
            fake.drop()
            await reader
        assert "closed" == played.states[-1]
