"""Frames of servers with OpenAI's event protocol: those of the SDK's models, and known deviations."""

from __future__ import annotations

import base64

import openai.types.realtime as sdk
import pytest

from patchbay.realtime.providers.base import CallResult
from patchbay.realtime.server_events import (
    AudioDelta,
    CallDelta,
    FinalCall,
    InputTranscript,
    ResponseDone,
    ResponseStarted,
    ServerError,
    SessionOpened,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    TextDelta,
)

from .frames import CLOCK, EVENTFUL, WEATHER, dialect, event, joined, read, shaped

PCM = base64.b64encode(b"\1\2\3\4").decode()


def vendors(kind: str, **members):
    """A frame as the SDK's model encodes it, with all required members."""
    names = {
        "response.created": sdk.ResponseCreatedEvent,
        "response.done": sdk.ResponseDoneEvent,
        "response.output_item.added": sdk.ResponseOutputItemAddedEvent,
        "response.output_item.done": sdk.ResponseOutputItemDoneEvent,
        "response.function_call_arguments.delta": sdk.ResponseFunctionCallArgumentsDeltaEvent,
        "response.function_call_arguments.done": sdk.ResponseFunctionCallArgumentsDoneEvent,
        "response.output_text.delta": sdk.ResponseTextDeltaEvent,
        "response.output_audio.delta": sdk.ResponseAudioDeltaEvent,
        "response.output_audio_transcript.delta": sdk.ResponseAudioTranscriptDeltaEvent,
        "error": sdk.RealtimeErrorEvent,
        "session.created": sdk.SessionCreatedEvent,
        "session.updated": sdk.SessionUpdatedEvent,
        "input_audio_buffer.speech_started": sdk.InputAudioBufferSpeechStartedEvent,
        "input_audio_buffer.speech_stopped": sdk.InputAudioBufferSpeechStoppedEvent,
        "conversation.item.input_audio_transcription.completed": sdk.ConversationItemInputAudioTranscriptionCompletedEvent,
        "conversation.item.input_audio_transcription.delta": sdk.ConversationItemInputAudioTranscriptionDeltaEvent,
    }
    return names[kind].model_validate(event(kind, **members)).to_dict()


def response_created(response_id="resp_1"):
    return vendors("response.created", response={"id": response_id, "status": "in_progress", "output": []})


def done(status="completed", response_id="resp_1", output=(), **members):
    return vendors("response.done", response={"id": response_id, "status": status, "output": list(output), **members})


def call(number=1, **members):
    return {
        "id": f"item_{number}",
        "type": "function_call",
        "status": "completed",
        "name": "get_weather",
        "call_id": f"call_{number}",
        "arguments": '{"city": "Oslo"}',
        **members,
    }


def piece(delta, number=1, **members):
    where = {"response_id": "resp_1", "item_id": f"item_{number}", "output_index": number - 1, "call_id": f"call_{number}"}
    return {**event("response.function_call_arguments.delta", **where, delta=delta), **members}


def arguments_done(number=1, **members):
    where = {"response_id": "resp_1", "item_id": f"item_{number}", "output_index": number - 1, "call_id": f"call_{number}"}
    whole = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    return {**event("response.function_call_arguments.done", **where, **whole), **members}


def item(kind, number=1, **members):
    return event(f"response.output_item.{kind}", response_id="resp_1", output_index=number - 1, item=call(number, **members))


def without(frame, *names):
    return {name: value for name, value in frame.items() if name not in names}


# A whole response


