"""Tool changes reach the model of an open session, and the caller learns when."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.errors import ToolSyncError
from patchbay.realtime import RealtimeSession
from patchbay.testing.realtime import Call, FakeOpenAI, Quote
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from support.realtime_fakes import FakeGemini

from .peers import Peer, served
from .playing import bounded, limits, named, playing, snapshot_of

PROVIDERS = [FakeOpenAI, FakeGemini]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_synced_tool_is_available_to_the_model_on_return(provider):
    async with playing(provider([Call("added"), Quote()]), named("own")) as played:
        manager = LLMSessionManager("ann")
        manager.active = played.session
        await bounded(manager.register_tool_and_sync(named("added")))
        assert {"own", "added"} == set(played.fake.tools)
        assert (1 if played.fake.provider == "gemini" else 0) == played.fake.connections - 1
        await played.session.send_text("Go.")
        await played.until(lambda: "done" in played.text)
        await bounded(manager.unregister_tool_and_sync("added"))
        assert ["own"] == played.fake.tools
        await played.fake.until(lambda: not played.fake.unanswered)


async def test_tools_set_before_the_session_is_open_are_in_it():
    with FakeOpenAI() as fake:
        session = RealtimeSession("openai/m", url=fake.url, api_key="k")
        await session.use_tools(snapshot_of("early"))
        async with session:
            assert ["early"] == fake.tools


@pytest.mark.parametrize("provider", [FakeOpenAI, FakeGemini])
async def test_tool_that_awaits_a_tool_change_ends_and_the_change_is_sent(provider):
    texts: list[str] = []
    manager = LLMSessionManager("ann", retry_delays=(0.05,) * 100)

    async def grow(_arguments: object) -> str:
        try:
            await manager.register_tool_and_sync(named("added"))
        except ToolSyncError as error:
            texts.append(str(error))
        return "grown"

    manager.register_tool(ToolDefinition("grow", handler=grow))
    with provider([Call("grow"), Quote()]) as fake:
        bounds = limits(slow_after=None, update=0.3)
        async with playing(fake, snapshot=manager.snapshot(), limits=bounds) as played:
            manager.active = played.session
            await played.session.send_text("Go.")
            await fake.until(lambda: len(fake.calls) == 1 and "grown" in str(fake.calls[0].results))
            await played.until(lambda: not manager.out_of_sync and set(fake.tools) == {"grow", "added"})
            manager.leave(played.session)
    assert (provider is FakeGemini) == any("something is going on" in each for each in texts)


async def test_cancelled_use_tools_does_not_block_others_that_fail_at_close():
    async with served(Peer.listen, update=20.0) as (played, _):
        waiting = [asyncio.ensure_future(played.session.use_tools(snapshot_of(f"t{number}"))) for number in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await played.session.close()
        ends = await bounded(asyncio.gather(*waiting, return_exceptions=True))
        assert [ToolSyncError, asyncio.CancelledError, ToolSyncError] == [type(each) for each in ends]
