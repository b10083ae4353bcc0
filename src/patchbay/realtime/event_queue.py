"""Bounded queue of session events with one reader.

Producers never wait: an interruption must reach the reader although it has not read the speech before it. When many events are
queued, adjacent pieces of text and audio are joined; beyond that the oldest are dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, Self

from patchbay.errors import ConfigurationError
from patchbay.loop import TextEvent
from patchbay.realtime.events import AudioEvent, DroppedEvent, InterruptedEvent, RealtimeEvent, TranscriptEvent

MAX_JOINED_TEXT: Final = 4_096
MAX_JOINED_AUDIO: Final = 64 * 1024
"""Maximum length of joined pieces, in characters and bytes: about one second of speech."""

NOT_OPEN: Final = "The session is not open: connect it, or use it with 'async with'."


class EventQueue:
    """At most ``max_events`` events. ``close`` adds the last one."""

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._is_open = False
        self._events: deque[RealtimeEvent] = deque()
        self._dropped = 0
        self._ended = False
        self._wake: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._events)

    def open(self) -> None:
        """Let readers wait for events."""
        self._is_open = True

    def put(self, event: RealtimeEvent) -> None:
        """Add an event."""
        if self._ended:
            return
        self._is_open = True
        if isinstance(event, InterruptedEvent):
            self._discard_audio()
        events = self._events
        if len(events) <= self._max_events // 2 or not self._join(event):
            events.append(event)
        while len(events) > self._max_events:
            events.popleft()
            self._dropped += 1
        self.wake()

    def _discard_audio(self) -> None:
        """Drop audio that must not be played any more, so that the reader reaches the interruption at once."""
        self._events = deque(each for each in self._events if not isinstance(each, AudioEvent))

    def _join(self, event: RealtimeEvent) -> bool:
        """Append to the last event of the same type, past pieces of another type (speech and its transcript)."""
        events = self._events
        for place in range(len(events) - 1, max(len(events) - 3, -1), -1):
            last = events[place]
            if type(last) is type(event):
                if (joined := _joined(last, event)) is None:
                    return False
                events[place] = joined
                return True
            if not isinstance(last, AudioEvent | TextEvent | TranscriptEvent):
                return False
        return False

    def close(self, event: RealtimeEvent) -> None:
        """Add the last event."""
        self.put(event)
        self._ended = True

    def read(self) -> EventReader:
        """Return a reader, which continues after the last event that was read."""
        return EventReader(self)

    def now(self) -> RealtimeEvent | None:
        """Return the next event, or None if none is queued.

        Raises ConfigurationError while another reader waits, and before ``open``.
        """
        self._check_reader()
        if self._dropped:
            count, self._dropped = self._dropped, 0
            return DroppedEvent("events", count=count)
        return self._events.popleft() if self._events else None

    async def wait(self) -> bool:
        """Wait until ``now`` has an event, or for ``wake``; return False after the last event. Raises as ``now``."""
        self._check_reader()
        if self._events or self._dropped:
            return True
        if self._ended:
            return False
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake  # cancelled with the reader
        return True

    def wake(self) -> None:
        """End a ``wait``."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _check_reader(self) -> None:
        if not self._is_open:
            raise ConfigurationError(NOT_OPEN)
        if self._wake is not None and not self._wake.done():
            raise ConfigurationError("The events of a session have one reader at a time.")


class EventReader(AsyncIterator[RealtimeEvent]):
    """Iterator over session events. A reader may stop at any time: later events go to the next reader."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue: EventQueue | None = queue

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> RealtimeEvent:
        """Return the next event. Raises ConfigurationError while another reader waits, and before the session is open."""
        while (event := self.now()) is None:
            if not await self.wait():
                raise StopAsyncIteration
        return event

    def now(self) -> RealtimeEvent | None:
        """Return the next event if one is queued, else None, also at the end. Raises as ``anext`` does."""
        return self._queue.now() if self._queue is not None else None

    async def wait(self) -> bool:
        """Wait until ``now`` may have an event; return False if none will come. Raises as ``anext`` does."""
        return self._queue is not None and await self._queue.wait()

    def wake(self) -> None:
        """End a ``wait`` that is under way."""
        if self._queue is not None:
            self._queue.wake()

    async def aclose(self) -> None:
        """Stop reading."""
        self._queue = None


def _joined(one: RealtimeEvent, other: RealtimeEvent) -> RealtimeEvent | None:
    """Join two events of one type; None if they differ or get too long."""
    match one, other:
        case AudioEvent(), AudioEvent() if one.rate == other.rate and len(one.audio) + len(other.audio) <= MAX_JOINED_AUDIO:
            return AudioEvent(one.audio + other.audio, one.rate)
        case TextEvent(), TextEvent() if len(one.delta) + len(other.delta) <= MAX_JOINED_TEXT:
            return TextEvent(one.delta + other.delta)
        case TranscriptEvent(whole=False), TranscriptEvent(whole=False) if (
            one.role == other.role and len(one.text) + len(other.text) <= MAX_JOINED_TEXT
        ):
            return TranscriptEvent(one.role, one.text + other.text, whole=False)
    return None
