"""Frames sent to servers with OpenAI's event protocol, checked against the types of OpenAI's SDK."""

from __future__ import annotations

import base64
import io
import wave

import pytest

from patchbay.errors import ConfigurationError
from patchbay.realtime.providers.base import CallResult, ConnectionSetup, Line

from .frames import ALL, CLOCK, EVENTFUL, WEATHER, assert_openai_takes, configured, dialect, shaped, without_id

FLAT = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
NESTED = {"type": "function", "function": {name: value for name, value in FLAT.items() if name != "type"}}


@pytest.mark.parametrize("output", ["audio", "text"])
@pytest.mark.parametrize("on", [True, False])
def test_every_openai_frame_is_valid_in_the_sdk(output, on):
    one = dialect("openai", output=output, transcribe=on, detect_turns=on, voice="marin", instructions="Be kind.")
    tools = shaped(one, WEATHER, CLOCK)
    opening = ConnectionSetup(tools, [Line("user", "a"), Line("assistant", "b"), Line("user", "c")])
    frames = [
        *one.configure_frames(opening),
        *one.history_frames(opening),
        *one.tools_frames(tools[:1]),
        *one.tools_frames([]),
        *one.text_frames(Line("user", "hello"), answer=True),
        *one.audio_frames(b"\0\1" * 100),
        *one.audio_end_frames(),
        *one.result_frames([CallResult("call_1", "get_weather", '{"temp_c": 22}')]),
        *one.response_frames(),
        *one.cancel_frames("resp_1"),
        *one.cancel_frames(""),
    ]
    assert 12 + (not on) == len(frames)
    for frame in frames:
        assert_openai_takes(frame)


def test_openai_is_configured_with_a_typed_session():
    one = dialect("openai", voice="marin", instructions="Be kind.")
    pcm = {"type": "audio/pcm", "rate": 24000}
    assert {
        "type": "realtime",
        "model": "voice-1",
        "instructions": "Be kind.",
        "output_modalities": ["audio"],
        "audio": {
            "input": {
                "format": pcm,
                "turn_detection": {"type": "semantic_vad"},
                "transcription": {"model": "gpt-4o-mini-transcribe"},
            },
            "output": {"format": pcm, "voice": "marin"},
        },
        "tools": [FLAT],
        "tool_choice": "auto",
    } == configured(one, WEATHER)


def test_openai_tool_updates_name_the_session_type():
    one = dialect("openai", instructions="Be kind.")
    [frame] = one.tools_frames([FLAT])
    session = {"type": "realtime", "tools": [FLAT], "tool_choice": "auto"}
    assert {"type": "session.update", "session": session} == without_id(frame)


def test_openai_gets_null_without_turn_detection():
    assert {"turn_detection": None} == {
        name: value
        for name, value in configured(dialect("openai", detect_turns=False))["audio"]["input"].items()
        if name == "turn_detection"
    }


def test_qwen_gets_nested_tools_and_search_disabled():
    one = dialect("qwen", voice="Cherry", instructions="Be kind.")
    assert {
        "modalities": ["text", "audio"],
        "voice": "Cherry",
        "instructions": "Be kind.",
        "input_audio_format": "pcm",
        "output_audio_format": "pcm",
        "turn_detection": {"type": "server_vad"},
        "tools": [NESTED],
        "enable_search": False,
    } == configured(one, WEATHER)
    [frame] = one.tools_frames([NESTED])
    assert {"type": "session.update", "session": {"tools": [NESTED], "enable_search": False}} == without_id(frame)


def test_qwen_search_replaces_tools():
    one = dialect("qwen", extra={"enable_search": True})
    assert [False, True] == [configured(one, WEATHER)["enable_search"], configured(one)["enable_search"]]
    [without] = one.tools_frames([])
    [run_in_background] = one.tools_frames([NESTED])
    assert [True, False] == [frame["session"]["enable_search"] for frame in (without, run_in_background)]


@pytest.mark.parametrize(("on", "detection"), [(True, "server_vad"), (False, "client_vad")])
def test_glm_tool_change_repeats_the_session_settings(on, detection):
    one = dialect("glm", detect_turns=on)
    kept = {
        "tools": [FLAT],
        "turn_detection": {"type": detection},
        "beta_fields": {"chat_mode": "audio", "tts_source": "e2e", "auto_search": False},
    }
    assert kept == {name: configured(one, WEATHER)[name] for name in kept}
    [frame] = one.tools_frames([FLAT])
    assert {"type": "session.update", "session": kept} == without_id(frame)


