"""What a talk makes of news, without a connection: which calls are handed on, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from patchbay.realtime.config import RealtimeSettings
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
    """A connection that only remembers what it was to send."""

    def __init__(self) -> None:
        self.types: list[str] = []

    def send(self, frames: Any) -> None:
        self.types += [frame["type"] for frame in frames]


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

    async def until_calls(self) -> None:
        async with asyncio.timeout(30):
            while not self.calls():
                self.changed.clear()
                await self.changed.wait()


def make_controller(**fields: Any) -> tuple[ResponseController, RecordingListener, Sent]:
    told, sent = RecordingListener(), Sent()
    wire = ProviderConnection(sent, OpenAIDialect(RealtimeSettings(model="m")))  # type: ignore[arg-type]
    return ResponseController(wire, limits(grace=0.05, **fields), told, resumed=False), told, sent  # type: ignore[arg-type]


def response_events(*names: str, done: bool = True) -> list[Any]:
    return [
        ResponseStarted("r1"),
        *(CallDelta("r1", name, f"id_{name}", name, arguments="{}" if done else None, done=done) for name in names),
    ]


async def test_complete_calls_are_emitted_at_the_end_of_their_response():
    made, told, _ = make_controller()
    for news in [*response_events("f"), ResponseDone("r1", "completed")]:
        made.handle(news)
    assert [(["f"], True)] == told.calls()
    made.close()


async def test_incomplete_call_is_awaited_briefly_and_its_late_end_is_read():
    made, told, _ = make_controller()
    for news in [*response_events("f", done=False), ResponseDone("r1", "completed")]:
        made.handle(news)
    assert [] == told.calls()
    made.handle(CallDelta("r1", "f", arguments="{}", done=True))
    assert [(["f"], True)] == told.calls()
    made.handle(CallDelta("r1", "f", arguments="{}", done=True))  # as the item's end says it once more
    made.handle(CallDelta("r1", "g", "id_g", "g", arguments="{}", done=True))
    assert (["g"], True) == (told.late(), made.is_quiet)
    made.close()


@pytest.mark.parametrize(
    "late", [TextDelta("r1", "so", spoken=True), AudioDelta("r1", b"12", 24_000), ResponseDone("r1", "completed")]
)
async def test_events_after_the_end_of_a_response_begin_none(late):
    made, told, _ = make_controller()
    for news in [ResponseStarted("r1"), TextDelta("r1", "well", spoken=True), ResponseDone("r1", "completed"), late]:
        made.handle(news)
    assert made.is_quiet
    made.close()
    assert ["completed"] == [args[0].status for name, args in told.said if name == "emit" and args[0].type == "response_end"]


async def test_call_without_an_end_is_emitted_as_it_is():
    made, told, _ = make_controller()
    for news in [*response_events("f", done=False), ResponseDone("r1", "completed")]:
        made.handle(news)
    await told.until_calls()
    assert [(["f"], True)] == told.calls()
    made.close()


async def test_call_right_after_its_response_runs_once():
    made, told, _ = make_controller()
    for news in [
        *response_events("f"),
        ResponseDone("r1", "completed"),
        CallDelta("r1", "g", "id_g", "g", arguments="{}", done=True),
    ]:
        made.handle(news)
    made.handle(CallDelta("r1", "g", "id_g", "g", arguments="{}", done=True))
    assert ([(["f"], True)], ["g"]) == (told.calls(), told.late())
    made.close()


async def test_calls_of_a_response_interrupted_during_collection_do_not_run():
    for interrupt in (lambda made: made.handle(SpeechStarted()), lambda made: made.cancel()):
        made, told, _ = make_controller()
        for news in [*response_events("f", done=False), ResponseDone("r1", "completed")]:
            made.handle(news)
        interrupt(made)
        made.handle(CallDelta("r1", "f", arguments="{}", done=True))
        made.handle(CallDelta("r1", "g", "id_g", "g", arguments="{}", done=True))
        await asyncio.sleep(0)
        assert ([(["f"], False)], []) == (told.calls(), told.late())
        made.close()


async def test_calls_of_a_response_interrupted_at_its_completion_do_not_run():
    made, told, sent = make_controller()
    for news in response_events("f"):
        made.handle(news)
    assert made.cancel()
    made.handle(ResponseDone("r1", "completed", (FinalCall("f", "id_f", "f", "{}"),)))
    assert [(["f"], False)] == told.calls()
    assert ["response.cancel"] == sent.types
    made.close()


async def test_events_of_an_older_response_are_ignored():
    made, told, _ = make_controller()
    for news in [
        *response_events(),
        ResponseDone("r1", "completed"),
        ResponseStarted("r2"),
        TextDelta("r1", "old"),
        CallDelta("r1", "old", "id_old", "old", arguments="{}", done=True),
        ResponseDone("r1", "completed", (FinalCall("old", "id_old", "old", "{}"),)),
        TextDelta("r2", "new"),
        ResponseDone("r2", "completed"),
    ]:
        made.handle(news)
    assert ["new"] == [args[0].delta for name, args in told.said if name == "emit" and args[0].type == "text"]
    assert ([], []) == (told.calls(), told.late())
    made.close()


async def test_responses_without_start_or_end_are_handled():
    made, told, _ = make_controller()
    made.handle(CallDelta("r1", "f", "id_f", "f", arguments="{}", done=True))
    assert not made.is_quiet
    made.handle(ResponseStarted("r2"))
    assert [(["f"], False)] == told.calls()
    made.handle(ResponseDone("r2", "completed", (FinalCall("g", "id_g", "g", "{}"),)))
    assert [(["f"], False), (["g"], True)] == told.calls()
    made.close()


async def test_response_requested_during_a_server_response_waits_for_its_results():
    made, told, sent = make_controller()
    made.request_response()
    made.handle(ServerError("busy", about="response", busy=True))
    for news in [*response_events("f"), ResponseDone("r1", "completed")]:
        made.handle(news)
    assert ([(["f"], True)], ["response.create"]) == (told.calls(), sent.types)
    made.request_response()
    assert ["response.create"] * 2 == sent.types
    made.close()


async def test_calls_run_once_if_the_server_starts_its_own_response():
    made, told, sent = make_controller()
    for news in [*response_events("f"), ResponseDone("r1", "completed")]:
        made.handle(news)
    made.request_response()  # the results are there
    made.handle(ServerError("busy", about="response", busy=True))  # one of which nothing has been heard yet
    assert ["response.create"] == sent.types
    made.handle(ResponseStarted("r2"))
    made.handle(ResponseDone("r2", "completed"))
    assert [(["f"], True)] == told.calls()
    ends = [args[0].status for name, args in told.said if name == "emit" and args[0].type == "response_end"]
    assert ["completed", "completed"] == ends
    made.close()


async def test_calls_of_an_abandoned_response_are_answered_but_do_not_run():
    made, told, _ = make_controller(cancel=0.01)
    for news in response_events("f"):
        made.handle(news)
    made.cancel()
    await told.until_calls()
    assert [(["f"], False)] == told.calls()
    whole = [FinalCall(name, f"id_{name}", name, "{}") for name in "fg"]
    for _ in range(2):
        made.handle(ResponseDone("r1", "completed", tuple(whole)))
    assert [(["f"], False), (["g"], False)] == told.calls()
    made.close()


async def test_engine_closed_with_a_pending_answer_reports_it_as_owed():
    for news, owed in (
        ([], True),
        ([ResponseStarted("r1")], True),
        ([ResponseStarted("r1"), TextDelta("r1", "Well")], False),
    ):
        made, _, _ = make_controller()
        made.request_response()
        for each in news:
            made.handle(each)
        made.close()
        assert owed is made.response_owed
    made, _, _ = make_controller()
    made.request_response()
    made.cancel()
    made.close()
    assert not made.response_owed


async def test_unhandled_server_events_are_errors_and_logged_once(caplog):
    made, told, _ = make_controller()
    for _ in range(5):
        made.handle(object())  # type: ignore[arg-type]
    assert 5 == len([args for name, args in told.said if name == "emit"])
    assert 1 == caplog.text.count("Handling a object failed")
