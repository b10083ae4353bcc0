"""Realtime sessions: speech and live text over a WebSocket, with the same tools, executor and hooks as every other turn.

RealtimeSession                       a live session with a model
RealtimeSettings, RealtimeLimits      model, voice and output; timeouts and bounds
ChatSession                           the same interface over chat completions
AudioEvent, TranscriptEvent, ...      events of a session; text, calls and results are events of the loop
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.loop import TextEvent as TextEvent
    from patchbay.loop import ToolCallEvent as ToolCallEvent
    from patchbay.loop import ToolProgressEvent as ToolProgressEvent
    from patchbay.loop import ToolResultEvent as ToolResultEvent
    from patchbay.loop import UserOutputEvent as UserOutputEvent
    from patchbay.realtime.chat_session import ChatSession as ChatSession
    from patchbay.realtime.config import RealtimeLimits as RealtimeLimits
    from patchbay.realtime.config import RealtimeSettings as RealtimeSettings
    from patchbay.realtime.events import AudioEvent as AudioEvent
    from patchbay.realtime.events import ConnectionEvent as ConnectionEvent
    from patchbay.realtime.events import DroppedEvent as DroppedEvent
    from patchbay.realtime.events import ErrorEvent as ErrorEvent
    from patchbay.realtime.events import IdleEvent as IdleEvent
    from patchbay.realtime.events import InterruptedEvent as InterruptedEvent
    from patchbay.realtime.events import RealtimeEvent as RealtimeEvent
    from patchbay.realtime.events import ResponseEndEvent as ResponseEndEvent
    from patchbay.realtime.events import TranscriptEvent as TranscriptEvent
    from patchbay.realtime.session import RealtimeSession as RealtimeSession


__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "patchbay.loop": "TextEvent ToolCallEvent ToolProgressEvent ToolResultEvent UserOutputEvent",
        "chat_session": "ChatSession",
        "config": "RealtimeLimits RealtimeSettings",
        "events": "AudioEvent ConnectionEvent DroppedEvent ErrorEvent IdleEvent InterruptedEvent RealtimeEvent "
        "ResponseEndEvent TranscriptEvent",
        "session": "RealtimeSession",
    },
)
