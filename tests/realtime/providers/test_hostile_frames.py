"""No frame of a server makes a dialect raise, mix up calls, or grow without bound."""

from __future__ import annotations

import json
import re
import sys

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from patchbay.realtime import server_events
from patchbay.realtime.call_assembly import MAX_CALLS
from patchbay.realtime.providers import event_protocol
from patchbay.realtime.providers.base import CallResult, ConnectionSetup, Line
from support.repeated import examples

from .frames import ALL, EVENTFUL, WEATHER, dialect, event, joined, read, shaped

NEWS = tuple(
    kind for kind in vars(server_events).values() if isinstance(kind, type) and kind.__module__ == server_events.__name__
)
EVENTS = [
    *("session.created", "session.updated", "session.update", "response.created", "response.done", "error"),
    *("response.output_text.delta", "response.text.delta", "response.output_audio.delta", "response.audio.delta"),
    *("response.output_audio_transcript.delta", "response.audio_transcript.delta"),
    *("response.output_item.added", "response.output_item.done"),
    *("response.function_call_arguments.delta", "response.function_call_arguments.done"),
    *("input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"),
    *("conversation.item.input_audio_transcription.completed", "conversation.item.input_audio_transcription.delta"),
]
CAMEL = [
    *("setupComplete", "serverContent", "toolCall", "toolCallCancellation", "usageMetadata", "goAway", "timeLeft"),
    *("sessionResumptionUpdate", "newHandle", "modelTurn", "inlineData", "mimeType", "turnComplete", "turnCompleteReason"),
    *("inputTranscription", "outputTranscription"),
]
GEMINIS = [*CAMEL, *(re.sub("([A-Z])", r"_\1", name).lower() for name in CAMEL)]
MEMBERS = [
    *("type", "response", "id", "status", "status_details", "reason", "error", "code", "message", "param", "event_id", "usage"),
    *("output", "output_index", "item", "item_id", "call_id", "name", "arguments", "delta", "transcript", "response_id"),
    *(*GEMINIS, "functionCalls", "args", "ids", "text", "parts", "data", "resumable", "finished", "thought"),
]
WORDS = ["function_call", "in_progress", "completed", "incomplete", "resp_1", "call_1", "{}", "AQID", "audio/pcm;rate=1", "9s"]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=8),
    st.text(st.characters(categories=("Cs", "L")), max_size=4),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=4), inner, max_size=6)
    ),
    max_leaves=24,
)
frames = st.dictionaries(st.sampled_from(MEMBERS), values, max_size=8)
likely = st.builds(lambda kind, frame: {**frame, "type": kind}, st.sampled_from(EVENTS), frames)


def assert_is_good(told):
    """Check that events are of known types, with valid text and values."""
    for one in told:
        assert isinstance(one, NEWS)
        for name in one.__slots__:
            value = getattr(one, name)
            if isinstance(value, str):
                value.encode()
        if isinstance(one, server_events.GoAway):
            assert 0 <= one.seconds <= 86_400
        if isinstance(one, server_events.AudioDelta):
            assert one.audio
            assert one.rate > 0


@given(sent=st.lists(values | frames | likely, max_size=12))
@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.too_slow])
def test_no_frame_makes_a_dialect_raise(sent):
    """All dialects read the same frames, since drawing them costs more than reading them."""
    for provider in ALL:
        note(provider)
        one = dialect(provider)
        for frame in sent:
            assert_is_good(one.read(frame))
        assert_can_talk(one)


def assert_can_talk(one):
    """Check that all frames can still be sent."""
    tools = shaped(one, WEATHER)
    texts = [
        *one.setup_frames(ConnectionSetup(tools)),
        *one.configure_frames(ConnectionSetup(tools)),
        *one.tools_frames(tools),
        *one.text_frames(Line("user", "a"), answer=True),
        *one.result_frames([CallResult("call_1", "get_weather", "{}")]),
        *one.response_frames(),
        *one.cancel_frames("resp_1"),
    ]
    json.dumps(texts, allow_nan=False)


@pytest.mark.parametrize("provider", ["openai", "gemini"])
def test_lone_surrogates_in_object_arguments_are_replaced(provider):
    half = {"city\ud83d": "Oslo\ude00"}
    frames = [
        event("response.function_call_arguments.done", response_id="r", name="a", arguments=half),
        {"toolCall": {"functionCalls": [{"id": "fc1", "name": "a", "args": half}]}},
    ]
    news = read(dialect(provider), *frames)
    assert_is_good(news)
    assert ['{"city\ufffd": "Oslo\ufffd"}'] == [one.arguments for one in news if isinstance(one, server_events.CallDelta)]


def deep(levels):
    value = {}
    for _ in range(levels):
        value = {"args": [value], "arguments": value}
    return value


@pytest.mark.parametrize("provider", ALL)
def test_deeply_nested_frames_are_read(provider):
    bottomless = deep(sys.getrecursionlimit() * 10)
    one = dialect(provider)
    for kind in EVENTS:
        names = ("response", "error", "item", "arguments", "delta", "output", "usage")
        assert_is_good(one.read({"type": kind, **dict.fromkeys(names, bottomless)}))
        assert_is_good(one.read(event(kind, item={"type": "function_call", "name": "a", "arguments": bottomless})))
    calls = [{"id": str(number), "name": "a", "args": bottomless} for number in range(3)]
    for _ in range(2):
        assert_is_good(one.read({"toolCall": {"functionCalls": calls}, "usageMetadata": bottomless}))
    assert_is_good(one.read(dict.fromkeys(GEMINIS, bottomless)))


