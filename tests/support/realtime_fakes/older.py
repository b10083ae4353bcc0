"""FakeGLM, FakeQwen and FakeStepFun: providers of the OpenAI event protocol, with the event names of 2024."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from patchbay.testing.realtime.event_protocol import EventProtocolConnection
from patchbay.testing.realtime.fake import FakeRealtime
from patchbay.testing.realtime.frames import Event, Problem, Wire, missing
from patchbay.testing.realtime.records import Issued, unnamed


class OlderConnection(EventProtocolConnection):
    """A connection with the event names of 2024. ``initial_session`` are the provider's own members of a new session."""

    wire = Wire()
    initial_session: ClassVar[Mapping[str, Any]]

    def initial(self) -> Event:
        """Return the session before its first update."""
        common = {"modalities": ["text", "audio"], "instructions": "", "turn_detection": {"type": "server_vad"}, "tools": []}
        return {**common, **self.initial_session}

    def merged(self, session: Mapping[str, Any]) -> Event:
        """Return the session after an update, which replaces whole members."""
        return {**self.session, **session}

    @property
    def speaks(self) -> bool:
        """True if the model answers with audio."""
        return "audio" in self.session["modalities"]

    @property
    def detects_turns(self) -> bool:
        """True if the server detects the end of the user's turn."""
        detection = self.session["turn_detection"]
        return isinstance(detection, dict) and detection.get("type") != "client_vad"

    @property
    def transcribes(self) -> bool:
        """True if the user's speech is transcribed: always."""
        return True


class GLMConnection(OlderConnection):
    """A connection to a fake of GLM."""

    wire = Wire(deltas=False, call_ids=False, heralds=False)
    nested = False
    needs_model = False
    accepts_empty = False

    initial_session: ClassVar[Mapping[str, Any]] = {
        "input_audio_format": "wav",
        "output_audio_format": "pcm",
        "beta_fields": {"chat_mode": "audio", "tts_source": "e2e", "auto_search": False},
    }

    def check(self, session: Mapping[str, Any]) -> Problem | None:
        """Refuse tools without ``turn_detection``, and in a mode other than audio."""
        if "tools" not in session:
            return None
        if not isinstance(session.get("turn_detection"), dict):
            return Problem("turn_detection must be given with tools.", "missing_required_parameter", "session.turn_detection")
        if session["turn_detection"].get("type") not in ("server_vad", "client_vad"):
            return Problem("turn_detection.type is server_vad or client_vad.", param="session.turn_detection.type")
        mode = session.get("beta_fields", {}).get("chat_mode")
        if mode != "audio":
            return Problem(f"Tools need chat_mode audio, not {mode!r}.", param="session.beta_fields.chat_mode")
        return None

    def stamp(self, event: Event) -> Event:
        """Add the members of all events."""
        return {**super().stamp(event), "client_timestamp": int(time.time() * 1000)}

    @override
    def error(self, problem: Problem, event_id: Any) -> Event:
        """Return the error event, whose error has three members."""
        error = {"type": "invalid_request_error", "code": problem.code, "message": problem.message}
        return {"type": "error", "error": error}

    def called(self, call_id: Any) -> Issued | None:
        """Return the first call without a result; calls have no ids, and results must not name one."""
        if call_id:
            self.violate(f"call_id {call_id!r} in a result")
        return unnamed(self.calls.open)

    def noise_frames(self) -> list[Event]:
        """Return the heartbeat, and an event without effect."""
        return [{"type": "heartbeat"}, *super().noise_frames()]


class FakeGLM(FakeRealtime):
    """GLM's realtime API."""

    provider = "glm"
    path = "/api/paas/v4/realtime"
    _connection_class = GLMConnection


class QwenConnection(OlderConnection):
    """A connection to a fake of Qwen-Omni."""

    nested = True
    initial_session: ClassVar[Mapping[str, Any]] = {
        "voice": "Cherry",
        "input_audio_format": "pcm",
        "output_audio_format": "pcm",
        "input_audio_transcription": {"model": "qwen3-asr-flash-realtime"},
        "turn_detection": {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 800},
        "enable_search": False,
    }

    def check(self, session: Mapping[str, Any]) -> Problem | None:
        """Refuse audio without text, formats other than PCM, and tools together with search."""
        modalities = session.get("modalities", ["text"])
        if not isinstance(modalities, list) or sorted(modalities) not in (["text"], ["audio", "text"]):
            text = f"Invalid modalities: {modalities}. Supported combinations are: ['text'] and ['audio', 'text']."
            return Problem(text, param="session.modalities")
        for name in ("input_audio_format", "output_audio_format"):
            if not str(session.get(name, "pcm")).startswith("pcm"):
                return Problem(f"Invalid {name}: {session[name]!r}.", param=f"session.{name}")
        whole = {**self.session, **session}
        if whole.get("enable_search") and whole.get("tools"):
            return Problem("tools and enable_search exclude each other.", param="session.enable_search")
        return None

    @property
    def transcribes(self) -> bool:
        """True if the user's speech is transcribed."""
        return self.session["input_audio_transcription"] is not None


class FakeQwen(FakeRealtime):
    """Qwen-Omni's realtime API. ``Faults(idle=…)`` closes silent connections, as the real server does."""

    provider = "qwen"
    path = "/api-ws/v1/realtime"
    _connection_class = QwenConnection


class StepFunConnection(OlderConnection):
    """A connection to a fake of StepFun."""

    nested = True
    roles = frozenset({"user", "assistant"})
    initial_session: ClassVar[Mapping[str, Any]] = {
        "voice": "jingdiannvsheng",
        "input_audio_format": "pcm16",
        "output_audio_format": "pcm16",
        "turn_detection": None,
    }
    _voiced = False

    def check(self, session: Mapping[str, Any]) -> Problem | None:
        """Refuse a change without tools, and the voice a second time."""
        if "tools" not in session:
            return missing("session.tools")
        if "voice" in session and self._voiced:
            return Problem("The voice of a session cannot be set again.", param="session.voice")
        return None

    def merged(self, session: Mapping[str, Any]) -> Event:
        """Return the session after an update, and remember that its voice is set."""
        self._voiced = self._voiced or "voice" in session
        return super().merged(session)


class FakeStepFun(FakeRealtime):
    """StepFun's realtime API."""

    provider = "stepfun"
    path = "/v1/realtime"
    _connection_class = StepFunConnection
