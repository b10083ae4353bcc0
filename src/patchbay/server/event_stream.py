"""The event stream of a server: the runtime events of its turns, for a bounded number of readers, without slowing a turn.

A hook observes turns while there are readers, and shortly after, so that a server without readers pays nothing. A reader gets the
turns that begin after it subscribed, and those in progress only if others read too.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from patchbay.errors import PatchbayError
from patchbay.hooks import Event, HookManager
from patchbay.hooks.process.protocol import encode_event

NAME: Final = "server.events"
"""The hook's name in the manager."""

MAX_READERS: Final = 16
MAX_QUEUED: Final = 1000
"""Maximum events queued for a slow reader; more are dropped, and reported as ``stream.dropped``."""
MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of the queued events."""
MAX_BUFFERED: Final = 256
"""Number of last events buffered for readers that reconnect, up to ``MAX_QUEUED_BYTES`` bytes."""
MAX_EVENT_CHARS: Final = 256 * 1024
"""Maximum characters of an encoded event."""
LINGER_SECONDS: Final = 60.0
"""Seconds after the last reader until the hook is unmounted."""

_MAX_DEPTH: Final = 32
_MAX_ITEMS: Final = 1000


class TooManyReadersError(PatchbayError):
    """The maximum of readers is reached."""

    code = "too_many_readers"
    status = 503


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """An event as sent: its id in the stream, its envelope as JSON, and the fields that readers filter by."""

    id: str
    kind: str
    session: str
    data: bytes


class EventReader:
    """One reader: its filters (``kinds`` are patterns, none for all; ``session`` is a key), and its queue. Must be closed."""

    def __init__(self, stream: EventStream, kinds: Iterable[str], session: str | None) -> None:
        self._stream = stream
        self._kinds = tuple(kinds)
        self._session = session
        self._waiting: list[StreamedEvent | int] = []
        self._size = 0
        self._wakeup = asyncio.Event()
        self._is_over = False

    async def read(self, ping: float) -> list[StreamedEvent | int] | None:
        """Wait for events and return them, with the number of dropped events in the places of those.

        Returns an empty list after ``ping`` seconds without events, and None at the end of the stream.
        """
        try:
            async with asyncio.timeout(ping):
                await self._wakeup.wait()
        except TimeoutError:
            return []
        if self._is_over and not self._waiting:
            return None
        if not self._is_over:
            self._wakeup.clear()
        taken, self._waiting, self._size = self._waiting, [], 0
        return taken

    def close(self) -> None:
        """Stop reading."""
        self.end()
        self._stream.gone(self)

    def wants(self, event: StreamedEvent) -> bool:
        """Return whether the reader's filters match."""
        if self._session is not None and event.session != self._session:
            return False
        return not self._kinds or any(fnmatchcase(event.kind, pattern) for pattern in self._kinds)

    def take(self, event: StreamedEvent) -> None:
        """Queue an event, or count it as dropped where the queue is full."""
        if len(self._waiting) >= MAX_QUEUED or self._size + len(event.data) > MAX_QUEUED_BYTES:
            self.miss(1)
            return
        self._waiting.append(event)
        self._size += len(event.data)
        self._wakeup.set()

    def miss(self, count: int) -> None:
        """Queue a note that ``count`` events were dropped."""
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, int):
            self._waiting[-1] = last + count
        else:
            self._waiting.append(count)
        self._wakeup.set()

    def end(self) -> None:
        """End the stream."""
        self._is_over = True
        self._wakeup.set()


