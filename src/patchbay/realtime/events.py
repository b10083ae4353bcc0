"""What happens in a realtime session, as events: plain data, each with its ``type`` as a word.

Text, calls, results and outputs for the user are the loop's own (``patchbay.loop``); here is what only a live session has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from patchbay.errors import PatchbayError
from patchbay.loop import TextEvent, ToolCallEvent, ToolProgressEvent, ToolResultEvent, UserOutputEvent


@dataclass(frozen=True, slots=True)
class AudioEvent:
    """A piece of the model's speech: 16-bit PCM, one channel, ``rate`` samples a second."""

    type: ClassVar = "audio"
    audio: bytes
    rate: int


@dataclass(frozen=True, slots=True)
class TranscriptEvent:
    """Speech as text: the "user"'s, or the "assistant"'s. ``whole``: all of one utterance, else a piece of it."""

    type: ClassVar = "transcript"
    role: Literal["user", "assistant"]
    text: str
    whole: bool


@dataclass(frozen=True, slots=True)
class ResponseEndEvent:
    """The model has ended an answer. ``status`` is "completed", "cancelled", "incomplete" or "failed"."""

    type: ClassVar = "response_end"
    status: str
    usage: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class InterruptedEvent:
    """The user speaks, or said something: what is still to be played of the model's audio is void."""

    type: ClassVar = "interrupted"


@dataclass(frozen=True, slots=True)
class IdleEvent:
    """Nothing is under way any more, and all that has happened was told before.

    It comes once whenever that becomes so: behind what the user has said and its answer, with all tools that were called, and
    behind each ``interrupt``.
    """

    type: ClassVar = "idle"


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """The connection is "open", "lost" (another is being opened), or "closed" (``reason`` says why).

    ``planned``: it was given up for another one, because of new tools, or since the server will end it.
    """

    type: ClassVar = "connection"
    state: Literal["open", "lost", "closed"]
    reason: str = ""
    planned: bool = False


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """Something went wrong, and the session goes on."""

    type: ClassVar = "error"
    error: PatchbayError


@dataclass(frozen=True, slots=True)
class DroppedEvent:
    """A result came too late and is told to nobody; or ``count`` events were not read in time."""

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
