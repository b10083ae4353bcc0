"""What a provider's server says, in words of our own: plain data, made by a dialect out of frames, read by the session.

A dialect leaves out what it does not know; it never raises for what a server sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Status: TypeAlias = Literal["completed", "cancelled", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The server is there. ``configured``: it has taken tools and all else already (Gemini's ``setup``)."""

    configured: bool = False


@dataclass(frozen=True, slots=True)
class SessionUpdated:
    """The server has taken a change of the session (``session.updated``).

    ``tools``: the names on the wire of those of our tools that the session has by now; None where the server does not say.
    """

    tools: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ServerError:
    """The server refuses something. ``about`` says what, as far as can be known; "session" is a change of it, tools too.

    ``param`` is the place in what was sent, such as ``session.tools[0].name``; ``busy``: a response was under way already.
    """

    message: str
    code: str = ""
    param: str = ""
    event_id: str = ""
    about: Literal["session", "response", "item", ""] = ""
    busy: bool = False


@dataclass(frozen=True, slots=True)
class ResponseStarted:
    """The model begins to answer."""

    response_id: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the model's answer as text. ``spoken``: it is the transcript of what is sent as audio."""

    response_id: str
    text: str
    spoken: bool = False


@dataclass(frozen=True, slots=True)
class AudioDelta:
    """A piece of the model's answer as audio: 16-bit PCM, one channel, ``rate`` samples a second."""

    response_id: str
    audio: bytes
    rate: int


@dataclass(frozen=True, slots=True)
class InputTranscript:
    """The user's speech as text; a piece of it, or with ``whole`` all of one utterance."""

    text: str
    whole: bool = True


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The server hears the user begin to speak: what the model says now is interrupted."""


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The server hears that the user has ended."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A part of a call. The parts of one have the same ``key``; "" is a member that this part does not say.

    ``delta`` adds to the arguments, ``arguments`` are all of them. ``done``: nothing more of this call comes.
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
    """A call as the end of its response tells it."""

    key: str
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ResponseDone:
    """The model's answer is over. ``calls`` are all that the server names here, also those whose parts were lost."""

    response_id: str
    status: Status
    calls: tuple[FinalCall, ...] = ()
    usage: Mapping[str, Any] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CallsCancelled:
    """The server takes calls back: their results are not wanted any more."""

    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GoAway:
    """The server will end the connection, in about ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SessionResumption:
    """With ``handle`` a new connection goes on where this one was."""

    handle: str


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
    | SessionResumption
)