@pytest.mark.parametrize("provider", EVENTFUL)
def test_a_spoken_answer_is_read_from_the_sdks_own_events(provider):
    where = {"response_id": "resp_1", "item_id": "item_1", "output_index": 0, "content_index": 0}
    usage = {"total_tokens": 9, "input_tokens": 4, "output_tokens": 5}
    session = {"type": "realtime", "object": "realtime.session", "id": "sess_1"}
    received = {"item_id": "item_0", "content_index": 0}
    frames = [
        vendors("session.created", session=session),
        vendors("session.updated", session=session),
        vendors("input_audio_buffer.speech_started", audio_start_ms=0, item_id="item_0"),
        vendors("input_audio_buffer.speech_stopped", audio_end_ms=900, item_id="item_0"),
        vendors("conversation.item.input_audio_transcription.delta", **received, delta="Hel"),
        vendors(
            "conversation.item.input_audio_transcription.completed",
            **received,
            transcript="Hello",
            usage={"type": "duration", "seconds": 1},
        ),
        response_created(),
        vendors("response.output_audio_transcript.delta", **where, delta="Good "),
        vendors("response.output_audio.delta", **where, delta=PCM),
        vendors("response.output_text.delta", **where, delta="day"),
        done(usage=usage),
    ]
    assert [
        SessionOpened(),
        SessionUpdated(),
        SpeechStarted(),
        SpeechStopped(),
        InputTranscript("Hel", whole=False),
        InputTranscript("Hello"),
        ResponseStarted("resp_1"),
        TextDelta("resp_1", "Good ", spoken=True),
        AudioDelta("resp_1", b"\1\2\3\4", 24000),
        TextDelta("resp_1", "day"),
        ResponseDone("resp_1", "completed", (), usage),
    ] == read(dialect(provider), *frames)


@pytest.mark.parametrize("provider", EVENTFUL)
def test_the_older_names_of_events_mean_the_same(provider):
    one = dialect(provider)
    assert [TextDelta("r", "a"), TextDelta("r", "b", spoken=True), AudioDelta("r", b"\1\2\3\4", 24000)] == read(
        one,
        event("response.text.delta", response_id="r", delta="a"),
        event("response.audio_transcript.delta", response_id="r", delta="b"),
        event("response.audio.delta", response_id="r", delta=PCM),
    )


@pytest.mark.parametrize("provider", EVENTFUL)
def test_text_output_uses_the_transcript_and_no_audio(provider):
    one = dialect(provider, output="text")
    assert [TextDelta("r", "a")] == read(
        one,
        event("response.audio.delta", response_id="r", delta=PCM),
        event("response.audio_transcript.delta", response_id="r", delta="a"),
    )


@pytest.mark.parametrize("provider", EVENTFUL)
def test_disabled_transcription_emits_no_user_transcript(provider):
    one = dialect(provider, transcribe=False)
    kind = "conversation.item.input_audio_transcription"
    assert [] == read(one, event(f"{kind}.delta", delta="a"), event(f"{kind}.completed", transcript="ab"))


@pytest.mark.parametrize("provider", EVENTFUL)
def test_irrelevant_frames_give_no_events(provider):
    frames = [
        {"type": "heartbeat"},
        event("rate_limits.updated", rate_limits=[]),
        event("response.content_part.added", part={"type": "audio"}),
        event("conversation.item.added", item=call()),
        event("response.function_call.simple_browser", name="simple_browser", session={}),
        event("response.audio.delta", response_id="r", delta="no base64 at all"),
        event("response.output_item.done", item={"type": "message", "id": "item_1"}),
    ]
    assert [] == read(dialect(provider), *frames)


@pytest.mark.parametrize("audio", [b"\xfb\xef\xff\xfe", b"\1\2"])
def test_audio_may_be_url_safe_base64_without_padding(audio):
    text = base64.urlsafe_b64encode(audio).decode().rstrip("=")
    assert [AudioDelta("r", audio, 24000)] == read(dialect("openai"), event("response.audio.delta", response_id="r", delta=text))


def test_lone_surrogate_is_replaced():
    [news] = read(dialect("openai"), event("response.text.delta", response_id="r", delta="a\ud83db \ud83d\ude00"))
    assert "a\ufffdb \U0001f600" == news.text


# The end of a response


