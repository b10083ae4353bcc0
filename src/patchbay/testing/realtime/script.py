"""Scripts for fake realtime providers: steps, answers and faults."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

from patchbay.errors import ConfigurationError


def one_of(what: str, value: object, allowed: Any) -> None:
    """Raise ConfigurationError for a value that the Literal ``allowed`` does not have."""
    if value not in get_args(allowed):
        raise ConfigurationError(f"{_first(what)} is one of {_listed(get_args(allowed))}, not {value!r}.")


def some_of(what: str, values: object, allowed: Any) -> None:
    """Raise ConfigurationError unless ``values`` is a collection of values of the Literal ``allowed``."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigurationError(f"{_first(what)} are a collection of {_listed(get_args(allowed))}, not {values!r}.")
    for value in values:
        one_of(f"each of {what}", value, allowed)


def listed(what: str, values: object, kinds: Sequence[type], advice: str = "") -> None:
    """Raise ConfigurationError unless ``values`` is a sequence of these kinds; ``advice`` is added to the message."""
    names = ", ".join(kind.__name__ for kind in kinds)
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigurationError(f"{_first(what)} are a sequence of {names}, not {values!r}.{advice}")
    for value in values:
        of_kind(f"each of {what}", value, kinds, advice)


def of_kind(what: str, value: object, kinds: Sequence[type], advice: str = "") -> None:
    """Raise ConfigurationError unless ``value`` is an instance of one of these classes."""
    if not isinstance(value, tuple(kinds)):
        raise ConfigurationError(f"{_first(what)} is one of {', '.join(kind.__name__ for kind in kinds)}, not {value!r}.{advice}")


def at_least(what: str, value: object, least: float) -> None:
    """Raise ConfigurationError unless ``value`` is a number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
        raise ConfigurationError(f"{_first(what)} is a number of at least {least}, not {value!r}.")


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(repr, values))


def _first(what: str) -> str:
    """Capitalize the first letter."""
    return what[:1].upper() + what[1:]


CallFault: TypeAlias = Literal["done_twice", "no_name", "no_call_id", "only_in_response_done", "unheralded"]
"""Ways in which a call can be malformed.

"done_twice": its end is sent twice (Gemini: the whole ``toolCall``). "no_name": the end names no tool. "no_call_id": the pieces
and the end have no id (Gemini: there is none at all). "only_in_response_done": only the end of its response contains it.
"unheralded": there is no ``output_item`` event about it.
"""

AnswerFault: TypeAlias = Literal["stale", "mixed", "fragments"]
"""Ways in which a response can be malformed: with a call of an older response ("stale"), interleaved events of parallel calls
("mixed"), WebSocket messages in fragments, cut also within a character ("fragments")."""

Point: TypeAlias = Literal["asked", "created", "deltas", "calls", "running", "result", "results"]
"""Where a connection can be killed: before the response starts ("asked"), after its start ("created"), within its text or calls
("deltas"), between these and its end ("calls"), after its end while tools run ("running"), after the first result, and after all
of them, before the next response is requested."""

Status: TypeAlias = Literal["completed", "cancelled", "incomplete", "failed"]


@dataclass(frozen=True)
class Say:
    """Say ``text``, in pieces of ``piece`` characters, ``gap`` seconds apart.

    In a session with audio the text is the transcript, and ``audio`` what is heard (None: 10 ms of it a character).
    """

    text: str
    audio: bytes | None = None
    piece: int = 8
    gap: float = 0.0

    def __post_init__(self) -> None:
        of_kind("the text of Say", self.text, (str,))
        of_kind("the audio of Say", self.audio, (bytes, type(None)))
        at_least("the piece of Say", self.piece, 1)
        at_least("the gap of Say", self.gap, 0)


@dataclass(frozen=True)
class Quote:
    """Repeat the input since the last answer, results and texts, so that a test sees what has reached the model."""

    lead: str = "I was told: "


@dataclass(frozen=True)
class Call:
    """Call a tool under its name on the wire. ``arguments`` are a value, or JSON text that is sent unchanged, valid or not.

    ``cuts`` are the places where the text is cut into deltas (None: pieces of 8 characters). ``ascii``: other characters are
    written as escapes. ``call_id`` None: the fake makes one.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=lambda: MappingProxyType({}))
    call_id: str | None = None
    cuts: Sequence[int] | None = None
    ascii: bool = True
    faults: frozenset[CallFault] = frozenset()

    def __post_init__(self) -> None:
        of_kind("the name of Call", self.name, (str,))
        of_kind("the arguments of Call", self.arguments, (Mapping, str))
        some_of("the faults of Call", self.faults, CallFault)

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(dict(self.arguments), ensure_ascii=self.ascii, separators=(",", ":"))

    @property
    def deltas(self) -> list[str]:
        """The arguments in the pieces that are sent."""
        text = self.text
        cuts = range(8, len(text), 8) if self.cuts is None else self.cuts
        places = [0, *sorted({cut for cut in cuts if 0 < cut < len(text)}), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(places)]


