"""Realtime sessions: speech-to-speech and live text over a WebSocket, with the same tools, executor and hooks as everything else.

What lives here: the session (``session``), which knows no provider; one file for each provider's wire (``dialects``); the
connection. What does not: the server's own door (``patchbay.server.sessions``), fakes of the providers (``patchbay.testing``).

    RealtimeSession                       a live session with a model
    RealtimeSettings, RealtimeLimits      whose model, how it speaks; how long, how much
    OfflineSession                        a session of the same kind over chat completions
    AudioEvent, TranscriptEvent, ...      what happens in it; text, calls and results are the loop's events
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.loop import TextEvent, ToolCallEvent, ToolProgressEvent, ToolResultEvent, UserOutputEvent
    from patchbay.realtime.events import (
        AudioEvent,
        ConnectionEvent,
        DroppedEvent,
        ErrorEvent,
        IdleEvent,
        InterruptedEvent,
        RealtimeEvent,
        ResponseEndEvent,
        TranscriptEvent,
    )
    from patchbay.realtime.offline import OfflineSession
    from patchbay.realtime.session import RealtimeSession
    from patchbay.realtime.settings import RealtimeLimits, RealtimeSettings

__all__ = [
    "AudioEvent",
    "ConnectionEvent",
    "DroppedEvent",
    "ErrorEvent",
    "IdleEvent",
    "InterruptedEvent",
    "OfflineSession",
    "RealtimeEvent",
    "RealtimeLimits",
    "RealtimeSession",
    "RealtimeSettings",
    "ResponseEndEvent",
    "TextEvent",
    "ToolCallEvent",
    "ToolProgressEvent",
    "ToolResultEvent",
    "TranscriptEvent",
    "UserOutputEvent",
]

_HOMES = {
    "patchbay.loop": ("TextEvent", "ToolCallEvent", "ToolProgressEvent", "ToolResultEvent", "UserOutputEvent"),
    "patchbay.realtime.events": (
        "AudioEvent",
        "ConnectionEvent",
        "DroppedEvent",
        "ErrorEvent",
        "IdleEvent",
        "InterruptedEvent",
        "RealtimeEvent",
        "ResponseEndEvent",
        "TranscriptEvent",
    ),
    "patchbay.realtime.offline": ("OfflineSession",),
    "patchbay.realtime.session": ("RealtimeSession",),
    "patchbay.realtime.settings": ("RealtimeLimits", "RealtimeSettings"),
}

__getattr__ = lazy_exports(__name__, {name: home for home, names in _HOMES.items() for name in names})