@pytest.mark.parametrize("status", ["completed", "cancelled", "incomplete", "failed"])
def test_a_response_ends_with_its_status_and_the_reason_for_it(status):
    details = {"type": status, "reason": "turn_detected"}
    [_, end] = read(dialect("openai"), response_created(), done(status, status_details=details))
    assert (status, "turn_detected") == (end.status, end.reason)


def test_the_error_of_a_failed_response_is_its_reason():
    details = {"type": "failed", "error": {"type": "server_error", "code": "overloaded", "message": "Too much."}}
    [_, end] = read(dialect("qwen"), response_created(), done("failed", status_details=details))
    assert "overloaded: Too much." == end.reason


@pytest.mark.parametrize("status", ["exploded", 7, [], {}])
def test_unknown_response_status_is_a_failure(status):
    [_, end] = read(dialect("openai"), response_created(), event("response.done", response={"id": "resp_1", "status": status}))
    assert "failed" == end.status


def test_a_response_begins_and_ends_once():
    one = dialect("openai")
    assert ["ResponseStarted", "ResponseDone"] == [
        type(news).__name__ for news in read(one, response_created(), response_created(), done(), done())
    ]
    assert [] == read(one, response_created())


def test_end_of_an_older_response_keeps_its_id():
    [_, _, end] = read(dialect("openai"), response_created("resp_1"), response_created("resp_2"), done(response_id="resp_1"))
    assert "resp_1" == end.response_id


def test_glms_documentation_labels_the_beginning_as_an_end():
    beginning = event("response.done", response={"id": "resp_1", "object": "realtime.response", "status": "in_progress"})
    assert [ResponseStarted("resp_1"), ResponseDone("resp_1", "completed")] == read(
        dialect("glm"), beginning, response_created(), event("response.done")
    )


def test_glms_documentation_labels_a_confirmation_as_a_request():
    assert [SessionUpdated()] == read(dialect("glm"), event("session.update", session={}))


@pytest.mark.parametrize("provider", EVENTFUL)
def test_response_without_an_id_gets_one_for_all_its_events(provider):
    one = dialect(provider)
    news = read(
        one,
        event("response.created"),
        event("response.text.delta", response_id="resp_9", delta="a"),
        event("response.text.delta", delta="b"),
        event("response.done", response={"id": "resp_9", "status": "completed"}),
    )
    assert 1 == len({each.response_id for each in news})
    assert ["ResponseStarted", "TextDelta", "TextDelta", "ResponseDone"] == [type(each).__name__ for each in news]


def test_usage_can_be_beside_the_response():
    assert {"total_tokens": 1} == read(dialect("glm"), response_created(), event("response.done", usage={"total_tokens": 1}))[
        -1
    ].usage


# Calls


@pytest.mark.parametrize("provider", ["openai", "qwen", "stepfun"])
def test_a_call_is_read_from_the_sdks_own_events(provider):
    one = dialect(provider)
    in_progress = call(status="in_progress", arguments="")
    where = {"response_id": "resp_1", "item_id": "item_1", "output_index": 0, "call_id": "call_1"}
    frames = [
        response_created(),
        vendors("response.output_item.added", response_id="resp_1", output_index=0, item=in_progress),
        vendors("response.function_call_arguments.delta", **where, delta='{"city"'),
        vendors("response.function_call_arguments.delta", **where, delta=': "Oslo"}'),
        vendors("response.function_call_arguments.done", **where, name="get_weather", arguments='{"city": "Oslo"}'),
        vendors("response.output_item.done", response_id="resp_1", output_index=0, item=call()),
        done(output=[call()]),
    ]
    _, added, first, second, whole, item_done, end = read(one, *frames)
    key = added.key
    assert CallDelta("resp_1", key, "call_1", "get_weather") == added
    assert [CallDelta("resp_1", key, "call_1", delta=delta) for delta in ('{"city"', ': "Oslo"}')] == [first, second]
    assert CallDelta("resp_1", key, "call_1", "get_weather", arguments='{"city": "Oslo"}', done=True) == whole == item_done
    assert (FinalCall(key, "call_1", "get_weather", '{"city": "Oslo"}'),) == end.calls


