"""Input at critical moments: before an answer, after a tool's deadline, at the end of a connection."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from patchbay.errors import HookAbortError
from patchbay.hooks import AbortTurn, HookManager
from patchbay.loop import ToolCallEvent, ToolResultEvent, UserOutputEvent
from patchbay.realtime import ErrorEvent, InterruptedEvent, ResponseEndEvent, TranscriptEvent, response_state
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Pause, Say
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.output import ToolOutput
from support.realtime_fakes import FakeGemini

from .peers import Peer, content, created, done, served, text_delta
from .playing import SlowTool, bounded, playing

PROVIDERS = [FakeOpenAI, FakeGemini]
NOISE = ({"type": "input_audio_buffer.speech_started"}, {"type": "input_audio_buffer.speech_stopped"})
BUSY = {
    "type": "error",
    "error": {"code": "conversation_already_has_active_response", "message": "already has an active response"},
}


def words(played: Any) -> str:
    """The model's text and transcripts."""
    spoken = [each.text for each in played.of(TranscriptEvent) if each.role == "assistant" and each.whole]
    return played.text + "".join(spoken)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "first", [Say("One."), Answer((Say("One."),), late=0.1), Answer((Say("One"), Pause(0.1), Say(" more.")))]
)
async def test_text_sent_before_the_previous_answer_began_is_answered(provider, first):
    async with playing(provider([first, "Two.", "Three."])) as played:
        await played.session.send_text("a")
        await played.session.send_text("b")
        await played.until(lambda: "Two." in words(played))
        await played.idle()


async def test_single_response_to_two_texts_is_delivered():
    async def conduct(peer: Peer) -> None:
        await peer.until("clientContent")
        await peer.until("clientContent")
        await peer.send(
            content(modelTurn={"parts": [{"text": "Both."}]}), content(generationComplete=True), content(turnComplete=True)
        )

    async with served(conduct, provider="gemini") as (played, _):
        await played.session.send_text("a")
        await played.say("b", answers=1)
        assert ("Both.", "completed") == (words(played), played.of(ResponseEndEvent)[0].status)
        await played.idle()
        assert [] == played.of(ErrorEvent)


async def test_respond_without_input_leaves_the_session_idle():
    async def conduct(peer: Peer) -> None:
        await peer.listen()

    async with served(conduct, provider="gemini", done=60.0) as (played, _):
        await played.session.respond()
        assert played.session.idle


async def test_text_is_answered_after_a_slow_cancellation():
    async def conduct(peer: Peer) -> None:
        await peer.until("response.create")
        await peer.send(created("r1"), text_delta("r1", "long"))
        await peer.until("response.cancel")
        await peer.until("response.create")  # which is not waited for the end with
        await peer.send(BUSY, done("r1", "cancelled"))
        await peer.until("response.create")
        await peer.send(created("r2"), text_delta("r2", "answer"), done("r2"))

    async with served(conduct, cancel=0.05, done=600.0) as (played, _):
        await played.session.send_text("a")
        await played.until(lambda: "long" in words(played))
        await played.session.send_text("b")
        await played.until(lambda: "answer" in words(played))


@pytest.mark.parametrize("is_whole", [True, False])
async def test_unanswered_speech_is_answered_on_the_next_connection(is_whole):
    kind = "completed" if is_whole else "delta"
    heard = {"type": f"conversation.item.input_audio_transcription.{kind}", "item_id": "i", "content_index": 0}
    heard["transcript" if is_whole else "delta"] = "What time is it?"

    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await peer.send(*NOISE, heard)
            await peer.until("input_audio_buffer.append")
            peer.kill()
            return
        await peer.until("response.create")
        await peer.send(created("r1"), text_delta("r1", "Noon."), done("r1"))

    async with served(conduct) as (played, peers):
        await played.until(lambda: bool(played.of(TranscriptEvent)))
        await played.session.send_audio(bytes(320))
        await played.until(lambda: "Noon." in words(played))
        assert ["What time is it?"] == peers[1].lines()


async def test_speech_that_was_answered_is_not_answered_again_on_the_next_connection():
    heard = {"type": "conversation.item.input_audio_transcription.completed", "item_id": "i", "content_index": 0}

    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await peer.send(*NOISE)
            await peer.send(created("r1"), text_delta("r1", "Noon."), done("r1"), {**heard, "transcript": "What time is it?"})
            await peer.until("input_audio_buffer.append")
            peer.kill()

    async with served(conduct) as (played, peers):
        await played.until(lambda: bool(played.of(TranscriptEvent)))
        await played.session.send_audio(bytes(320))
        await played.until(lambda: len(peers) == 2 and played.session.idle)
        await played.session.send_text("Thanks.")
        await played.until(lambda: "response.create" in peers[1].kinds())
        assert 1 == peers[1].kinds().count("response.create")
        assert "Thanks." == peers[1].lines()[-1]


