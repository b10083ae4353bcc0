"""Public events of a realtime session. Text, calls, results and user outputs are events of ``patchbay.loop``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from patchbay.errors import PatchbayError
from patchbay.loop import TextEvent, ToolCallEvent, ToolProgressEvent, ToolResultEvent, UserOutputEvent


@dataclass(frozen=True, slots=True)
class AudioEvent:
    """A chunk of the model's speech: 16-bit PCM, mono, ``rate`` samples per second."""

    type: ClassVar = "audio"
    audio: bytes
    rate: int


@dataclass(frozen=True, slots=True)
class TranscriptEvent:
    """Speech of the "user" or the "assistant" as text. ``whole``: a complete utterance, else a piece of one."""

    type: ClassVar = "transcript"
    role: Literal["user", "assistant"]
    text: str
    whole: bool


@dataclass(frozen=True, slots=True)
class ResponseEndEvent:
    """The end of a response. ``status`` is "completed", "cancelled", "incomplete" or "failed"."""

    type: ClassVar = "response_end"
    status: str
    usage: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class InterruptedEvent:
    """The user speaks or has sent something: audio that was not played yet is void."""

    type: ClassVar = "interrupted"


@dataclass(frozen=True, slots=True)
class IdleEvent:
    """Nothing is pending any more, and all events before this one were emitted.

    Emitted once at each such moment: after input and its answer, with all tools that were called, and after each ``interrupt``.
    """

    type: ClassVar = "idle"


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """The connection is "open", "lost" (another is being opened), or "closed" (``reason`` says why).

    ``planned``: it was replaced on purpose, because of new tools or a server that announced its end.
    """

    type: ClassVar = "connection"
    state: Literal["open", "lost", "closed"]
    reason: str = ""
    planned: bool = False


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """An error after which the session continues."""

    type: ClassVar = "error"
    error: PatchbayError


@dataclass(frozen=True, slots=True)
class DroppedEvent:
    """A result that came too late for the model, or ``count`` events that were not read in time."""

    type: ClassVar = "dropped"
    what: Literal["result", "events"]
    call_id: str = ""
    tool: str = ""
    count: int = 1


RealtimeEvent: TypeAlias = (
    TextEvent
    | AudioEvent
    | TranscriptEvent
    | ToolCallEvent
    | ToolProgressEvent
    | ToolResultEvent
    | UserOutputEvent
    | ResponseEndEvent
    | InterruptedEvent
    | IdleEvent
    | ConnectionEvent
    | ErrorEvent
    | DroppedEvent
)
