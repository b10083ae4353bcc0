"""Runtime events for observers, in order, and records of settled calls, each with a digest of the call."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from patchbay.hooks.calls import to_json_arguments
from patchbay.hooks.deadlines import call_within
from patchbay.hooks.types import Event, HookScope, Meta, copied

if TYPE_CHECKING:
    from patchbay.hooks.registered import Link

_WRITE: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_WRITE_ANY: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def digest_of(tool: str, arguments: Mapping[str, Any], facts: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return ``sha256:`` and 64 hexadecimal digits, independent of the order of the arguments.

    ``facts`` are what the tool has found out about the call; without any, the digest is that of tool and arguments.
    """
    bound = b"%b\n%b" % (tool.encode("utf-8", "surrogatepass"), _dumps(arguments))
    if facts:
        # "facts" separates the parts: arguments begin with a bracket, so no tool name can imitate it.
        bound = b"%b\nfacts %b" % (bound, _dumps(facts))
    return f"sha256:{hashlib.sha256(bound).hexdigest()}"


def _dumps(members: Mapping[str, Any]) -> bytes:
    """Return JSON in ASCII on one line, with sorted keys and no spaces."""
    try:
        text = _WRITE(members)
    except (TypeError, ValueError, RecursionError):
        text = _WRITE_ANY(to_json_arguments(members))  # values converted by annotations
    return text.encode("ascii")


class CallRecord(msgspec.Struct, frozen=True):  # one for each call; a frozen dataclass takes five times as long to make
    """One settled call.

    ``time`` is in seconds since 1970; ``seconds`` is how long the tool ran, 0 if it did not. ``tool`` is the tool that was
    called in the end, ``source`` where it is from ("" for a program's own), ``digest`` that of tool and arguments: what an
    approval is bound to. ``decisions`` are (who, point, decision) in order; ``responded_by`` is the hook that answered in the
    tool's place. ``code`` is the error code (``patchbay.errors``), "" for success. ``result_chars`` is the length of the result
    that the model sees. ``prompt_tokens`` and ``completion_tokens`` are those of the answer that has the call: the same for each
    of its calls, and 0 where they were not counted.
    """

    time: float
    meta: Meta
    context: Mapping[str, Any]
    call_id: str
    tool: str
    source: str
    digest: str
    decisions: tuple[tuple[str, str, str], ...]
    responded_by: str
    is_error: bool
    code: str
    result_chars: int
    seconds: float
    prompt_tokens: int = 0
    completion_tokens: int = 0


Recorder: TypeAlias = Callable[[CallRecord], None]
"""Called when a call has settled, in the event loop's thread: it must not block."""

NOTICEABLE: Final = 0.001
"""Seconds from which on an answer of a hook is recorded that decides nothing."""


class HookRecord(msgspec.Struct, frozen=True, gc=False):
    """One answer of a hook that took NOTICEABLE seconds or decided something.

    ``began`` is in seconds since 1970. ``decision`` is what the hook answered, in words, "" for "go on". ``tool`` and ``call_id``
    are those of the call that it was asked about, "" for a request or an answer of a model.
    """

    hook: str
    point: str
    began: float
    seconds: float
    decision: str
    reason: str
    tool: str
    call_id: str


HookRecorder: TypeAlias = Callable[[HookScope, HookRecord], None]
"""Called when a hook of a turn with this scope has answered, in the event loop's thread: it must neither block nor raise."""


BUFFER: Final = 64
"""Events that are queued for slow observers; further ones are dropped and counted."""

NOTHING: Final[Mapping[str, Any]] = {}

_logger = logging.getLogger(__name__)


class EventDispatcher:
    """Delivers events to ``observers`` in order, in a background task; ``dropped`` counts events lost to a full queue."""

    def __init__(self) -> None:
        self.observers: Sequence[Link] = ()
        self.dropped = 0
        self._ids = itertools.count(1)
        self._queue: list[Event] = []
        self._task: asyncio.Task[None] | None = None
        self._warned = False

    def emit(
        self,
        kind: str,
        meta: Meta,
        context: Mapping[str, Any],
        payload: Mapping[str, Any],
        *,
        severity: str = "info",
        attrs: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Queue an event; does nothing without observers. The payload must not be changed afterwards."""
        if not self.observers:
            return
        if len(self._queue) >= BUFFER:
            self.dropped += 1
            if not self._warned:
                self._warned = True
                _logger.warning("Observers are too slow: events are dropped (logged once; EventDispatcher.dropped counts them)")
            return
        number = f"evt-{next(self._ids)}"
        # Copied: approvers and records see the turn's own context.
        self._queue.append(Event(number, kind, time.time(), meta, copied(context), severity, payload, {**attrs}))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._deliver())

    @property
    def waiting(self) -> int:
        """Number of queued events."""
        return len(self._queue)

    async def flush(self) -> None:
        """Wait until all queued events are delivered."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def aclose(self) -> None:
        """Stop delivering."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _deliver(self) -> None:
        while self._queue:
            event = self._queue.pop(0)
            observers = self.observers
            for each, ask in observers:
                # Each observer gets its own copy.
                view = event if len(observers) == 1 else _copy(event)
                try:
                    await call_within(each.timeouts.observer, ask, view)
                except Exception as error:  # noqa: BLE001  (an observer may raise anything)
                    kind = type(error).__name__
                    words = "The observer %r failed on %s: %s: %s"
                    each.warnings.warn(words, each.name, event.kind, kind, error, kind=f"{event.kind} {kind}")


def _copy(event: Event) -> Event:
    return replace(event, context=copied(event.context), payload=copied(event.payload), attrs=copied(event.attrs))