def test_extra_glm_fields_are_sent_in_every_update():
    one = dialect("glm", extra={"beta_fields": {"auto_search": True}, "temperature": 0.5})
    fields = {"chat_mode": "audio", "tts_source": "e2e", "auto_search": True}
    [frame] = one.tools_frames([])
    assert fields == frame["session"]["beta_fields"]
    assert "temperature" not in frame["session"]
    assert 0.5 == configured(one)["temperature"]


def test_stepfun_gets_tools_always_and_its_voice_once():
    one = dialect("stepfun", voice="wenrounansheng")
    first = configured(one)
    assert ([], "wenrounansheng") == (first["tools"], first["voice"])
    one.read({"type": "session.updated", "session": {}})
    again = configured(one, WEATHER)
    assert [NESTED] == again["tools"]
    assert "voice" not in again
    [frame] = one.tools_frames([])
    assert {"type": "session.update", "session": {"tools": []}} == without_id(frame)


def test_stepfun_voice_is_repeated_after_a_rejected_session():
    one = dialect("stepfun", voice="wenrounansheng")
    configured(one, WEATHER)
    one.read({"type": "error", "error": {"message": "no such tool", "param": "session.tools[0]"}})
    assert "wenrounansheng" == configured(one)["voice"]


@pytest.mark.parametrize("provider", EVENTFUL)
def test_text_line_is_an_item_with_its_role(provider):
    [frame] = dialect(provider).text_frames(Line("user", "It rains."), answer=False)
    assert {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "It rains."}]} == frame["item"]


@pytest.mark.parametrize("provider", EVENTFUL)
def test_text_is_requested_without_audio_settings(provider):
    session = configured(dialect(provider, output="text"))
    wanted = {"openai": ("output_modalities", ["text"]), "stepfun": ("modalities", ["text", "audio"])}
    name, value = wanted.get(provider, ("modalities", ["text"]))
    assert value == session[name]


@pytest.mark.parametrize("provider", EVENTFUL)
def test_missing_voice_and_instructions_are_omitted(provider):
    session = configured(dialect(provider))
    assert "instructions" not in session
    assert "voice" not in session
    assert "voice" not in session.get("audio", {}).get("output", {})


@pytest.mark.parametrize("provider", EVENTFUL)
def test_provider_tools_are_included_in_each_update(provider):
    own = {"type": "mcp", "server_label": "wiki"}
    one = dialect(provider, extra={"tools": [own], "temperature": 0.5})
    ours = shaped(one, WEATHER)
    [frame] = one.tools_frames(ours)
    assert [*ours, own] == configured(one, WEATHER)["tools"] == frame["session"]["tools"]


def test_extra_members_go_into_the_objects_of_the_session():
    one = dialect("openai", voice="marin", extra={"audio": {"output": {"speed": 1.2}}, "tool_choice": "required"})
    session = configured(one)
    assert {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "marin", "speed": 1.2} == session["audio"]["output"]
    [frame] = one.tools_frames([])
    assert "required" == session["tool_choice"] == frame["session"]["tool_choice"]


@pytest.mark.parametrize("provider", EVENTFUL)
def test_each_result_is_an_item_and_only_glms_have_no_id(provider):
    results = [CallResult("call_1", "a", '{"x": 1}'), CallResult("call_2", "b", "text")]
    frames = [without_id(frame) for frame in dialect(provider).result_frames(results)]
    assert [
        {
            "type": "conversation.item.create",
            "item": {
                "type": "function_call_output",
                **({} if provider == "glm" else {"call_id": result.call_id}),
                "output": result.output,
            },
        }
        for result in results
    ] == frames


def test_glm_gets_a_quoted_empty_result():
    [frame] = dialect("glm").result_frames([CallResult("glm_r_0", "a", "")])
    assert '""' == frame["item"]["output"]
    [frame] = dialect("openai").result_frames([CallResult("call_1", "a", "")])
    assert "" == frame["item"]["output"]


@pytest.mark.parametrize("provider", EVENTFUL)
def test_response_is_requested_and_cancelled_by_events(provider):
    one = dialect(provider)
    assert [{"type": "response.create"}] == [without_id(frame) for frame in one.response_frames()]
    named = {"response_id": "resp_1"} if provider == "openai" else {}
    assert [{"type": "response.cancel", **named}] == [without_id(frame) for frame in one.cancel_frames("resp_1")]


