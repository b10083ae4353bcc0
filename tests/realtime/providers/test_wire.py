"""The dialects by their wire tables, and what a table cannot say: ids, addresses, keys, and Google's own setup."""

from __future__ import annotations

import pytest
from google import genai
from google.genai import _live_converters as converters
from google.genai import types as sdk

from patchbay.realtime.providers.base import ConnectionSetup, Line

from .frames import ALL, WEATHER, dialect, read, shaped
from .wire_tables import Case, cases, played


@pytest.mark.parametrize(
    ("case", "provider"),
    [pytest.param(case, provider, id=f"{provider}: {case.name}") for case in cases() for provider in case.providers],
)
def test_the_dialect_reads_and_sends_what_its_table_says(case: Case, provider: str):
    assert case.lines == played(case, provider)


def test_geminis_setup_equals_the_sdks_for_the_same_settings():
    weather = sdk.FunctionDeclaration(
        name="get_weather",
        description="Weather in a city.",
        parameters=sdk.Schema(type=sdk.Type.OBJECT, properties={"city": sdk.Schema(type=sdk.Type.STRING)}, required=["city"]),
    )
    voice = sdk.VoiceConfig(prebuilt_voice_config=sdk.PrebuiltVoiceConfig(voice_name="Puck"))
    config = sdk.LiveConnectConfig(
        response_modalities=[sdk.Modality.AUDIO],
        speech_config=sdk.SpeechConfig(voice_config=voice),
        system_instruction="Be kind.",
        tools=[sdk.Tool(function_declarations=[weather])],
        input_audio_transcription=sdk.AudioTranscriptionConfig(),
        output_audio_transcription=sdk.AudioTranscriptionConfig(),
        context_window_compression=sdk.ContextWindowCompressionConfig(sliding_window=sdk.SlidingWindow()),
    )
    client = genai.Client(api_key="none")
    parameters = sdk.LiveConnectParameters(model="models/voice-1", config=config).model_dump(exclude_none=True)
    theirs = converters._LiveConnectParameters_to_mldev(client._api_client, parameters)["setup"]
    one = dialect("gemini", voice="Puck", instructions="Be kind.")
    ours = one.setup_frames(ConnectionSetup(shaped(one, WEATHER)))[0]["setup"]
    assert sdk.LiveClientSetup.model_validate(theirs) == sdk.LiveClientSetup.model_validate(ours)
    assert {name for name, value in theirs.items() if value is not None} == set(ours)


def test_no_two_connections_to_gemini_have_ids_in_common():
    frames = [
        {"toolCall": {"functionCalls": [{"name": "get_time"}]}},
        {"serverContent": {"modelTurn": {"parts": [{"text": "a"}]}}},
    ]
    first, second = (read(dialect("gemini"), *frames) for _ in range(2))
    assert set() == {one.response_id for one in first} & {one.response_id for one in second}
    assert first[1].call_id != second[1].call_id


def test_endless_utterance_is_split():
    one = dialect("gemini")
    frame = {"serverContent": {"inputTranscription": {"text": "x" * 1000}}}
    wholes = [each.text for _ in range(100) for each in one.read(frame) if each.whole]
    assert [33_000, 33_000, 33_000] == list(map(len, wholes))


GEMINI_URL = (
    "wss://generativelanguage.googleapis.com/ws/google.ai.generativelanguage.v1alpha.GenerativeService.BidiGenerateContent"
)


@pytest.mark.parametrize(
    ("provider", "rate", "url"),
    [
        ("openai", 24_000, "wss://api.openai.com/v1/realtime?model=voice-1"),
        ("qwen", 16_000, "wss://dashscope.aliyuncs.com/api-ws/v1/realtime?model=voice-1"),
        ("glm", 16_000, "wss://open.bigmodel.cn/api/paas/v4/realtime?model=voice-1"),
        ("stepfun", 24_000, "wss://api.stepfun.com/v1/realtime?model=voice-1"),
        ("gemini", 16_000, GEMINI_URL),
    ],
)
def test_each_provider_has_its_url_and_rate(provider, rate, url):
    one = dialect(provider)
    assert (rate, url) == (one.input_rate, one.url())


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("ws://127.0.0.1:9/rt", "ws://127.0.0.1:9/rt?model=a+model"),
        ("ws://127.0.0.1:9/rt?x=1", "ws://127.0.0.1:9/rt?x=1&model=a+model"),
        ("ws://127.0.0.1:9/rt?model=b", "ws://127.0.0.1:9/rt?model=b"),
    ],
)
def test_the_model_is_added_to_a_url_that_names_none(url, whole):
    assert whole == dialect("openai", model="openai/a model", url=url).url()


@pytest.mark.parametrize("provider", ALL)
def test_api_key_is_sent_in_a_header_only(provider):
    one = dialect(provider, api_key="secret-key")
    header = {"x-goog-api-key": "k"} if provider == "gemini" else {"Authorization": "Bearer k"}
    assert (header, {}) == (one.headers("k"), one.headers(""))
    opening = ConnectionSetup([], [Line("user", "a")])
    texts = [one.url(), *one.setup_frames(opening), *one.configure_frames(opening), *one.history_frames(opening)]
    assert "secret-key" not in repr(texts)
