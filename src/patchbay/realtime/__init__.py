"""Realtime sessions: speech and live text over a WebSocket, with the same tools, executor and hooks as every other turn.

RealtimeSession                       a live session with a model
RealtimeSettings, RealtimeLimits      model, voice and output; timeouts and bounds
ChatSession                           the same interface over chat completions
AudioEvent, TranscriptEvent, ...      events of a session; text, calls and results are events of the loop
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.loop import TextEvent, ToolCallEvent, ToolProgressEvent, ToolResultEvent, UserOutputEvent
    from patchbay.realtime.chat_session import ChatSession
    from patchbay.realtime.config import RealtimeLimits, RealtimeSettings
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
    from patchbay.realtime.session import RealtimeSession

__all__ = [
    "AudioEvent",
    "ChatSession",
    "ConnectionEvent",
    "DroppedEvent",
    "ErrorEvent",
    "IdleEvent",
    "InterruptedEvent",
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
    "patchbay.realtime.chat_session": ("ChatSession",),
    "patchbay.realtime.session": ("RealtimeSession",),
    "patchbay.realtime.config": ("RealtimeLimits", "RealtimeSettings"),
}

_resolve = lazy_exports(__name__, {name: home for home, names in _HOMES.items() for name in names})


def __getattr__(name: str) -> Any:
    if name == "OfflineSession":
        warnings.warn("patchbay.realtime.OfflineSession is now ChatSession.", DeprecationWarning, stacklevel=2)
        name = "ChatSession"
    return _resolve(name)
