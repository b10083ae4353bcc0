"""Tool changes whose confirmation is lost, duplicated, or names other tools: the sync state recovers."""

from __future__ import annotations

import asyncio

import pytest

from executor.virtual_time import later
from patchbay.errors import ToolSyncError
from patchbay.realtime import ErrorEvent
from patchbay.testing.realtime import FakeOpenAI, Faults
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from support.realtime_fakes import FakeGLM

from .peers import Peer, change, content, refusal, replies, served, updated
from .playing import Played, bounded, limits, named, playing, snapshot_of

EVENTS = [FakeOpenAI, FakeGLM]
LONG = 20.0
CONFIRMED = {"type": "session.updated"}  # which does not say of which tools


def managing(played: Played) -> LLMSessionManager:
    """A manager that does not retry."""
    manager = LLMSessionManager("ann", retry_delays=())
    manager.active = played.session
    return manager


async def change_unconfirmed(played: Played, *tools: str | ToolDefinition) -> None:
    """Set the tools of a session, and let the time for their confirmation pass."""
    changing = asyncio.ensure_future(played.session.use_tools(snapshot_of(*tools)))
    await asyncio.sleep(0)
    await later(LONG + 1)
    with pytest.raises(ToolSyncError, match="did not confirm"):
        await bounded(changing)


async def names_its_tools(peer: Peer) -> None:
    """Accept a session, and confirm that it has no tools."""
    await peer.send({"type": "session.created"})
    await peer.until("session.update")
    await peer.send(updated())


async def reconnected(played: Played, peers: list[Peer]) -> None:
    peers[0].kill()
    await played.reconnected()


# Another connection


@pytest.mark.parametrize("provider", EVENTS)
async def test_unconfirmed_tools_are_sent_on_reconnect_and_marked_in_sync(provider):
    async with playing(provider(faults=Faults(updates=("ok", "silent"))), limits=limits(update=0.1)) as played:
        manager = managing(played)
        with pytest.raises(ToolSyncError, match="did not confirm"):
            await bounded(manager.register_tool_and_sync(named("added")))
        assert [*manager.out_of_sync] == ["active"]
        played.fake.drop()
        await played.reconnected()
        assert ["added"] == played.fake.tools
        assert {} == manager.out_of_sync
        assert played.session.is_synced


async def test_gemini_session_is_in_sync_after_a_reconnect():
    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await peer.until("clientContent")
            await peer.send(content(modelTurn={"parts": [{"text": "Well"}]}))  # and nothing more

    async with served(conduct, provider="gemini", update=0.1) as (played, peers):
        manager = managing(played)
        await played.session.send_text("Hello?")
        await played.until(lambda: not played.session.idle)
        with pytest.raises(ToolSyncError, match="takes tools only when a connection begins"):
            await bounded(manager.register_tool_and_sync(named("added")))
        assert [*manager.out_of_sync] == ["active"]
        await reconnected(played, peers)
        assert {} == manager.out_of_sync


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ([[refusal("No such tools.")]], "No such tools."),
        ([[refusal("No such schema.", "session.tools[0].parameters")], [updated()]], "does not take added"),
    ],
)
async def test_rejected_tools_stay_out_of_sync_after_a_reconnect(lists, words):
    async with served(replies(*lists), opens=names_its_tools, update=LONG) as (played, peers):
        manager = managing(played)
        with pytest.raises(ToolSyncError, match=words):
            await bounded(manager.register_tool_and_sync(named("added")))
        assert not played.session.is_synced
        await reconnected(played, peers)
        assert [[]] == peers[1].tools()
        assert words in manager.out_of_sync["active"]


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


@pytest.mark.usefixtures("manual_clock")
@pytest.mark.parametrize("provider", EVENTS)
@pytest.mark.parametrize("next_tools", [("one",), ("one", "two")])
async def test_next_change_after_a_lost_confirmation_is_confirmed_by_its_own(provider, next_tools):
    async with playing(provider(faults=Faults(updates=("ok", "silent"))), limits=limits(update=LONG)) as played:
        await change_unconfirmed(played, "one")
        await change(played, *next_tools)
        await change(played, "three")
        assert ["three"] == played.fake.tools


@pytest.mark.usefixtures("manual_clock")
async def test_removed_tools_are_removed_from_a_server_that_did_not_confirm_them():
    # The server takes the first change, and its confirmation is lost.
    async with served(replies([], [updated()]), opens=names_its_tools, update=LONG) as (played, peers):
        await change_unconfirmed(played, "added")
        await change(played)
        await played.until(lambda: played.session.is_synced)
        await change(played)  # it is known by now
        assert [[], ["added"], []] == peers[0].tools()


