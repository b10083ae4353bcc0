"""StepFun: nested tools in every update, also none of them; a voice that can be told once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from patchbay.realtime.dialects.events import EventDialect
from patchbay.schema.dialects import DIALECTS
from patchbay.schema.names import NameRule


class StepFunDialect(EventDialect):
    """One connection to StepFun."""

    provider: ClassVar[str] = "stepfun"
    other_names: ClassVar[tuple[str, ...]] = ("step",)
    hosts: ClassVar[tuple[str, ...]] = ("api.stepfun.com", "api.stepfun.ai")
    # Here a name may not begin with a digit or a dash.
    tools: ClassVar = replace(DIALECTS["stepfun_realtime"], names=NameRule(r"[A-Za-z_][A-Za-z0-9_-]*"))
    default_url: ClassVar[str] = "wss://api.stepfun.com/v1/realtime"
    key_variables: ClassVar[tuple[str, ...]] = ("STEPFUN_API_KEY", "STEP_API_KEY")
    input_rate: ClassVar[int] = 24_000

    def session(self) -> dict[str, Any]:
        """It answers in audio whatever is asked for, and detects turns only where it is told to."""
        settings = self.settings
        session: dict[str, Any] = {
            "modalities": ["text", "audio"],
            "input_audio_format": "pcm16",
            "output_audio_format": "pcm16",
        }
        if settings.detect_turns:
            session["turn_detection"] = {"type": "server_vad"}
        if settings.voice is not None:
            session["voice"] = settings.voice
        if settings.instructions:
            session["instructions"] = settings.instructions
        return session

    def complete(self, session: dict[str, Any]) -> dict[str, Any]:
        """A second ``voice`` would be refused, and all else with it."""
        if self.confirmed:
            session.pop("voice", None)
        return session
