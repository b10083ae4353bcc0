"""Faults are played where the script says, after everything before them was delivered."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus
from websockets.sync.client import connect

from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Faults, GoAway, Pause, Quote, Say
from support.realtime_fakes import FakeGemini, FakeGLM, FakeQwen, FakeStepFun

from .raw import SESSIONS, Line, headers, opened, result, talking, text_item

FAKES = [FakeOpenAI, FakeQwen, FakeGLM, FakeStepFun, FakeGemini]
DELTA = "response.function_call_arguments.delta"
DONE = "response.function_call_arguments.done"


async def until_lost(line: Line) -> list[dict]:
    """Return all that comes until the connection is aborted."""
    seen: list[dict] = []
    with pytest.raises(ConnectionClosed) as lost:  # noqa: PT012  (what came before the end is wanted)
        while True:
            seen.append(await line.next())
    assert lost.value.rcvd is None, "no close frame"
    return seen


async def close_code(line: Line, kind: str = "never") -> int:
    """The code with which the server closes instead of sending this."""
    with pytest.raises(ConnectionClosed) as closed:
        await line.until(kind)
    return closed.value.rcvd.code


async def one_response(fake) -> list[dict]:
    async with talking(fake, "hello") as line:
        return await line.until("response.done")


def kinds(events) -> list[str]:
    return [event.get("type", "") for event in events]


def test_a_sync_test_may_use_a_fake_as_well():
    with FakeOpenAI(["hello"]) as fake, connect(f"{fake.url}?model=m", additional_headers=headers(fake)) as socket:
        assert "session.created" == json.loads(socket.recv(timeout=60))["type"]
        socket.send(json.dumps(text_item("hi")))
        fake.wait_until(lambda: bool(fake.heard))
        assert ("user", "hi", 1) == (fake.heard[0].kind, fake.heard[0].text, fake.heard[0].connection)
        with pytest.raises(TimeoutError, match="1 frames came"):
            fake.wait_until(lambda: False, within=0.01)


async def test_fake_leaves_no_thread_and_no_connection_behind():
    before = set(threading.enumerate())
    fake = FakeOpenAI()
    fake.__enter__()
    async with opened(fake) as socket:
        await Line(socket).next()
        await asyncio.to_thread(fake.__exit__)
        with pytest.raises(ConnectionClosed):
            await Line(socket).until("never")
    left = {thread for thread in set(threading.enumerate()) - before if not thread.name.startswith("asyncio")}
    assert set() == left  # those of other tests may end meanwhile


@pytest.mark.parametrize("how", ["reset", "503"])
async def test_the_first_connections_are_refused(how):
    with FakeQwen(faults=Faults(refuse=2, refuse_with=how)) as fake:
        for _ in range(2):
            with pytest.raises((OSError, InvalidHandshake, InvalidMessage, EOFError)) as refused:
                await opened(fake)
            assert (how == "503") == (isinstance(refused.value, InvalidStatus) and refused.value.response.status_code == 503)
        async with opened(fake) as socket:
            await Line(socket).until("session.created")
        assert (3, 1) == (fake.attempts, fake.connections)


@pytest.mark.parametrize("provider", FAKES)
async def test_wrong_key_is_refused(provider):
    with provider(api_key="other") as fake, pytest.raises(InvalidStatus, match="401"):
        await opened(fake)


async def test_session_updates_are_refused_or_unconfirmed_by_script():
    with FakeOpenAI(faults=Faults(updates=["silent", "refuse", "ok"])) as fake:
        async with opened(fake) as socket:
            line = Line(socket)
            update = {"type": "session.update", "session": SESSIONS["openai"]}
            await line.send(update, update)
            seen = await line.until("error")
            assert ["session.created", "error"] == kinds(seen)
            assert "session.tools" == seen[-1]["error"]["param"]
            assert [] == fake.tools
            await line.send(update)
            await line.until("session.updated")
            assert ["get_weather"] == fake.tools
        assert [] == fake.violations


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("done_twice", {DONE: 2}),
        ("only_in_response_done", {DONE: 0, DELTA: 0, "response.output_item.added": 0, "response.output_item.done": 0}),
        ("unheralded", {DONE: 1, "response.output_item.added": 0, "response.output_item.done": 0}),
    ],
)
async def test_faulty_call_deltas_are_complete_in_response_done(fault, expected):
    with FakeOpenAI([Call("get_weather", {"city": "Rome"}, faults=frozenset({fault}))]) as fake:
        seen = await one_response(fake)
        assert expected == {kind: kinds(seen).count(kind) for kind in expected}
        (item,) = seen[-1]["response"]["output"]
        assert ("get_weather", '{"city":"Rome"}', fake.calls[0].call_id) == (item["name"], item["arguments"], item["call_id"])


async def test_stale_and_interleaved_frames_arrive_at_their_scripted_time():
    calls = [Call("a", {"n": "x" * 30}), Call("b", {"n": "y" * 30})]
    with FakeOpenAI([Answer(calls, faults=frozenset({"stale", "mixed", "fragments"}))], faults=Faults(noise=True)) as fake:
        seen = await one_response(fake)
        assert {"resp_of_old", fake.calls[0].response_id} == {event["response_id"] for event in seen if event["type"] == DELTA}
        places = [event["output_index"] for event in seen if event["type"] == DELTA and event["response_id"] != "resp_of_old"]
        assert places == [0, 1] * (len(places) // 2)
        assert {"heartbeat", "unheard.of", "rate_limits.updated"} <= set(kinds(seen))


@pytest.mark.parametrize("provider", FAKES)
@pytest.mark.parametrize("point", ["created", "deltas", "calls", "running"])
async def test_connection_is_killed_by_script(provider, point):
    with provider([Answer([Say("Hm. " * 20), Call("get_weather", {"city": "R" * 50}, call_id="c")], kill=point)]) as fake:
        async with talking(fake, "hello") as line:
            seen = json.dumps(await until_lost(line))
        ended = "toolCall" if provider is FakeGemini and point == "running" else "response.done"
        assert (point == "running") == (ended in seen)
        assert ("Hm. " in seen) == (point != "created")
        await fake.until(lambda: fake.idle)
        assert ([], []) == (fake.violations, fake.unanswered)


@pytest.mark.parametrize(("point", "received"), [("result", ["one"]), ("results", ["one", "two"])])
async def test_connection_is_killed_between_results_and_the_next_request(point, received):
    calls = [Call("a", call_id="c1"), Call("b", call_id="c2")]
    with FakeOpenAI([Answer(calls, kill=point)]) as fake:
        async with talking(fake, "hello") as line:
            await line.until("response.done")
            await line.send(result("one", "c1"), result("two", "c2"), {"type": "response.create"})
            await until_lost(line)
        async with talking(fake) as line:
            await line.send(result("late", "c2"), {"type": "input_audio_buffer.clear"})
            await line.until("error")
        assert received == [outcome.text for outcome in fake.heard if outcome.kind == "result"]
        assert 1 == len(fake.violations)
        assert "call of connection 1, which is gone" in fake.violations[0]
        assert [] == fake.unasked


async def test_a_test_can_drop_speak_and_send_at_any_time():
    with FakeOpenAI([Answer([Say("hello"), Pause(30), Say("never said")]), Quote()]) as fake:
        async with talking(fake, "hi") as line:
            await line.until("response.output_item.done")
            assert not fake.idle
            fake.send({"type": "made.up"})
            await line.until("made.up")
            fake.speak("Stop.")
            cut = (await line.until("response.done"))[-1]["response"]
            assert ("cancelled", "turn_detected") == (cut["status"], cut["status_details"]["reason"])
            seen = await line.until("response.done")
            assert "I was told: Stop." == "".join(event.get("delta", "") for event in seen)
            fake.drop()
            await until_lost(line)
        assert [] == fake.violations


async def test_silent_connection_is_closed():
    with FakeQwen(faults=Faults(idle=0.02)) as fake:
        async with opened(fake) as socket:
            assert 1001 == await close_code(Line(socket))


async def test_gemini_fake_sends_go_away_and_closes():
    with FakeGemini([Answer([Say("well")], then=[GoAway(0.05)])]) as fake:
        async with talking(fake, "hello") as line:
            assert {"goAway": {"timeLeft": "0.05s"}} in await until_lost(line)


async def test_action_without_a_connection_is_a_clear_error():
    with FakeOpenAI() as fake:
        acts = [lambda: fake.speak("Hello."), fake.cancel, lambda: fake.go_away(1), lambda: fake.send({})]
        for act in (fake.drop, *acts):
            with pytest.raises(RuntimeError, match="No client has connected yet"):
                act()
        async with talking(fake):
            await asyncio.to_thread(fake.drop)
            for act in acts:
                with pytest.raises(RuntimeError, match="connection is over"):
                    await asyncio.to_thread(act)