async def test_text_interrupted_by_a_noise_is_answered(monkeypatch):
    monkeypatch.setattr(response_state, "_MAX_SILENCE", 0.05)

    async def conduct(peer: Peer) -> None:
        await peer.until("response.create")
        await peer.send(created("r1"), text_delta("r1", "Once upon a time"))
        await peer.until("response.cancel")
        await peer.send(*NOISE, done("r1", "cancelled"))
        await peer.until("response.create")
        await peer.send(created("r2"), text_delta("r2", "answer"), done("r2"))

    async with served(conduct) as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: bool(words(played)))
        await played.session.send_text("b")
        await played.until(lambda: "answer" in words(played))
        await played.idle()
        assert ["a", "b"] == peers[0].lines()


async def late_cancel(peer: Peer, *before: dict[str, Any]) -> None:
    """Answer until a cancel arrives too late, and send ``before`` behind the completed response."""
    await peer.until("response.create")
    await peer.send(created("r1"), text_delta("r1", "Once upon a time"))
    await peer.until("response.cancel")
    await peer.send(done("r1"), *before)


async def test_answer_to_speech_ended_by_a_late_cancel_is_requested_again():
    async def conduct(peer: Peer) -> None:
        await late_cancel(peer, *NOISE, created("r2"), text_delta("r2", "It is"), done("r2", "cancelled"))
        await peer.until("response.create")
        await peer.send(created("r3"), text_delta("r3", "noon."), done("r3", "cancelled"))  # by its server: not requested again

    async with served(conduct, provider="qwen") as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: bool(words(played)))
        await played.session.interrupt()
        await played.until(lambda: "noon." in words(played))
        await played.idle()
        assert ["cancelled"] * 3 == [each.status for each in played.of(ResponseEndEvent)]
        assert 2 == peers[0].kinds().count("response.create")


@pytest.mark.parametrize("is_lost", [False, True])
async def test_text_that_crosses_with_a_late_cancel_is_answered(is_lost):
    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await late_cancel(peer)
            await peer.until("response.create")
            await peer.send(*NOISE, created("r2"), done("r2", "cancelled"))
            await peer.until("input_audio_buffer.append")
            if is_lost:
                peer.kill()
        else:
            await peer.until("response.create")
        await peer.send(created("r3"), text_delta("r3", "answer"), done("r3"))

    async with served(conduct, provider="qwen") as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: bool(words(played)))
        await played.session.interrupt()
        await played.answers(1)
        await played.say("b", answers=2)
        assert not played.session.idle  # the server has not received the request yet, or its answer is on the way
        await played.session.send_audio(bytes(320))
        await played.until(lambda: "answer" in words(played))
        await played.idle()
        assert 2 + is_lost == sum(peer.kinds().count("response.create") for peer in peers)


async def test_refused_cancel_ends_no_response():
    async def conduct(peer: Peer) -> None:
        refused = {"code": "response_cancel_not_active", "message": "Cancellation failed: no active response found."}
        await late_cancel(peer, {"type": "error", "error": refused}, *NOISE, created("r2"), done("r2", "cancelled"))
        await peer.listen()

    async with served(conduct, provider="qwen") as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: bool(words(played)))
        await played.session.interrupt()
        await played.answers(2)
        await played.idle()
        assert (1, []) == (peers[0].kinds().count("response.create"), played.of(ErrorEvent))


async def test_text_interrupted_by_noise_is_answered_on_the_next_connection():
    async def conduct(peer: Peer) -> None:
        await peer.until("response.create")
        await peer.send(created("r1"), text_delta("r1", "Once upon a time" if peer.number == 1 else "answer"))
        if peer.number == 1:
            await peer.until("response.cancel")
            await peer.send(*NOISE, done("r1", "cancelled"))
        else:
            await peer.send(done("r1"))

    async with served(conduct) as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: bool(words(played)))
        await played.say("b", answers=1)
        assert 2 == len(played.of(InterruptedEvent))
        peers[0].kill()
        await played.until(lambda: "answer" in words(played))


@pytest.mark.parametrize("said", ["", "Let me see."])
async def test_connection_lost_during_call_collection_repeats_only_unanswered_input(said):
    item = {"id": "i", "type": "function_call", "name": "look", "call_id": "c", "arguments": ""}

    async def conduct(peer: Peer) -> None:
        await peer.until("response.create")
        if peer.number == 1:
            begun = {"type": "response.output_item.added", "response_id": "r1", "output_index": 0, "item": item}
            await peer.send(created("r1"), *([text_delta("r1", said)] if said else []), begun, done("r1"))
        else:
            await peer.send(created("r2"), text_delta("r2", "answer"), done("r2"))

    async with served(conduct, grace=600.0) as (played, peers):
        await played.say("a", answers=1)
        peers[0].kill()
        await played.until(lambda: bool(peers[-1].number == 2 and peers[-1].lines()) and played.session.idle)
        assert "a" == peers[1].lines()[0]
        assert (said or "answer") == words(played)


