"""Qwen-Omni-Realtime on Alibaba Cloud's Model Studio: nested tools, and no search of its own beside them."""

from __future__ import annotations

from typing import Any, ClassVar

from patchbay.realtime.dialects.events import EventDialect
from patchbay.schema.dialects import DIALECTS


class QwenDialect(EventDialect):
    """One connection to Qwen."""

    provider: ClassVar[str] = "qwen"
    other_names: ClassVar[tuple[str, ...]] = ("dashscope",)
    # The last is that of all workspaces, which each have a server of their own: the newer models are there alone.
    hosts: ClassVar[tuple[str, ...]] = ("dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", ".maas.aliyuncs.com")
    tools: ClassVar = DIALECTS["qwen_realtime"]
    default_url: ClassVar[str] = "wss://dashscope.aliyuncs.com/api-ws/v1/realtime"
    key_variables: ClassVar[tuple[str, ...]] = ("DASHSCOPE_API_KEY",)
    input_rate: ClassVar[int] = 16_000
    repeated: ClassVar[tuple[str, ...]] = ("tools", "enable_search")

    def session(self) -> dict[str, Any]:
        """The user's speech is transcribed without being asked for, by a model that depends on this one."""
        settings = self.settings
        session: dict[str, Any] = {
            "modalities": ["text", "audio"] if settings.output == "audio" else ["text"],
            "input_audio_format": "pcm",
            "output_audio_format": "pcm",
            "turn_detection": {"type": "server_vad"} if settings.detect_turns else None,
            "enable_search": False,
        }
        if settings.voice is not None:
            session["voice"] = settings.voice
        if settings.instructions:
            session["instructions"] = settings.instructions
        return session

    def complete(self, session: dict[str, Any]) -> dict[str, Any]:
        """Search and tools exclude each other; it comes back when the last tool goes."""
        if session["tools"]:
            session["enable_search"] = False
        return session
