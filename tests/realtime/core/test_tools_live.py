"""Tool changes reach the model of an open session, and the caller learns when."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.errors import ToolSyncError
from patchbay.loop import TextEvent, ToolCallEvent
from patchbay.realtime import RealtimeSession, ResponseEndEvent
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Faults, Pause, Quote, Say
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from support.realtime_fakes import FakeGemini

from .peers import Peer, change, open_session, rejected_execution, serving, updated
from .playing import SlowTool, bounded, limits, named, playing, snapshot_of

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


async def test_tool_change_waits_for_the_response_under_way():
    async with playing(FakeOpenAI([Answer((Say("One"), Pause(0.2), Say(" moment.")))])) as played:
        manager = LLMSessionManager("ann")
        manager.active = played.session
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(TextEvent)))
        await bounded(manager.register_tool_and_sync(named("added")))
        assert ["completed"] == [each.status for each in played.of(ResponseEndEvent)]
        assert ["added"] == played.fake.tools


async def test_tool_can_change_tools_during_its_run():
    may_end = asyncio.Event()
    manager = LLMSessionManager("ann")

    async def slow(_arguments: object) -> str:
        await may_end.wait()
        return "slow is done"

    async def swap(_arguments: object) -> str:
        await manager.unregister_tool_and_sync("slow")
        await manager.register_tool_and_sync(named("added"))
        may_end.set()
        return "swapped"

    manager.register_tool(ToolDefinition("slow", handler=slow))
    manager.register_tool(ToolDefinition("swap", handler=swap))
    with FakeOpenAI([[Call("slow"), Call("swap")], Call("added"), Call("slow"), Quote()]) as fake:
        async with playing(fake, snapshot=manager.snapshot()) as played:
            manager.active = played.session
            await played.say("Go.", answers=4)
        results = [call.results[0] for call in fake.calls]
        assert ["slow is done", "swapped", "done"] == results[:3]
        assert "no tool 'slow'" in results[3]
        assert {"swap", "added"} == set(fake.tools)


@pytest.mark.parametrize(("fate", "words"), [("refuse", "refused"), ("silent", "did not confirm")])
async def test_rejected_or_unconfirmed_tool_change_is_an_error_and_the_retry_sends_it(fate, words):
    with FakeOpenAI(faults=Faults(updates=("ok", fate))) as fake:
        async with playing(fake, limits=limits(update=0.1 if fate == "silent" else 20.0)) as played:
            manager = LLMSessionManager("ann", retry_delays=(0.01, 0.05))
            manager.active = played.session
            with pytest.raises(ToolSyncError, match=words):
                await bounded(manager.register_tool_and_sync(named("added")))
            await played.until(lambda: not manager.out_of_sync)
            assert ["added"] == fake.tools


async def test_tool_change_without_a_connection_is_sent_with_the_next():
    async with playing(FakeOpenAI()) as played:
        manager = LLMSessionManager("ann")
        manager.active = played.session
        played.fake.drop()
        await played.until(lambda: "lost" in played.states)
        await bounded(manager.register_tool_and_sync(named("added")))
        assert ["added"] == played.fake.tools


async def test_concurrent_tool_changes_are_coalesced_and_the_last_wins():
    async with playing(FakeOpenAI()) as played:
        await asyncio.gather(*(change(played, f"t{number}") for number in range(20)))
        assert ["t19"] == played.fake.tools
        assert len(played.fake.sessions) <= 4


async def test_gemini_tools_change_only_without_running_calls():
    held = SlowTool("slow is done")
    async with playing(FakeGemini([Call("slow"), Quote()]), held.slow) as played:
        manager = LLMSessionManager("ann")
        manager.active = played.session
        await played.session.send_text("Go.")
        await held.began.wait()
        syncing = asyncio.ensure_future(manager.register_tool_and_sync(named("added")))
        await asyncio.sleep(0)
        assert 1 == played.fake.connections
        held.may_end.set()
        await bounded(syncing)
        assert {"slow", "added"} == set(played.fake.tools)
        assert 1 == len(played.of(ToolCallEvent))
    assert 1 == len(played.fake.calls[0].results)


async def picky(peer: Peer) -> None:
    """Refuse the tool ``odd`` by its index, and confirm all others."""
    await peer.send({"type": "session.created"})
    while True:
        update = await peer.until("session.update")
        names = [tool["name"] for tool in update["session"]["tools"]]
        if "odd" in names:
            await peer.send(rejected_execution(update, "No such schema.", f"session.tools[{names.index('odd')}].parameters"))
        else:
            await peer.send(updated(*names))


async def test_tool_refused_by_its_index_is_left_out_alone_and_named():
    tools = ["first", "odd", "last"]
    async with serving(picky) as (url, peers), open_session(url, named("own"), snapshot=snapshot_of(*tools)) as played:
        assert ["own", "first", "last"] == peers[0].tools()[-1]  # refused at the opening
        await change(played, *tools, error="odd: No such schema")
        await change(played, *tools, "added", error="odd")
        assert ["own", "first", "last", "added"] == peers[0].tools()[-1]


async def test_index_of_a_refused_tool_is_that_among_the_tools_that_were_sent():
    async with serving(picky) as (url, peers), open_session(url) as played:
        first = asyncio.ensure_future(change(played, "odd", "last", error="refused"))
        await asyncio.sleep(0)  # it is on its way
        await change(played, "good", "last")
        await first
        assert ["good", "last"] == peers[0].tools()[-1]
