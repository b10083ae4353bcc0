"""Gemini's newer models: texts as ``realtimeInput``, and ``clientContent`` only as a history that the setup has announced."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from google.genai import types as sdk

from patchbay.realtime import RealtimeSession
from patchbay.realtime.providers.base import CallResult, ConnectionSetup, Line
from patchbay.realtime.server_events import CallsCancelled, ResponseDone, SpeechStarted
from patchbay.testing.realtime import Answer, Faults, Pause, Quote, Say
from realtime.core.playing import limits
from realtime.fakes.raw import Line as ProviderConnection
from realtime.fakes.raw import opened
from support.realtime_fakes import FakeGemini
from support.running import run

from .frames import dialect, read

BOUND = 30.0
NEWER = "gemini/gemini-3.1-flash-live-preview"
LIMITS = limits(slow_after=0.05)
TALK = [Line("user", "Who are you?"), Line("assistant", "A model."), Line("user", "Which one?")]


def newer(**settings):
    return dialect("gemini", **{"model": NEWER, **settings})


def setup(one, *lines: Line) -> dict:
    [frame] = one.setup_frames(ConnectionSetup([], lines))
    return frame["setup"]


@pytest.mark.parametrize(
    ("model", "spoken"),
    [
        (NEWER, True),
        ("gemini/models/gemini-3-flash-live", True),
        ("gemini/gemini-live-12.5-flash", True),
        ("gemini/gemini-2.5-flash-native-audio-preview-12-2025", False),
        ("gemini/gemini-live-2.5-flash-preview", False),
        ("gemini/gemini-2.0-flash-live-001", False),
        ("gemini/tunedModels/mine", False),
    ],
)
def test_model_generation_selects_the_text_frame(model, spoken):
    [frame] = newer(model=model).text_frames(Line("user", "hello"), answer=True)
    assert ("realtimeInput" if spoken else "clientContent") in frame


def test_history_config_selects_the_newer_text_frame():
    one = newer(model="gemini/mine", extra={"historyConfig": {"initialHistoryInClientContent": True}})
    assert "historyConfig" not in setup(one)  # the server would wait for one
    assert [{"realtimeInput": {"text": "hello"}}] == one.text_frames(Line("user", "hello"), answer=True)


def test_history_is_announced_and_sent_and_its_open_input_on_response():
    one = newer()
    announced = {"initialHistoryInClientContent": True}
    sdk.LiveClientMessage.model_validate({"setup": setup(one, *TALK)})
    assert announced == setup(one, *TALK)["historyConfig"]
    [history] = one.history_frames(ConnectionSetup([], TALK))
    sdk.LiveClientMessage.model_validate(history)
    turns = [{"role": role, "parts": [{"text": text}]} for role, text in (("user", "Who are you?"), ("model", "A model."))]
    assert {"clientContent": {"turns": turns, "turnComplete": True}} == history
    assert [[{"realtimeInput": {"text": "Which one?"}}], []] == [one.response_frames(), one.response_frames()]


def test_history_without_a_model_turn_is_not_sent():
    one = newer()
    assert "historyConfig" not in setup(one, TALK[0])
    assert [] == one.history_frames(ConnectionSetup([], TALK[:1]))
    [text] = one.text_frames(Line("user", "Hello?"), answer=True)
    assert {"realtimeInput": {"text": "Who are you?\n\nHello?"}} == text
    sdk.LiveClientMessage.model_validate(text)


def test_line_without_an_answer_is_sent_with_the_next_answered_one():
    one = newer()
    assert [] == one.text_frames(Line("user", "It is done."), answer=False)
    one.result_frames([CallResult("fc1", "get_time", "{}")])
    assert [{"realtimeInput": {"text": "It is done."}}] == one.response_frames()
    assert [] == one.response_frames()


CUT = {"serverContent": {"interrupted": True}}
OVER = {"serverContent": {"turnComplete": True}}
TAKEN = {"toolCallCancellation": {"ids": ["fc1"]}}
CALLS = {"toolCall": {"functionCalls": [{"id": "fc1", "name": "get_time"}]}}


def test_no_answer_is_expected_to_a_result_that_crossed_an_interruption():
    one = dialect("gemini")
    read(one, CALLS)
    one.result_frames([CallResult("fc1", "get_time", "{}")])
    taken, _, speaks, ended = read(one, TAKEN, CUT, OVER)
    assert [CallsCancelled(("fc1",)), SpeechStarted()] == [taken, speaks]
    assert isinstance(ended, ResponseDone)
    assert ("cancelled", ()) == (ended.status, ended.calls)


def test_interruption_of_an_earlier_request_keeps_the_answer_to_a_later_one():
    one = dialect("gemini")
    for text in ("one", "two"):
        one.text_frames(Line("user", text), answer=True)
    assert [SpeechStarted()] == read(one, CUT, OVER)
    began, *_, ended = read(one, {"serverContent": {"modelTurn": {"parts": [{"text": "Both."}]}}}, OVER)
    assert (began.response_id, "completed") == (ended.response_id, ended.status)


# Whole sessions


def session(fake: FakeGemini, *tools, **settings) -> RealtimeSession:
    whole = {"url": fake.url, "api_key": "k", "output": "text", "limits": LIMITS, **settings}
    return RealtimeSession(NEWER, tools=tools, **whole)


async def read_until(session: RealtimeSession, last: str) -> str:
    """Return the model's text up to the response that contains ``last``."""
    text = ""
    async with aclosing(session.events()) as events:
        async for event in events:
            text += event.delta if event.type == "text" else ""
            if event.type == "response_end" and last in text:
                return text
    raise AssertionError(text)


