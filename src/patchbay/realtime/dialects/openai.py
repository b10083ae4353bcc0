"""OpenAI's realtime API as it was released in 2025: flat tools, a session that names its type, a voice below ``audio``."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from patchbay.realtime.dialects.events import EventDialect
from patchbay.schema.dialects import DIALECTS

_PCM: Final = {"type": "audio/pcm", "rate": 24_000}
_TRANSCRIBER: Final = "gpt-4o-mini-transcribe"


class OpenAIDialect(EventDialect):
    """One connection to OpenAI, or to a server that speaks as it does."""

    provider: ClassVar[str] = "openai"
    hosts: ClassVar[tuple[str, ...]] = ("api.openai.com",)
    tools: ClassVar = DIALECTS["openai_realtime"]
    default_url: ClassVar[str] = "wss://api.openai.com/v1/realtime"
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    input_rate: ClassVar[int] = 24_000
    repeated: ClassVar[tuple[str, ...]] = ("type", "tools", "tool_choice")
    spoken_before: ClassVar[str] = "output_text"
    cancels_by_id: ClassVar[bool] = True

    def session(self) -> dict[str, Any]:
        """The ``type`` is asked for in every update, and ``turn_detection`` has to be null where it is not wanted."""
        settings = self.settings
        heard: dict[str, Any] = {"format": _PCM, "turn_detection": {"type": "semantic_vad"} if settings.detect_turns else None}
        if settings.transcribe:
            heard["transcription"] = {"model": _TRANSCRIBER}
        spoken: dict[str, Any] = {"format": _PCM}
        if settings.voice is not None:
            spoken["voice"] = settings.voice
        session: dict[str, Any] = {
            "type": "realtime",
            "model": self.model,
            "output_modalities": [settings.output],
            "audio": {"input": heard, "output": spoken},
            "tool_choice": "auto",
        }
        if settings.instructions:
            session["instructions"] = settings.instructions
        return session