IDS = ("item_id", "call_id", "output_index")


@pytest.mark.parametrize(
    "lost", [(), *[(one,) for one in IDS], *[tuple(each for each in IDS if each != one) for one in IDS], IDS]
)
@pytest.mark.parametrize("nameless", [False, True])
def test_frames_without_ids_are_matched_to_their_call(lost, nameless):
    one = dialect("openai")
    frames = [response_created()]
    for number in (1, 2):
        frames.append(item("added", number, name=f"tool_{number}", arguments="", status="in_progress"))
        frames += [without(piece(delta, number), *lost) for delta in ('{"n": ', f"{number}}}")]
        name = {} if nameless else {"name": f"tool_{number}"}
        frames.append({**without(arguments_done(number, arguments=f'{{"n": {number}}}'), "name", *lost), **name})
        frames.append(frames[-1])
    news = read(one, *frames)
    expected = [(f"call_{number}", f"tool_{number}", f'{{"n": {number}}}') for number in (1, 2)]
    assert expected == list(joined(news).values())


def test_interleaved_calls_are_separated():
    one = dialect("openai")
    frames = [item("added", 1, name="a"), item("added", 2, name="b"), piece("1", 2), piece("2", 1), piece("3", 2), piece("4", 1)]
    assert [("call_1", "a", "24"), ("call_2", "b", "13")] == list(joined(read(one, response_created(), *frames)).values())


def test_call_is_read_from_its_item_alone():
    one = dialect("openai")
    assert [("call_1", "get_weather", '{"city": "Oslo"}')] == list(joined(read(one, response_created(), item("done"))).values())


def test_call_is_read_from_the_response_end_alone():
    [_, end] = read(dialect("openai"), response_created(), done(output=[call()]))
    assert [("call_1", "get_weather", '{"city": "Oslo"}')] == [(one.call_id, one.name, one.arguments) for one in end.calls]


def test_end_event_matches_calls_by_their_keys_without_ids():
    one = dialect("openai")
    bare = without(arguments_done(2, arguments='{"b": 2}'), "item_id", "call_id", "output_index")
    _, first, end = read(
        one,
        response_created(),
        bare,
        done(
            output=[
                without(call(1, arguments='{"a": 1}'), "id", "call_id"),
                without(call(2, arguments='{"b": 2}'), "id", "call_id"),
            ]
        ),
    )
    assert [False, True] == [whole.key == first.key for whole in end.calls]


@pytest.mark.parametrize("apart", ["item_id", "call_id", "name"])
def test_two_calls_with_one_index_are_separated_by_any_id(apart):
    frames = [
        {**without(arguments_done(1), *IDS, "name", "arguments"), "output_index": 0, apart: f"one_{number}"} for number in (1, 2)
    ]
    assert 2 == len(joined(read(dialect("openai"), response_created(), *frames)))


def test_delta_without_ids_after_a_complete_call_begins_another():
    bare = without(piece('{"n": 2}'), *IDS)
    assert 2 == len(joined(read(dialect("openai"), response_created(), arguments_done(), bare)))


def test_index_in_the_response_end_does_not_identify_a_call():
    # Other frames count places as they like: what is second there stands first in the list.
    listed = [without(call(), "id", "call_id"), {"type": "function_call", "name": "get_weather"}]
    end = event("response.done", response={"id": "resp_1", "status": "completed", "output": listed})
    _, first, ended = read(dialect("openai"), response_created(), without(arguments_done(2), "item_id", "call_id"), end)
    assert [True, False] == [whole.key == first.key for whole in ended.calls]


def test_calls_of_the_current_response_are_known_after_any_number_of_others():
    one = dialect("openai")
    for number in range(9):
        response_id = f"resp_{number}"
        frames = [{**arguments_done(number), "response_id": response_id} for number in (1, 2, 1, 2)]
        assert 2 == len(joined(read(one, response_created(response_id), *frames)))


