"""An unprompted model whose connection is lost between a dropped answer and the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from patchbay.loop import ToolCallEvent
from patchbay.realtime import ErrorEvent, IdleEvent, InterruptedEvent
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager

from .peers import Peer, content, open_session, served, serving
from .playing import Played, SlowTool, bounded

HANDLE = {"sessionResumptionUpdate": {"newHandle": "h", "resumable": True}}
NO_HANDLE = {"sessionResumptionUpdate": {"resumable": False}}
CUT = (content(interrupted=True), content(turnComplete=True))
OLDER: dict[str, Any] = {}
NEWER: dict[str, Any] = {"extra": {"historyConfig": {"initialHistoryInClientContent": True}}}


def calls(*names: str) -> dict[str, Any]:
    return {"toolCall": {"functionCalls": [{"id": name, "name": name, "args": {}} for name in names]}}


def text_content(text: str) -> dict[str, Any]:
    return content(modelTurn={"parts": [{"text": text}]})


def sent_texts(peer: Peer) -> list[str]:
    """The texts sent on a connection, in both forms, with "?" after those that request an answer."""
    lines = []
    for frame in peer.came:
        if "clientContent" in frame:
            lines += [turn["parts"][0]["text"] for turn in frame["clientContent"].get("turns", ())]
            # The newer way has a history, which is always complete and never answered.
            lines += ["?"] * (frame["clientContent"]["turnComplete"] and "historyConfig" not in peer.came[0]["setup"])
        elif "text" in frame.get("realtimeInput", ()):
            lines += [*frame["realtimeInput"]["text"].split("\n\n"), "?"]
    return lines


async def wait_for_request(peer: Peer) -> None:
    """Wait for input that requests an answer."""
    before = sent_texts(peer).count("?")
    while sent_texts(peer).count("?") == before:
        await peer.next()


async def send_answer(peer: Peer, text: str) -> None:
    """Send a complete answer to the next request."""
    await wait_for_request(peer)
    await peer.send(text_content(text), content(turnComplete=True))


async def interrupt_and_disconnect(peer: Peer) -> None:
    """Interrupt the first answer, and later abort its connection."""
    if peer.number == 1:
        await wait_for_request(peer)
        await peer.send(text_content("One, two,"), *CUT)
        await peer.until("realtimeInput")
        peer.kill()


async def slow() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("resumes", [False, True])
async def test_text_whose_calls_were_cancelled_is_answered_on_the_next_connection(resumes):
    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await wait_for_request(peer)
            await wait_for_request(peer)
            await peer.send(calls("slow"), HANDLE if resumes else NO_HANDLE)
            await peer.send({"toolCallCancellation": {"ids": ["slow"]}}, {"goAway": {"timeLeft": "0.02s"}})
            return
        await send_answer(peer, "Both.")

    async with served(conduct, slow, provider="gemini") as (played, peers):
        await played.session.send_text("a")
        await played.session.send_text("b")
        await played.until(lambda: "Both." in played.text)
        await played.idle()
        assert ["a", "b", "?"] == sent_texts(peers[1])
        assert (1, []) == (len(played.of(ToolCallEvent)), played.of(ErrorEvent))


@pytest.mark.parametrize("way", [OLDER, NEWER])
@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("frames", [CUT, ()])
async def test_text_that_interrupted_an_answer_is_answered_on_the_next_connection(resumes, way, frames):
    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await peer.send(HANDLE if resumes else NO_HANDLE)
            await wait_for_request(peer)
            await peer.send(text_content("One, two,"))
            await wait_for_request(peer)
            await peer.send(*frames)
            peer.kill()
            return
        await send_answer(peer, "Both.")

    async with served(conduct, provider="gemini", settings=way) as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: bool(played.text))
        await played.session.send_text("b")
        await played.until(lambda: "Both." in played.text)
        await played.idle()
        asks = [each["setup"]["sessionResumption"] for peer in peers for each in peer.came if "setup" in each]
        assert [{}, {"handle": "h"} if resumes else {}] == asks
        # A handle restores an earlier state; without one the whole history is sent in order.
        assert (["a", "b", "?"] if resumes else ["a", "One, two,", "b", "?"]) == sent_texts(peers[1])


async def test_resumed_session_does_not_repeat_answered_texts():
    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await wait_for_request(peer)
            await peer.send(text_content("One."), content(turnComplete=True), HANDLE)
            await wait_for_request(peer)
            peer.kill()
            return
        await send_answer(peer, "Two.")

    async with served(conduct, provider="gemini") as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: played.of(IdleEvent))
        await played.session.send_text("b")
        await played.until(lambda: "Two." in played.text)
        assert ["b", "?"] == sent_texts(peers[1])


async def test_resumed_session_does_not_repeat_the_input_of_known_calls():
    """The server remembers the calls, and so the input that led to them."""
    gate = asyncio.Event()

    async def known() -> str:
        await gate.wait()
        return "forty-two"

    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await wait_for_request(peer)
            await peer.send(calls("known"), HANDLE)
            await peer.until("realtimeInput")
            peer.kill()
            return
        gate.set()
        await peer.until("toolResponse")
        await peer.send(text_content("It is."), content(turnComplete=True))

    async with served(conduct, known, provider="gemini") as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: played.of(ToolCallEvent))
        await played.session.send_audio(bytes(320))
        await played.until(lambda: "It is." in played.text)
        assert ["setup", "toolResponse"] == peers[1].kinds()


async def assert_not_requested(played: Played, peers: list[Peer]) -> None:
    await played.session.send_audio(bytes(320))
    await played.until(lambda: len(played.states) == 3)
    await played.idle()
    assert "?" not in sent_texts(peers[1])


async def test_answer_ended_by_noise_is_not_repeated_after_an_idle_reconnect():
    async with served(interrupt_and_disconnect, provider="gemini", done=0.05) as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: played.of(InterruptedEvent))
        await played.until(lambda: played.of(IdleEvent))
        await assert_not_requested(played, peers)


async def test_answer_ended_by_a_noise_stays_open_while_the_user_may_continue():
    async with served(interrupt_and_disconnect, provider="gemini", done=1.0) as (played, _):
        await played.session.send_text("a")
        await played.until(lambda: played.of(InterruptedEvent))
        assert not played.session.idle
        await played.session.interrupt()
        await played.until(lambda: played.of(IdleEvent))


async def test_answer_ended_by_the_program_is_not_repeated_on_the_next_connection():
    async with served(interrupt_and_disconnect, provider="gemini") as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: played.of(InterruptedEvent))
        await played.session.interrupt()
        await assert_not_requested(played, peers)


@pytest.mark.parametrize("way", [OLDER, NEWER])
@pytest.mark.parametrize("resumes", [False, True])
async def test_interrupted_text_is_not_answered_after_a_late_interruption_event(resumes, way):
    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await peer.send(HANDLE if resumes else NO_HANDLE)
            await wait_for_request(peer)
            await peer.send(text_content("One, two,"))
            await wait_for_request(peer)
            await peer.until("realtimeInput")
            await peer.send(*CUT)
            await peer.until("realtimeInput")
            peer.kill()

    async with served(conduct, provider="gemini", settings=way) as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: bool(played.text))
        await played.session.send_text("b")
        await played.session.interrupt()
        await played.session.send_audio(bytes(320))
        await played.until(lambda: len(played.of(InterruptedEvent)) == 3)
        await assert_not_requested(played, peers)


@pytest.mark.parametrize("way", [OLDER, NEWER])
async def test_complete_answer_is_not_repeated_after_a_cancelled_call(way):
    async def slow2() -> None:  # there is no idle moment before the end
        await asyncio.Event().wait()

    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await wait_for_request(peer)
            await peer.send(calls("slow", "slow2"), text_content("It is"), {"toolCallCancellation": {"ids": ["slow"]}})
            await peer.send(text_content(" noon."), content(turnComplete=True))
            await peer.until("realtimeInput")
            peer.kill()

    async with served(conduct, slow, slow2, provider="gemini", settings=way) as (played, peers):
        await played.say("a", answers=2)
        await played.session.send_audio(bytes(320))
        await played.until(lambda: len(played.states) == 3)
        await asyncio.sleep(0.05)
        assert "?" not in sent_texts(peers[1])


@pytest.mark.parametrize("way", [OLDER, NEWER])
async def test_unanswered_text_that_interrupted_an_answer_is_an_error_event(way):
    async def conduct(peer: Peer) -> None:
        await wait_for_request(peer)
        await peer.send(text_content("One, two,"))
        await wait_for_request(peer)
        await peer.send(*CUT)

    async with served(conduct, provider="gemini", done=0.05, settings=way) as (played, _):
        await played.session.send_text("a")
        await played.until(lambda: bool(played.text))
        await played.session.send_text("b")
        await played.until(lambda: played.of(IdleEvent))
        assert ["did not begin" in str(each.error) for each in played.of(ErrorEvent)] == [True]


@pytest.mark.parametrize("way", [OLDER, NEWER])
async def test_running_notice_is_repeated_if_its_answer_was_lost(way):
    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await wait_for_request(peer)
            await peer.send(calls("slow"), HANDLE)
            await peer.until("toolResponse")
            peer.kill()
            return
        await send_answer(peer, "It still runs.")

    async with served(conduct, slow, provider="gemini", slow_after=0.05, settings=way) as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: "still runs" in played.text)
        assert [True, False] == [each.startswith("[The tool slow returned]") for each in sent_texts(peers[1])]


@pytest.mark.parametrize("way", [OLDER, NEWER])
async def test_text_sent_during_connect_is_answered_even_with_changed_tools(way):
    """Pending frames are sent first, before another connection may be opened."""
    opening, may_open = asyncio.Event(), asyncio.Event()

    async def handle(peer: Peer) -> None:
        if peer.number == 2:
            await peer.until("setup")
            opening.set()
            await may_open.wait()
            await peer.send({"setupComplete": {}})
        else:
            await peer.open()
        if peer.number == 1:
            await wait_for_request(peer)
            await peer.send(calls("slow"), HANDLE)
            await peer.until("realtimeInput")
            peer.kill()
        else:
            await send_answer(peer, "Both.")

    manager = LLMSessionManager("ann")
    manager.register_tool(ToolDefinition("x", handler=lambda _arguments: 1))
    async with serving(handle) as (url, peers), open_session(url, slow, provider="gemini", settings=way) as played:
        await played.session.send_text("a")
        await played.until(lambda: played.of(ToolCallEvent))
        await played.session.send_audio(bytes(320))
        await opening.wait()
        await played.session.send_text("b")
        changing = asyncio.ensure_future(played.session.use_tools(manager.snapshot()))
        await asyncio.sleep(0)
        may_open.set()
        await played.until(lambda: "Both." in played.text)
        await bounded(changing)
        assert ["setup", "toolResponse"] == peers[1].kinds()[:2]
        assert ["b", "?"] == sent_texts(peers[1])[-2:]


@pytest.mark.parametrize("way", [OLDER, NEWER])
async def test_a_connection_is_not_renewed_between_the_answers_to_two_texts(way):
    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await wait_for_request(peer)
            await wait_for_request(peer)
            await peer.send({"goAway": {"timeLeft": "10s"}}, text_content("One."), content(turnComplete=True))
            await asyncio.sleep(0.05)
            await peer.send(text_content("Two."), content(turnComplete=True))

    async with served(conduct, provider="gemini", settings=way) as (played, peers):
        await played.session.send_text("a")
        await played.session.send_text("b")
        await played.until(lambda: "Two." in played.text)
        await played.until(lambda: len(peers) == 2)
        await played.idle()
        assert "?" not in sent_texts(peers[1])


@pytest.mark.parametrize("lost", ["before the answer to the text", "behind the result"])
async def test_answer_to_results_does_not_answer_a_crossing_text(lost):
    tool = SlowTool()
    may_answer = asyncio.Event()

    async def conduct(peer: Peer) -> None:
        if peer.number == 2:
            await send_answer(peer, "On the next one. ")
            return
        await wait_for_request(peer)
        await peer.send(calls("slow"))
        await peer.until("toolResponse")
        await peer.send(HANDLE)
        await may_answer.wait()
        await peer.send(text_content("It runs. "), content(turnComplete=True))
        await wait_for_request(peer)
        if lost == "behind the result":
            await peer.send(text_content("To the text. "), content(turnComplete=True))
            await wait_for_request(peer)  # the result of the tool
        peer.kill()

    async with served(conduct, tool.slow, provider="gemini", slow_after=0.01) as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: "toolResponse" in (peers[0].kinds() if peers else ()))
        await played.session.send_text("b")
        tool.may_end.set()
        may_answer.set()
        await played.until(lambda: "On the next one. " in played.text)
        await played.idle()
        again = sent_texts(peers[1])
        if lost == "behind the result":
            assert "It runs. To the text. On the next one. " == played.text
            assert "forty-two" in again[-2]
        else:
            assert "b" in again
        assert "?" == again[-1]
