"""Scripts for fake realtime providers: steps, answers and faults."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from patchbay.errors import ConfigurationError

_Positive: TypeAlias = Annotated[int, Field(ge=1)]
_Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_STRICT: Final = ConfigDict(strict=True, extra="forbid")
"""Values are checked where a script is written, and not converted."""

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


@dataclass(frozen=True, config=_STRICT)
class Say:
    """Say ``text``, in pieces of ``piece`` characters, ``gap`` seconds apart.

    In a session with audio the text is the transcript, and ``audio`` what is heard (None: 10 ms of it a character).
    """

    text: str
    audio: bytes | None = None
    piece: _Positive = 8
    gap: _Seconds = 0.0


@dataclass(frozen=True, config=_STRICT)
class Quote:
    """Repeat the input since the last answer, results and texts, so that a test sees what has reached the model."""

    lead: str = "I was told: "


@dataclass(frozen=True, config=_STRICT)
class Call:
    """Call a tool under its name on the wire. ``arguments`` are a value, or JSON text that is sent unchanged, valid or not.

    ``cuts`` are the places where the text is cut into deltas (None: pieces of 8 characters). ``ascii``: other characters are
    written as escapes. ``call_id`` None: the fake makes one.
    """

    name: str
    arguments: Mapping[str, Any] | str = Field(default_factory=lambda: MappingProxyType({}))
    call_id: str | None = None
    cuts: Sequence[int] | None = None
    ascii: bool = True
    faults: Annotated[frozenset[CallFault], Field(strict=False)] = frozenset()

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


@dataclass(frozen=True, config=_STRICT)
class Pause:
    """Do nothing for ``seconds``."""

    seconds: _Seconds


@dataclass(frozen=True, config=_STRICT)
class Interrupt:
    """The user says ``text``: the response ends here, and the next one answers it."""

    text: str = "Wait."


@dataclass(frozen=True, config=_STRICT)
class Cancel:
    """Cancel calls without a result: those of ``ids``, or all (Gemini; no effect elsewhere)."""

    ids: Sequence[str] | None = None


@dataclass(frozen=True, config=_STRICT)
class Frame:
    """Send a frame unchanged."""

    frame: Mapping[str, Any]


@dataclass(frozen=True, config=_STRICT)
class Drop:
    """Abort the connection, without a close frame."""


@dataclass(frozen=True, config=_STRICT)
class GoAway:
    """Announce the end of the connection in ``seconds`` (Gemini only), and abort it then."""

    seconds: _Seconds


Part: TypeAlias = Say | Quote | Call | Pause | Interrupt | Cancel | Frame | Drop | GoAway

_After: TypeAlias = Pause | Interrupt | Cancel | Frame | Drop | GoAway
"""Parts that may follow the end of an answer: all but text and calls."""


@dataclass(frozen=True, config=_STRICT)
class Answer:
    """One response: its ``parts`` in order; all the calls of it are one batch.

    ``status`` is its final status, ``then`` are parts that happen after its end, while tools may run. It begins ``late``
    seconds after the request. ``kill`` is the point where the connection is aborted, once all frames before it have arrived.
    """

    parts: Sequence[Part] = ()
    status: Status = "completed"
    then: Sequence[_After] = ()
    late: _Seconds = 0.0
    faults: Annotated[frozenset[AnswerFault], Field(strict=False)] = frozenset()
    kill: Point | None = None


Step: TypeAlias = Answer | str | Part | Sequence[Part]
"""One response of a script. A text is short for ``Say``, one part or several for an ``Answer`` of them."""

Update: TypeAlias = Literal["ok", "refuse", "silent"]
"""Outcome of a change of the session: confirmed, refused with an error, or ignored."""


@dataclass(frozen=True, config=_STRICT)
class Faults:
    """Faults of the server as a whole.

    The first ``refuse`` connections are refused: reset ("reset") or answered with 503. ``updates`` are the outcomes of session
    changes in order, over all connections; "ok" for all others. ``noise``: heartbeats and unknown events
    between the others. A connection without a frame for ``idle`` seconds is closed.
    """

    refuse: Annotated[int, Field(ge=0)] = 0
    refuse_with: Literal["reset", "503"] = "reset"
    updates: Sequence[Update] = ()
    noise: bool = False
    idle: _Seconds | None = None


def as_answers(script: Sequence[Step]) -> list[Answer]:
    """Expand a script to answers. Raises ValueError if it is invalid."""
    if isinstance(script, (str, bytes)) or not isinstance(script, Sequence):
        raise ConfigurationError(f"A script is a sequence of steps, one for each response, not {script!r}.")
    steps = (Say(step) if isinstance(step, str) else step for step in script)
    return [step if isinstance(step, Answer) else Answer((step,) if isinstance(step, Part) else step) for step in steps]
