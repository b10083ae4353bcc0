"""A fake of GLM-Realtime: calls have no ids and come whole, results are matched by their order, a heartbeat all the time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from patchbay.testing.realtime.book import Issued, unnamed
from patchbay.testing.realtime.fake import FakeRealtime
from patchbay.testing.realtime.familyframes import Event, Wire
from patchbay.testing.realtime.older import OlderTalk
from patchbay.testing.realtime.problems import Problem


class GLMTalk(OlderTalk):
    """A connection to a fake of GLM."""

    wire = Wire(deltas=False, call_ids=False, heralds=False)
    nested = False
    needs_model = False
    takes_nothing = False

    begins_with: ClassVar[Mapping[str, Any]] = {
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
        """Return an event with what all events have."""
        return {**super().stamp(event), "client_timestamp": int(time.time() * 1000)}

    @override
    def error(self, problem: Problem, event_id: Any) -> Event:
        """Return the event that refuses something; its error has three members."""
        error = {"type": "invalid_request_error", "code": problem.code, "message": problem.message}
        return {"type": "error", "error": error}

    def called(self, call_id: Any) -> Issued | None:
        """Return the first call without a result. A result must not name one: a call has no id."""
        if call_id:
            self.violate(f"call_id {call_id!r} in a result")
        return unnamed(self.calls.open)

    def noise(self) -> list[Event]:
        """Return the heartbeat, and an event that means nothing."""
        return [{"type": "heartbeat"}, *super().noise()]


class FakeGLM(FakeRealtime):
    """GLM's realtime API."""

    provider = "glm"
    path = "/api/paas/v4/realtime"
    _talk = GLMTalk
