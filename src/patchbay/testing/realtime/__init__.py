"""Fake providers of realtime sessions: WebSocket servers on loopback whose models follow a script.

They enforce the providers' rules and record violations. They do not import ``patchbay.realtime``, so that they do not share its
mistakes about the wire format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.testing.realtime.fake import FakeRealtime
    from patchbay.testing.realtime.gemini import FakeGemini
    from patchbay.testing.realtime.openai import FakeGLM, FakeOpenAI, FakeQwen, FakeStepFun
    from patchbay.testing.realtime.random_scripts import random_script
    from patchbay.testing.realtime.records import Issued, Told
    from patchbay.testing.realtime.script import (
        Answer,
        Call,
        Cancel,
        Drop,
        Faults,
        Frame,
        GoAway,
        Interrupt,
        Pause,
        Quote,
        Say,
    )

__all__ = [
    "Answer",
    "Call",
    "Cancel",
    "Drop",
    "FakeGLM",
    "FakeGemini",
    "FakeOpenAI",
    "FakeQwen",
    "FakeRealtime",
    "FakeStepFun",
    "Faults",
    "Frame",
    "GoAway",
    "Interrupt",
    "Issued",
    "Pause",
    "Quote",
    "Say",
    "Told",
    "random_script",
]

_SCRIPT = ("Answer", "Call", "Cancel", "Drop", "Faults", "Frame", "GoAway", "Interrupt", "Pause", "Quote", "Say")

__getattr__ = lazy_exports(
    __name__,
    {
        **dict.fromkeys(_SCRIPT, "patchbay.testing.realtime.script"),
        "FakeGLM": "patchbay.testing.realtime.openai",
        "FakeGemini": "patchbay.testing.realtime.gemini",
        "FakeOpenAI": "patchbay.testing.realtime.openai",
        "FakeQwen": "patchbay.testing.realtime.openai",
        "FakeRealtime": "patchbay.testing.realtime.fake",
        "FakeStepFun": "patchbay.testing.realtime.openai",
        "Issued": "patchbay.testing.realtime.records",
        "Told": "patchbay.testing.realtime.records",
        "random_script": "patchbay.testing.realtime.random_scripts",
    },
)