def test_incomplete_item_never_completes_its_call():
    _, cut = read(dialect("openai"), response_created(), item("done", status="incomplete", arguments='{"city": "Os'))
    assert (False, None) == (cut.done, cut.arguments)


def test_arguments_can_be_an_object():
    [_, whole] = read(dialect("glm"), response_created(), arguments_done(arguments={"city": "Tromsø"}))
    assert '{"city": "Tromsø"}' == whole.arguments


def test_delta_without_a_response_extends_the_current_one():
    [_, whole] = read(dialect("openai"), response_created(), without(arguments_done(), "response_id"))
    assert "resp_1" == whole.response_id


def test_deltas_of_another_response_keep_its_id():
    one = dialect("openai")
    _, mine, stale = read(one, response_created(), arguments_done(), arguments_done(response_id="resp_0"))
    assert ("resp_0", False) == (stale.response_id, stale.key == mine.key)


# GLM: no ids at all


def glm_call(**members):
    return without(arguments_done(**members), "item_id", "call_id", *(name for name, value in members.items() if value is None))


def test_glms_calls_get_ids_by_their_place():
    one = dialect("glm")
    news = read(one, response_created(), glm_call(output_index=0), glm_call(output_index=1, arguments='{"city": "Rome"}'))
    assert ["glm_resp_1_0", "glm_resp_1_1"] == [piece.call_id for piece in news[1:]]


@pytest.mark.parametrize("place", [0, None])
def test_glm_calls_with_one_index_are_told_apart_by_their_arguments(place):
    one = dialect("glm")
    oslo, rome = ({**glm_call(output_index=place, arguments=f'{{"city": "{city}"}}')} for city in ("Oslo", "Rome"))
    news = read(one, response_created(), oslo, oslo, rome, rome, oslo)
    assert [
        ("glm_resp_1_0", "get_weather", '{"city": "Oslo"}'),
        ("glm_resp_1_1", "get_weather", '{"city": "Rome"}'),
    ] == list(joined(news).values())


def test_the_same_call_at_two_places_is_two():
    news = read(dialect("glm"), response_created(), glm_call(output_index=0), glm_call(output_index=1))
    assert 2 == len(joined(news))


def test_unnamed_glm_call_is_of_its_only_tool():
    one = dialect("glm")
    one.tools_frames(shaped(one, WEATHER))
    assert "get_weather" == read(one, response_created(), glm_call(name=None))[1].name
    one.tools_frames(shaped(one, WEATHER, CLOCK))
    assert "" == read(one, response_created("resp_2"), {**glm_call(name=None), "response_id": "resp_2"})[1].name


# Refusals


def rejected_execution(provider="openai", *, changing=False, **error):
    one = dialect(provider)
    if changing:
        one.tools_frames([])
    [news] = read(one, event("error", error=error))
    return news


def test_a_refusal_is_read_from_the_sdks_own_event():
    error = {"type": "invalid_request_error", "code": "invalid_value", "message": "Bad.", "param": "session.tools[0].name"}
    [news] = read(dialect("openai"), vendors("error", error={**error, "event_id": "mine"}))
    assert ServerError("Bad.", "invalid_value", "session.tools[0].name", "mine", "session") == news


@pytest.mark.parametrize("provider", EVENTFUL)
@pytest.mark.parametrize(
    ("sent", "about"),
    [
        (lambda one: one.tools_frames([]), "session"),
        (lambda one: one.response_frames(), "response"),
        (lambda one: one.result_frames([CallResult("call_1", "get_weather", "{}")]), "item"),
        (lambda one: one.cancel_frames("resp_1"), ""),
    ],
)
def test_a_refusal_that_names_our_frame_is_about_that(provider, sent, about):
    one = dialect(provider)
    [frame] = sent(one)
    [news] = read(one, event("error", error={"message": "tools session item response.create", "event_id": frame["event_id"]}))
    assert (about, frame["event_id"]) == (news.about, news.event_id)


