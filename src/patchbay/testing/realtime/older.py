"""The three that speak as OpenAI did at first (Qwen-Omni, GLM, StepFun): the session is flat, and the older names of events hold.

What lives here: how such a session is changed and what it says. What does not: what each of the three refuses (its file).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from patchbay.testing.realtime.family import FamilyTalk
from patchbay.testing.realtime.familyframes import Event, Wire


class OlderTalk(FamilyTalk):
    """A connection to one of them. ``begins_with`` is what each session of the provider has at first, beside what all have."""

    wire = Wire()
    begins_with: ClassVar[Mapping[str, Any]]

    def initial(self) -> Event:
        """Return the session as it is at first."""
        common = {"modalities": ["text", "audio"], "instructions": "", "turn_detection": {"type": "server_vad"}, "tools": []}
        return {**common, **self.begins_with}

    def merged(self, session: Mapping[str, Any]) -> Event:
        """Return the session with a change in it: each member is put in the place of the one before."""
        return {**self.session, **session}

    @property
    def speaks(self) -> bool:
        """Whether the model answers with audio."""
        return "audio" in self.session["modalities"]

    @property
    def detects_turns(self) -> bool:
        """Whether the server is to hear by itself when the user has ended."""
        detection = self.session["turn_detection"]
        return isinstance(detection, dict) and detection.get("type") != "client_vad"

    @property
    def transcribes(self) -> bool:
        """Whether what the user says is told as text: always."""
        return True
