"""The event stream of a server: the runtime events of its turns and the records of its requests, for a few readers.

The first reader mounts the hook that observes turns. A reader gets the turns that begin after that. None slows a turn.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from patchbay._redaction import Redactor
from patchbay.errors import PatchbayError
from patchbay.hooks import Event, HookManager
from patchbay.hooks.process.protocol import encode_event
from patchbay.hooks.types import Meta
from patchbay.models.request_record import RequestRecord
from patchbay.server.request_state import RequestObserver
from patchbay.server.turns import Turn, TurnWatcher

NAME: Final = "server.events"
"""The hook's name in the manager."""

REQUEST: Final = "server.request"
"""Kind of the event of a finished request to a model; its payload is a RequestRecord."""
REQUEST_BEGIN: Final = "server.request.begin"
"""Kind of the event of a request to a model that begins; its payload is the summary of its turn."""

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
"""Seconds without readers after which nothing is buffered."""

_redact: Final = Redactor()
_CUT: Final = "..."
_MAX_CUT_CHARS: Final = 16 * 1024


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
        self.end_stream()
        self._stream.remove(self)

    def wants(self, event: StreamedEvent) -> bool:
        """Return whether the reader's filters match."""
        return (self._session is None or event.session == self._session) and self.wants_kind(event.kind)

    def wants_kind(self, kind: str) -> bool:
        """Return whether the reader wants events of this kind; begins of requests must be asked for."""
        if not self._kinds:
            return kind != REQUEST_BEGIN
        return any(fnmatchcase(kind, pattern) for pattern in self._kinds)

    def put(self, event: StreamedEvent) -> None:
        """Queue an event, or count it as dropped where the queue is full."""
        if len(self._waiting) >= MAX_QUEUED or self._size + len(event.data) > MAX_QUEUED_BYTES:
            self.note_dropped(1)
            return
        self._waiting.append(event)
        self._size += len(event.data)
        self._wakeup.set()

    def note_dropped(self, count: int) -> None:
        """Queue a note that ``count`` events were dropped."""
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, int):
            self._waiting[-1] = last + count
        else:
            self._waiting.append(count)
        self._wakeup.set()

    def end_stream(self) -> None:
        """End the stream."""
        self._is_over = True
        self._wakeup.set()