async def test_connection_is_not_renewed_during_speech():
    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await peer.send(content(inputTranscription={"text": "What time"}))
            await peer.until("realtimeInput")
            await peer.send(content(inputTranscription={"text": " is it?"}))
            await peer.send(content(modelTurn={"parts": [{"text": "Noon."}]}), content(turnComplete=True))

    manager = LLMSessionManager("ann")
    manager.register_tool(ToolDefinition("x", handler=lambda _arguments: 1))
    async with served(conduct, provider="gemini") as (played, peers):
        await played.until(lambda: bool(played.of(TranscriptEvent)))
        assert not played.session.idle
        changing = asyncio.ensure_future(played.session.use_tools(manager.snapshot()))
        await asyncio.sleep(0)
        await played.session.send_audio(bytes(320))
        await played.until(lambda: "Noon." in words(played))
        await bounded(changing)
        assert 2 == len(peers)


async def model_calling_slow(peer: Peer) -> None:
    """A model that calls ``slow`` and then answers each request."""
    await peer.until("response.create")
    await peer.send(created("r0"), done("r0", "completed", "slow"))
    for number in itertools.count(1):
        await peer.until("response.create")
        await peer.send(created(f"r{number}"), text_delta(f"r{number}", "ok."), done(f"r{number}"))


async def test_hook_abort_after_a_slow_tool_notice_requests_no_response():
    gate = asyncio.Event()

    class End:
        async def before_tool(self, request):
            await gate.wait()
            return AbortTurn(reason="enough")

    hooks = HookManager()
    hooks.mount("end", End())
    async with served(model_calling_slow, ToolDefinition("slow", handler=lambda _: 1), hooks=hooks, slow_after=0.02) as (
        played,
        peers,
    ):
        await played.session.send_text("Go.")
        await played.until(lambda: "ok." in words(played))
        gate.set()
        await played.until(lambda: bool(played.of(ErrorEvent)))
        assert [HookAbortError] == [type(each.error) for each in played.of(ErrorEvent)]
        await played.idle()
        await played.until(lambda: any("still running" in each for each in peers[0].lines()))
        assert 2 == peers[0].kinds().count("response.create")


async def test_late_handled_response_requests_no_model_answer():
    held = SlowTool(ToolOutput(for_llm="shown", for_user="Look", response_handled=True))
    async with served(model_calling_slow, held.slow, slow_after=0.02) as (played, peers):
        await played.session.send_text("Go.")
        await played.until(lambda: "ok." in words(played))
        held.may_end.set()
        await played.until(lambda: any("shown" in each for each in peers[0].lines()))
        await played.idle()
        assert ["Look"] == [each.text for each in played.of(UserOutputEvent)]
        assert 2 == peers[0].kinds().count("response.create")


async def test_late_result_after_an_interrupt_is_answered_with_the_next_user_turn():
    held = SlowTool("LATE")
    async with served(model_calling_slow, held.slow, slow_after=0.02) as (played, peers):
        await played.session.send_text("Go.")
        await played.until(lambda: "ok." in words(played))
        await played.session.interrupt()
        held.may_end.set()
        await played.until(lambda: any("LATE" in each for each in peers[0].lines()))
        await played.idle()
        assert 1 == len(played.of(ToolResultEvent))
        assert 2 == peers[0].kinds().count("response.create")
        await played.session.send_text("Well?")
        await played.until(lambda: words(played).count("ok.") == 2)


async def test_handled_response_after_a_lost_connection_reaches_the_user_only():
    held = SlowTool(ToolOutput(for_llm="shown", for_user="Look", response_handled=True))

    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            await peer.until("response.create")
            await peer.send(created("r0"), done("r0", "completed", "slow"))
            await peer.until("input_audio_buffer.append")
            held.may_end.set()
            peer.kill()

    async with served(conduct, held.slow) as (played, peers):
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(ToolCallEvent)))
        await played.session.send_audio(bytes(320))
        await played.until(lambda: len(peers) == 2 and any("shown" in each for each in peers[1].lines()))
        await played.idle()
        assert (["Look"], []) == (
            [each.text for each in played.of(UserOutputEvent)],
            [kind for kind in peers[1].kinds() if kind == "response.create"],
        )


async def test_connection_is_not_renewed_between_an_abandoned_tool_and_its_text():
    async def slow() -> None:
        await asyncio.Event().wait()

    manager = LLMSessionManager("ann")
    manager.register_tool(ToolDefinition("x", handler=lambda _arguments: 1))
    async with playing(FakeGemini([Call("slow")]), slow) as played:
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(ToolCallEvent)))
        changing = asyncio.ensure_future(played.session.use_tools(manager.snapshot()))
        await asyncio.sleep(0)
        await played.session.send_text("No, wait.")
        await played.until(lambda: "No, wait." in words(played))
        await bounded(changing)
        assert [1] == [each.connection for each in played.fake.heard if each.text == "No, wait."]
        assert 2 == played.fake.connections


async def test_refused_request_for_a_response_is_an_error_and_is_not_repeated():
    async def conduct(peer: Peer) -> None:
        await peer.until("response.create")
        await peer.send({"type": "error", "error": {"message": "response.create: nothing to answer"}})

    async with served(conduct) as (played, peers):
        await played.session.send_text("a")
        await played.until(lambda: bool(played.of(ErrorEvent)))
        await played.idle()
        assert 1 == peers[0].kinds().count("response.create")
