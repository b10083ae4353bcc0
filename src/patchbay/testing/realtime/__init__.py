"""Fake providers of realtime sessions: WebSocket servers on loopback whose models follow a script.

They enforce the providers' rules and record violations. They do not import ``patchbay.realtime``, so that they do not share its
mistakes about the wire format.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.testing.realtime.fake import FakeRealtime as FakeRealtime
    from patchbay.testing.realtime.gemini import FakeGemini as FakeGemini
    from patchbay.testing.realtime.openai import FakeGLM as FakeGLM
    from patchbay.testing.realtime.openai import FakeOpenAI as FakeOpenAI
    from patchbay.testing.realtime.openai import FakeQwen as FakeQwen
    from patchbay.testing.realtime.openai import FakeStepFun as FakeStepFun
    from patchbay.testing.realtime.records import Issued as Issued
    from patchbay.testing.realtime.records import ModelInput as ModelInput
    from patchbay.testing.realtime.script import Answer as Answer
    from patchbay.testing.realtime.script import Call as Call
    from patchbay.testing.realtime.script import Cancel as Cancel
    from patchbay.testing.realtime.script import Drop as Drop
    from patchbay.testing.realtime.script import Faults as Faults
    from patchbay.testing.realtime.script import Frame as Frame
    from patchbay.testing.realtime.script import GoAway as GoAway
    from patchbay.testing.realtime.script import Interrupt as Interrupt
    from patchbay.testing.realtime.script import Pause as Pause
    from patchbay.testing.realtime.script import Quote as Quote
    from patchbay.testing.realtime.script import Say as Say


__all__, _resolve = lazy_exports(
    __name__,
    {
        "fake": "FakeRealtime",
        "gemini": "FakeGemini",
        "openai": "FakeGLM FakeOpenAI FakeQwen FakeStepFun",
        "records": "Issued ModelInput",
        "script": "Answer Call Cancel Drop Faults Frame GoAway Interrupt Pause Quote Say",
    },
)


def __getattr__(name: str) -> Any:
    if name == "Told":
        warnings.warn("patchbay.testing.realtime.Told is now ModelInput.", DeprecationWarning, stacklevel=2)
        name = "ModelInput"
    return _resolve(name)
