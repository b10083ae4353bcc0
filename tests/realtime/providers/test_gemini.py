"""Gemini Live, both ways, checked against the models and converters of Google's SDK."""

from __future__ import annotations

import base64

import pytest
from google import genai
from google.genai import _live_converters as converters
from google.genai import types as sdk

from patchbay.realtime.providers.base import CallResult, ConnectionSetup, Line
from patchbay.realtime.server_events import (
    AudioDelta,
    CallDelta,
    CallsCancelled,
    GoAway,
    InputTranscript,
    ResponseDone,
    ResponseStarted,
    ServerError,
    SessionOpened,
    SessionResumption,
    SpeechStarted,
    TextDelta,
)

from .frames import CLOCK, WEATHER, dialect, in_short, read, shaped


def gemini(**settings):
    return dialect("gemini", **settings)


def setup(opening=None, **settings):
    one = gemini(**settings)
    [frame] = one.setup_frames(opening or ConnectionSetup(shaped(one, WEATHER)))
    return frame["setup"]


def vendors(**members):
    """A frame as the SDK's model of server messages encodes it."""
    return sdk.LiveServerMessage.model_validate(members).model_dump(mode="json", by_alias=True, exclude_none=True)


def snake(value):
    """The same frame with snake_case members."""
    if isinstance(value, list):
        return [snake(one) for one in value]
    if not isinstance(value, dict):
        return value
    names = {name: "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name) for name in value}
    return {names[name]: one if name == "args" else snake(one) for name, one in value.items()}


def content(**members):
    return vendors(server_content=members)


def text_content(text):
    return content(model_turn={"role": "model", "parts": [{"text": text}]})


def tool_calls(*calls):
    return vendors(tool_call={"function_calls": list(calls)})


TURN_OVER = content(turn_complete=True)


# What is sent


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("output", ["audio", "text"])
def test_every_frame_is_valid_in_the_sdk(on, output):
    one = gemini(output=output, transcribe=on, detect_turns=on, voice="Puck", instructions="Be kind.")
    tools = shaped(one, WEATHER, CLOCK)
    frames = [
        *one.setup_frames(ConnectionSetup(tools)),
        *one.setup_frames(ConnectionSetup(tools, resume="handle_1")),
        *one.setup_frames(ConnectionSetup([])),
        *one.history_frames(ConnectionSetup(tools, [Line("user", "a"), Line("assistant", "b"), Line("user", "c")])),
        *one.text_frames(Line("user", "hello"), answer=False),
        *one.response_frames(),
        *one.audio_frames(b"\0\1" * 100),
        *one.audio_end_frames(),
        *one.result_frames([CallResult("call_1", "get_weather", '{"temp_c": 22}')]),
    ]
    assert 9 + (not on) == len(frames)
    for frame in frames:
        if "setup" in frame:  # the SDK adds this member when its model has been written
            frame = {"setup": dict(frame["setup"])}
            detection = sdk.RealtimeInputConfig.model_validate(frame["setup"].pop("realtimeInputConfig", {}))
            assert on == (detection.automatic_activity_detection is None)
        sdk.LiveClientMessage.model_validate(frame)  # it allows no member that it does not know


def test_setup_equals_the_sdks_for_the_same_settings():
    client = genai.Client(api_key="none")
    config = sdk.LiveConnectConfig(
        response_modalities=[sdk.Modality.AUDIO],
        speech_config=sdk.SpeechConfig(
            voice_config=sdk.VoiceConfig(prebuilt_voice_config=sdk.PrebuiltVoiceConfig(voice_name="Puck"))
        ),
        system_instruction="Be kind.",
        tools=[
            sdk.Tool(
                function_declarations=[
                    sdk.FunctionDeclaration(
                        name="get_weather",
                        description="Weather in a city.",
                        parameters=sdk.Schema(
                            type=sdk.Type.OBJECT, properties={"city": sdk.Schema(type=sdk.Type.STRING)}, required=["city"]
                        ),
                    )
                ]
            )
        ],
        input_audio_transcription=sdk.AudioTranscriptionConfig(),
        output_audio_transcription=sdk.AudioTranscriptionConfig(),
        session_resumption=sdk.SessionResumptionConfig(handle="handle_1"),
        context_window_compression=sdk.ContextWindowCompressionConfig(sliding_window=sdk.SlidingWindow()),
    )
    parameters = sdk.LiveConnectParameters(model="models/voice-1", config=config).model_dump(exclude_none=True)
    theirs = converters._LiveConnectParameters_to_mldev(client._api_client, parameters)["setup"]
    ours = setup(ConnectionSetup(shaped(gemini(), WEATHER), resume="handle_1"), voice="Puck", instructions="Be kind.")
    as_model = sdk.LiveClientSetup.model_validate
    assert as_model(theirs) == as_model(ours)
    assert {name for name, value in theirs.items() if value is not None} == set(ours)


def test_unset_options_are_not_in_the_setup():
    assert {
        "model": "models/voice-1",
        "generationConfig": {"responseModalities": ["TEXT"]},
        "contextWindowCompression": {"slidingWindow": {}},
        "sessionResumption": {},
        "realtimeInputConfig": {"automaticActivityDetection": {"disabled": True}},
    } == setup(ConnectionSetup([]), output="text", transcribe=False, detect_turns=False)


def test_model_path_is_kept():
    assert "tunedModels/mine" == setup(model="gemini/tunedModels/mine")["model"]
    assert "models/voice-1" == setup(model="google/models/voice-1")["model"]


def test_extra_members_and_google_tools_are_merged_into_the_setup():
    made = setup(extra={"tools": [{"googleSearch": {}}], "generationConfig": {"temperature": 0.5}})
    assert {"responseModalities": ["AUDIO"], "temperature": 0.5} == made["generationConfig"]
    assert [["googleSearch"], ["functionDeclarations"]] == [list(tool) for tool in made["tools"]]


def test_history_is_sent_in_one_frame_without_a_request():
    one = gemini()
    assert [] == one.history_frames(ConnectionSetup([]))
    [frame] = one.history_frames(ConnectionSetup([], [Line("user", "a"), Line("assistant", "b"), Line("user", "c")]))
    turns = [{"role": role, "parts": [{"text": text}]} for role, text in (("user", "a"), ("model", "b"), ("user", "c"))]
    assert {"clientContent": {"turns": turns, "turnComplete": False}} == frame


def test_response_to_restored_lines_is_requested_once():
    one = gemini()
    assert [] == one.response_frames()
    [outcome] = one.text_frames(Line("user", "It is done."), answer=False)
    assert False is outcome["clientContent"]["turnComplete"]
    assert [[{"clientContent": {"turnComplete": True}}], []] == [one.response_frames(), one.response_frames()]
    [asked] = one.text_frames(Line("user", "Well?"), answer=True)
    assert True is asked["clientContent"]["turnComplete"]
    assert [] == one.response_frames()


def test_results_are_one_frame_after_which_the_model_continues_unprompted():
    one = gemini()
    one.text_frames(Line("user", "It is done."), answer=False)
    outputs = {"a": '{"temp_c": 22}', "b": "[1, 2]", "c": "plain", "d": '{"x": NaN}', "e": "[" * 100_000}
    [frame] = one.result_frames([CallResult(f"call_{name}", name, output) for name, output in outputs.items()])
    responses = {each["name"]: (each["id"], each["response"]) for each in frame["toolResponse"]["functionResponses"]}
    assert {
        "a": ("call_a", {"temp_c": 22}),
        "b": ("call_b", {"result": [1, 2]}),
        "c": ("call_c", {"result": "plain"}),
        "d": ("call_d", {"result": '{"x": NaN}'}),
        "e": ("call_e", {"result": "[" * 100_000}),
    } == responses
    assert [] == one.response_frames()
    assert [] == one.result_frames([])


def test_audio_stream_end_is_sent_with_turn_detection():
    one = gemini()
    assert [] == one.audio_end_frames()
    [frame] = one.audio_frames(b"\1\2")
    audio = frame["realtimeInput"]["audio"]
    assert ("audio/pcm;rate=16000", b"\1\2") == (audio["mimeType"], base64.b64decode(audio["data"]))
    assert [[{"realtimeInput": {"audioStreamEnd": True}}], []] == [one.audio_end_frames(), one.audio_end_frames()]


def test_user_activity_is_sent_without_turn_detection():
    one = gemini(detect_turns=False)
    for _ in range(2):
        start, piece = one.audio_frames(b"\1\2")
        assert {"realtimeInput": {"activityStart": {}}} == start
        assert [piece] == one.audio_frames(b"\1\2")
        assert [{"realtimeInput": {"activityEnd": {}}}] == one.audio_end_frames()


def test_unsupported_input_is_not_sent():
    one = gemini()
    assert [] == one.configure_frames(ConnectionSetup([])) + one.tools_frames([]) + one.cancel_frames("r")
    assert (False, True) == (one.updates_tools, one.continues_unprompted)


# What is read

ANSWER = [
    vendors(setup_complete={"session_id": "s"}),
    content(input_transcription={"text": "What is "}),
    content(input_transcription={"text": "it like?"}),
    content(model_turn={"parts": [{"inline_data": {"mime_type": "audio/pcm;rate=24000", "data": b"\xfb\xef\xff\xfe"}}]}),
    content(output_transcription={"text": "Good."}),
    content(generation_complete=True),
    vendors(server_content={"turn_complete": True}, usage_metadata={"total_token_count": 9}),
]


@pytest.mark.parametrize("spelt", [lambda frame: frame, snake])
def test_an_answer_is_read_from_the_sdks_own_messages(spelt):
    opened, *received, began, audio, text, ended = read(gemini(), *map(spelt, ANSWER))
    response_id = began.response_id
    assert SessionOpened(configured=True) == opened
    assert [
        InputTranscript("What is ", whole=False),
        InputTranscript("it like?", whole=False),
        InputTranscript("What is it like?"),
    ] == received
    assert [ResponseStarted(response_id), AudioDelta(response_id, b"\xfb\xef\xff\xfe", 24000)] == [began, audio]
    assert TextDelta(response_id, "Good.", spoken=True) == text
    assert (response_id, "completed", ()) == (ended.response_id, ended.status, ended.calls)
    assert [9] == list(ended.usage.values())


def test_text_is_emitted_and_thoughts_are_not():
    parts = [{"text": "Hm.", "thought": True}, {"text": "Yes."}, {"executable_code": {"code": "1", "language": "PYTHON"}}]
    began, text = read(gemini(output="text"), content(model_turn={"parts": parts}))
    assert TextDelta(began.response_id, "Yes.") == text


@pytest.mark.parametrize(
    ("kind", "rate"), [("audio/pcm", 24000), ("audio/pcm;rate=16000", 16000), ("audio/L16; codec=pcm; rate=48000", 48000)]
)
def test_audio_has_its_declared_rate(kind, rate):
    part = {"inlineData": {"mimeType": kind, "data": "AQID"}}
    _, sounded = read(gemini(), {"serverContent": {"modelTurn": {"parts": [part]}}})
    assert (b"\1\2\3", rate) == (sounded.audio, sounded.rate)


def test_non_pcm_inline_data_is_ignored():
    part = {"inlineData": {"mimeType": "image/png", "data": "AQID"}}
    assert [] == read(gemini(), {"serverContent": {"modelTurn": {"parts": [part]}}})


CUT = content(interrupted=True)
CLOCK_CALL = tool_calls({"name": "get_time"})
KNOWN_CALL = tool_calls({"id": "fc1", "name": "get_time"})


def result(one, news):
    """Send the result of the newest call."""
    call_id = [each.call_id for each in news if isinstance(each, CallDelta)][-1]
    one.result_frames([CallResult(call_id, "get_time", "{}")])


def question(one, _news):
    one.text_frames(Line("user", "And?"), answer=True)


def spoken(text):
    return content(output_transcription={"text": text})


@pytest.mark.parametrize(
    ("steps", "news"),
    [
        pytest.param(
            [text_content("a"), text_content("b"), TURN_OVER, text_content("c"), TURN_OVER],
            "Started1, TextDelta1, TextDelta1, Done1, Started2, TextDelta2, Done2",
            id="each turn is a response",
        ),
        pytest.param([TURN_OVER], "Started1, Done1", id="an empty turn is one too"),
        pytest.param(
            [{**TURN_OVER, **KNOWN_CALL, **vendors(go_away={"time_left": "1s"})}],
            "Started1, Done1, Started2, CallDelta2, Done2, GoAway",
            id="one frame can hold several events",
        ),
        pytest.param([KNOWN_CALL, KNOWN_CALL], "Started1, CallDelta1, Done1", id="a call with an id is read once"),
        pytest.param([CLOCK_CALL, CLOCK_CALL], "Started1, CallDelta1, Done1", id="a call without an id is read once"),
        pytest.param(
            [CLOCK_CALL, result, CLOCK_CALL],
            "Started1, CallDelta1, Done1, Started2, CallDelta2, Done2",
            id="the same call after its result is another",
        ),
        pytest.param(
            [CLOCK_CALL, CUT, TURN_OVER, CLOCK_CALL],
            "Started1, CallDelta1, Done1, CallsCancelled, SpeechStarted, Started2, CallDelta2, Done2",
            id="the same call without an id after an interruption is another",
        ),
        pytest.param(
            [text_content("a"), KNOWN_CALL, content(generation_complete=True), TURN_OVER, result, text_content("b"), TURN_OVER],
            "Started1, TextDelta1, CallDelta1, Done1, Started2, TextDelta2, Done2",
            id="a turn's end before the results is ignored",
        ),
        pytest.param(
            [KNOWN_CALL, result, TURN_OVER], "Started1, CallDelta1, Done1, Started2, Done2", id="an empty turn after results"
        ),
        pytest.param(
            [CLOCK_CALL, result, CUT],
            "Started1, CallDelta1, Done1, Started2, SpeechStarted, Done2 cancelled",
            id="an interruption cancels no call that has its result",
        ),
        pytest.param(
            [text_content("a"), CUT, TURN_OVER],
            "Started1, TextDelta1, SpeechStarted, Done1 cancelled",
            id="an interruption cancels a response",
        ),
        pytest.param(
            [text_content("a"), content(interrupted=True, turn_complete=True), text_content("b"), TURN_OVER],
            "Started1, TextDelta1, SpeechStarted, Done1 cancelled, Started2, TextDelta2, Done2",
            id="an interruption and the turn's end share a frame",
        ),
        pytest.param(
            [text_content("a"), TURN_OVER, question, spoken("b")],
            "Started1, TextDelta1, Done1, Started2, TextDelta2",
            id="a transcript begins the response to later input",
        ),
    ],
)
def test_turns_calls_and_interruptions_are_read_as_responses(steps, news):
    one, seen = gemini(), []
    for step in steps:
        seen += (step(one, seen) or []) if callable(step) else one.read(step)
    assert news == in_short(seen)


def test_no_two_connections_have_ids_in_common():
    frames = [tool_calls({"name": "get_time"}), text_content("a")]
    first, second = (read(gemini(), *frames) for _ in range(2))
    assert set() == {one.response_id for one in first} & {one.response_id for one in second}
    assert first[1].call_id != second[1].call_id


def test_utterance_ends_when_the_server_reports_it():
    one = gemini()
    assert [InputTranscript("Hi", whole=False), InputTranscript("Hi")] == read(
        one, content(input_transcription={"text": "Hi", "finished": True})
    )
    assert ["ResponseStarted", "TextDelta"] == [type(news).__name__ for news in read(one, text_content("a"))]


def test_endless_utterance_is_split():
    one = gemini()
    news = [one.read(content(input_transcription={"text": "x" * 1000})) for _ in range(100)]
    wholes = [each.text for outcome in news for each in outcome if each.whole]
    assert [33_000, 33_000, 33_000] == list(map(len, wholes))


def test_calls_end_their_response():
    one = gemini()
    frame = tool_calls({"id": "fc1", "name": "get_weather", "args": {"city": "Oslo"}}, {"id": "fc2", "name": "get_time"})
    began, first, second, ended = read(one, frame)
    response_id = began.response_id
    assert [
        CallDelta(response_id, "fc1", "fc1", "get_weather", arguments='{"city": "Oslo"}', done=True),
        CallDelta(response_id, "fc2", "fc2", "get_time", done=True),
        ResponseDone(response_id, "completed"),
    ] == [first, second, ended]


def test_calls_without_ids_are_answered_without_ids():
    one = gemini()
    _, first, second, _ = read(one, tool_calls({"name": "get_time"}, {"name": "get_time"}))
    assert first.call_id != second.call_id
    [frame] = one.result_frames([CallResult(piece.call_id, "get_time", str(n)) for n, piece in enumerate((first, second))])
    assert [{"name": "get_time", "response": {"result": n}} for n in (0, 1)] == frame["toolResponse"]["functionResponses"]


def test_generated_call_id_of_another_connection_is_not_sent():
    [_, piece, _] = read(gemini(), tool_calls({"name": "get_time"}))
    [frame] = gemini().result_frames([CallResult(piece.call_id, "get_time", "{}")])
    assert [{"name": "get_time", "response": {}}] == frame["toolResponse"]["functionResponses"]


def test_interruption_cancels_calls_without_ids():
    """Their results would be matched to later calls of the same name."""
    one = gemini()
    _, nameless, named, _ = read(one, tool_calls({"name": "get_time"}, {"id": "fc1", "name": "get_weather"}))
    assert [CallsCancelled((nameless.call_id,)), SpeechStarted()] == read(one, content(interrupted=True))
    assert [SpeechStarted()] == read(one, content(interrupted=True)), "once"
    assert "fc1" == named.call_id


def test_calls_without_ids_are_cancelled_by_the_next_calls():
    one = gemini()
    _, first, _ = read(one, tool_calls({"name": "get_time"}))
    cancelled, _, second, _ = read(one, tool_calls({"name": "get_weather"}))
    assert (CallsCancelled((first.call_id,)), "get_weather") == (cancelled, second.name)
    assert [] == read(one, tool_calls({"name": "get_weather"})), "told twice"


def test_interruption_during_calls_is_read():
    one = gemini()
    read(one, tool_calls({"id": "fc1", "name": "get_time"}))
    frames = [content(interrupted=True), vendors(tool_call_cancellation={"ids": ["fc1"]}), TURN_OVER]
    assert [SpeechStarted(), CallsCancelled(("fc1",))] == read(one, *frames)


@pytest.mark.parametrize("over", [TURN_OVER, content(interrupted=True), tool_calls({"id": "fc1", "name": "get_time"})])
def test_late_transcript_begins_no_response(over):
    one = gemini()
    began = read(one, text_content("a"))[0]
    read(one, over)
    assert [TextDelta(began.response_id, "b", spoken=True)] == read(one, content(output_transcription={"text": "b"}))


@pytest.mark.parametrize(
    ("left", "seconds"),
    [
        ("9.5s", 9.5),
        ("10s", 10.0),
        ({"seconds": 7}, 7.0),
        (3, 3.0),
        ("soon", 0.0),
        ("-4s", 0.0),
        ("nan", 0.0),
        ("infs", 0.0),
        (10**400, 0.0),
        ("9" * 4000, 86_400.0),
        (None, 0.0),
        (True, 0.0),
    ],
)
def test_go_away_is_reported_with_its_time(left, seconds):
    assert [GoAway(seconds)] == read(gemini(), {"goAway": {"timeLeft": left}})


def test_resumption_handle_is_valid_until_revoked():
    frames = [
        vendors(session_resumption_update={"new_handle": "h1", "resumable": True}),
        vendors(session_resumption_update={"new_handle": "h0", "resumable": False}),
        {"sessionResumptionUpdate": {}},
    ]
    assert [SessionResumption("h1"), SessionResumption(""), SessionResumption("")] == read(gemini(), *frames)


def test_an_error_before_the_setup_is_done_is_about_the_session():
    error = {"error": {"code": 400, "message": "Bad tool.", "status": "INVALID_ARGUMENT"}}
    one = gemini()
    assert [ServerError("Bad tool.", "INVALID_ARGUMENT", about="session")] == read(one, error)
    assert [SessionOpened(configured=True), ServerError("Bad tool.", "INVALID_ARGUMENT")] == read(
        one, {"setupComplete": {}}, error
    )


def test_irrelevant_frames_give_no_events():
    frames = [
        vendors(usage_metadata={"total_token_count": 9}),
        vendors(voice_activity={"voice_activity_type": "ACTIVITY_START"}),
        content(grounding_metadata={}),
        tool_calls(),
        {"toolCall": {"functionCalls": "all"}},
        {"toolCallCancellation": {"ids": [1, None, ""]}},
        {"toolCallCancellation": {"ids": "fc1"}},
        {"unheardOf": {"ever": [1]}},
    ]
    assert [] == read(gemini(), *frames)
