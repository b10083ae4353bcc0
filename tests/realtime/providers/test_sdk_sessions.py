"""Whole sessions with fakes, in which all happens that can: the SDKs of OpenAI and Google know every frame, of both sides."""

from __future__ import annotations

import asyncio
import base64

import pytest
from google.genai import types as google
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from patchbay.realtime import RealtimeSession
from patchbay.realtime.config import RealtimeLimits
from patchbay.realtime.providers.event_providers import OpenAIDialect
from patchbay.realtime.providers.gemini import GeminiDialect
from patchbay.testing.realtime import Answer, Call, FakeGemini, FakeOpenAI, Pause, Say
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager

from .frames import assert_openai_takes

BOUND = 30.0
SERVER_EVENT = TypeAdapter(RealtimeServerEvent)
LIMITS = RealtimeLimits(first_pause=0.01, longest_pause=0.02, grace=0.01, slow_after=0.05, flood_calls=1000)


async def quick(city: str) -> str:
    """Look something up."""
    return f"quick in {city}"


async def slow() -> str:
    """Take a while."""
    await asyncio.sleep(0.15)
    return "slow at last"


SCRIPT = [
    Answer([Say("A moment."), Call("quick", {"city": "Zürich"}), Call("quick", {"city": "Rome"})]),
    "Both are quick.",
    Call("slow"),
    "It runs.",
    "It is done.",
    Answer([Say("On and on"), Pause(20.0)]),
    *["Well."] * 20,
]


async def eventful_session(fake, **settings) -> None:
    """Hold a session in which everything is said that a dialect can say."""
    manager = LLMSessionManager("ann")
    session = RealtimeSession(
        f"{fake.provider}/any", tools=[quick, slow], url=fake.url, api_key="k", instructions="Be kind.", limits=LIMITS, **settings
    )

    async def idle() -> None:
        quiet = 0
        while quiet < 3:
            quiet = quiet + 1 if session.idle and fake.idle and not fake.unanswered and not fake.unasked else 0
            await asyncio.sleep(0.005)

    async with session:
        await session.send_text("Two cities, please.")
        await idle()
        await session.send_text("Now the slow one.")
        await idle()
        await session.send_text("Go on and on.")
        await fake.until(lambda: fake.remaining == 20)  # it has begun to
        await session.interrupt()
        await session.send_text("Enough.")
        await idle()
        await session.send_audio(bytes(3200))
        if not session.settings.detect_turns or fake.provider == "gemini":
            await session.respond()
        await idle()
        manager.register_tool(ToolDefinition("extra", handler=lambda _: "extra"))
        await session.use_tools(manager.snapshot())
        await idle()
        before = fake.connections
        await asyncio.to_thread(fake.drop)
        await fake.until(lambda: fake.connections > before)
        await session.send_text("Are you there?")
        await idle()
    assert [] == fake.violations


def recorded(dialect, monkeypatch) -> list[dict]:
    """What servers say from now on to sessions that speak this dialect."""
    frames: list[dict] = []
    read = dialect.read

    def note(self, frame):
        frames.append(frame)
        return read(self, frame)

    monkeypatch.setattr(dialect, "read", note)
    return frames


@pytest.mark.parametrize("output", ["audio", "text"])
@pytest.mark.parametrize("detect_turns", [True, False])
def test_openai_sdk_accepts_all_frames_of_session_and_fake(output, detect_turns, monkeypatch):
    seen = recorded(OpenAIDialect, monkeypatch)
    with FakeOpenAI(SCRIPT) as fake:
        asyncio.run(asyncio.wait_for(eventful_session(fake, output=output, detect_turns=detect_turns, voice="marin"), BOUND))
        sent = [frame for _, frame in fake.frames]
    for frame in sent:
        assert_openai_takes(frame)
    kinds = {"session.update", "conversation.item.create", "response.create", "response.cancel", "input_audio_buffer.append"}
    assert kinds | (set() if detect_turns else {"input_audio_buffer.commit"}) == {frame["type"] for frame in sent}
    items = [frame["item"] for frame in sent if frame["type"] == "conversation.item.create"]
    assert {"user", "assistant", None} == {item.get("role") for item in items}
    assert {"message", "function_call_output"} == {item["type"] for item in items}
    for event in seen:
        SERVER_EVENT.validate_python(event, strict=True)
    assert {"session.created", "session.updated", "response.created", "response.done"} <= {event["type"] for event in seen}


@pytest.mark.parametrize("output", ["audio", "text"])
@pytest.mark.parametrize("detect_turns", [True, False])
def test_google_sdk_accepts_all_frames_of_session_and_fake(output, detect_turns, monkeypatch):
    seen = recorded(GeminiDialect, monkeypatch)
    with FakeGemini(SCRIPT) as fake:
        asyncio.run(asyncio.wait_for(eventful_session(fake, output=output, detect_turns=detect_turns, voice="Puck"), BOUND))
        sent = [frame for _, frame in fake.frames]
    for frame in sent:
        [(kind, body)] = frame.items()
        if kind == "setup":  # the SDK adds this member when its model has been written
            google.RealtimeInputConfig.model_validate(body.get("realtimeInputConfig", {}))
            frame = {"setup": {name: value for name, value in body.items() if name != "realtimeInputConfig"}}
        google.LiveClientMessage.model_validate(frame)
    assert {"setup", "clientContent", "realtimeInput", "toolResponse"} == {kind for frame in sent for kind in frame}
    inputs = {name for frame in sent for name in frame.get("realtimeInput", ())}
    assert {"audio", *(["audioStreamEnd"] if detect_turns else ["activityStart", "activityEnd"])} == inputs
    assert 1 < sum("setup" in frame for frame in sent)
    for message in seen:
        google.LiveServerMessage.model_validate(message)
    said = {kind for message in seen for kind in message}
    assert {"setupComplete", "serverContent", "toolCall", "sessionResumptionUpdate", "usageMetadata"} <= said


def test_audio_is_sent_to_google_as_base64(monkeypatch):
    with FakeGemini(SCRIPT) as fake:
        asyncio.run(asyncio.wait_for(eventful_session(fake), BOUND))
        [data] = [
            frame["realtimeInput"]["audio"]["data"] for _, frame in fake.frames if "audio" in frame.get("realtimeInput", ())
        ]
    assert bytes(3200) == base64.b64decode(data)
