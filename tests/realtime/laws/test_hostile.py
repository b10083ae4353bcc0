"""Hostile and broken servers: memory is bounded, nothing is raised, and the session reports its true state."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from patchbay.realtime import ErrorEvent, RealtimeSession, RealtimeSettings, ResponseEndEvent, response_state
from patchbay.realtime.call_assembly import MAX_ARGUMENT_CHARS, MAX_CALLS
from realtime.core.peers import SECRET, Handle, Peer, served, serving
from realtime.core.playing import Played, bounded, limits, recording

MEGABYTE = 1_000_000
BEGUN = {"type": "response.created", "response": {"id": "r1"}}
DONE = {"type": "response.done", "response": {"id": "r1", "status": "completed", "output": []}}


def complete_call(number: int, **fields: Any) -> dict[str, Any]:
    """A complete call."""
    return {
        "type": "response.function_call_arguments.done",
        "response_id": "r1",
        "item_id": f"item_{number}",
        "call_id": f"call_{number}",
        "output_index": number,
        "name": "pay",
        "arguments": "{}",
        **fields,
    }


@asynccontextmanager
async def attacked_session(attack: Handle, *tools: Any, **bounds: Any) -> AsyncIterator[tuple[Played, list[dict[str, Any]]]]:
    """A session with a server that accepts it and then runs ``attack``, and the frames that the server has received."""
    async with served(attack, *tools, reconnects=0, **bounds) as (played, peers):
        yield played, peers[0].came
    assert "closed" == played.states[-1]
    assert [] == [each for each in played.of(ErrorEvent) if "went wrong here" in str(each.error)]


async def test_answered_calls_of_one_response_are_bounded():
    pay, ran = recording("pay")

    async def attack(peer: Peer) -> None:
        await peer.send(BEGUN, *map(complete_call, range(5000)), DONE)

    async with attacked_session(attack, pay) as (played, came):
        await played.until(lambda: any(frame["type"] == "response.create" for frame in came))
        answered = [frame["item"]["call_id"] for frame in came if frame["type"] == "conversation.item.create"]
        assert [f"call_{number}" for number in range(MAX_CALLS)] == answered
        assert len(ran) <= played.session.settings.limits.max_calls
        assert 1 == sum(frame["type"] == "response.create" for frame in came)


async def test_argument_deltas_without_an_end_are_bounded():
    sent = asyncio.Event()

    async def attack(peer: Peer) -> None:
        await peer.send(BEGUN)
        delta = {"type": "response.function_call_arguments.delta", "response_id": "r1", "item_id": "i", "call_id": "c"}
        text = json.dumps({**delta, "delta": "x" * 65_536})
        for _ in range(5 * MAX_ARGUMENT_CHARS // 65_536):
            await peer.socket.send(text)
        await (await peer.socket.ping())
        sent.set()

    async with attacked_session(attack) as (played, _):
        tracemalloc.start()
        await bounded(sent.wait())
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < 2 * MAX_ARGUMENT_CHARS
        assert peak < 3 * MAX_ARGUMENT_CHARS
        assert played.session.is_open


async def test_calls_beyond_the_argument_limit_of_a_response_do_not_run(monkeypatch):
    monkeypatch.setattr(response_state, "MAX_RESPONSE_CHARS", 2_500)
    pay, ran = recording("pay")

    async def attack(peer: Peer) -> None:
        await peer.send(BEGUN, *(complete_call(number, arguments=json.dumps({"to": "x" * 990})) for number in range(4)), DONE)

    async with attacked_session(attack, pay, flood_calls=10) as (played, came):
        await played.until(lambda: any(frame["type"] == "response.create" for frame in came))
        assert [990, 990] == [len(each["to"]) for each in ran]
        told = [frame["item"]["output"] for frame in came if frame["type"] == "conversation.item.create"]
        assert [False, False, True, True] == ["was cut off" in text and "did not run" in text for text in told]


async def test_memory_of_unread_events_is_bounded():
    sent = asyncio.Event()

    async def attack(peer: Peer) -> None:
        await peer.send(BEGUN)
        text = json.dumps({"type": "response.output_text.delta", "response_id": "r1", "delta": "y" * 1000})
        for _ in range(10_000):
            await peer.socket.send(text)
        await (await peer.socket.ping())
        sent.set()

    async def handle(peer: Peer) -> None:
        await peer.open()
        await attack(peer)
        await peer.listen()

    async with serving(handle) as (url, _):
        settings = RealtimeSettings(model="m", url=url, api_key=SECRET, output="text", limits=limits(waiting=500))
        async with RealtimeSession(settings) as session:
            tracemalloc.start()
            await bounded(sent.wait())
            kept, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert kept < 3 * MEGABYTE
            assert session.unread <= 500


async def test_frame_beyond_the_limit_ends_the_connection():
    async def attack(peer: Peer) -> None:
        await peer.send({"type": "x", "long": "z" * 200_000})

    async with attacked_session(attack, max_frame=100_000) as (played, _):
        await played.until(lambda: "closed" in played.states)
        assert not played.session.is_open


async def test_invalid_and_too_deep_json_is_skipped():
    async def attack(peer: Peer) -> None:
        for text in ("{", "", "nonsense", "[" * 100_000, '{"type":' * 50_000, '{"type": 1e999}', '"\\ud800"', "\x00"):
            await peer.socket.send(text)
        await peer.socket.send(b"\xff\xfe\x00")
        await peer.send(BEGUN, {**DONE})

    async with attacked_session(attack) as (played, _):
        await played.until(lambda: bool(played.of(ResponseEndEvent)))
        assert played.session.idle


WRONG: list[Any] = [None, True, -1, 1e308, "", "x" * 5000, [], [[]], {}, {"id": []}, [None, {"type": "function_call"}]]
FRAMES: list[dict[str, Any]] = [
    BEGUN,
    complete_call(1),
    {"type": "response.function_call_arguments.delta", "response_id": "r1", "item_id": "i", "call_id": "c", "delta": "{}"},
    {"type": "response.output_item.added", "response_id": "r1", "output_index": 0, "item": {"type": "function_call", "id": "i"}},
    {"type": "response.output_text.delta", "response_id": "r1", "delta": "word"},
    {"type": "response.output_audio.delta", "response_id": "r1", "delta": "AAAA"},
    {"type": "conversation.item.input_audio_transcription.completed", "transcript": "words"},
    {"type": "error", "error": {"type": "e", "code": "c", "message": "m", "param": "p", "event_id": "e"}},
    DONE,
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: str(frame["type"]))
async def test_session_still_answers_after_members_of_wrong_types(frame):
    async def attack(peer: Peer) -> None:
        for name in frame:
            for wrong in WRONG:
                await peer.send({**frame, name: wrong})
                for inner in frame[name] if isinstance(frame[name], dict) else ():
                    await peer.send({**frame, name: {**frame[name], inner: wrong}})
        await peer.send({"type": "response.created", "response": {"id": "last"}})
        await peer.send({"type": "response.output_text.delta", "response_id": "last", "delta": "At last."})
        await peer.send({"type": "response.done", "response": {"id": "last", "status": "completed", "output": []}})

    async with attacked_session(attack) as (played, _):
        await played.until(lambda: "At last." in [getattr(each, "delta", "") for each in played.events])
        await played.idle()


async def test_key_appears_in_no_log_error_repr_or_event(caplog):
    caplog.set_level("DEBUG")

    async def attack(peer: Peer) -> None:
        await peer.socket.send("not json, and long")
        await peer.send({"type": "error", "error": {"message": f"Incorrect API key provided: {SECRET}"}})

    async with attacked_session(attack) as (played, _):
        await played.until(lambda: bool(played.of(ErrorEvent)))
        session = played.session
        assert SECRET not in repr(session) + repr(vars(session)) + repr(session.settings)
    ours = [each for each in caplog.records if not each.name.startswith("websockets.server")]
    assert SECRET not in "".join(f"{each.getMessage()}{each.exc_text}" for each in ours)
