"""A response controller without a connection: which calls it hands over, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from patchbay.realtime import RealtimeSettings
from patchbay.realtime.connection import ProviderConnection
from patchbay.realtime.providers.event_providers import OpenAIDialect
from patchbay.realtime.responses import ResponseController
from patchbay.realtime.server_events import (
    AudioDelta,
    CallDelta,
    FinalCall,
    ResponseDone,
    ResponseStarted,
    ServerError,
    SpeechStarted,
    TextDelta,
)

from .playing import limits


class Sent:
    """A connection that records the types of sent frames."""

    def __init__(self) -> None:
        self.types: list[str] = []

    def send(self, frames: Any) -> None:
        self.types += [frame.get("type", "") for frame in frames]


class RecordingListener:
    """A listener that records its method calls by name."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.changed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        def told(*args: Any, **kwargs: Any) -> None:
            self.said.append((name, (*args, *kwargs.values())))
            self.changed.set()

        return told

    def calls(self) -> list[tuple[list[str], bool]]:
        return [([call.name for call in args[0]], args[1]) for name, args in self.said if name == "on_calls"]

    def late(self) -> list[str]:
        return [args[0].name for name, args in self.said if name == "on_late_call"]

    def ends(self) -> list[str]:
        return [args[0].status for name, args in self.said if name == "emit" and args[0].type == "response_end"]

    async def until_calls(self) -> None:
        async with asyncio.timeout(30):
            while not self.calls():
                self.changed.clear()
                await self.changed.wait()


class Talk:
    """A response controller, its sent frames, and its listener."""

    def __init__(self, **fields: Any) -> None:
        self.told, self.sent = RecordingListener(), Sent()
        wire = ProviderConnection(self.sent, OpenAIDialect(RealtimeSettings(model="m")))  # type: ignore[arg-type]
        self.made = ResponseController(wire, limits(grace=0.05, **fields), self.told, resumed=False)  # type: ignore[arg-type]

    def take(self, *news: Any) -> None:
        for each in news:
            self.made.handle(each)


@contextmanager
def talking(*news: Any, **fields: Any) -> Iterator[tuple[Talk, ResponseController, RecordingListener]]:
    """A controller after these events, and its listener."""
    talk = Talk(**fields)
    talk.take(*news)
    yield talk, talk.made, talk.told
    talk.made.close()


OVER = ResponseDone("r1", "completed")


def call(name: str, *, done: bool = True) -> CallDelta:
    return CallDelta("r1", name, f"id_{name}", name, arguments="{}" if done else None, done=done)


def response_events(*names: str, done: bool = True) -> list[Any]:
    return [ResponseStarted("r1"), *(call(name, done=done) for name in names)]


async def test_complete_calls_are_emitted_at_the_end_of_their_response():
    with talking(*response_events("f"), OVER) as (_, _, outcome):
        assert [(["f"], True)] == outcome.calls()


async def test_incomplete_call_is_awaited_briefly_and_its_late_end_is_read():
    with talking(*response_events("f", done=False), OVER) as (talk, made, outcome):
        assert [] == outcome.calls()
        end = CallDelta("r1", "f", arguments="{}", done=True)
        talk.take(end)
        assert [(["f"], True)] == outcome.calls()
        talk.take(end, call("g"))  # as the item's end says it once more
        assert (["g"], True) == (outcome.late(), made.is_quiet)


@pytest.mark.parametrize("late", [TextDelta("r1", "so", spoken=True), AudioDelta("r1", b"12", 24_000), OVER])
async def test_events_after_the_end_of_a_response_begin_none(late):
    with talking(ResponseStarted("r1"), TextDelta("r1", "well", spoken=True), OVER, late) as (_, made, outcome):
        assert made.is_quiet
    assert ["completed"] == outcome.ends()


async def test_call_without_an_end_is_emitted_as_it_is():
    with talking(*response_events("f", done=False), OVER) as (_, _, outcome):
        await outcome.until_calls()
        assert [(["f"], True)] == outcome.calls()


async def test_call_right_after_its_response_runs_once():
    with talking(*response_events("f"), OVER, call("g"), call("g")) as (_, _, outcome):
        assert ([(["f"], True)], ["g"]) == (outcome.calls(), outcome.late())


