"""Counts of the requests to models and of the calls of tools: for each minute of the last day, and since the start.

A request costs two look-ups and a dozen additions (tests/server/test_usage.py shows what is counted); all else is done when the
counts are read.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from patchbay._redaction import Redactor
from patchbay._text import one_line, printable
from patchbay.models.attempt import Attempt
from patchbay.models.request import format_name

if TYPE_CHECKING:  # a plain proxy has no hooks
    from patchbay.hooks.events import CallRecord
    from patchbay.server.turns import Turn

MAX_MODELS: Final = 50
MAX_TOOLS: Final = 200
MAX_ROLES: Final = 50
MAX_CODES: Final = 50
MAX_FORMATS: Final = 200
MAX_NAME_CHARS: Final = 100
OTHER: Final = "other"
"""The name of what has no counts of its own: names beyond these limits."""
UNKNOWN: Final = "unknown"
"""The name of the model of a request that was refused before it was read."""
MAX_ROWS: Final = 50_000
"""Maximum rows, one for each model and tool and minute, about 300 bytes each; the oldest minutes are dropped first."""

BOUNDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the buckets of durations, in seconds; a last bucket has the longer ones."""

Window = Literal["hour", "day"]
_STEPS: Final[Mapping[Window, tuple[int, int]]] = {"hour": (1, 60), "day": (15, 96)}
"""The minutes of a point, and the number of points."""
_MINUTE: Final = 60
_DAY: Final = 24 * 60
_MOST_SEARCHED: Final = 4096
"""Characters of a text in which the marker of a call is looked for."""

RequestKey: TypeAlias = tuple[str, str, str, str, str, str]
"""Model, protocol, outcome, mode, format and constraint."""
CallKey: TypeAlias = tuple[str, str, str]
"""Tool, role and outcome."""
K = TypeVar("K")


class Tally(msgspec.Struct, eq=False, gc=False):
    """Counts of requests or calls (``count``), their ``seconds`` together, the ``longest``, how many took how long (``buckets``).

    ``calls`` are those in the answers of models, ``rounds`` the requests that the model's server was sent, ``again`` how often
    the model was asked again, ``repairs`` those of the parser; tokens as in RequestRecord.
    """

    count: int = 0
    errors: int = 0
    calls: int = 0
    rounds: int = 0
    again: int = 0
    repairs: int = 0
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    def add(self, other: Tally) -> None:
        """Add the counts of another."""
        self.count += other.count
        self.errors += other.errors
        self.calls += other.calls
        self.rounds += other.rounds
        self.again += other.again
        self.repairs += other.repairs
        self.prompt += other.prompt
        self.completion += other.completion
        self.cached += other.cached
        self.seconds += other.seconds
        self.longest = max(self.longest, other.longest)
        self.buckets = [own + more for own, more in zip(self.buckets, other.buckets, strict=True)]

    def add_duration(self, seconds: float) -> None:
        """Add what one of them took."""
        self.seconds += seconds
        if seconds > self.longest:
            self.longest = seconds
        self.buckets[bisect_left(BOUNDS, seconds)] += 1

    def quantile(self, share: float) -> float | None:
        """Return how many seconds ``share`` of them took at most, interpolated within a bucket; None without any."""
        wanted, seen = share * sum(self.buckets), 0
        for index, number in enumerate(self.buckets):
            if number and seen + number >= wanted:
                below = BOUNDS[index - 1] if index else 0.0
                above = min((*BOUNDS, math.inf)[index], self.longest)
                return below + (above - below) * (wanted - seen) / number
            seen += number
        return None


