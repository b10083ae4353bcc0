"""Providers with the event protocol: OpenAI, Qwen, GLM and StepFun."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, ClassVar, Final

from patchbay.realtime.providers.base import CallResult
from patchbay.realtime.providers.call_keys import KnownCall
from patchbay.realtime.providers.event_protocol import EventDialect
from patchbay.schema.dialects import DIALECTS, NameRule

_PCM: Final = {"type": "audio/pcm", "rate": 24_000}
_TRANSCRIBER: Final = "gpt-4o-mini-transcribe"


class OpenAIDialect(EventDialect):
    """OpenAI's realtime API as released in 2025, and compatible servers."""

    provider: ClassVar[str] = "openai"
    hosts: ClassVar[tuple[str, ...]] = ("api.openai.com",)
    tools: ClassVar = DIALECTS["openai_realtime"]
    default_url: ClassVar[str] = "wss://api.openai.com/v1/realtime"
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    input_rate: ClassVar[int] = 24_000
    update_fields: ClassVar[tuple[str, ...]] = ("type", "tools", "tool_choice")
    assistant_content_type: ClassVar[str] = "output_text"
    cancels_by_id: ClassVar[bool] = True
    has_voice_member: ClassVar[bool] = False

    def session(self) -> dict[str, Any]:
        """``type`` is required in every update, and ``turn_detection`` must be null to be off."""
        settings = self.settings
        heard: dict[str, Any] = {"format": _PCM, "turn_detection": {"type": "semantic_vad"} if settings.detect_turns else None}
        if settings.transcribe:
            heard["transcription"] = {"model": _TRANSCRIBER}
        spoken: dict[str, Any] = {"format": _PCM}
        if settings.voice is not None:
            spoken["voice"] = settings.voice
        return {
            "type": "realtime",
            "model": self.model,
            "output_modalities": [settings.output],
            "audio": {"input": heard, "output": spoken},
            "tool_choice": "auto",
        }


class QwenDialect(EventDialect):
    """Qwen-Omni-Realtime on Alibaba Cloud's Model Studio."""

    provider: ClassVar[str] = "qwen"
    other_names: ClassVar[tuple[str, ...]] = ("dashscope",)
    # The last is that of all workspaces, which each have a server of their own: the newer models are there alone.
    hosts: ClassVar[tuple[str, ...]] = ("dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", ".maas.aliyuncs.com")
    tools: ClassVar = DIALECTS["qwen_realtime"]
    default_url: ClassVar[str] = "wss://dashscope.aliyuncs.com/api-ws/v1/realtime"
    key_variables: ClassVar[tuple[str, ...]] = ("DASHSCOPE_API_KEY",)
    input_rate: ClassVar[int] = 16_000
    update_fields: ClassVar[tuple[str, ...]] = ("tools", "enable_search")

    def session(self) -> dict[str, Any]:
        """The user's speech is always transcribed, by a model that depends on this one."""
        return {
            "modalities": self.modalities,
            "input_audio_format": "pcm",
            "output_audio_format": "pcm",
            "turn_detection": {"type": "server_vad"} if self.settings.detect_turns else None,
            "enable_search": False,
        }

    def complete(self, session: dict[str, Any]) -> dict[str, Any]:
        """Disable search while there are tools: they exclude each other."""
        if session["tools"]:
            session["enable_search"] = False
        return session


class GLMDialect(EventDialect):
    """GLM-Realtime by Zhipu AI: calls without ids and in one piece, WAV audio."""

    provider: ClassVar[str] = "glm"
    other_names: ClassVar[tuple[str, ...]] = ("zhipu",)
    hosts: ClassVar[tuple[str, ...]] = ("open.bigmodel.cn",)
    tools: ClassVar = DIALECTS["glm_realtime"]
    default_url: ClassVar[str] = "wss://open.bigmodel.cn/api/paas/v4/realtime"
    key_variables: ClassVar[tuple[str, ...]] = ("ZHIPUAI_API_KEY",)
    input_rate: ClassVar[int] = 16_000
    # An update of the tools alone would set the detection of turns back to the client's.
    update_fields: ClassVar[tuple[str, ...]] = ("tools", "turn_detection", "beta_fields")

    _only_tool = ""

    def session(self) -> dict[str, Any]:
        """A conversation in audio: tools are called in no other mode."""
        return {
            "model": self.model,
            "modalities": self.modalities,
            "input_audio_format": "wav",
            "output_audio_format": "pcm",
            "turn_detection": {"type": "server_vad" if self.settings.detect_turns else "client_vad"},
            "beta_fields": {"chat_mode": "audio", "tts_source": "e2e", "auto_search": False},
        }

    def complete(self, session: dict[str, Any]) -> dict[str, Any]:
        """Remember the tool's name if there is only one."""
        tools = session["tools"]
        self._only_tool = str(tools[0].get("name", "")) if len(tools) == 1 else ""
        return session

    def named(self, name: str) -> str:
        """Use the only tool for a call without a name, as in the documentation's own example."""
        return name or self._only_tool

    def call_id(self, known: KnownCall) -> str:
        """Generate an id: results are matched by order."""
        return f"glm_{known.response_id}_{known.number}"

    def result(self, result: CallResult) -> dict[str, Any]:
        """No id is sent; an empty output would be refused and stall the session."""
        return {"type": "function_call_output", "output": result.output or '""'}

    def encode_audio(self, audio: bytes) -> bytes:
        """Wrap each chunk as a WAV file."""
        rate = self.input_rate
        form = struct.pack("<HHIIHH", 1, 1, rate, rate * 2, 2, 16)  # PCM, one channel, 16 bits
        parts = (b"RIFF", _size(len(audio) + 36), b"WAVEfmt ", _size(len(form)), form, b"data", _size(len(audio)), audio)
        return b"".join(parts)


def _size(length: int) -> bytes:
    return struct.pack("<I", length)


class StepFunDialect(EventDialect):
    """StepFun's realtime API."""

    provider: ClassVar[str] = "stepfun"
    other_names: ClassVar[tuple[str, ...]] = ("step",)
    hosts: ClassVar[tuple[str, ...]] = ("api.stepfun.com", "api.stepfun.ai")
    # Here a name may not begin with a digit or a dash.
    tools: ClassVar = replace(DIALECTS["stepfun_realtime"], names=NameRule(r"[A-Za-z_][A-Za-z0-9_-]*"))
    default_url: ClassVar[str] = "wss://api.stepfun.com/v1/realtime"
    key_variables: ClassVar[tuple[str, ...]] = ("STEPFUN_API_KEY", "STEP_API_KEY")
    input_rate: ClassVar[int] = 24_000

    def session(self) -> dict[str, Any]:
        """Audio is always on; turn detection only on request."""
        detection = {"turn_detection": {"type": "server_vad"}} if self.settings.detect_turns else {}
        formats = {"input_audio_format": "pcm16", "output_audio_format": "pcm16"}
        return {"modalities": ["text", "audio"], **formats, **detection}

    def complete(self, session: dict[str, Any]) -> dict[str, Any]:
        """Send ``voice`` once: a second one is refused with the whole update."""
        if self.confirmed:
            session.pop("voice", None)
        return session
