"""Event logs of background responses: clients follow them, or read them again from any event."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from patchbay.cache import SizedCache
from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.models.wire import encode

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes of one response's events."""
_MOST_LOGS: Final = 1000
_MOST_LOG_BYTES: Final = 64 * 1024 * 1024


class TooManyEventsError(PatchbayError):
    """A response has more events than its log holds."""

    code = "too_many_events"

    def __init__(self) -> None:
        super().__init__("There are too many events: ask for the response without 'stream'.")


class EventLog:
    """The events of one response; the index of each is its ``sequence_number``."""

    def __init__(self) -> None:
        self.size = 0
        self._events: list[bytes] = []
        self._last = b""
        """The last events, held back until the response is stored."""
        self._has_ended = False
        self._changed = asyncio.Event()

    def write(self, data: bytes) -> None:
        """Write events."""
        for event in data.split(b"\n\n"):
            if self._has_ended or not event or event.startswith(b":"):  # a comment that keeps connections open
                continue
            self.size += len(event)
            if self.size > MAX_EVENT_BYTES:
                self._has_ended = True
                self._events.append(error_event(len(self._events), TooManyEventsError()))
            else:
                self._events.append(event + b"\n\n")
        self._wake()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Write the events in an ASGI message."""
        data: bytes = message.get("body", b"")
        if message.get("more_body", False):
            self.write(data)
        else:
            self._last += data

    def fail(self, event: bytes) -> None:
        """Make an error event the end of the stream."""
        self._last = event

    def end_log(self) -> None:
        """Write the last events: the response is stored."""
        self.write(self._last)
        self._has_ended = True
        self._wake()

    async def read(self, begin: int) -> list[bytes]:
        """Wait for events and return those from the index ``begin`` on; empty at the end of the stream."""
        while len(self._events) <= begin and not self._has_ended:
            await self._changed.wait()
        return self._events[begin:]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def error_event(number: int, error: PatchbayError) -> bytes:
    """Return the event of an error outside the response itself."""
    fields = {"type": "error", "sequence_number": number, "code": error.code, "message": str(error), "param": None}
    return b"event: error\ndata: %b\n\n" % encode(fields)


@dataclass(frozen=True)
class EventTail:
    """The events of a log from an index on."""

    log: EventLog
    begin: int = 0


class EventLogs:
    """The logs of this process's responses in progress, by their keys, and of the last 1,000 that ended, up to 64 MiB."""

    def __init__(self) -> None:
        self._running: dict[str, EventLog] = {}
        self._ended: SizedCache[str, EventLog] = SizedCache(most=_MOST_LOGS, most_bytes=_MOST_LOG_BYTES)

    def add(self, key: str) -> EventLog:
        """Create the log of a new response."""
        log = self._running[key] = EventLog()
        return log

    def end_log(self, key: str) -> None:
        """End the log of a response that was completed or stopped."""
        if (log := self._running.pop(key, None)) is not None:
            log.end_log()
            self._ended.put(key, log, log.size)

    def tail(self, key: str, starting_after: str | None) -> EventTail:
        """Return the events after the one with this number. Raises InvalidRequestError."""
        log = self._running.get(key) or self._ended.get(key)
        if log is None:
            raise InvalidRequestError(
                "This process has no events of the response (it was made without 'background' and 'stream', by another process, "
                "or too long ago): ask again without 'stream'.",
                param="stream",
            )
        if starting_after is None:
            return EventTail(log)
        if not (starting_after.isdecimal() and starting_after.isascii() and len(starting_after) < 10):
            raise InvalidRequestError("'starting_after' must be the 'sequence_number' of an event.", param="starting_after")
        return EventTail(log, int(starting_after) + 1)
