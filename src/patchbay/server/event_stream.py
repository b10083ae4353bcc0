"""What happens in the turns of a server, for whoever reads along: bounded, and never in a turn's way.

What lives here: the readers, what each has yet to read, and what is shown of an event. What does not: HTTP (``events``).

It observes while somebody reads, and a little longer; a server that nobody looks at does not pay for it. So a reader is told of
the turns that begin after it came, and of those under way only where others read too.
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
"""The hook's name among those of the manager."""

MOST_READERS: Final = 16
MOST_WAITING: Final = 1000
"""How many events wait for a reader that is slow; what comes then is dropped, and told as ``stream.dropped``."""
MOST_SIZE: Final = 4 * 1024 * 1024
"""How many bytes they may have together."""
REMEMBERED: Final = 256
"""How many of the last events are kept for readers that come back, if they have no more bytes than ``MOST_SIZE``."""
LONGEST: Final = 256 * 1024
"""How many characters of an event are shown."""
LINGER: Final = 60.0
"""Seconds after the last reader until it stops observing."""

_DEEPEST: Final = 32
_MOST_ITEMS: Final = 1000


class TooManyReadersError(PatchbayError):
    """There are as many readers as there may be."""

    code = "too_many_readers"
    status = 503


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """An event as it is sent: its id in the stream, its envelope as JSON, and what readers choose by."""

    id: str
    kind: str
    session: str
    data: bytes


class EventReader:
    """Who reads, what of (``kinds`` are patterns, none for all; ``session`` is the key of one), and what waits to be read.

    Somebody must ``close`` it.
    """

    def __init__(self, stream: EventStream, kinds: Iterable[str], session: str | None) -> None:
        self._stream = stream
        self._kinds = tuple(kinds)
        self._session = session
        self._waiting: list[StreamedEvent | int] = []
        self._size = 0
        self._news = asyncio.Event()
        self._is_over = False

    async def read(self, ping: float) -> list[StreamedEvent | int] | None:
        """Wait for what happens, and return it: events, and between them how many were dropped there, where some were.

        Nothing is returned (an empty list) where nothing happens for ``ping`` seconds, and None at the end of the stream.
        """
        try:
            async with asyncio.timeout(ping):
                await self._news.wait()
        except TimeoutError:
            return []
        if self._is_over and not self._waiting:
            return None
        if not self._is_over:
            self._news.clear()
        taken, self._waiting, self._size = self._waiting, [], 0
        return taken

    def close(self) -> None:
        """Read no more."""
        self.end()
        self._stream.gone(self)

    def wants(self, event: StreamedEvent) -> bool:
        """Whether the reader has chosen this event."""
        if self._session is not None and event.session != self._session:
            return False
        return not self._kinds or any(fnmatchcase(event.kind, pattern) for pattern in self._kinds)

    def take(self, event: StreamedEvent) -> None:
        """Have it read, or count it where too much waits."""
        if len(self._waiting) >= MOST_WAITING or self._size + len(event.data) > MOST_SIZE:
            self.miss(1)
            return
        self._waiting.append(event)
        self._size += len(event.data)
        self._news.set()

    def miss(self, count: int) -> None:
        """Have it told that ``count`` events are missing here."""
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, int):
            self._waiting[-1] = last + count
        else:
            self._waiting.append(count)
        self._news.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._is_over = True
        self._news.set()


class _Observer:
    """The hook: nothing but the one method, and the end of it."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    async def on_runtime_event(self, event: Event) -> None:
        self._stream.show(event)

    async def aclose(self) -> None:
        self._stream.unobserved(self)


class EventStream:
    """The events of ``manager``, for at most ``most_readers`` readers; in one event loop.

    ``linger``: seconds after the last reader until it stops observing.
    """

    def __init__(self, manager: HookManager, *, most_readers: int = MOST_READERS, linger: float = LINGER) -> None:
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
        self._has_left = False

    @property
    def readers(self) -> int:
        """How many read."""
        return len(self._readers)

    def join(self, *, kinds: Iterable[str] = (), session: str | None = None, last_id: str = "") -> EventReader:
        """Return a reader of what happens from now on, to be closed.

        ``last_id`` is the id of the last event that it has read before: what came since is shown first, as far as it is
        remembered. Raises TooManyReadersError.
        """
        if self._has_left:
            raise TooManyReadersError("The server is about to stop.")
        if len(self._readers) >= self._most:
            raise TooManyReadersError(f"{self._most} read the events already, and more may not.")
        reader = EventReader(self, kinds, session)
        if last_id:
            self._catch_up(reader, last_id)
        self._readers.append(reader)
        self._observe()
        return reader

    def gone(self, reader: EventReader) -> None:
        """A reader reads no more."""
        if reader not in self._readers:
            return
        self._readers.remove(reader)
        if not self._readers and self._observer is not None and self._stopping is None:
            self._stopping = asyncio.get_running_loop().call_later(self._linger, self._stop_observing)

    def leave(self) -> None:
        """End all streams, and begin no more: the server is about to stop."""
        self._has_left = True
        self._end_all()

    def show(self, event: Event) -> None:
        """Have an event read by all who want it."""
        missing, self._dropped = self._manager.events.dropped - self._dropped, self._manager.events.dropped
        if missing > 0:  # the dispatcher could not keep up: whose they were, nobody knows
            for reader in self._readers:
                reader.miss(missing)
        self._number += 1
        shown = StreamedEvent(f"{self._begun}-{self._number}", event.kind, event.meta.session_key, encoded(event))
        self._remember(shown)
        for reader in self._readers:
            if reader.wants(shown):
                reader.take(shown)

    def unobserved(self, observer: _Observer) -> None:
        """The hook was unmounted by somebody else: nothing more will come."""
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

    def _remember(self, shown: StreamedEvent) -> None:
        self._last.append(shown)
        self._last_size += len(shown.data)
        while len(self._last) > REMEMBERED or self._last_size > MOST_SIZE:
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
    """Return the envelope of an event as JSON in ASCII; what is too long or too deep is cut, and ``attrs.cut`` says so."""
    room = _SizeBudget()
    told = room.cut(encode_event(event), 0)
    if room.is_cut:
        told["attrs"] = {**told.get("attrs", {}), "cut": True}
    return json.dumps(told, separators=(",", ":"), allow_nan=False).encode()


class _SizeBudget:
    """How much of an event may still be shown."""

    def __init__(self) -> None:
        self.left = LONGEST
        self.is_cut = False

    def cut(self, value: Any, depth: int) -> Any:
        """Return a value as JSON knows it, with what there is room for."""
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
        if depth >= _DEEPEST or self.left <= 0:
            self.is_cut = True
            return "..."
        if isinstance(value, Mapping):
            return {self._text(str(key)): self.cut(item, depth + 1) for key, item in self._items(value.items())}
        if isinstance(value, list | tuple):
            return [self.cut(item, depth + 1) for item in self._items(value)]
        return self._text(str(value))

    def _items(self, values: Iterable[Any]) -> Iterable[Any]:
        for place, each in enumerate(values):
            if place >= _MOST_ITEMS or self.left <= 0:
                self.is_cut = True
                return
            yield each

    def _text(self, text: str) -> str:
        if len(text) > self.left:
            self.is_cut = True
            text = f"{text[: max(0, self.left)]}..."
        self.left -= len(text) + 2
        return text
