"""What goes over the socket of a session: JSON in, JSON and pieces of audio out. Pure; docs/guides/realtime.md has the tables.

What lives here: reading a client's frames with all that can be wrong with them, and events as frames. What does not: sockets
(``held``).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.loop import TextEvent, ToolCallEvent, ToolProgressEvent, ToolResultEvent, UserOutputEvent
from patchbay.realtime.events import (
    AudioEvent,
    ConnectionEvent,
    DroppedEvent,
    ErrorEvent,
    RealtimeEvent,
    ResponseEndEvent,
    TranscriptEvent,
)
from patchbay.realtime.session import validated_audio
from patchbay.server.media_urls import signed_path
from patchbay.tools import well_formed
from patchbay.types import ToolCall

LONGEST_TEXT: Final = 65_536
"""Characters of what a user says at once."""

Frame: TypeAlias = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Said:
    """A text of the user's."""

    text: str


@dataclass(frozen=True, slots=True)
class Spoken:
    """A piece of the user's speech: 16-bit PCM, one channel."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class Wish:
    """Something that has no content: the user has ended, is to be heard instead, or wants to know whether anybody is there."""

    what: Literal["respond", "interrupt", "ping"]


def read_frame(message: Mapping[str, Any]) -> Said | Spoken | Wish:
    """Read what a client has sent, an ASGI message. Raises InvalidRequestError for what is none of the frames that there are."""
    if (audio := message.get("bytes")) is not None:
        return Spoken(validated_audio(audio))
    try:
        frame = _decoded(message.get("text") or "")
    except (ValueError, RecursionError):
        raise InvalidRequestError("A text frame must be JSON.") from None
    kind = frame.get("type") if isinstance(frame, dict) else None
    if kind == "text":
        text = frame.get("text")
        if not isinstance(text, str) or not text.strip() or len(text) > LONGEST_TEXT:
            raise InvalidRequestError(f"text must be a text of up to {LONGEST_TEXT} characters, and not empty.", param="text")
        return Said(well_formed(text))
    if kind == "audio":
        try:
            return Spoken(validated_audio(base64.b64decode(frame.get("audio"), validate=True)))
        except (binascii.Error, TypeError, ValueError) as error:
            if isinstance(error, InvalidRequestError):
                raise
            raise InvalidRequestError("audio must be base64.", param="audio") from None
    if kind in ("respond", "interrupt", "ping"):
        return Wish(kind)
    raise InvalidRequestError(
        'A frame is a JSON object whose type is "text", "audio", "respond", "interrupt" or "ping".', param="type"
    )


def written(frame: Frame) -> str:
    """Return a frame as text."""
    try:
        return _encode(frame).decode()
    except (TypeError, ValueError, RecursionError):  # half a surrogate pair of a model's, or what no JSON knows
        return json.dumps(frame, default=str)


def told(event: RealtimeEvent) -> Frame:
    """Return an event as a frame."""
    return {"type": event.type, **_members(event)}


def error_frame(error: PatchbayError) -> Frame:
    """Return what tells a client that something went wrong."""
    return {"type": "error", "error": {"message": str(error), "code": error.code}}


def _decoded(text: str) -> Any:
    """Read JSON, also with half a surrogate pair in it, as scripts of web pages write one."""
    try:
        return _decode(text)
    except ValueError:
        return json.loads(text)


def _members(event: RealtimeEvent) -> Frame:
    if isinstance(event, TextEvent):
        return {"delta": event.delta}
    if isinstance(event, AudioEvent):
        return {"audio": base64.b64encode(event.audio).decode(), "rate": event.rate}
    if isinstance(event, TranscriptEvent):
        return {"role": event.role, "text": event.text, "whole": event.whole}
    if isinstance(event, ToolCallEvent):
        arguments = {"arguments": event.tool_call.arguments, "raw_arguments": event.tool_call.raw_arguments}
        return {**_call(event.tool_call), **arguments, "iteration": event.iteration}
    if isinstance(event, ToolProgressEvent):
        progress = event.progress
        return {**_call(event.tool_call), "message": progress.message, "fraction": progress.fraction, "data": progress.data}
    if isinstance(event, ToolResultEvent):
        execution = event.execution
        about = {"content": execution.content, "is_error": execution.is_error, "code": execution.result.code}
        return {**_call(execution.call), **about, "seconds": round(execution.seconds, 6), "iteration": event.iteration}
    if isinstance(event, UserOutputEvent):
        media = [{"ref": ref, "path": signed_path(ref)} for ref in event.media]
        return {**_call(event.tool_call), "text": event.text, "media": media, "handled": event.handled}
    return _of_the_session(event)


def _of_the_session(event: RealtimeEvent) -> Frame:
    if isinstance(event, ResponseEndEvent):
        return {"status": event.status, "usage": dict(event.usage) if event.usage is not None else None}
    if isinstance(event, ConnectionEvent):
        return {"state": event.state, "reason": event.reason, "planned": event.planned}
    if isinstance(event, ErrorEvent):
        return {"error": error_frame(event.error)["error"]}
    if isinstance(event, DroppedEvent):
        return {"what": event.what, "call_id": event.call_id, "name": event.tool, "count": event.count}
    return {}


def _call(call: ToolCall) -> Frame:
    return {"call_id": call.id, "name": call.name}