@pytest.mark.parametrize(
    ("error", "about"),
    [
        ({"message": "Invalid value.", "param": "session.voice"}, "session"),
        ({"message": "Invalid value.", "param": "item.call_id"}, "item"),
        ({"message": "Tool call ID 'x' not found in conversation.", "code": "invalid_tool_call_id"}, "item"),
        ({"message": "conversation.item.create: no output"}, "item"),
        ({"message": "response.create: nothing to answer"}, "response"),
        ({"message": "Tools need turn_detection."}, "session"),
        ({"message": "Your session hit the maximum duration.", "code": "session_expired"}, ""),
        ({"message": "Out of order."}, ""),
    ],
)
def test_without_our_id_a_refusal_is_understood_by_its_words(error, about):
    assert about == rejected_execution("glm", **error).about


@pytest.mark.parametrize("error", [{"code": "response_cancel_not_active"}, {"message": "There is no active response."}])
def test_cancel_without_a_response_is_classified_as_such(error):
    one = dialect("openai")
    [frame] = one.cancel_frames("resp_1")
    [refused] = read(one, event("error", error={"message": "", **error, "event_id": frame["event_id"]}))
    assert (ServerError, "cancel") == (type(refused), refused.about)


def test_unspecific_refusal_belongs_to_the_unconfirmed_update():
    assert "session" == rejected_execution("glm", changing=True, message="1214").about
    one = dialect("glm")
    one.tools_frames([])
    one.read(event("session.updated", session={}))
    assert "" == read(one, event("error", error={"message": "1214"}))[0].about


def test_lost_confirmation_does_not_affect_later_changes_forever():
    one = dialect("glm")
    one.tools_frames([])
    one.tools_frames([{"type": "function", "name": "look_up"}])
    one.read(event("session.updated", session={"tools": [{"type": "function", "name": "look_up"}]}))
    assert "" == read(one, event("error", error={"message": "1214"}))[0].about


@pytest.mark.parametrize("provider", EVENTFUL)
@pytest.mark.parametrize(
    ("tools", "names"),
    [
        ([], frozenset()),
        ([{"type": "function", "name": "a"}, {"type": "function", "function": {"name": "b"}}], frozenset("ab")),
        ([{"type": "mcp", "server_label": "wiki"}, {"name": [[]]}, {"name": 7}, {"function": 7}, None, "a"], frozenset()),
        (None, None),
        ({"name": "a"}, None),
        ("a", None),
    ],
)
def test_a_confirmation_names_the_tools_that_the_session_has(provider, tools, names):
    assert [SessionUpdated(names)] == read(dialect(provider), event("session.updated", session={"tools": tools}))


def test_after_a_change_is_refused_another_refusal_is_not_about_it():
    one = dialect("stepfun")
    one.tools_frames([])
    assert ["session", ""] == [read(one, event("error", error={"message": "no"}))[0].about for _ in range(2)]


@pytest.mark.parametrize("provider", EVENTFUL)
@pytest.mark.parametrize(
    "error",
    [
        {"code": "conversation_already_has_active_response", "message": "Wait."},
        {"code": "invalid_request_error", "message": "Conversation already has an active response in progress: resp_1."},
    ],
)
def test_refusal_because_of_an_active_response_is_recognised(provider, error):
    news = rejected_execution(provider, changing=True, **error)
    assert ("response", True) == (news.about, news.busy)


@pytest.mark.parametrize(
    ("frame", "message", "code"),
    [
        ({"error": "It broke."}, "It broke.", ""),
        ({"message": "It broke.", "code": 1214}, "It broke.", "1214"),
        ({"error": {"type": "server_error", "code": None, "message": "It broke."}}, "It broke.", "server_error"),
        ({}, "The server reported an error.", ""),
        ({"error": [1]}, "The server reported an error.", ""),
    ],
)
def test_errors_are_read_in_every_form(frame, message, code):
    [news] = read(dialect("stepfun"), {"type": "error", **frame})
    assert (message, code) == (news.message, news.code)
