"""GLM-Realtime by Zhipu AI: calls without ids and in one piece, audio in WAV, and a session that forgets what is not repeated."""

from __future__ import annotations

import struct
from typing import Any, ClassVar

from patchbay.realtime.dialect import CallResult
from patchbay.realtime.dialects.callkeys import Known
from patchbay.realtime.dialects.events import EventDialect
from patchbay.schema.dialects import DIALECTS


class GLMDialect(EventDialect):
    """One connection to GLM."""

    provider: ClassVar[str] = "glm"
    other_names: ClassVar[tuple[str, ...]] = ("zhipu",)
    hosts: ClassVar[tuple[str, ...]] = ("open.bigmodel.cn",)
    tools: ClassVar = DIALECTS["glm_realtime"]
    default_url: ClassVar[str] = "wss://open.bigmodel.cn/api/paas/v4/realtime"
    key_variables: ClassVar[tuple[str, ...]] = ("ZHIPUAI_API_KEY",)
    input_rate: ClassVar[int] = 16_000
    # An update of the tools alone would set the detection of turns back to the client's.
    repeated: ClassVar[tuple[str, ...]] = ("tools", "turn_detection", "beta_fields")

    _only_tool = ""

    def session(self) -> dict[str, Any]:
        """A conversation in audio; tools are not called in any other mode."""
        settings = self.settings
        session: dict[str, Any] = {
            "model": self.model,
            "modalities": ["text", "audio"] if settings.output == "audio" else ["text"],
            "input_audio_format": "wav",
            "output_audio_format": "pcm",
            "turn_detection": {"type": "server_vad" if settings.detect_turns else "client_vad"},
            "beta_fields": {"chat_mode": "audio", "tts_source": "e2e", "auto_search": False},
        }
        if settings.voice is not None:
            session["voice"] = settings.voice
        if settings.instructions:
            session["instructions"] = settings.instructions
        return session

    def complete(self, session: dict[str, Any]) -> dict[str, Any]:
        """Remember the tool's name where there is one alone."""
        tools = session["tools"]
        self._only_tool = str(tools[0].get("name", "")) if len(tools) == 1 else ""
        return session

    def named(self, name: str) -> str:
        """The documentation's own example of a call has no name: where one tool is there, it is meant."""
        return name or self._only_tool

    def call_id(self, known: Known) -> str:
        """An id for us alone: results are told in the order of the calls, and without one."""
        return f"glm_{known.response_id}_{known.number}"

    def result(self, result: CallResult) -> dict[str, Any]:
        """The server knows by the order which call it is of. It refuses an empty one, and would wait for another for ever."""
        return {"type": "function_call_output", "output": result.output or '""'}

    def recorded(self, audio: bytes) -> bytes:
        """Each piece is a WAV file of its own."""
        rate = self.input_rate
        form = struct.pack("<HHIIHH", 1, 1, rate, rate * 2, 2, 16)  # PCM, one channel, 16 bits
        parts = (b"RIFF", _size(len(audio) + 36), b"WAVEfmt ", _size(len(form)), form, b"data", _size(len(audio)), audio)
        return b"".join(parts)


def _size(length: int) -> bytes:
    return struct.pack("<I", length)
