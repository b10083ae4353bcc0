"""The one loop: model, calls, results, model, until an answer or a limit.

A turn is a stream of typed events. Nothing that a model writes can raise out of it (law 2). No timeout or cancel scope is held
across a ``yield`` (law 10); closing the generator stops the model and the tools.
"""

from __future__ import annotations

import warnings
from typing import Any

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


def __getattr__(name: str) -> Any:
    if name == "answered":
        from patchbay.transcript import insert_results

        message = "patchbay.loop.answered is deprecated: use patchbay.transcript.insert_results"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return insert_results
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