def test_generated_response_id_is_never_sent():
    one = dialect("openai")
    [began] = one.read({"type": "response.created", "response": {}})
    [frame] = one.cancel_frames(began.response_id)
    assert "response_id" not in frame


@pytest.mark.parametrize("provider", EVENTFUL)
def test_no_two_frames_have_one_id(provider):
    one = dialect(provider)
    frames = [
        *one.response_frames(),
        *one.response_frames(),
        *one.tools_frames([]),
        *one.text_frames(Line("user", "a"), answer=True),
    ]
    assert 4 == len({frame["event_id"] for frame in frames})


@pytest.mark.parametrize("provider", EVENTFUL)
def test_audio_buffer_is_committed_once_without_turn_detection(provider):
    one = dialect(provider, detect_turns=False)
    assert [] == one.audio_end_frames()
    one.audio_frames(b"\0\0")
    assert ["input_audio_buffer.commit"] == [frame["type"] for frame in one.audio_end_frames()]
    assert [] == one.audio_end_frames()


@pytest.mark.parametrize("provider", EVENTFUL)
def test_nothing_is_committed_under_server_vad(provider):
    one = dialect(provider)
    one.audio_frames(b"\0\0")
    assert [] == one.audio_end_frames()


@pytest.mark.parametrize("provider", ["openai", "qwen", "stepfun"])
def test_audio_is_sent_unchanged(provider):
    [frame] = dialect(provider).audio_frames(b"\1\2\3\4")
    assert ("input_audio_buffer.append", b"\1\2\3\4") == (frame["type"], base64.b64decode(frame["audio"]))


def test_glm_audio_is_sent_as_wav_files():
    [frame] = dialect("glm").audio_frames(b"\1\2\3\4")
    with wave.open(io.BytesIO(base64.b64decode(frame["audio"]))) as file:
        assert (1, 2, 16000, b"\1\2\3\4") == (file.getnchannels(), file.getsampwidth(), file.getframerate(), file.readframes(9))


@pytest.mark.parametrize(
    ("provider", "url"),
    [
        ("openai", "wss://api.openai.com/v1/realtime?model=voice-1"),
        ("qwen", "wss://dashscope.aliyuncs.com/api-ws/v1/realtime?model=voice-1"),
        ("glm", "wss://open.bigmodel.cn/api/paas/v4/realtime?model=voice-1"),
        ("stepfun", "wss://api.stepfun.com/v1/realtime?model=voice-1"),
        (
            "gemini",
            "wss://generativelanguage.googleapis.com/ws/google.ai.generativelanguage.v1alpha.GenerativeService.BidiGenerateContent",
        ),
    ],
)
def test_each_provider_has_its_url(provider, url):
    assert url == dialect(provider).url()


def test_the_model_is_added_to_a_url_that_names_none():
    def of(url):
        return dialect("openai", model="openai/a model", url=url).url()

    assert "ws://127.0.0.1:9/rt?model=a+model" == of("ws://127.0.0.1:9/rt")
    assert "ws://127.0.0.1:9/rt?x=1&model=a+model" == of("ws://127.0.0.1:9/rt?x=1")
    assert "ws://127.0.0.1:9/rt?model=b" == of("ws://127.0.0.1:9/rt?model=b")


@pytest.mark.parametrize("provider", ALL)
def test_api_key_is_sent_in_a_header_only(provider):
    one = dialect(provider, api_key="secret-key")
    header = {"x-goog-api-key": "k"} if provider == "gemini" else {"Authorization": "Bearer k"}
    assert header == one.headers("k")
    assert {} == one.headers("")
    opening = ConnectionSetup([], [Line("user", "a")])
    texts = [one.url(), *one.setup_frames(opening), *one.configure_frames(opening), *one.history_frames(opening)]
    assert "secret-key" not in repr(texts)


def test_provider_declares_its_audio_format():
    assert {"openai": 24000, "qwen": 16000, "glm": 16000, "stepfun": 24000, "gemini": 16000} == {
        provider: dialect(provider).input_rate for provider in ALL
    }


def test_a_model_without_a_name_is_refused():
    with pytest.raises(ConfigurationError, match="openai/model"):
        dialect("openai", model="openai/")
