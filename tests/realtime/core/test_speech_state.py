"""The time for which a user counts as speaking: until the server reports the end, at most some seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from laws.clock import SteppedLoop
from patchbay.realtime import RealtimeLimits, RealtimeSettings
from patchbay.realtime.connection import ProviderConnection
from patchbay.realtime.providers.base import Dialect
from patchbay.realtime.providers.event_providers import OpenAIDialect
from patchbay.realtime.providers.gemini import GeminiDialect
from patchbay.realtime.responses import ResponseController
from patchbay.realtime.server_events import (
    CallDelta,
    InputTranscript,
    ResponseDone,
    ResponseStarted,
    SpeechStarted,
    SpeechStopped,
    TextDelta,
)

from .test_response_controller import RecordingListener, Sent


class ClockedController:
    """A response controller and its clock."""

    def __init__(self, loop: SteppedLoop, dialect: Dialect) -> None:
        self.loop = loop
        self.sent = Sent()
        wire = ProviderConnection(self.sent, dialect)  # type: ignore[arg-type]
        self.talk = loop.inside(lambda: ResponseController(wire, RealtimeLimits(), RecordingListener(), resumed=False))  # type: ignore[arg-type]

    def take(self, *news: Any) -> None:
        for each in news:
            self.loop.inside(lambda: self.talk.handle(each))  # noqa: B023  (it is called at once)

    def later(self, seconds: float) -> bool:
        """Let time pass; return whether the user still speaks."""
        self.loop.now += seconds
        self.loop.step(3)
        assert self.talk.user_speaks is not self.talk.is_free
        return self.talk.user_speaks

    def sounds(self, seconds: float) -> bool:
        """Let time pass while audio is sent; return whether the user still speaks."""
        for _ in range(int(seconds / 10)):
            self.loop.inside(lambda: self.talk.send_audio(bytes(320)))
            self.later(10)
        return self.talk.user_speaks


@contextmanager
def clocked_controller(dialect: type[Dialect] = OpenAIDialect) -> Iterator[ClockedController]:
    loop = SteppedLoop()
    try:
        made = ClockedController(loop, dialect(RealtimeSettings(model="m")))
        yield made
        loop.inside(made.talk.close)
    finally:
        loop.close()


def test_user_with_continuing_audio_speaks_until_the_server_detects_the_end():
    with clocked_controller() as made:
        made.take(SpeechStarted())
        assert made.sounds(240)
        made.take(SpeechStopped())
        assert (True, False) == (made.later(19.9), made.later(0.2))


def test_audio_after_the_end_of_speech_is_not_speech():
    with clocked_controller() as made:
        made.take(SpeechStarted(), SpeechStopped())
        assert (True, False) == (made.sounds(10), made.sounds(10))


def test_speech_resumed_before_the_answer_counts_as_speaking():
    with clocked_controller() as made:
        made.take(SpeechStarted(), SpeechStopped(), SpeechStarted())
        assert made.sounds(60)


def test_missing_end_of_speech_times_out():
    with clocked_controller() as made:
        made.take(SpeechStarted())
        assert (True, False, False) == (made.sounds(290), made.sounds(10), made.sounds(10))


def test_user_without_further_audio_stops_speaking_after_a_timeout():
    with clocked_controller() as made:
        made.take(SpeechStarted())
        assert made.sounds(60)
        assert (True, False) == (made.later(9.9), made.later(0.2))


def test_end_of_answered_speech_changes_nothing():
    with clocked_controller() as made:
        made.take(SpeechStarted(), ResponseStarted("r"), SpeechStopped(), ResponseDone("r", "completed"))
        assert made.talk.is_free


def test_missing_end_of_speech_times_out_with_an_open_microphone():
    with clocked_controller(GeminiDialect) as made:
        made.take(SpeechStarted())
        assert (True, False) == (made.sounds(10), made.sounds(10))
        made.take(InputTranscript("What", whole=False))
        assert (True, False) == (made.later(4.9), made.later(0.2))


def test_response_requested_before_an_unanswered_noise_is_requested_once_after_it():
    with clocked_controller() as made:
        made.take(ResponseStarted("r"))
        made.loop.inside(made.talk.request_response)
        made.take(SpeechStarted(), SpeechStopped(), ResponseDone("r", "cancelled"))
        assert "response.create" not in made.sent.types
        made.loop.now += 20.1
        made.loop.step(3)
        assert ["response.create"] == [kind for kind in made.sent.types if kind == "response.create"]
        made.take(ResponseStarted("s"), ResponseDone("s", "completed"))
        assert made.talk.is_free
        assert 1 == made.sent.types.count("response.create")


def test_response_is_not_requested_again_if_the_server_answers_the_noise():
    with clocked_controller() as made:
        made.take(ResponseStarted("r"))
        made.loop.inside(made.talk.request_response)
        made.take(SpeechStarted(), SpeechStopped(), ResponseDone("r", "cancelled"))
        made.take(ResponseStarted("s"), ResponseDone("s", "completed"))
        made.loop.now += 60
        made.loop.step(3)
        assert "response.create" not in made.sent.types


@pytest.mark.parametrize("says", [False, True])
def test_response_lost_while_collecting_calls_is_owed_if_unheard(says):
    with clocked_controller() as made:
        began = [ResponseStarted("r"), *([TextDelta("r", "Let me see.")] if says else [])]
        made.take(*began, CallDelta("r", "f", "id_f", "f"), ResponseDone("r", "completed"))
        made.loop.inside(made.talk.close)
        assert made.talk.response_owed is not says


def test_interrupted_response_is_not_owed_after_close():
    with clocked_controller() as made:
        made.take(ResponseStarted("r"), CallDelta("r", "f", "id_f", "f"), ResponseDone("r", "completed"))
        made.loop.inside(made.talk.cancel)
        made.loop.inside(made.talk.close)
        assert not made.talk.response_owed


def test_output_of_an_earlier_response_does_not_count_for_a_lost_one():
    with clocked_controller() as made:
        made.take(ResponseStarted("r"), TextDelta("r", "Well."), ResponseDone("r", "completed"), ResponseStarted("s"))
        made.loop.inside(made.talk.close)
        assert made.talk.response_owed