class EventStream:
    """The events of ``manager``, for at most ``most_readers`` readers; in one event loop. It is a hook, which ``join`` mounts."""

    def __init__(self, manager: HookManager, *, most_readers: int = MAX_READERS) -> None:
        self._manager = manager
        self._most = most_readers
        self._readers: list[EventReader] = []
        self._last: deque[StreamedEvent] = deque()
        self._last_size = 0
        self._number = 0
        self._begun = secrets.token_hex(4)
        self._dropped = 0
        self._unread_since = 0.0
        self._is_mounted = self._is_stopped = False
        self._request_observers: list[RequestObserver] = []
        self._turn_watchers: list[TurnWatcher] = []

    @property
    def readers(self) -> int:
        """The number of readers."""
        return len(self._readers)

    def watch(self, observers: list[RequestObserver], watchers: list[TurnWatcher] | None = None) -> None:
        """Send the records of a proxy with these ``observers`` too, from the first reader on.

        ``watchers`` are those of its turns, whose begin is sent then.
        """
        self._request_observers = observers
        if watchers is not None:
            self._turn_watchers = watchers

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
        if not self._is_mounted:
            self._is_mounted = True
            self._dropped = self._manager.events.dropped
            self._manager.mount(NAME, self)
            self._request_observers.append(self.add_request)
            self._turn_watchers.append(self.add_turn)
        return reader

    def remove(self, reader: EventReader) -> None:
        """Remove a reader."""
        if reader in self._readers:
            self._readers.remove(reader)
            self._unread_since = time.monotonic()

    def leave(self) -> None:
        """End all streams, and accept no readers: the server is shutting down."""
        self._is_stopped = True
        self._end_all()

    async def on_runtime_event(self, event: Event) -> None:
        """Send an event of a turn to the readers that want it."""
        self._publish(event)

    def add_turn(self, turn: Turn) -> None:
        """Send the begin of a request to the readers that want it; nothing is made of it without one."""
        if not any(reader.wants_kind(REQUEST_BEGIN) for reader in self._readers):
            return
        from patchbay.server.turn_views import encoded_for, summary_of  # imports the formats

        payload = json.loads(encoded_for(turn, summary_of(turn)))
        self._publish(_request_event(REQUEST_BEGIN, turn.began, payload, agent=turn.agent, turn=turn.id, session=turn.session))

    def add_request(self, record: RequestRecord) -> None:
        """Send the record of a request to the readers that want it."""
        event = _request_event(
            REQUEST, record.time, msgspec.structs.asdict(record), agent=record.agent, turn=record.id, session=record.session
        )
        asyncio.get_running_loop().call_soon(self._publish, event)  # after the last events of its turn, which are queued

    def _publish(self, event: Event) -> None:
        missing, self._dropped = self._manager.events.dropped - self._dropped, self._manager.events.dropped
        if missing > 0:  # dropped by the dispatcher; their sessions are unknown
            for reader in self._readers:
                reader.note_dropped(missing)
        self._number += 1
        if not self._readers and time.monotonic() > self._unread_since + LINGER_SECONDS:
            self._last.clear()
            self._last_size = 0
            return
        event_out = StreamedEvent(f"{self._begun}-{self._number}", event.kind, event.meta.session_key, encoded(event))
        self._last.append(event_out)
        self._last_size += len(event_out.data)
        while len(self._last) > MAX_BUFFERED or self._last_size > MAX_QUEUED_BYTES:
            self._last_size -= len(self._last.popleft().data)
        for reader in self._readers:
            if reader.wants(event_out):
                reader.put(event_out)

    async def aclose(self) -> None:
        """End all streams: the hook was unmounted."""
        self._is_mounted = False
        if self.add_request in self._request_observers:
            self._request_observers.remove(self.add_request)
        if self.add_turn in self._turn_watchers:
            self._turn_watchers.remove(self.add_turn)
        self._end_all()

    def _catch_up(self, reader: EventReader, last_id: str) -> None:
        begun, _, number = last_id.rpartition("-")
        after = 0  # an id of another stream, before a restart: all events of this one are new
        if begun == self._begun and number.isdecimal() and number.isascii() and len(number) < 20:
            after = int(number)
        first = self._number - len(self._last) + 1
        if begun == self._begun and first > after + 1:
            reader.note_dropped(first - after - 1)
        for place, event in enumerate(self._last, first):
            if place > after and reader.wants(event):
                reader.put(event)

    def _end_all(self) -> None:
        for reader in self._readers:
            reader.end_stream()


def _request_event(kind: str, moment: float, payload: Mapping[str, Any], *, agent: str, turn: str, session: str) -> Event:
    meta = Meta(agent_id=agent, turn_id=turn, session_key=session, source="server")
    name = f"{'begin' if kind == REQUEST_BEGIN else 'req'}-{turn}"
    return Event(name, kind, moment, meta, {}, "error" if payload.get("error") else "info", payload, {})


def encoded(event: Event) -> bytes:
    """Return an event's envelope as ASCII JSON, without secrets.

    Members of its payload that are too long, or not JSON, are cut: ``attrs.cut``.
    """
    envelope = encode_event(event)
    if (text := _json(envelope, MAX_EVENT_CHARS)) is None:
        left = MAX_EVENT_CHARS
        payload: dict[str, Any] = {}
        for name, value in event.payload.items():
            if (member := _json(value, left)) is None:
                member = value[: min(left, _MAX_CUT_CHARS)] + _CUT if isinstance(value, str) else _CUT
                value = member  # noqa: PLW2901  (its replacement)
            payload[name] = value
            left = max(0, left - len(member))
        text = json.dumps({**envelope, "payload": payload, "attrs": {**envelope.get("attrs", {}), "cut": True}}, default=str)
    return _redact(text.encode())


def _json(value: Any, limit: int) -> str | None:
    """Return a value as JSON; None if that is longer than ``limit`` characters, or is not JSON."""
    pieces: list[str] = []
    try:
        for piece in _encoder.iterencode(value):  # piece by piece: a value may be endless
            limit -= len(piece)
            if limit < 0:
                return None
            pieces.append(piece)
    except (TypeError, ValueError, RecursionError):
        return None
    return "".join(pieces)


_encoder: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=str)
