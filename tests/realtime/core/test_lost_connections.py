"""A lost connection: another is opened, tools continue, and each result is sent once."""

from __future__ import annotations

import asyncio

from patchbay.realtime import RealtimeSession
from patchbay.testing.realtime import Call, FakeOpenAI, Quote, Say

from .playing import Played, limits, playing


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
