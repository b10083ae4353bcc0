"""A fake of StepFun's realtime API: nested tools in every change of the session, the voice once, and no system messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from patchbay.testing.realtime.fake import FakeRealtime
from patchbay.testing.realtime.familyframes import Event
from patchbay.testing.realtime.older import OlderTalk
from patchbay.testing.realtime.problems import Problem, missing


class StepFunTalk(OlderTalk):
    """A connection to a fake of StepFun."""

    nested = True
    roles = frozenset({"user", "assistant"})
    begins_with: ClassVar[Mapping[str, Any]] = {
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
        """Return the session with a change in it, and note that it has its voice now."""
        self._voiced = self._voiced or "voice" in session
        return super().merged(session)


class FakeStepFun(FakeRealtime):
    """StepFun's realtime API."""

    provider = "stepfun"
    path = "/v1/realtime"
    _talk = StepFunTalk
