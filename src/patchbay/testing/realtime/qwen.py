"""A fake of Qwen-Omni's realtime API (Model Studio): the older names of events, nested tools, and no tools beside search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from patchbay.testing.realtime.fake import FakeRealtime
from patchbay.testing.realtime.older import OlderTalk
from patchbay.testing.realtime.problems import Problem


class QwenTalk(OlderTalk):
    """A connection to a fake of Qwen-Omni."""

    nested = True
    begins_with: ClassVar[Mapping[str, Any]] = {
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
        """Whether what the user says is told as text."""
        return self.session["input_audio_transcription"] is not None


class FakeQwen(FakeRealtime):
    """Qwen-Omni's realtime API. ``Faults(idle=…)`` is what it does with a client that says nothing."""

    provider = "qwen"
    path = "/api-ws/v1/realtime"
    _talk = QwenTalk