class _Observer:
    """The hook."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    async def on_runtime_event(self, event: Event) -> None:
        self._stream.show(event)

    async def aclose(self) -> None:
        self._stream.unobserved(self)


class EventStream:
    """The events of ``manager``, for at most ``most_readers`` readers; in one event loop.

    ``linger``: seconds after the last reader until the hook is unmounted.
    """

    def __init__(self, manager: HookManager, *, most_readers: int = MAX_READERS, linger: float = LINGER_SECONDS) -> None:
        self._manager = manager
        self._most = most_readers
        self._linger = linger
        self._observer: _Observer | None = None
        self._readers: list[EventReader] = []
        self._last: deque[StreamedEvent] = deque()
        self._last_size = 0
        self._number = 0
        self._begun = secrets.token_hex(4)
        self._dropped = 0
        self._stopping: asyncio.TimerHandle | None = None
        self._is_stopped = False

    @property
    def readers(self) -> int:
        """The number of readers."""
        return len(self._readers)

    def join(self, *, kinds: Iterable[str] = (), session: str | None = None, last_id: str = "") -> EventReader:
        """Return a new reader, which must be closed.

        ``last_id`` is the last event that it has seen: events since then come first, as far as they are buffered. Raises
        TooManyReadersError.
        """
        if self._is_stopped:
            raise TooManyReadersError("The server is about to stop.")
        if len(self._readers) >= self._most:
            raise TooManyReadersError(f"There are {self._most} readers of the events already, and no more are allowed.")
        reader = EventReader(self, kinds, session)
        if last_id:
            self._catch_up(reader, last_id)
        self._readers.append(reader)
        self._observe()
        return reader

    def gone(self, reader: EventReader) -> None:
        """Remove a reader."""
        if reader not in self._readers:
            return
        self._readers.remove(reader)
        if not self._readers and self._observer is not None and self._stopping is None:
            self._stopping = asyncio.get_running_loop().call_later(self._linger, self._stop_observing)

    def leave(self) -> None:
        """End all streams, and accept no readers: the server is shutting down."""
        self._is_stopped = True
        self._end_all()

    def show(self, event: Event) -> None:
        """Send an event to the readers that want it."""
        missing, self._dropped = self._manager.events.dropped - self._dropped, self._manager.events.dropped
        if missing > 0:  # dropped by the dispatcher: of unknown sessions
            for reader in self._readers:
                reader.miss(missing)
        self._number += 1
        event_out = StreamedEvent(f"{self._begun}-{self._number}", event.kind, event.meta.session_key, encoded(event))
        self._remember(event_out)
        for reader in self._readers:
            if reader.wants(event_out):
                reader.take(event_out)

    def unobserved(self, observer: _Observer) -> None:
        """End all streams: other code has unmounted the hook."""
        if observer is self._observer:
            self._observer = None
            self._end_all()

    def _observe(self) -> None:
        if self._stopping is not None:
            self._stopping.cancel()
            self._stopping = None
        if self._observer is None:
            self._observer = _Observer(self)
            self._dropped = self._manager.events.dropped
            self._manager.mount(NAME, self._observer)

    def _stop_observing(self) -> None:
        self._stopping = None
        self._observer = None
        self._last.clear()
        self._last_size = 0
        self._manager.unmount(NAME)

    def _remember(self, event_out: StreamedEvent) -> None:
        self._last.append(event_out)
        self._last_size += len(event_out.data)
        while len(self._last) > MAX_BUFFERED or self._last_size > MAX_QUEUED_BYTES:
            self._last_size -= len(self._last.popleft().data)

    def _catch_up(self, reader: EventReader, last_id: str) -> None:
        begun, _, number = last_id.rpartition("-")
        after = 0  # where it is another stream's, of a server that was restarted since, all of this one is new
        if begun == self._begun and number.isdecimal() and number.isascii() and len(number) < 20:
            after = int(number)
        first = self._number - len(self._last) + 1
        if begun == self._begun and first > after + 1:
            reader.miss(first - after - 1)
        for place, event in enumerate(self._last, first):
            if place > after and reader.wants(event):
                reader.take(event)

    def _end_all(self) -> None:
        for reader in self._readers:
            reader.end()


def encoded(event: Event) -> bytes:
    """Return an event's envelope as ASCII JSON; what is too long or too deep is cut, and ``attrs.cut`` is set."""
    budget = _SizeBudget()
    envelope = budget.cut(encode_event(event), 0)
    if budget.is_cut:
        envelope["attrs"] = {**envelope.get("attrs", {}), "cut": True}
    return json.dumps(envelope, separators=(",", ":"), allow_nan=False).encode()


class _SizeBudget:
    """The remaining size of an encoded event."""

    def __init__(self) -> None:
        self.left = MAX_EVENT_CHARS
        self.is_cut = False

    def cut(self, value: Any, depth: int) -> Any:
        """Return a value as JSON, cut to the remaining size."""
        kind = type(value)
        if kind is str:
            return self._text(value)
        self.left -= 2
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**64 else self._text(hex(value))
        if kind is float:
            return value if math.isfinite(value) else str(value)
        if depth >= _MAX_DEPTH or self.left <= 0:
            self.is_cut = True
            return "..."
        if isinstance(value, Mapping):
            return {self._text(str(key)): self.cut(item, depth + 1) for key, item in self._items(value.items())}
        if isinstance(value, list | tuple):
            return [self.cut(item, depth + 1) for item in self._items(value)]
        return self._text(str(value))

    def _items(self, values: Iterable[Any]) -> Iterable[Any]:
        for place, each in enumerate(values):
            if place >= _MAX_ITEMS or self.left <= 0:
                self.is_cut = True
                return
            yield each

    def _text(self, text: str) -> str:
        if len(text) > self.left:
            self.is_cut = True
            text = f"{text[: max(0, self.left)]}..."
        self.left -= len(text) + 2
        return text