class Names:
    """Names as labels: one line of at most MAX_NAME_CHARS characters, without secrets; only the first ``most`` have their own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._labels: dict[str, str] = {}

    def label(self, name: str, redact: Redactor) -> str:
        """Return the label of a name."""
        label = self._labels.get(name)
        if label is None:
            if len(self._labels) >= self._most or len(name) > MAX_NAME_CHARS:
                return OTHER
            label = self._labels[name] = printable(one_line(redact.text(name), MAX_NAME_CHARS)) or UNKNOWN
        return label


class _Minute(msgspec.Struct, eq=False, gc=False):
    """The counts of a past minute, by model and by tool. ``at`` is in minutes since 1970."""

    at: int
    models: dict[str, Tally]
    tools: dict[str, Tally]


class UsageCounters:
    """Counts what has ended. For one event loop. ``clock`` returns seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.since = clock()
        """When counting began, in seconds since 1970."""
        self._clock = clock
        self._models, self._tools = Names(MAX_MODELS), Names(MAX_TOOLS)
        self._roles, self._codes = Names(MAX_ROLES), Names(MAX_CODES)
        self._redact = Redactor()
        self._formats: dict[str, str] = {}
        """The format that was found last, by model."""
        self._until = 0.0
        self._at = 0
        self._requests: dict[RequestKey, Tally] = {}
        self._calls: dict[CallKey, Tally] = {}
        """The counts of the current minute."""
        self._past: deque[_Minute] = deque()
        self._rows = 0
        self._all_requests: dict[RequestKey, Tally] = {}
        self._all_calls: dict[CallKey, Tally] = {}
        """The counts of all past minutes since the start."""

    def add_turn(self, turn: Turn) -> None:
        """Count a turn that has ended, and the calls in its answer that the server did not run."""
        if turn.ended >= self._until:
            self._begin_minute(turn.ended)
        attempts = turn.attempts
        last = attempts[-1] if attempts else None
        if last is not None and last.is_superseded:
            last = next((each for each in reversed(attempts) if not each.is_superseded), last)
        model = self._models.label(turn.model, turn.redact)
        outcome = _outcome(turn.status, has_failed=bool(turn.error))
        mode = form = constraint = ""
        if last is not None:
            mode = last.mode
            if mode == "text":
                form, constraint = self._format_of(last, turn.model, model), last.constraint
        key = model, turn.protocol, outcome, mode, form, constraint
        tally = self._requests.get(key)
        if tally is None:
            tally = self._requests[key] = Tally()
        tally.count += 1
        tally.errors += outcome != "ok"
        tally.rounds += len(attempts)
        tally.add_duration(turn.seconds)
        for given, written, cached in (turn.passed_counts,) if turn.ending else [each.counts for each in attempts]:
            tally.prompt += given or 0
            tally.completion += written or 0
            tally.cached += cached or 0
        for each in attempts:
            tally.repairs += each.repairs
            if each.reason:
                tally.again += 1
            if each.calls and not each.is_superseded and (each is last or not each.reason):
                tally.calls += len(each.calls)
        if last is not None and last.calls:
            self._add_passed_calls(turn, last)

    def add_refusal(self, protocol: str, status: int, seconds: float) -> None:
        """Count a request that was refused before it was read."""
        now = self._clock()
        if now >= self._until:
            self._begin_minute(now)
        key = UNKNOWN, protocol, _outcome(status, has_failed=True), "", "", ""
        tally = self._requests.setdefault(key, Tally())
        tally.count += 1
        tally.errors += 1
        tally.add_duration(seconds)

    def add_call(self, call: CallRecord) -> None:
        """Count a settled call; a Recorder."""
        outcome = self._codes.label(call.code or "error", self._redact) if call.is_error else "ok"
        tally = self._call_tally(call.tool, call.meta.agent_id, outcome, self._redact)
        tally.errors += call.is_error
        tally.add_duration(call.seconds)

    def _format_of(self, attempt: Attempt, name: str, model: str) -> str:
        """Return the format in which a text has its calls; without any, that in which the model ``name`` was given the tools."""
        named = format_name(attempt.options, name) if attempt.options is not None else ""
        text = attempt.text
        if not attempt.calls or not text:
            return named
        for guess in (named, self._formats.get(model, named)):  # to look for each format's markers takes 50 microseconds
            if any(marker in text for marker in _markers_of(guess)):
                return guess
        found = self._formats[model] = _first_format(text) or named
        return found

    def _add_passed_calls(self, turn: Turn, last: Attempt) -> None:
        """Count the calls of an answer that its client runs: how long those take is not known."""
        own = {call.call_id for call in turn.settled} if turn.settled else ()
        for call_id, name, _ in last.calls:
            if call_id not in own:
                self._call_tally(name, turn.agent, "passed", turn.redact)

    def _call_tally(self, tool: str, role: str, outcome: str, redact: Redactor) -> Tally:
        """Count a call, and return where it is counted."""
        now = self._clock()
        if now >= self._until:
            self._begin_minute(now)
        key = self._tools.label(tool, redact), self._roles.label(role, redact) if role else "", outcome
        tally = self._calls.get(key)
        if tally is None:
            tally = self._calls[key] = Tally()
        tally.count += 1
        return tally

    def _begin_minute(self, now: float) -> None:
        """Keep the counts of the current minute, and begin another. A clock that was set back stays in the current one."""
        if self._requests or self._calls:
            minute = _Minute(self._at, _by_name(self._requests), _by_name(self._calls))
            self._past.append(minute)
            self._rows += len(minute.models) + len(minute.tools)
            _merge(self._all_requests, self._requests)
            _merge(self._all_calls, self._calls)
            self._requests, self._calls = {}, {}
        self._at = int(now // _MINUTE)
        self._until = (self._at + 1) * _MINUTE
        while self._past and (self._past[0].at <= self._at - _DAY or self._rows > MAX_ROWS):
            oldest = self._past.popleft()
            self._rows -= len(oldest.models) + len(oldest.tools)

    def label_of(self, model: str) -> str:
        """Return the name under which a model is counted."""
        return self._models.label(model, self._redact)

    @property
    def requests(self) -> dict[RequestKey, Tally]:
        """The requests since the start."""
        return _sum(self._all_requests, self._requests)

    @property
    def calls(self) -> dict[CallKey, Tally]:
        """The calls since the start."""
        return _sum(self._all_calls, self._calls)

    def view(self, window: Window) -> dict[str, Any]:
        """Return the counts of a window that ends now, by model and by tool, the busiest first, as JSON.

        ``begin`` is that of the first of ``points``, in seconds since 1970, ``step`` the seconds of one. A model and a tool have
        their ``total`` of the window, and ``series`` with a value for each point.
        """
        now = self._clock()
        if now >= self._until:
            self._begin_minute(now)
        size, points = _STEPS[window]
        first = (self._at // size - points + 1) * size
        models: dict[str, dict[int, Tally]] = {}
        tools: dict[str, dict[int, Tally]] = {}
        for minute in (*self._past, _Minute(self._at, _by_name(self._requests), _by_name(self._calls))):
            if minute.at >= first:
                point = min((minute.at - first) // size, points - 1)
                for found, tallies in ((models, minute.models), (tools, minute.tools)):
                    for name, tally in tallies.items():
                        found.setdefault(name, {}).setdefault(point, Tally()).add(tally)
        return {
            "window": window,
            "begin": first * _MINUTE,
            "step": size * _MINUTE,
            "points": points,
            "since": self.since,
            "models": _rows(models, points),
            "tools": _rows(tools, points),
        }


def _rows(found: Mapping[str, Mapping[int, Tally]], points: int) -> list[dict[str, Any]]:
    rows = []
    for name, by_point in found.items():
        total = Tally()
        for tally in by_point.values():
            total.add(tally)
        values = {point: _values(tally) for point, tally in by_point.items()}
        none = _values(Tally())
        series = {field: [values.get(point, none)[field] for point in range(points)] for field in none}
        rows.append({"name": name, "total": _values(total), "series": series})
    return sorted(rows, key=lambda row: (-row["total"]["count"], row["name"]))


def _values(tally: Tally) -> dict[str, Any]:
    """Return the counts of a point; durations are None where nothing was timed."""
    return {
        "count": tally.count,
        "errors": tally.errors,
        "calls": tally.calls,
        "prompt_tokens": tally.prompt,
        "completion_tokens": tally.completion,
        "cached_tokens": tally.cached,
        "p50": _rounded(tally.quantile(0.5)),
        "p95": _rounded(tally.quantile(0.95)),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else round(seconds, 4)


def _by_name(tallies: Mapping[Any, Tally]) -> dict[str, Tally]:
    """Return the sums by the first part of the keys."""
    found: dict[str, Tally] = {}
    for key, tally in tallies.items():
        found.setdefault(key[0], Tally()).add(tally)
    return found


def _merge(into: dict[K, Tally], tallies: Mapping[K, Tally]) -> None:
    for key, tally in tallies.items():
        into.setdefault(key, Tally()).add(tally)


def _sum(*parts: Mapping[K, Tally]) -> dict[K, Tally]:
    found: dict[K, Tally] = {}
    for part in parts:
        _merge(found, part)
    return found


def _outcome(status: int, *, has_failed: bool) -> str:
    """Return "ok", the class of an error's status, or "broken" for an answer that failed after its head."""
    if status >= 400:
        return "4xx" if status < 500 else "5xx"
    return "broken" if has_failed else "ok"


@lru_cache(maxsize=MAX_FORMATS)
def _markers_of(name: str) -> tuple[str, ...]:
    """Return the markers that calls of a format begin with."""
    from patchbay.formats.catalog import FORMATS  # which a proxy of native models does not need

    row = FORMATS.get(name)
    if row is None or row.fenced:
        return "```", "~~~"
    openers = [opener for wrapper in row.wrappers for opener in wrapper.openers]
    return (*openers, *(start for channel in row.channels for start in channel.starts))


def _first_format(text: str) -> str:
    """Return the format whose marker comes first in a text, the longest of several, "" for none."""
    from patchbay.formats.catalog import FORMATS

    text = text[:_MOST_SEARCHED]
    found: list[tuple[int, int, str]] = []
    for name in FORMATS:
        found += [(at, -len(mark), name) for mark in _markers_of(name) if (at := text.find(mark)) >= 0]
    return min(found, key=lambda each: each[:2])[2] if found else ""
