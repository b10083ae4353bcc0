"""Provider-independent events of a model's server, produced by dialects and handled by the session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Status: TypeAlias = Literal["completed", "cancelled", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The server is ready. ``configured``: it has accepted the whole configuration (Gemini's ``setup``)."""

    configured: bool = False


@dataclass(frozen=True, slots=True)
class SessionUpdated:
    """The server confirmed a session update.

    ``tools``: wire names of our tools in the session; None if the server does not say.
    """

    tools: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ServerError:
    """The server refused something. ``about`` is its subject as far as known.

    "session" includes tools, "cancel" is a cancel that came when no such response was in progress.
    ``param`` is the path in what was sent (``session.tools[0].name``); ``busy``: a response was in progress already.
    """

    message: str
    code: str = ""
    param: str = ""
    event_id: str = ""
    about: Literal["session", "response", "cancel", "item", ""] = ""
    busy: bool = False


@dataclass(frozen=True, slots=True)
class ResponseStarted:
    """A response started."""

    response_id: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the response's text. ``spoken``: transcript of audio."""

    response_id: str
    text: str
    spoken: bool = False


@dataclass(frozen=True, slots=True)
class AudioDelta:
    """A chunk of the response's audio: 16-bit PCM, mono, ``rate`` samples per second."""

    response_id: str
    audio: bytes
    rate: int


@dataclass(frozen=True, slots=True)
class InputTranscript:
    """The user's speech as text: a piece, or with ``whole`` a complete utterance."""

    text: str
    whole: bool = True


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The user started to speak: the current response is interrupted."""


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The user stopped speaking."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """Part of a call. Parts of one call share ``key``, also with its ``FinalCall``.

    ``delta`` extends the arguments, ``arguments`` are complete. ``done``: the call is complete.
    """

    response_id: str
    key: str
    call_id: str = ""
    name: str = ""
    delta: str = ""
    arguments: str | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class FinalCall:
    """A call as listed in the response's final event."""

    key: str
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ResponseDone:
    """A response ended. ``calls`` are all calls that the server lists here."""

    response_id: str
    status: Status
    calls: tuple[FinalCall, ...] = ()
    usage: Mapping[str, Any] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CallsCancelled:
    """The server cancelled calls: their results are not wanted."""

    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GoAway:
    """The server will close the connection in about ``seconds``."""

    seconds: float


ServerEvent: TypeAlias = (
    SessionOpened
    | SessionUpdated
    | ServerError
    | ResponseStarted
    | TextDelta
    | AudioDelta
    | InputTranscript
    | SpeechStarted
    | SpeechStopped
    | CallDelta
    | ResponseDone
    | CallsCancelled
    | GoAway
)
