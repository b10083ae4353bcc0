"""FakeOpenAI: OpenAI's Realtime API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from patchbay.testing.realtime.event_protocol import EventProtocolConnection
from patchbay.testing.realtime.fake import FakeRealtime
from patchbay.testing.realtime.frames import Event, Problem, Wire, missing, unknown

_MEMBERS = frozenset(
    {"type", "model", "instructions", "output_modalities", "audio", "tools", "tool_choice", "parallel_tool_calls", "tracing"}
    | {"max_output_tokens", "truncation", "prompt", "include", "reasoning"}
)


class OpenAIConnection(EventProtocolConnection):
    """A connection to a fake of OpenAI."""

    wire = Wire(
        text="response.output_text",
        audio="response.output_audio",
        transcript="response.output_audio_transcript",
        text_type="output_text",
        audio_type="output_audio",
        items=("conversation.item.added", "conversation.item.done"),
    )
    nested = False
    cancels_by_id = True
    fake: FakeOpenAI
    _has_spoken = False

    @override
    def initial(self) -> Event:
        sound = {"type": "audio/pcm", "rate": 24000}
        detection = {"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 200}
        return {
            "type": "realtime",
            "instructions": "",
            "output_modalities": ["audio"],
            "tools": [],
            "tool_choice": "auto",
            "max_output_tokens": "inf",
            "audio": {
                "input": {"format": sound, "transcription": None, "noise_reduction": None, "turn_detection": detection},
                "output": {"format": sound, "voice": "marin", "speed": 1.0},
            },
        }

    def check(self, session: Mapping[str, Any]) -> Problem | None:
        """Refuse a session without ``type``, unknown members, two modalities, and another voice once one was heard."""
        if session.get("type") != "realtime" and (self.fake.strict_type or "type" in session):
            return missing("session.type")
        if (strange := unknown(session, _MEMBERS, "session")) is not None:
            return strange
        if session.get("output_modalities", ["audio"]) not in (["audio"], ["text"]):
            text = f"Invalid modalities: {session['output_modalities']}. Supported combinations are: ['text'] and ['audio']."
            return Problem(text, param="session.output_modalities")
        voice = session.get("audio", {}).get("output", {}).get("voice")
        if voice is not None and self._has_spoken and voice != self.session["audio"]["output"]["voice"]:
            text = "Cannot update a conversation's voice if assistant audio is present."
            return Problem(text, "cannot_update_voice", "session.audio.output.voice")
        return None

    @override
    def merged(self, session: Mapping[str, Any]) -> Event:
        audio = {side: {**whole, **session.get("audio", {}).get(side, {})} for side, whole in self.session["audio"].items()}
        return {**self.session, **session, "audio": audio}

    @override
    def say_frames(self, playing: Any, text: str, audio: bytes, piece: int) -> list[Event]:
        self._has_spoken = self._has_spoken or self.speaks
        return super().say_frames(playing, text, audio, piece)

    @property
    @override
    def speaks(self) -> bool:
        return "audio" in self.session["output_modalities"]

    @property
    @override
    def transcribes(self) -> bool:
        return self.session["audio"]["input"]["transcription"] is not None

    @property
    @override
    def detects_turns(self) -> bool:
        return self.session["audio"]["input"]["turn_detection"] is not None

    @override
    def modalities(self) -> Event:
        return {"output_modalities": self.session["output_modalities"], "max_output_tokens": "inf", "audio": None}

    @override
    def content_types(self, role: str) -> Sequence[str]:
        return ("output_text",) if role == "assistant" else ("input_text",)

    @override
    def error(self, problem: Problem, event_id: Any) -> Event:
        event = super().error(problem, event_id)
        return {**event, "error": {**event["error"], "event_id": event_id if isinstance(event_id, str) else None}}

    @override
    def noise_frames(self) -> list[Event]:
        limits = [{"name": "requests", "limit": 1000, "remaining": 999, "reset_seconds": 0.06}]
        return [{"type": "rate_limits.updated", "event_id": "event_0", "rate_limits": limits}, *super().noise_frames()]


class FakeOpenAI(FakeRealtime):
    """OpenAI's Realtime API. ``strict_type`` False: a session update may lack ``type``, as older clients send it."""

    provider = "openai"
    path = "/v1/realtime"
    _connection_class = OpenAIConnection

    def __init__(self, *arguments: Any, strict_type: bool = True, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.strict_type = strict_type
