"""What a fake provider records: calls that it issued, and results that it was sent."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

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

    def take(self, call: Issued, output: str) -> None:
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


class Book:
    """All calls of a fake, in the order in which they were made, and the violations.

    ``crossing`` (seconds): actions of a client so soon after a frame of the server are no violation: it may not have received it.
    """

    def __init__(self, crossing: float) -> None:
        self.calls: list[Issued] = []
        self.violations: list[str] = []
        self.crossing = crossing

    def issue(self, call: Issued) -> None:
        """Add a call of the model."""
        self.calls.append(call)

    def violate(self, connection: int, text: str) -> None:
        """Record what a client must not do."""
        self.violations.append(f"connection {connection}: {text}")

    def crossed(self, since: float | None) -> bool:
        """True if the client may not have known yet of what was sent at ``since``."""
        return since is not None and time.monotonic() - since < self.crossing

    def answer(self, connection: int, call: Issued | None, call_id: str, output: str, *, among: Calls) -> bool:
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
            among.take(call, output)
            return False
        among.take(call, output)
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

    @property
    def unanswered(self) -> list[str]:
        """The ids of the calls that must have a result and have none."""
        return [call.call_id for call in self.calls if call.open and call.wanted == "must"]