@dataclass(frozen=True)
class Pause:
    """Do nothing for ``seconds``."""

    seconds: float

    def __post_init__(self) -> None:
        at_least("the seconds of Pause", self.seconds, 0)


@dataclass(frozen=True)
class Interrupt:
    """The user says ``text``: the response ends here, and the next one answers it."""

    text: str = "Wait."

    def __post_init__(self) -> None:
        of_kind("the text of Interrupt", self.text, (str,))


@dataclass(frozen=True)
class Cancel:
    """Cancel calls without a result: those of ``ids``, or all (Gemini; no effect elsewhere)."""

    ids: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.ids is not None:
            listed("the ids of Cancel", self.ids, (str,))


@dataclass(frozen=True)
class Frame:
    """Send a frame unchanged."""

    frame: Mapping[str, Any]

    def __post_init__(self) -> None:
        of_kind("the frame of Frame", self.frame, (Mapping,))


@dataclass(frozen=True)
class Drop:
    """Abort the connection, without a close frame."""


@dataclass(frozen=True)
class GoAway:
    """Announce the end of the connection in ``seconds`` (Gemini only), and abort it then."""

    seconds: float

    def __post_init__(self) -> None:
        at_least("the seconds of GoAway", self.seconds, 0)


Part: TypeAlias = Say | Quote | Call | Pause | Interrupt | Cancel | Frame | Drop | GoAway

_AFTER: Final = (Pause, Interrupt, Cancel, Frame, Drop, GoAway)
"""Parts that may follow the end of an answer: all but text and calls."""

_NO_TEXT: Final = " A text is a part as Say(text)."


@dataclass(frozen=True)
class Answer:
    """One response: its ``parts`` in order; all the calls of it are one batch.

    ``status`` is its final status, ``then`` are parts that happen after its end, while tools may run. It begins ``late``
    seconds after the request. ``kill`` is the point where the connection is aborted, once all frames before it have arrived.
    """

    parts: Sequence[Part] = ()
    status: Status = "completed"
    then: Sequence[Part] = ()
    late: float = 0.0
    faults: frozenset[AnswerFault] = frozenset()
    kill: Point | None = None

    def __post_init__(self) -> None:
        listed("the parts of an Answer", self.parts, get_args(Part), _NO_TEXT)
        listed("the parts of an Answer's then", self.then, _AFTER)
        one_of("the status of an Answer", self.status, Status)
        at_least("the late of an Answer", self.late, 0)
        some_of("the faults of an Answer", self.faults, AnswerFault)
        if self.kill is not None:
            one_of("the kill of an Answer", self.kill, Point)


Step: TypeAlias = Answer | str | Part | Sequence[Part]
"""One response of a script. A text is short for ``Say``, one part or several for an ``Answer`` of them."""

Update: TypeAlias = Literal["ok", "refuse", "silent"]
"""Outcome of a change of the session: confirmed, refused with an error, or ignored."""


@dataclass(frozen=True)
class Faults:
    """Faults of the server as a whole.

    The first ``refuse`` connections are refused: reset ("reset") or answered with 503. ``updates`` are the outcomes of session
    changes in order, over all connections; "ok" for all others. ``noise``: heartbeats and unknown events
    between the others. A connection without a frame for ``idle`` seconds is closed.
    """

    refuse: int = 0
    refuse_with: Literal["reset", "503"] = "reset"
    updates: Sequence[Update] = ()
    noise: bool = False
    idle: float | None = None

    def __post_init__(self) -> None:
        at_least("the refuse of Faults", self.refuse, 0)
        one_of("the refuse_with of Faults", self.refuse_with, Literal["reset", "503"])
        some_of("the updates of Faults", self.updates, Update)
        if self.idle is not None:
            at_least("the idle of Faults", self.idle, 0)


def as_answers(script: Sequence[Step]) -> list[Answer]:
    """Expand a script to answers. Raises ConfigurationError if it is invalid."""
    if isinstance(script, (str, bytes)) or not isinstance(script, Sequence):
        raise ConfigurationError(f"A script is a sequence of steps, one for each response, not {script!r}.")
    steps = (Say(step) if isinstance(step, str) else step for step in script)
    return [step if isinstance(step, Answer) else Answer((step,) if isinstance(step, Part) else step) for step in steps]
