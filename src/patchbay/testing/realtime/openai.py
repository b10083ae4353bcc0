"""A fake of OpenAI's Realtime API as it is since its general availability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchbay.testing.realtime.fake import FakeRealtime
from patchbay.testing.realtime.family import FamilyTalk
from patchbay.testing.realtime.familyframes import Event, Wire
from patchbay.testing.realtime.problems import Problem, missing, unknown

_MEMBERS = frozenset(
    {"type", "model", "instructions", "output_modalities", "audio", "tools", "tool_choice", "parallel_tool_calls", "tracing"}
    | {"max_output_tokens", "truncation", "prompt", "include", "reasoning"}
)


class OpenAITalk(FamilyTalk):
    """A connection to a fake of OpenAI."""

    wire = Wire(
        text="response.output_text",
        audio="response.output_audio",
        transcript="response.output_audio_transcript",
        said="output_text",
        spoken="output_audio",
        items=("conversation.item.added", "conversation.item.done"),
    )
    nested = False
    fake: FakeOpenAI
    _sounded = False

    def initial(self) -> Event:
        """Return the session as it is at first."""
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
        if voice is not None and self._sounded and voice != self.session["audio"]["output"]["voice"]:
            text = "Cannot update a conversation's voice if assistant audio is present."
            return Problem(text, "cannot_update_voice", "session.audio.output.voice")
        return None

    def merged(self, session: Mapping[str, Any]) -> Event:
        """Return the session with a change in it; ``audio`` is merged member by member."""
        audio = {side: {**whole, **session.get("audio", {}).get(side, {})} for side, whole in self.session["audio"].items()}
        return {**self.session, **session, "audio": audio}

    def saying(self, playing: Any, text: str, audio: bytes, piece: int) -> list[Event]:
        """Return the events of a message."""
        self._sounded = self._sounded or self.speaks
        return super().saying(playing, text, audio, piece)

    @property
    def speaks(self) -> bool:
        """Whether the model answers with audio."""
        return "audio" in self.session["output_modalities"]

    @property
    def transcribes(self) -> bool:
        """Whether what the user says is told as text."""
        return self.session["audio"]["input"]["transcription"] is not None

    @property
    def detects_turns(self) -> bool:
        """Whether the server is to hear by itself when the user has ended."""
        return self.session["audio"]["input"]["turn_detection"] is not None

    def modalities(self) -> Event:
        """Return what a response says of how it is told."""
        return {"output_modalities": self.session["output_modalities"], "max_output_tokens": "inf", "audio": None}

    def kinds(self, role: str) -> Sequence[str]:
        """Return the types of the parts of a message: the older ones are refused."""
        return ("output_text",) if role == "assistant" else ("input_text",)

    def error(self, problem: Problem, event_id: Any) -> Event:
        """Return the event that refuses something."""
        event = super().error(problem, event_id)
        return {**event, "error": {**event["error"], "event_id": event_id if isinstance(event_id, str) else None}}

    def noise(self) -> list[Event]:
        """Return events that mean nothing."""
        limits = [{"name": "requests", "limit": 1000, "remaining": 999, "reset_seconds": 0.06}]
        return [{"type": "rate_limits.updated", "event_id": "event_0", "rate_limits": limits}, *super().noise()]


class FakeOpenAI(FakeRealtime):
    """OpenAI's Realtime API. ``strict_type`` False: a change of the session may lack ``type``, as older clients send it."""

    provider = "openai"
    path = "/v1/realtime"
    _talk = OpenAITalk

    def __init__(self, *arguments: Any, strict_type: bool = True, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.strict_type = strict_type
