"""A fake provider of realtime sessions: a WebSocket server on loopback whose model follows a script.

It enforces the provider's rules and records violations. It does not import ``patchbay.realtime``, so that it does not share its
mistakes about the wire format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.testing.realtime.fake import FakeRealtime as FakeRealtime
    from patchbay.testing.realtime.openai import FakeOpenAI as FakeOpenAI
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


__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "fake": "FakeRealtime",
        "openai": "FakeOpenAI",
        "records": "Issued ModelInput",
        "script": "Answer Call Cancel Drop Faults Frame GoAway Interrupt Pause Quote Say",
    },
)
