"""W3C trace context of the work in hand. Nothing of OpenTelemetry is imported for it: ``server.telemetry`` makes the spans.

The ids of spans within a trace are derived from what they stand for, so that what is sent out and what is exported later agree
without a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from hashlib import blake2b
from random import getrandbits
from typing import Any, Final, Protocol

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
_NAMES: Final = (PARENT.encode(), STATE.encode())
_PARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_MAX_STATE_CHARS: Final = 512
_SAMPLED: Final = 1
_IDS: Final = (1 << 64) - 1
_SPREAD: Final = 0x9E3779B97F4A7C15
"""An odd number: no two attempts of a turn have one id."""


class Trace:
    """A span, as the parent of others. ``call_id``: it is the span of that tool call; a root has the ``parent_id`` 0."""

    __slots__ = ("call_id", "flags", "parent_id", "span_id", "state", "trace_id")

    def __init__(self, trace_id: int, span_id: int, parent_id: int, flags: int, state: str, call_id: str = "") -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.flags = flags
        self.state = state
        self.call_id = call_id

    @property
    def is_sampled(self) -> bool:
        """Whether its spans are exported."""
        return bool(self.flags & _SAMPLED)

    def attempt(self, number: int) -> int:
        """Return the id of the span of a turn's request to a model, from 1 on."""
        return (self.span_id ^ number * _SPREAD) & _IDS or 1

    def child(self, key: str) -> int:
        """Return the id of the span below this one that ``key`` names."""
        digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=self.span_id.to_bytes(8)).digest()
        return int.from_bytes(digest) or 1

    def of_call(self, call_id: str) -> Trace:
        """Return the span of a tool call below this one."""
        return Trace(self.trace_id, self.child(call_id), self.span_id, self.flags, self.state, call_id)

    def headers(self) -> dict[str, str]:
        """Return the headers that make this span the parent."""
        headers = {PARENT: self._parent(self.span_id).decode()}
        return {**headers, STATE: self.state} if self.state else headers

    def replaced_in(self, headers: Iterable[tuple[bytes, bytes]], span_id: int) -> list[tuple[bytes, bytes]]:
        """Return HTTP headers, with names in lower case, with another span of this trace as the parent, not a client's."""
        kept = [pair for pair in headers if pair[0] not in _NAMES]
        kept.append((_NAMES[0], self._parent(span_id)))
        if self.state:
            kept.append((_NAMES[1], self.state.encode()))
        return kept

    def _parent(self, span_id: int) -> bytes:
        return b"00-%032x-%016x-%02x" % (self.trace_id, span_id, self.flags)


class Exporter(Protocol):
    """Makes spans of turns and calls. Its methods must neither block nor raise."""

    def is_sampled(self, trace_id: int, parent: Trace | None) -> bool:
        """Decide whether a new span is exported; ``parent`` is the caller's."""

    def add_turn(self, turn: Any) -> None:
        """Export the spans of a turn that has ended (``server.turns.Turn``)."""


TRACE: Final[ContextVar[Trace | None]] = ContextVar("patchbay.trace", default=None)
"""The span that this context's work belongs to; None without telemetry."""

_exporter: Exporter | None = None


def set_exporter(exporter: Exporter | None) -> None:
    """Make spans from now on, in this process."""
    global _exporter  # noqa: PLW0603  (as OpenTelemetry's own provider, it is the process's)
    _exporter = exporter


def exporter() -> Any:
    """Return what makes spans in this process; None without telemetry."""
    return _exporter


def parse(members: Mapping[str, Any]) -> Trace | None:
    """Return the span in ``traceparent`` and ``tracestate``; None for an invalid one."""
    parent, state = members.get(PARENT), members.get(STATE)
    match = _PARENT.fullmatch(parent) if isinstance(parent, str) else None
    if match is None:
        return None
    if not (isinstance(state, str) and len(state) <= _MAX_STATE_CHARS and state.isascii() and state.isprintable()):
        state = ""
    return Trace(int(match[1], 16), int(match[2], 16), 0, int(match[3], 16) & _SAMPLED, state)


def from_headers(headers: Iterable[tuple[bytes, bytes]]) -> Trace | None:
    """Return the span in a request's headers."""
    found = {name.decode(): value.decode("latin-1") for name, value in headers if name in _NAMES}
    return parse(found) if found else None


def begin(headers: Iterable[tuple[bytes, bytes]] = ()) -> Trace | None:
    """Begin the span of a request with these headers, which is the context's from now on; None without telemetry."""
    if _exporter is None:
        return None
    parent = from_headers(headers)
    trace_id = parent.trace_id if parent is not None else getrandbits(128) or 1
    sampled = _SAMPLED if _exporter.is_sampled(trace_id, parent) else 0
    parent_id, state = (parent.span_id, parent.state) if parent is not None else (0, "")
    trace = Trace(trace_id, getrandbits(64) or 1, parent_id, sampled, state)
    TRACE.set(trace)
    return trace


def adopt(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Make the caller's span that of the context, for calls outside of a turn."""
    if _exporter is not None:
        TRACE.set(from_headers(headers))


def enter_call(call_id: str) -> None:
    """Make the span of a tool call that of the context. In the process of a plugin it is the caller's already."""
    if _exporter is not None and (trace := TRACE.get()) is not None:
        TRACE.set(trace.of_call(call_id))


def trace_headers() -> dict[str, str]:
    """Return the headers that carry the context's span to another process; none without telemetry."""
    trace = TRACE.get()
    return {} if trace is None else trace.headers()