def key(one, number):
    """The key that a dialect gives to the call of a frame."""
    [delta] = one.read(event("response.output_item.added", response_id="r", item=call_item(number)))
    return delta.key


@pytest.mark.parametrize("provider", EVENTFUL)
def test_calls_remembered_for_a_response_are_bounded(provider):
    one = dialect(provider)
    keys = [key(one, number) for number in range(600)]
    assert keys[:256] == [key(one, number) for number in range(256)]
    assert not set(keys) & {key(one, number) for number in range(256, 600)}


def call_item(number, **members):
    return {"type": "function_call", "id": f"item_{number}", "call_id": f"call_{number}", "name": f"tool_{number}", **members}


@st.composite
def call_frames(draw):
    """Calls of one response in any order and pieces; every frame but the first of a call may lack ids."""
    count = draw(st.integers(1, 4))
    texts = [json.dumps({"n": number, "text": draw(st.text(max_size=6))}) for number in range(count)]
    queues = []
    for number, text in enumerate(texts):
        ids = {"item_id": f"item_{number}", "call_id": f"call_{number}", "output_index": number}
        where = {"response_id": "resp_1", **ids}
        queue = [event("response.output_item.added", response_id="resp_1", output_index=number, item=call_item(number))]
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        queue += [event("response.function_call_arguments.delta", **where, delta=piece) for piece in pieces]
        ends = [event("response.function_call_arguments.done", **where, arguments=text, name=f"tool_{number}")]
        ends.append(
            event("response.output_item.done", response_id="resp_1", output_index=number, item=call_item(number, arguments=text))
        )
        queue += [dict(end) for end in draw(st.lists(st.sampled_from(ends), min_size=1, max_size=3))]
        for frame in queue[1:]:
            kept = draw(st.sampled_from(list(ids)))
            for name in draw(st.sets(st.sampled_from(list(ids)))) - {kept}:
                frame.pop(name, None)
        queues.append(queue)
    order = draw(st.permutations([number for number, queue in enumerate(queues) for _ in queue]))
    return texts, [queues[number].pop(0) for number in order]


@given(told=call_frames(), provider=st.sampled_from(["openai", "qwen", "stepfun"]))
def test_calls_are_the_same_in_any_order_and_with_any_one_id(told, provider):
    texts, sent = told
    one = dialect(provider)
    calls = joined(read(one, event("response.created", response={"id": "resp_1"}), *sent))
    assert {(f"call_{number}", f"tool_{number}", text) for number, text in enumerate(texts)} == set(calls.values())
    assert len(texts) == len(calls)
    items = [call_item(number, arguments=text) for number, text in enumerate(texts)]
    [end] = one.read(event("response.done", response={"id": "resp_1", "status": "completed", "output": items}))
    assert set(calls) == {whole.key for whole in end.calls}


@pytest.mark.parametrize("provider", EVENTFUL)
def test_endless_arguments_are_truncated(provider, monkeypatch):
    monkeypatch.setattr(event_protocol, "MAX_ARGUMENT_CHARS", 1_000)
    one = dialect(provider)
    item = call_item(1, arguments="x" * 5_000)
    news = read(
        one,
        event("response.output_item.done", response_id="r", output_index=0, item=item),
        event("response.function_call_arguments.done", response_id="r", call_id="call_1", arguments="x" * 5_000),
        event("response.done", response={"id": "r", "status": "completed", "output": [item]}),
    )
    outcome = [each for each in news if isinstance(each, server_events.CallDelta)]
    assert [1_001, 1_001] == [len(each.arguments) for each in outcome]
    [whole] = news[-1].calls
    assert (outcome[0].key, 1_001) == (whole.key, len(whole.arguments))


class Unread(dict[str, object]):
    """A dict that counts lookups."""

    looks = 0

    def get(self, name: str, default: object = None) -> object:
        Unread.looks += 1
        return super().get(name, default)


@pytest.mark.parametrize("provider", EVENTFUL)
def test_calls_read_from_a_response_end_are_bounded(provider):
    bare = [{"type": "function_call"}] * MAX_CALLS
    Unread.looks = 0
    response = {"id": "r", "status": "completed", "output": [{"type": "message"}, *bare, *[Unread(bare[0])] * 100]}
    [end] = read(dialect(provider), event("response.done", response=response))
    assert MAX_CALLS == len(end.calls) == len({each.key for each in end.calls})
    assert 0 == Unread.looks


def test_calls_read_from_one_gemini_frame_are_bounded():
    one = dialect("gemini")
    Unread.looks = 0
    news = one.read({"toolCall": {"functionCalls": [*[{"name": "f"}] * MAX_CALLS, *[Unread(name="f")] * 100]}})
    assert MAX_CALLS == len([each for each in news if isinstance(each, server_events.CallDelta)])
    assert 0 == Unread.looks
    [taken_back] = one.read({"toolCallCancellation": {"ids": [f"call_{number}" for number in range(5_000)]}})
    assert 1_024 == len(taken_back.call_ids)