def test_new_connection_without_resumption_gets_the_history_and_answers():
    async def talk(fake: FakeGemini) -> None:
        async with session(fake) as one:
            await one.send_text("I am Ann.")
            await read_until(one, "Hello, Ann.")
            await one.send_text("Who am I?")  # and the connection is lost before the answer
            await read_until(one, "I was told: I am Ann. | Who am I?")

    script = [Say("Hello, Ann."), Answer([Pause(0.0)], kill="asked"), Quote()]
    with FakeGemini(script, newer=True, faults=Faults(forget=True)) as fake:
        asyncio.run(asyncio.wait_for(talk(fake), BOUND))
        assert ([], 0) == (fake.violations, fake.resumed)
        last = [outcome for outcome in fake.heard if outcome.connection == fake.connections]
        assert [("user", "I am Ann."), ("assistant", "Hello, Ann."), ("user", "Who am I?")] == [
            (one.kind, one.text) for one in last
        ]


@pytest.mark.parametrize(
    ("frame", "violations"),
    [
        (
            {"clientContent": {"turns": [], "turnComplete": True}},
            ["connection 1: clientContent that is not a history"],
        ),
        ({"realtimeInput": {"text": "hello"}}, []),
    ],
)
def test_newer_fake_refuses_turns_during_a_session(frame, violations):
    async def talk(fake: FakeGemini) -> None:
        async with opened(fake) as socket:
            line = ProviderConnection(socket)
            await line.configure("gemini")
            await line.send(frame)
            await fake.until(lambda: bool(fake.violations or fake.heard))

    with FakeGemini(newer=True) as fake:
        run(talk(fake))
        assert violations == fake.violations


def test_a_newer_fake_waits_for_the_history_that_was_announced():
    async def talk(fake: FakeGemini) -> None:
        async with opened(fake) as socket:
            line = ProviderConnection(socket)
            await line.configure("gemini", historyConfig={"initialHistoryInClientContent": True})
            await line.send({"realtimeInput": {"text": "hello"}})
            await fake.until(lambda: bool(fake.violations))

    with FakeGemini(newer=True) as fake:
        run(talk(fake))
        assert ["connection 1: realtimeInput before the history that was announced"] == fake.violations
