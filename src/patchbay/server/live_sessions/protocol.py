"""The protocol of live sessions: settings, session requests (URL queries), and frames. Pure.

docs/guides/realtime.md has the tables.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.loop import TextEvent, ToolCallEvent, ToolProgressEvent, ToolResultEvent, UserOutputEvent
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.events import (
    AudioEvent,
    ConnectionEvent,
    DroppedEvent,
    ErrorEvent,
    RealtimeEvent,
    ResponseEndEvent,
    TranscriptEvent,
)
from patchbay.realtime.providers.registry import dialect_for
from patchbay.realtime.session import validated_audio
from patchbay.server.auth import signed_path
from patchbay.server.chat.handler import SESSION_HEADER, checked_session, session_of
from patchbay.server.settings import ChatSettings, ProxySettings, require_positive
from patchbay.tools import well_formed
from patchbay.types import ToolCall

if TYPE_CHECKING:
    from patchbay.server.chat.agents import ServedAgents


@dataclass(frozen=True, kw_only=True)
class LiveSessionsSettings:
    """``realtime`` is the realtime model, ``upstream`` the server of the chat models; None where there is none.

    ``chat`` is how chats use tools; ``agents`` are further chat models. In seconds: a takeover waits ``swap_wait`` for a busy
    session, and as long for another takeover; a request for a busy role waits ``free_wait``, since the client's last session may
    be closing; a client that does not read is disconnected after ``send_timeout``.
    """

    realtime: RealtimeSettings | None = None
    upstream: ProxySettings | None = None
    chat: ChatSettings | None = None
    agents: ServedAgents | None = None
    swap_wait: float = 10.0
    free_wait: float = 1.0
    send_timeout: float = 30.0

    def __post_init__(self) -> None:
        if self.realtime is not None:
            dialect_for(self.realtime)  # raises for an unknown name
        require_positive(self, "swap_wait", "free_wait", "send_timeout")


PATH: Final = "/api/sessions/"

SUBPROTOCOL: Final = "patchbay"

_MAX_INSTRUCTIONS_CHARS: Final = 16_000
_MAX_NAME_CHARS: Final = 200
_CHOICES: Final = {
    "audio": ("json", "binary"),
    "output": ("audio", "text"),
    **dict.fromkeys(("takeover", "detect_turns", "resume"), ("0", "1")),
}
_KNOWN: Final = frozenset({"realtime", "model", "instructions", "session", "voice", *_CHOICES})
_MODEL: Final = re.compile(r"[!-~]*")


class NoModelError(InvalidRequestError):
    """The server has no model of the requested kind."""

    code = "no_model"


@dataclass(frozen=True)
class SessionRequest:
    """A session as a client requests it. ``model`` is "" for the server's own. ``binary``: audio in binary frames.

    ``takeover``: it replaces the role's current session. ``session`` is the client's key. ``detect_turns`` false: the client says
    when the user has finished speaking. ``resume``: it goes on with what is stored under ``session``, and is stored.
    """

    role: str
    kind: Literal["realtime", "offline"]
    model: str = ""
    instructions: str = ""
    voice: str | None = None
    output: Literal["audio", "text"] | None = None
    session: str = ""
    binary: bool = False
    takeover: bool = False
    detect_turns: bool = True
    resume: bool = False


def role_in(path: str) -> str | None:
    """Return the role (still encoded) in the path of a session, None for other paths."""
    role = path.removeprefix(PATH).removesuffix("/")
    return role if path.startswith(PATH) and role and "/" not in role else None


def parse_session_request(
    role: str, query: bytes, headers: Sequence[tuple[bytes, bytes]], settings: LiveSessionsSettings
) -> SessionRequest:
    """Parse and validate a request. Raises InvalidRequestError, and NoModelError where the server has no such model."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20)
    except (ValueError, UnicodeError):
        raise InvalidRequestError("The query of the URL cannot be read.") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise InvalidRequestError("The query has a parameter twice.")
    for name, value in given.items():
        if name not in _KNOWN:
            raise InvalidRequestError(f"Unknown parameter {name!r:.50}. Known are {', '.join(sorted(_KNOWN))}.")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise InvalidRequestError(f"{name} is {' or '.join(_CHOICES[name])}, not {value!r:.50}.")
    for name in ("realtime", "model", "voice"):
        value = given.get(name, "")
        if len(value) > _MAX_NAME_CHARS or not _MODEL.fullmatch(value):
            raise InvalidRequestError(f"{name} must be up to {_MAX_NAME_CHARS} ASCII characters without blanks.")
    if len(given.get("instructions", "")) > _MAX_INSTRUCTIONS_CHARS:
        raise InvalidRequestError(f"instructions must be up to {_MAX_INSTRUCTIONS_CHARS} characters.")
    kind = _kind(given, settings)
    header = next((value for name, value in headers if name.lower() == SESSION_HEADER.lower().encode()), None)
    request = SessionRequest(
        role,
        kind,
        model=given.get("realtime" if kind == "realtime" else "model", ""),
        instructions=given.get("instructions", ""),
        voice=given.get("voice"),
        output="text" if given.get("output") == "text" else "audio" if "output" in given else None,
        session=checked_session(given["session"]) if "session" in given else session_of(header),
        binary=given.get("audio") == "binary",
        takeover=given.get("takeover") == "1",
        detect_turns=given.get("detect_turns") != "0",
        resume=given.get("resume") == "1",
    )
    if request.resume and not request.session:
        raise InvalidRequestError("resume=1 needs the session that goes on: &session=KEY.", param="session")
    if request.model and kind == "realtime":
        realtime_settings(request, settings)  # raises for an unknown name
    return request


