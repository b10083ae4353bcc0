"""Tool changes whose confirmation is lost, duplicated, or names other tools: the sync state recovers."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.errors import ToolSyncError
from patchbay.realtime.events import ErrorEvent
from patchbay.testing.realtime import FakeGLM, FakeOpenAI, FakeQwen, FakeStepFun, Faults
from patchbay.tools.manager import LLMSessionManager

from .peers import Peer, open_session, rejected_execution, serving
from .playing import Played, bounded, limits, named, playing, snapshot_of

EVENTS = [FakeOpenAI, FakeQwen, FakeGLM, FakeStepFun]
LONG = 20.0


def updated(*names: str) -> dict:
    """That the session has these tools."""
    return {"type": "session.updated", "session": {"tools": [{"type": "function", "name": name} for name in names]}}


def managing(played: Played) -> LLMSessionManager:
    """A manager that does not try again by itself."""
    manager = LLMSessionManager("ann", retry_delays=())
    manager.active = played.session
    return manager


def without_timeouts(played: Played) -> None:
    """Have nothing fail any more because it takes too long."""
    played.session._engine.tool_sync._seconds = LONG


async def opened(peer: Peer, *names: str) -> None:
    await peer.send({"type": "session.created"})
    await peer.until("session.update")
    await peer.send(updated(*names))


# Another connection


@pytest.mark.parametrize("provider", EVENTS)
async def test_unconfirmed_tools_are_sent_on_reconnect_and_marked_in_sync(provider):
    with provider(faults=Faults(updates=("ok", "silent"))) as fake:
        async with playing(fake, limits=limits(update=0.1)) as played:
            manager = managing(played)
            with pytest.raises(ToolSyncError, match="did not confirm"):
                await bounded(manager.register_tool_and_sync(named("added")))
            assert [*manager.out_of_sync] == ["active"]
            fake.drop()
            await played.until(lambda: played.states == ["open", "lost", "open"])
            assert ["added"] == fake.tools
            assert {} == manager.out_of_sync
            assert played.session.is_synced


async def test_gemini_session_is_in_sync_after_a_reconnect():
    async def handle(peer: Peer) -> None:
        await peer.open()
        if peer.number == 1:
            await peer.until("clientContent")
            await peer.send({"serverContent": {"modelTurn": {"parts": [{"text": "Well"}]}}})  # and nothing more
        await peer.listen()

    async with serving(handle) as (url, peers), open_session(url, provider="gemini", update=0.1) as played:
        manager = managing(played)
        await played.session.send_text("Hello?")
        await played.until(lambda: not played.session.idle)
        with pytest.raises(ToolSyncError, match="takes tools only when a connection begins"):
            await bounded(manager.register_tool_and_sync(named("added")))
        assert [*manager.out_of_sync] == ["active"]
        peers[0].kill()
        await played.until(lambda: played.states == ["open", "lost", "open"])
        assert {} == manager.out_of_sync


async def test_rejected_tools_stay_out_of_sync_after_a_reconnect():
    async def handle(peer: Peer) -> None:
        await opened(peer)
        await peer.send(rejected_execution(await peer.until("session.update"), "No such tools."))
        await peer.listen()

    async with serving(handle) as (url, peers), open_session(url) as played:
        manager = managing(played)
        with pytest.raises(ToolSyncError, match=r"No such tools\."):
            await bounded(manager.register_tool_and_sync(named("added")))
        peers[0].kill()
        await played.until(lambda: played.states == ["open", "lost", "open"])
        assert [[]] == peers[1].tools()
        assert "No such tools." in manager.out_of_sync["active"]


async def test_session_with_one_rejected_tool_stays_out_of_sync_after_a_reconnect():
    async def handle(peer: Peer) -> None:
        await opened(peer)
        await peer.send(rejected_execution(await peer.until("session.update"), "No such schema.", "session.tools[0].parameters"))
        await peer.until("session.update")
        await peer.send(updated())
        await peer.listen()

    async with serving(handle) as (url, peers), open_session(url, update=LONG) as played:
        manager = managing(played)
        with pytest.raises(ToolSyncError, match="does not take odd"):
            await bounded(manager.register_tool_and_sync(named("odd")))
        assert not played.session.is_synced
        peers[0].kill()
        await played.until(lambda: played.states == ["open", "lost", "open"])
        assert "does not take odd" in manager.out_of_sync["active"]


async def test_closed_session_is_out_of_sync():
    with FakeOpenAI() as fake:
        async with playing(fake) as played:
            manager = managing(played)
            await bounded(manager.register_tool_and_sync(named("added")))
        assert {} == manager.out_of_sync
        with pytest.raises(ToolSyncError, match="closed"):
            await bounded(manager.register_tool_and_sync(named("more")))
        assert "closed" in manager.out_of_sync["active"]


# A confirmation that is lost


@pytest.mark.parametrize("provider", EVENTS)
async def test_after_a_confirmation_was_lost_the_next_change_is_confirmed_by_its_own(provider):
    with provider(faults=Faults(updates=("ok", "silent"))) as fake:
        async with playing(fake, limits=limits(update=0.1)) as played:
            with pytest.raises(ToolSyncError, match="did not confirm"):
                await bounded(played.session.use_tools(snapshot_of("one")))
            without_timeouts(played)
            await bounded(played.session.use_tools(snapshot_of("one", "two")))
            await bounded(played.session.use_tools(snapshot_of("three")))
            assert ["three"] == fake.tools


async def test_tools_sent_twice_and_confirmed_once_do_not_block_the_next_change():
    with FakeOpenAI(faults=Faults(updates=("ok", "silent"))) as fake:
        async with playing(fake, limits=limits(update=0.1)) as played:
            with pytest.raises(ToolSyncError, match="did not confirm"):
                await bounded(played.session.use_tools(snapshot_of("one")))
            without_timeouts(played)
            await bounded(played.session.use_tools(snapshot_of("one")))
            await bounded(played.session.use_tools(snapshot_of("two")))
            assert ["two"] == fake.tools


async def test_removed_tools_are_removed_from_a_server_that_did_not_confirm_them():
    async def handle(peer: Peer) -> None:
        await opened(peer)
        await peer.until("session.update")  # which it takes, and its confirmation is lost
        await peer.until("session.update")
        told.set()
        await peer.send(updated())
        await peer.listen()

    told = asyncio.Event()
    async with serving(handle) as (url, peers), open_session(url, update=0.1) as played:
        with pytest.raises(ToolSyncError, match="did not confirm"):
            await bounded(played.session.use_tools(snapshot_of("added")))
        without_timeouts(played)
        await bounded(played.session.use_tools(snapshot_of()))
        await bounded(told.wait())
        await bounded(played.session.use_tools(snapshot_of()))  # it is known by now
        assert [[], ["added"], []] == peers[0].tools()


# Duplicate confirmations and rejections


async def test_second_confirmation_is_not_attributed_to_the_next_change():
    async def handle(peer: Peer) -> None:
        await opened(peer)
        await peer.until("session.update")
        await peer.send(updated("one"))
        await peer.until("session.update")
        await peer.send(updated("one"), rejected_execution({}, "Not these."))  # which names no event
        await peer.until("session.update")
        await peer.send(updated("two", "one"))
        await peer.listen()

    async with serving(handle) as (url, peers), open_session(url, update=LONG) as played:
        await bounded(played.session.use_tools(snapshot_of("one")))
        with pytest.raises(ToolSyncError, match=r"Not these\."):
            await bounded(played.session.use_tools(snapshot_of("one", "two")))
        assert not played.session.is_synced
        await bounded(played.session.use_tools(snapshot_of("one", "two")))
        assert [[], ["one"], ["one", "two"], ["one", "two"]] == peers[0].tools()


async def test_change_refused_after_an_assumed_confirmation_is_sent_again():
    async def handle(peer: Peer) -> None:
        await peer.open()
        await peer.until("session.update")
        await peer.send({"type": "session.updated"})
        second = await peer.until("session.update")
        await peer.send({"type": "session.updated"})  # the first one's again: it does not say of which tools
        await may_go_on.wait()
        await peer.send(rejected_execution(second, "Too busy."))
        await may_take.wait()
        await peer.until("session.update")
        await peer.send({"type": "session.updated"})
        await peer.listen()

    may_go_on, may_take = asyncio.Event(), asyncio.Event()
    async with serving(handle) as (url, peers), open_session(url, update=LONG) as played:
        manager = managing(played)
        await bounded(manager.register_tool_and_sync(named("one")))
        await bounded(manager.register_tool_and_sync(named("two")))
        assert {} == manager.out_of_sync  # the best available knowledge
        may_go_on.set()
        await played.until(lambda: bool(manager.out_of_sync))
        await played.until(lambda: ["Too busy." in str(each.error) for each in played.of(ErrorEvent)] == [True])
        may_take.set()
        await played.until(lambda: not manager.out_of_sync)
        assert [[], ["one"], ["one", "two"], ["one", "two"]] == peers[0].tools()


async def test_server_that_confirms_and_rejects_tools_is_not_retried_forever():
    async def handle(peer: Peer) -> None:
        await peer.open()
        while True:
            update = await peer.until("session.update")
            await peer.send({"type": "session.updated"}, rejected_execution(update, "And yet no."))

    async with serving(handle) as (url, peers), open_session(url, update=LONG, reconnects=2) as played:
        manager = managing(played)
        await bounded(manager.register_tool_and_sync(named("one")))
        await played.until(lambda: len(played.of(ErrorEvent)) == 2)
        assert {"active": "its model's server has not accepted them"} == manager.out_of_sync
        assert [[], ["one"], ["one"]] == peers[0].tools()
        peers[0].kill()
        await played.until(lambda: played.states == ["open", "lost", "open"])
        assert [[]] == peers[1].tools()


async def test_duplicate_rejection_does_not_fail_the_next_change():
    async def handle(peer: Peer) -> None:
        await opened(peer)
        first = await peer.until("session.update")
        await peer.send(rejected_execution(first, "Not these."))
        await peer.until("session.update")
        await peer.send(rejected_execution(first, "Not these."), updated("two"))
        await peer.listen()

    async with serving(handle) as (url, _peers), open_session(url, update=LONG) as played:
        with pytest.raises(ToolSyncError, match=r"Not these\."):
            await bounded(played.session.use_tools(snapshot_of("one")))
        await bounded(played.session.use_tools(snapshot_of("two")))
        assert [] == played.of(ErrorEvent)


# What a server says of the tools that it has


async def test_of_changes_with_the_same_names_the_first_is_confirmed_first():
    async def handle(peer: Peer) -> None:
        await opened(peer)
        await peer.until("session.update")
        await peer.until("session.update")
        await peer.send(updated("one"), rejected_execution({}, "Not in these words."))
        await peer.listen()

    async with serving(handle) as (url, peers), open_session(url, update=0.1) as played:
        with pytest.raises(ToolSyncError, match="did not confirm"):
            await bounded(played.session.use_tools(snapshot_of(named("one", "in these words"))))
        without_timeouts(played)
        with pytest.raises(ToolSyncError, match=r"Not in these words\."):
            await bounded(played.session.use_tools(snapshot_of(named("one", "in others"))))
        await bounded(played.session.use_tools(snapshot_of(named("one", "in these words"))))  # which it has
        assert 3 == len(peers[0].tools())


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(lambda names: updated(*reversed(names)), id="in another order"),
        pytest.param(lambda names: updated(*names[1:]), id="but the first"),
        pytest.param(lambda names: updated(*names, "its_own"), id="and one of its own"),
        pytest.param(lambda _names: {"type": "session.updated", "session": {"tools": None}}, id="none"),
        pytest.param(lambda _names: {"type": "session.updated", "session": {"tools": [7, {"name": []}, {}]}}, id="odd"),
    ],
)
async def test_a_server_that_names_its_tools_otherwise_is_understood_as_one_that_does_not_name_them(says):
    async def handle(peer: Peer) -> None:
        await peer.open()
        while True:
            update = await peer.until("session.update")
            await peer.send(says([tool["name"] for tool in update["session"]["tools"]]))

    async with serving(handle) as (url, peers), open_session(url, snapshot=snapshot_of("zero"), update=LONG) as played:
        for names in (["one", "two"], ["one", "two", "three"], ["three", "two"]):
            await bounded(played.session.use_tools(snapshot_of(*names)))
        assert [["zero"], ["one", "two"], ["one", "two", "three"], ["three", "two"]] == peers[0].tools()


async def test_a_server_that_always_names_the_tools_of_the_beginning_is_waited_for_once():
    async def handle(peer: Peer) -> None:
        await opened(peer)
        while True:
            await peer.until("session.update")
            await peer.send(updated())

    async with serving(handle) as (url, peers), open_session(url, update=0.3) as played:
        await bounded(played.session.use_tools(snapshot_of("one")))
        without_timeouts(played)
        await bounded(played.session.use_tools(snapshot_of("one", "two")))
        await bounded(played.session.use_tools(snapshot_of()))
        await bounded(played.session.use_tools(snapshot_of("three")))
        assert [[], ["one"], ["one", "two"], [], ["three"]] == peers[0].tools()


async def test_built_in_tools_of_the_provider_are_ignored_in_confirmations():
    settings = {"extra": {"tools": [{"type": "function", "name": "its_own", "parameters": {"type": "object"}}]}}
    with FakeOpenAI(faults=Faults(updates=("ok", "silent"))) as fake:
        async with playing(fake, limits=limits(update=0.1), settings=settings) as played:
            with pytest.raises(ToolSyncError, match="did not confirm"):
                await bounded(played.session.use_tools(snapshot_of("one")))
            without_timeouts(played)
            await bounded(played.session.use_tools(snapshot_of("two")))
            assert ["two", "its_own"] == fake.tools
