"""The one loop: model, calls, results, model, until an answer or a limit.

A turn is a stream of typed events. Nothing that a model writes can raise out of it (law 2). No timeout or cancel scope is held
across a ``yield`` (law 10); closing the generator stops the model and the tools.
"""

from __future__ import annotations

from patchbay.loop.events import (
    FinalEvent,
    IterationEndEvent,
    LoopEvent,
    ReasoningEvent,
    ReplyEvent,
    TextEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UserOutputEvent,
)
from patchbay.loop.turn import relaxed, turn

__all__ = [
    "FinalEvent",
    "IterationEndEvent",
    "LoopEvent",
    "ReasoningEvent",
    "ReplyEvent",
    "TextEvent",
    "ToolCallEvent",
    "ToolProgressEvent",
    "ToolResultEvent",
    "UserOutputEvent",
    "relaxed",
    "turn",
]
