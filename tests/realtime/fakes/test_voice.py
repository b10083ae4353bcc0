"""The end of the user's turn, detected by the server or sent by the client, with each provider."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from patchbay.testing.realtime import FakeOpenAI, Quote
from support.realtime_fakes import FakeGemini, FakeGLM, FakeQwen, FakeStepFun

from .raw import Line, talking

SOUND = base64.b64encode(bytes(3200)).decode()
ON: dict[str, dict[str, Any]] = {"stepfun": {"turn_detection": {"type": "server_vad"}}}
"""Session members for turn detection, where it is off by default."""

OFF: dict[str, dict[str, Any]] = {
    "openai": {"audio": {"input": {"turn_detection": None}}},
    "qwen": {"turn_detection": None},
    "glm": {"turn_detection": {"type": "client_vad"}},
    "stepfun": {},  # as StepFun's documentation says: off where it is not wished for
    "gemini": {"realtimeInputConfig": {"automaticActivityDetection": {"disabled": True}}},
}
ALL = [FakeOpenAI, FakeQwen, FakeGLM, FakeStepFun, FakeGemini]


def sounds(provider: str, count: int) -> list[dict[str, Any]]:
    if provider == "gemini":
        return [{"realtimeInput": {"audio": {"data": SOUND, "mimeType": "audio/pcm;rate=16000"}}}] * count
    return [{"type": "input_audio_buffer.append", "audio": SOUND}] * count


async def answer(line: Line, provider: str) -> str:
    """Return what the model says up to the end of its answer, whole or in JSON."""
    if provider != "gemini":
        return json.dumps((await line.until("response.done"))[-1])
    turns = [frame.get("serverContent", {}).get("modelTurn", {}) for frame in await line.until("turnComplete")]
    return "".join(part["text"] for turn in turns for part in turn.get("parts", ()))


@pytest.mark.parametrize("kind", ALL)
async def test_client_ends_the_turn_without_turn_detection(kind):
    with kind([Quote()], hears=["all of it"], utterance=1000) as fake:
        begins: list[dict[str, Any]] = []
        ends: list[dict[str, Any]] = [{"type": "input_audio_buffer.commit"}, {"type": "response.create"}]
        if fake.provider == "gemini":
            begins, ends = [{"realtimeInput": {"activityStart": {}}}], [{"realtimeInput": {"activityEnd": {}}}]
        async with talking(fake, **OFF[fake.provider]) as line:
            await line.send(*begins, *sounds(fake.provider, 3), *ends)
            assert "I was told: all of it" in await answer(line, fake.provider)
        assert (9600, 0, [], []) == (fake.audio_bytes, fake.remaining, fake.refusals, fake.violations)
        assert ["all of it"] == [outcome.text for outcome in fake.heard]
        if fake.provider != "gemini":  # what was recorded holds no sound
            assert "..." == next(frame["audio"] for _, frame in fake.frames if "audio" in frame)


@pytest.mark.parametrize("kind", ALL)
async def test_turn_detection_ends_a_turn_after_utterance_bytes(kind):
    with kind([Quote(), Quote()], hears=["first", "second"], utterance=6400) as fake:
        async with talking(fake, **ON.get(fake.provider, {})) as line:
            for text in ("first", "second"):
                await line.send(*sounds(fake.provider, 2))
                assert f"I was told: {text}" in await answer(line, fake.provider)
        assert ([], []) == (fake.refusals, fake.violations)