def realtime_settings(request: SessionRequest, settings: LiveSessionsSettings) -> RealtimeSettings:
    """Return the settings of a realtime session. Raises ConfigurationError for an unknown model.

    Another model of the same provider is requested from the same server; one of another provider from that provider's own.
    """
    own = settings.realtime
    assert own is not None
    made = own
    if request.model:
        provider = dialect_for(own).provider
        named = replace(
            own, model=request.model, provider="" if "/" in request.model else provider, url=None, api_key=None, voice=None
        )
        same = dialect_for(named).provider == provider
        made = replace(own, model=request.model, provider=provider) if same else replace(named, extra={})
    if request.instructions:
        made = replace(made, instructions=request.instructions)
    if request.voice:
        made = replace(made, voice=request.voice)
    if not request.detect_turns:
        made = replace(made, detect_turns=False)
    return replace(made, output=request.output) if request.output is not None else made


def _kind(given: dict[str, str], settings: LiveSessionsSettings) -> Literal["realtime", "offline"]:
    """Return the kind that the query names, else realtime where the server has that."""
    if "realtime" in given and "model" in given:
        raise InvalidRequestError("realtime and model are two kinds of session: name one.")
    wants_realtime = "realtime" in given or ("model" not in given and settings.realtime is not None)
    if wants_realtime and settings.realtime is None:
        raise NoModelError("This server has no realtime model: start it with patchbay serve --realtime openai/gpt-realtime.")
    is_agent = settings.agents is not None and given.get("model") in settings.agents
    if not wants_realtime and settings.upstream is None and not is_agent:
        raise NoModelError(
            "This server has no model for chats: start it with patchbay serve --upstream URL"
            f"{'' if settings.realtime is None else ', or talk to its realtime one, ?realtime='}."
        )
    return "realtime" if wants_realtime else "offline"


MAX_TEXT_CHARS: Final = 65_536
"""Maximum characters of a text frame."""

Frame: TypeAlias = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class TextInput:
    """Text of the user."""

    text: str


