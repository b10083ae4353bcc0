"""Tools that a server rejects or accepts late: the session keeps its tools, and the sync state is correct."""

from __future__ import annotations

import asyncio
import json

import pytest

from patchbay.errors import ToolSyncError
from patchbay.loop import TextEvent
from patchbay.realtime import ErrorEvent, ResponseEndEvent
from patchbay.testing.realtime import Call, FakeOpenAI, Quote
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from support.realtime_fakes import FakeGemini

from .peers import Peer, change, content, created, done, open_session, refusal, rejected_execution, replies, served, serving
from .playing import bounded, limits, named, playing, snapshot_of
from .test_tools_unconfirmed import LONG, change_unconfirmed


def declared(peer: Peer) -> list[str]:
    """The tools in a Gemini session's setup."""
    return [each["name"] for each in peer.came[0]["setup"]["tools"][0]["functionDeclarations"]]


async def test_refused_tools_are_sent_again_only_on_request():
    async def conduct(peer: Peer) -> None:
        await replies([refusal("No such tools.")])(peer)
        for number in range(3):  # the end of each answer is a moment at which they could be sent
            await peer.until("response.create")
            await peer.send(created(f"r{number}"), done(f"r{number}"))
        await replies([refusal("Still not.")])(peer)

    async with served(conduct) as (played, peers):
        await change(played, "added", error=r"No such tools\.")
        for number in range(3):
            await played.session.send_text("Go.")
            await played.until(lambda number=number: len(played.of(ResponseEndEvent)) == number + 1)
            await played.idle()
        assert [[], ["added"]] == peers[0].tools()
        await change(played, "added", error=r"Still not\.")
        assert [[], ["added"], ["added"]] == peers[0].tools()


@pytest.mark.usefixtures("manual_clock")
async def test_late_reply_to_one_change_is_not_attributed_to_the_next():
    async with served(replies([], [{"type": "session.updated"}, refusal("Not these.")]), update=LONG) as (played, peers):
        await change_unconfirmed(played, "one")
        await change(played, "two", error=r"Not these\.")
        await change(played, "one")  # which the server has, by now
        assert [[], ["one"], ["two"]] == peers[0].tools()


async def test_replaced_tool_is_not_excluded_for_the_refusal_of_its_predecessor():
    async def conduct(peer: Peer) -> None:
        update = await peer.until("session.update")
        changed.set()
        await changed_again.wait()
        await peer.send(rejected_execution(update, "No such schema.", "session.tools[1].parameters"))
        await replies([{"type": "session.updated"}])(peer)

    changed, changed_again = asyncio.Event(), asyncio.Event()
    async with served(conduct) as (played, peers):
        first = asyncio.ensure_future(played.session.use_tools(snapshot_of("good", named("odd"))))
        await bounded(changed.wait())
        second = asyncio.ensure_future(played.session.use_tools(snapshot_of("good", named("odd", "mended"))))
        await asyncio.sleep(0)
        changed_again.set()
        await bounded(second)
        with pytest.raises(ToolSyncError, match="No such schema"):
            await bounded(first)
        assert ["good", "odd"] == peers[0].tools()[-1]


@pytest.mark.parametrize("reconnects", [0, 2])
async def test_gemini_session_keeps_its_old_tools_if_a_tool_is_refused(reconnects):
    async def handle(peer: Peer) -> None:
        if "bad" in json.dumps(await peer.until("setup")):
            await peer.socket.close(1007, "Invalid value.")
            return
        await peer.send({"setupComplete": {}}, {"sessionResumptionUpdate": {"newHandle": "h", "resumable": True}})
        await peer.send(content(turnComplete=True))  # an answer, so that the test sees that all before it was read
        await peer.listen()

    async with (
        serving(handle) as (url, peers),
        open_session(url, provider="gemini", snapshot=snapshot_of("good"), reconnects=reconnects) as played,
    ):
        await played.answers(1)
        await change(played, "good", "bad", error=r"Invalid value\.")
        await played.until(lambda: len(peers) == 3 and played.session.idle)
        assert ["good"] == declared(peers[2])
        handles = [peer.came[0]["setup"]["sessionResumption"].get("handle") for peer in peers[1:]]
        assert ["h", "h"] == handles  # nothing of the conversation is lost
        assert [True] == ["Invalid value." in str(each.error) for each in played.of(ErrorEvent)]
        await change(played, "good", "fine")
        assert 4 == len(peers)


@pytest.mark.parametrize("at", ["an open connection", "connection setup"])
async def test_tools_that_were_refused_are_left_out_of_the_next_connection(at):
    async def handle(peer: Peer) -> None:
        await peer.send({"type": "session.created"})
        if peer.number > 1:
            await changed.wait()
        while True:
            update = await peer.until("session.update")
            refused = "bad" in json.dumps(update)
            await peer.send(rejected_execution(update, "Bad tools.", "session.tools") if refused else {"type": "session.updated"})

    changed = asyncio.Event()
    async with serving(handle) as (url, peers), open_session(url, snapshot=snapshot_of("good"), reconnects=2) as played:
        if at == "connection setup":
            peers[0].kill()
            await played.until(lambda: len(played.states) == 2)
        changing = asyncio.ensure_future(change(played, "good", "bad", error=r"Bad tools\."))
        await asyncio.sleep(0)
        changed.set()
        await changing
        if at == "an open connection":
            peers[0].kill()
            await played.until(lambda: len(played.states) > 1)
        await played.until(lambda: played.states[-1] == "open")
        assert [["good"]] == peers[-1].tools()


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


async def test_use_tools_times_out_during_responses_and_reconnects():
    """A provider that accepts tools at connect only: a change that cannot be sent now is sent later."""
    may_open = asyncio.Event()

    async def opens(peer: Peer) -> None:
        if peer.number > 1:
            await may_open.wait()
        await peer.open()

    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await peer.until("clientContent")
            await peer.send(content(modelTurn={"parts": [{"text": "Well"}]}))  # and nothing more

    async with served(conduct, opens=opens, provider="gemini", update=0.2, connect=20.0) as (played, peers):
        await played.session.send_text("Hello?")
        await played.until(lambda: bool(played.of(TextEvent)))
        await change(played, "first", error="takes tools only when a connection begins")
        waiting = asyncio.ensure_future(change(played, "second", error="takes tools only when a connection begins"))
        await asyncio.sleep(0)
        peers[0].kill()
        await waiting
        may_open.set()
        await played.until(lambda: len(played.states) == 3)
        assert ["second"] == declared(peers[1])
        await change(played, "second")


async def test_cancelled_use_tools_does_not_block_others_that_fail_at_close():
    async with served(Peer.listen, update=20.0) as (played, _):
        waiting = [asyncio.ensure_future(played.session.use_tools(snapshot_of(f"t{number}"))) for number in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await played.session.close()
        ends = await bounded(asyncio.gather(*waiting, return_exceptions=True))
        assert [ToolSyncError, asyncio.CancelledError, ToolSyncError] == [type(each) for each in ends]


async def test_unsolicited_confirmations_and_refusals_change_no_tools():
    async def conduct(peer: Peer) -> None:
        await peer.send({"type": "session.updated", "session": {}}, rejected_execution({}, "Too late.", "session.tools"))
        await replies([{"type": "session.updated"}])(peer)

    async with served(conduct) as (played, peers):
        await played.until(lambda: ["Too late." in str(each.error) for each in played.of(ErrorEvent)] == [True])
        await change(played, "added")
        assert [[], ["added"]] == peers[0].tools()