@pytest.mark.parametrize("interrupt", [lambda made: made.handle(SpeechStarted()), lambda made: made.cancel()])
async def test_calls_of_a_response_interrupted_during_collection_do_not_run(interrupt):
    with talking(*response_events("f", done=False), OVER) as (talk, made, outcome):
        interrupt(made)
        talk.take(CallDelta("r1", "f", arguments="{}", done=True), call("g"))
        await asyncio.sleep(0)
        assert ([(["f"], False)], []) == (outcome.calls(), outcome.late())


async def test_calls_of_a_response_interrupted_at_its_completion_do_not_run():
    with talking(*response_events("f")) as (talk, made, outcome):
        assert made.cancel()
        talk.take(ResponseDone("r1", "completed", (FinalCall("f", "id_f", "f", "{}"),)))
        assert [(["f"], False)] == outcome.calls()
        assert ["response.cancel"] == talk.sent.types


async def test_events_of_an_older_response_are_ignored():
    older = [TextDelta("r1", "old"), call("old"), ResponseDone("r1", "completed", (FinalCall("old", "id_old", "old", "{}"),))]
    newer = [TextDelta("r2", "new"), ResponseDone("r2", "completed")]
    with talking(*response_events(), OVER, ResponseStarted("r2"), *older, *newer) as (_, _, outcome):
        assert ["new"] == [args[0].delta for name, args in outcome.said if name == "emit" and args[0].type == "text"]
        assert ([], []) == (outcome.calls(), outcome.late())


async def test_responses_without_start_or_end_are_handled():
    with talking(call("f")) as (talk, made, outcome):
        assert not made.is_quiet
        talk.take(ResponseStarted("r2"))
        assert [(["f"], False)] == outcome.calls()
        talk.take(ResponseDone("r2", "completed", (FinalCall("g", "id_g", "g", "{}"),)))
        assert [(["f"], False), (["g"], True)] == outcome.calls()


async def test_response_requested_during_a_server_response_waits_for_its_results():
    with talking() as (talk, made, outcome):
        made.request_response()
        talk.take(ServerError("busy", about="response", busy=True), *response_events("f"), OVER)
        assert ([(["f"], True)], ["response.create"]) == (outcome.calls(), talk.sent.types)
        made.request_response()
        assert ["response.create"] * 2 == talk.sent.types


async def test_calls_run_once_if_the_server_starts_its_own_response():
    with talking(*response_events("f"), OVER) as (talk, made, outcome):
        made.request_response()  # the results are there
        talk.take(ServerError("busy", about="response", busy=True))  # one of which nothing has been heard yet
        assert ["response.create"] == talk.sent.types
        talk.take(ResponseStarted("r2"), ResponseDone("r2", "completed"))
        assert [(["f"], True)] == outcome.calls()
        assert ["completed", "completed"] == outcome.ends()


async def test_calls_of_an_abandoned_response_are_answered_but_do_not_run():
    with talking(*response_events("f"), cancel=0.01) as (talk, made, outcome):
        made.cancel()
        await outcome.until_calls()
        assert [(["f"], False)] == outcome.calls()
        whole = ResponseDone("r1", "completed", tuple(FinalCall(name, f"id_{name}", name, "{}") for name in "fg"))
        talk.take(whole, whole)
        assert [(["f"], False), (["g"], False)] == outcome.calls()


@pytest.mark.parametrize(
    ("news", "cancelled", "owed"),
    [
        ([], False, True),
        ([ResponseStarted("r1")], False, True),
        ([ResponseStarted("r1"), TextDelta("r1", "Well")], False, False),
        ([], True, False),
    ],
)
async def test_engine_closed_with_a_pending_answer_reports_it_as_owed(news, cancelled, owed):
    with talking() as (talk, made, _):
        made.request_response()
        talk.take(*news)
        if cancelled:
            made.cancel()
    assert owed is made.response_owed


async def test_unhandled_server_events_are_errors_and_logged_once(caplog):
    with talking(*[object()] * 5) as (_, _, outcome):
        assert 5 == len([args for name, args in outcome.said if name == "emit"])
        assert 1 == caplog.text.count("Handling a object failed")