@dataclass(frozen=True, slots=True)
class AudioInput:
    """A piece of the user's speech: 16-bit PCM, one channel."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class Control:
    """A frame without content: the user has finished, interrupts, or pings."""

    kind: Literal["respond", "interrupt", "ping"]


def read_frame(message: Mapping[str, Any]) -> TextInput | AudioInput | Control:
    """Parse an ASGI message of a client. Raises InvalidRequestError for an invalid frame."""
    if (audio := message.get("bytes")) is not None:
        return AudioInput(validated_audio(audio))
    try:
        frame = _decoded(message.get("text") or "")
    except (ValueError, RecursionError):
        raise InvalidRequestError("A text frame must be JSON.") from None
    kind = frame.get("type") if isinstance(frame, dict) else None
    if kind == "text":
        text = frame.get("text")
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_TEXT_CHARS:
            raise InvalidRequestError(f"text must be a text of up to {MAX_TEXT_CHARS} characters, and not empty.", param="text")
        return TextInput(well_formed(text))
    if kind == "audio":
        try:
            return AudioInput(validated_audio(base64.b64decode(frame.get("audio"), validate=True)))
        except (binascii.Error, TypeError, ValueError) as error:
            if isinstance(error, InvalidRequestError):
                raise
            raise InvalidRequestError("audio must be base64.", param="audio") from None
    if kind in ("respond", "interrupt", "ping"):
        return Control(kind)
    raise InvalidRequestError(
        'A frame is a JSON object whose type is "text", "audio", "respond", "interrupt" or "ping".', param="type"
    )


def encode_frame(frame: Frame) -> str:
    """Return a frame as text."""
    try:
        return _encode(frame).decode()
    except (TypeError, ValueError, RecursionError):  # a lone surrogate, or an unknown type
        return json.dumps(frame, default=str)


def event_frame(event: RealtimeEvent) -> Frame:
    """Return an event as a frame."""
    return {"type": event.type, **_event_fields(event)}


def error_frame(error: PatchbayError) -> Frame:
    """Return an error as a frame."""
    return {"type": "error", "error": {"message": str(error), "code": error.code}}


def _decoded(text: str) -> Any:
    """Parse JSON, with lone surrogates too, as scripts of web pages send them."""
    try:
        return _decode(text)
    except ValueError:
        return json.loads(text)


def _event_fields(event: RealtimeEvent) -> Frame:
    if isinstance(event, TextEvent):
        return {"delta": event.delta}
    if isinstance(event, AudioEvent):
        return {"audio": base64.b64encode(event.audio).decode(), "rate": event.rate}
    if isinstance(event, TranscriptEvent):
        return {"role": event.role, "text": event.text, "whole": event.whole}
    if isinstance(event, ToolCallEvent):
        arguments = {"arguments": event.tool_call.arguments, "raw_arguments": event.tool_call.raw_arguments}
        return {**_call_fields(event.tool_call), **arguments, "iteration": event.iteration}
    if isinstance(event, ToolProgressEvent):
        progress = event.progress
        return {
            **_call_fields(event.tool_call),
            "message": progress.message,
            "fraction": progress.fraction,
            "data": progress.data,
        }
    if isinstance(event, ToolResultEvent):
        execution = event.execution
        about = {"content": execution.content, "is_error": execution.is_error, "code": execution.result.code}
        return {**_call_fields(execution.call), **about, "seconds": round(execution.seconds, 6), "iteration": event.iteration}
    if isinstance(event, UserOutputEvent):
        media = [{"ref": ref, "path": signed_path(ref)} for ref in event.media]
        return {**_call_fields(event.tool_call), "text": event.text, "media": media, "handled": event.handled}
    return _session_event_fields(event)


def _session_event_fields(event: RealtimeEvent) -> Frame:
    if isinstance(event, ResponseEndEvent):
        return {"status": event.status, "usage": dict(event.usage) if event.usage is not None else None}
    if isinstance(event, ConnectionEvent):
        return {"state": event.state, "reason": event.reason, "planned": event.planned}
    if isinstance(event, ErrorEvent):
        return {"error": error_frame(event.error)["error"]}
    if isinstance(event, DroppedEvent):
        return {"what": event.what, "call_id": event.call_id, "name": event.tool, "count": event.count}
    return {}


def _call_fields(call: ToolCall) -> Frame:
    return {"call_id": call.id, "name": call.name}