# Duplicate confirmations and rejections


async def test_second_confirmation_is_not_attributed_to_the_next_change():
    nameless = refusal("Not these.")({})  # which names no event
    conduct = replies([updated("one")], [updated("one"), nameless], [updated("two", "one")])
    async with served(conduct, opens=names_its_tools, update=LONG) as (played, peers):
        await change(played, "one")
        await change(played, "one", "two", error=r"Not these\.")
        assert not played.session.is_synced
        await change(played, "one", "two")
        assert [[], ["one"], ["one", "two"], ["one", "two"]] == peers[0].tools()


async def test_change_refused_after_an_assumed_confirmation_is_sent_again():
    async def conduct(peer: Peer) -> None:
        await replies([CONFIRMED])(peer)
        second = await peer.until("session.update")
        await peer.send(CONFIRMED)  # the first one's again
        await may_go_on.wait()
        await peer.send(refusal("Too busy.")(second))
        await may_take.wait()
        await replies([CONFIRMED])(peer)

    may_go_on, may_take = asyncio.Event(), asyncio.Event()
    async with served(conduct, update=LONG) as (played, peers):
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
    conduct = replies(*[[CONFIRMED, refusal("And yet no.")]] * 9)
    async with served(conduct, update=LONG, reconnects=2) as (played, peers):
        manager = managing(played)
        await bounded(manager.register_tool_and_sync(named("one")))
        await played.until(lambda: len(played.of(ErrorEvent)) == 2)
        assert {"active": "its model's server has not accepted them"} == manager.out_of_sync
        assert [[], ["one"], ["one"]] == peers[0].tools()
        await reconnected(played, peers)
        assert [[]] == peers[1].tools()


async def test_duplicate_rejection_does_not_fail_the_next_change():
    async def conduct(peer: Peer) -> None:
        refused = refusal("Not these.")(await peer.until("session.update"))
        await peer.send(refused)
        await replies([refused, updated("two")])(peer)

    async with served(conduct, opens=names_its_tools, update=LONG) as (played, _):
        await change(played, "one", error=r"Not these\.")
        await change(played, "two")
        assert [] == played.of(ErrorEvent)


# What a server says of the tools that it has


@pytest.mark.usefixtures("manual_clock")
async def test_of_changes_with_the_same_names_the_first_is_confirmed_first():
    conduct = replies([], [updated("one"), refusal("Not in these words.")({})])
    async with served(conduct, opens=names_its_tools, update=LONG) as (played, peers):
        await change_unconfirmed(played, named("one", "in these words"))
        await change(played, named("one", "in others"), error=r"Not in these words\.")
        await change(played, named("one", "in these words"))  # which it has
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
async def test_a_server_that_confirms_other_tool_names_counts_as_one_that_names_none(says):
    conduct = replies(*[[lambda update: says([tool["name"] for tool in update["session"]["tools"]])]] * 9)
    async with served(conduct, snapshot=snapshot_of("zero"), update=LONG) as (played, peers):
        for names in (["one", "two"], ["one", "two", "three"], ["three", "two"]):
            await change(played, *names)
        assert [["zero"], ["one", "two"], ["one", "two", "three"], ["three", "two"]] == peers[0].tools()


@pytest.mark.usefixtures("manual_clock")
async def test_a_server_that_always_confirms_its_first_tools_is_waited_for_once():
    async with served(replies(*[[updated()]] * 9), opens=names_its_tools, update=LONG) as (played, peers):
        first = asyncio.ensure_future(change(played, "one"))
        await played.until(lambda: len(peers[0].tools()) == 2)
        await later(LONG + 1)
        await first
        await change(played, "one", "two")
        await change(played)
        await change(played, "three")
        assert [[], ["one"], ["one", "two"], [], ["three"]] == peers[0].tools()


@pytest.mark.usefixtures("manual_clock")
async def test_built_in_tools_of_the_provider_are_ignored_in_confirmations():
    settings = {"extra": {"tools": [{"type": "function", "name": "its_own", "parameters": {"type": "object"}}]}}
    with FakeOpenAI(faults=Faults(updates=("ok", "silent"))) as fake:
        async with playing(fake, limits=limits(update=LONG), settings=settings) as played:
            await change_unconfirmed(played, "one")
            await change(played, "two")
            assert ["two", "its_own"] == fake.tools
