"""State of a fake provider: its script, the calls that it issued, and what it was sent."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from patchbay.testing.realtime.script import Answer, Faults, Quote

Wanted: TypeAlias = Literal["must", "may", "not"]
"""What is expected for a call on its connection: a result ("must": its response was completed), perhaps an error ("may": it was
interrupted), or nothing ("not": the call was cancelled, or its connection is gone)."""


@dataclass
class Issued:
    """A call that the model made. ``sent_id`` is the id that the client got, "" if none.

    ``order`` numbers the calls of one response. ``why`` is why no result is wanted, or, as "interrupted", why it need not come;
    ``gone_at`` is when it was taken back (``time.monotonic``).
    """

    call_id: str
    name: str
    arguments: str
    connection: int
    response_id: str
    order: int
    sent_id: str
    wanted: Wanted = "may"
    results: list[str] = field(default_factory=list)
    why: str = ""
    gone_at: float | None = None

    @property
    def open(self) -> bool:
        """True if it has no result."""
        return not self.results


@dataclass(frozen=True)
class ModelInput:
    """Input of the model, and its connection. ``kind`` is "result" for results, else a role."""

    kind: str
    text: str
    connection: int
    call_id: str = ""


def unnamed(calls: Iterable[Issued]) -> Issued | None:
    """Return the call that a result without an id is for: the first that must have one, else the first that may."""
    waiting = [call for call in calls if call.open and call.wanted != "not"]
    return next((call for call in waiting if call.wanted == "must"), next(iter(waiting), None))


class Calls:
    """The calls of a session, each found without a look at all others: there may be thousands."""

    def __init__(self) -> None:
        self._by_id: defaultdict[str, list[Issued]] = defaultdict(list)
        self._by_response: defaultdict[str, list[Issued]] = defaultdict(list)
        self._open: dict[int, Issued] = {}

    def add(self, call: Issued) -> None:
        """Add a call of the model."""
        self._by_id[call.call_id].append(call)
        self._by_response[call.response_id].append(call)
        self._open[id(call)] = call

    def add_result(self, call: Issued, output: str) -> None:
        """Record a result of a call."""
        call.results.append(output)
        self._open.pop(id(call), None)

    def find(self, call_id: object) -> Issued | None:
        """Return the first call that the client knows by this id."""
        made = self._by_id.get(call_id, ()) if call_id and isinstance(call_id, str) else ()
        return next((call for call in made if call.sent_id), None)

    def of(self, response_id: str) -> Sequence[Issued]:
        """Return the calls of a response, in their order."""
        return self._by_response.get(response_id, ())

    @property
    def open(self) -> list[Issued]:
        """Calls without a result, in order. May be read in any thread."""
        return list(self._open.values())


class FakeState:
    """What the connections of a fake share: its script, and the records that tests look at."""

    def __init__(
        self, script: list[Answer], faults: Faults, *, hears: Sequence[str], utterance: int | None, crossing: float
    ) -> None:
        self.script = script
        self.faults = faults
        self.utterance = utterance
        self.crossing = crossing
        """Seconds after a frame of the server for which a client may not have received it: its actions are no violation then."""

        self.attempts = 0
        """Number of connection attempts."""

        self.connections = 0
        """Number of connections."""

        self.frames: list[tuple[int, Mapping[str, Any]]] = []
        """All that clients have sent, with the connection's number (pieces of audio without their data)."""

        self.heard: list[ModelInput] = []
        """The model's input: user speech, text, results."""

        self.sessions: list[Mapping[str, Any]] = []
        """Requested sessions, one for each change (Gemini: each ``setup``), refused ones too."""

        self.tools: list[str] = []
        """The names of the tools that the model has on the latest connection."""

        self.calls: list[Issued] = []
        """All calls that the model has made, in order."""

        self.violations: list[str] = []
        """Violations of the protocol by clients, as texts."""

        self.refusals: list[str] = []
        """Codes of the errors that were sent."""

        self.audio_bytes = 0
        """Bytes of user audio received."""

        self._played = 0
        self._updates = iter(faults.updates)
        self._hears = iter(hears)
        self._ids = itertools.count(1)
        self._change = threading.Condition()

    @property
    def unanswered(self) -> list[str]:
        """The ids of the calls that must have a result and have none."""
        return [call.call_id for call in self.calls if call.open and call.wanted == "must"]

    @property
    def remaining(self) -> int:
        """Number of steps of the script that were not played."""
        return max(0, len(self.script) - self._played)

    def results(self, call_id: str) -> list[str]:
        """Return the results of a call."""
        return [result for call in self.calls if call.call_id == call_id for result in call.results]

    # For the connections

    def next_answer(self) -> Answer:
        """Return the next step of the script."""
        answer = self.script[self._played] if self._played < len(self.script) else Answer((Quote(),))
        self._played += 1
        return answer

    def next_update(self) -> str:
        """Return the outcome of a change of the session."""
        return next(self._updates, "ok")

    def next_utterance(self) -> str:
        """Return the next text that the user speaks."""
        return next(self._hears, "(something)")

    def new_id(self, kind: str) -> str:
        """Return a new id."""
        return f"{kind}_{next(self._ids):06d}"

    def record_frame(self, connection: int, frame: Mapping[str, Any]) -> None:
        """Record a frame of a client."""
        self.frames.append((connection, {**frame, "audio": "..."} if "audio" in frame else frame))

    def changed(self) -> None:
        """Wake waiting threads."""
        with self._change:
            self._change.notify_all()

    def violate(self, connection: int, text: str) -> None:
        """Record what a client must not do."""
        self.violations.append(f"connection {connection}: {text}")

    def crossed(self, since: float | None) -> bool:
        """True if the client may not have known yet of what was sent at ``since``."""
        return since is not None and time.monotonic() - since < self.crossing

    def record_result(self, connection: int, call: Issued | None, call_id: str, output: str, *, among: Calls) -> bool:
        """Record a result for ``call`` (None: no call has this id), one of ``among``; return whether it is valid."""
        if call is None:
            elsewhere = next((each for each in self.calls if call_id and call_id in (each.call_id, each.sent_id)), None)
            where = "unknown call_id" if elsewhere is None else f"call of connection {elsewhere.connection}, which is gone"
            if elsewhere is not None and elsewhere.results:
                where += ", and answered already"
            self.violate(connection, f"result for {call_id or 'a call without an id'!r}: {where}")
            return False
        if call.results:
            self.violate(connection, f"second result for {call.call_id!r}")
            among.add_result(call, output)
            return False
        among.add_result(call, output)
        if call.wanted == "not":
            if not self.crossed(call.gone_at):
                self.violate(connection, f"result for {call.call_id!r}, which was {call.why}")
            return False
        batch = [each for each in among.of(call.response_id) if each.wanted != "not"]
        early = [each.call_id for each in batch if each.order < call.order and each.open]
        if early and call.wanted == "must":
            self.violate(connection, f"result for {call.call_id!r} before that of {early[0]!r}, which was called first")
        return True

    def void(self, call: Issued, why: str) -> None:
        """Cancel a call without a result."""
        if call.open and call.wanted != "not":
            call.wanted = "not"
            call.why = why
            call.gone_at = time.monotonic()
