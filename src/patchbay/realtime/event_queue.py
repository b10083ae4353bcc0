"""About how much memory a tool's values take. Pure.

What is looked into is plain data: texts, bytes, and containers of such. Of anything else nobody knows what it holds, and what of
that it shares with others: it counts little.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from sys import getsizeof
from typing import Any, Final, Self

from patchbay.errors import ConfigurationError
from patchbay.executor import ToolExecution
from patchbay.loop import TextEvent, ToolCallEvent, ToolProgressEvent, ToolResultEvent, UserOutputEvent
from patchbay.realtime.events import (
    AudioEvent,
    ConnectionEvent,
    DroppedEvent,
    ErrorEvent,
    InterruptedEvent,
    RealtimeEvent,
    ResponseEndEvent,
    TranscriptEvent,
)

MOST_BYTES: Final = 16 * 1024 * 1024
"""How many bytes of events wait to be read; of speech, at 24 kHz, almost six minutes."""

LONGEST_TEXT: Final = 4_096
LONGEST_AUDIO: Final = 64 * 1024
"""How long pieces get that are joined: characters, and bytes, of which these are a second and a third."""

NOT_OPEN: Final = "The session is not open: connect it, or use it with 'async with'."


class EventQueue:
    """At most ``most`` events wait, of together ``MOST_BYTES``. ``end`` adds the last one; nothing comes behind it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._has_begun = False
        self._waiting: deque[tuple[RealtimeEvent, int]] = deque()
        self._bytes = 0
        self._dropped = 0
        self._ended = False
        self._wake: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Events are to come: who reads from now on waits for them."""
        self._has_begun = True

    def put(self, event: RealtimeEvent) -> None:
        """Add an event."""
        if self._ended:
            return
        self._has_begun = True
        if isinstance(event, InterruptedEvent):
            self._silence()
        waiting = self._waiting
        if len(waiting) <= self._most // 2 or not self._join(event):
            waiting.append((event, _size(event)))
            self._bytes += waiting[-1][1]
        while len(waiting) > self._most or (self._bytes > MOST_BYTES and len(waiting) > 1):
            self._take()
            self._dropped += 1
        self.wake()

    def _silence(self) -> None:
        """Take out speech that nobody is to play any more, so that its reader comes to the interruption at once."""
        self._waiting = deque(each for each in self._waiting if not isinstance(each[0], AudioEvent))
        self._bytes = sum(size for _, size in self._waiting)

    def _join(self, event: RealtimeEvent) -> bool:
        """Make it part of the last of its kind, where only pieces of another kind have come since: speech and its transcript."""
        waiting = self._waiting
        for place in range(len(waiting) - 1, max(len(waiting) - 3, -1), -1):
            last, size = waiting[place]
            if type(last) is type(event):
                if (joined := _joined(last, event)) is None:
                    return False
                waiting[place] = joined, _size(joined)
                self._bytes += waiting[place][1] - size
                return True
            if not isinstance(last, AudioEvent | TextEvent | TranscriptEvent):
                return False
        return False

    def end(self, event: RealtimeEvent) -> None:
        """Add the last event."""
        self.put(event)
        self._ended = True

    def read(self) -> Events:
        """Return a reader, which goes on from the last event that any of them was given."""
        return Events(self)

    def now(self) -> RealtimeEvent | None:
        """Take the next event; None where none waits.

        Raises ConfigurationError where somebody waits for it already, and before any is to come.
        """
        self._check_reader()
        if self._dropped:
            count, self._dropped = self._dropped, 0
            return DroppedEvent("events", count=count)
        return self._take() if self._waiting else None

    async def wait(self) -> bool:
        """Wait until ``now`` has an event, or for ``wake``; False behind the last event. Raises as ``now``."""
        self._check_reader()
        if self._waiting or self._dropped:
            return True
        if self._ended:
            return False
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake  # cancelled with whoever waits
        return True

    def wake(self) -> None:
        """Have whoever waits look up."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _check_reader(self) -> None:
        if not self._has_begun:
            raise ConfigurationError(NOT_OPEN)
        if self._wake is not None and not self._wake.done():
            raise ConfigurationError("The events of a session have one reader at a time.")

    def _take(self) -> RealtimeEvent:
        event, size = self._waiting.popleft()
        self._bytes -= size
        return event


class Events(AsyncIterator[RealtimeEvent]):
    """Events as they are read. Whoever stops reading need not say so: what comes then is for the next reader."""

    def __init__(self, feed: EventQueue) -> None:
        self._feed: EventQueue | None = feed

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> RealtimeEvent:
        """Return the next event. Raises ConfigurationError while another reader waits for it, and before any is to come."""
        while (event := self.now()) is None:
            if not await self.wait():
                raise StopAsyncIteration
        return event

    def now(self) -> RealtimeEvent | None:
        """Return the next event if it is there, else None, also at the end. Raises as ``anext`` does."""
        return self._feed.now() if self._feed is not None else None

    async def wait(self) -> bool:
        """Wait until ``now`` may have an event, and take none; return whether one is still to come. Raises as ``anext`` does."""
        return self._feed is not None and await self._feed.wait()

    def wake(self) -> None:
        """End a ``wait`` that is under way, for a reader that has something else to do."""
        if self._feed is not None:
            self._feed.wake()

    async def aclose(self) -> None:
        """Read no more, for those who say ``aclosing``."""
        self._feed = None


def _joined(one: RealtimeEvent, other: RealtimeEvent) -> RealtimeEvent | None:
    """Return two pieces of the same as one; None where they are none, or too long."""
    match one, other:
        case AudioEvent(), AudioEvent() if one.rate == other.rate and len(one.audio) + len(other.audio) <= LONGEST_AUDIO:
            return AudioEvent(one.audio + other.audio, one.rate)
        case TextEvent(), TextEvent() if len(one.delta) + len(other.delta) <= LONGEST_TEXT:
            return TextEvent(one.delta + other.delta)
        case TranscriptEvent(whole=False), TranscriptEvent(whole=False) if (
            one.role == other.role and len(one.text) + len(other.text) <= LONGEST_TEXT
        ):
            return TranscriptEvent(one.role, one.text + other.text, whole=False)
    return None


def _size(event: RealtimeEvent) -> int:
    """About how many bytes an event holds of what a server, a model or a tool has said."""
    return _whole(event.usage) if isinstance(event, ResponseEndEvent) else weigh(_words(event))


def _whole(value: Any) -> int:
    """How many bytes a server's JSON takes: of what comes from there nothing goes uncounted. Nothing in it holds itself."""
    size, left = 0, [value]
    while left:
        value = left.pop()
        size += getsizeof(value)
        if isinstance(value, Mapping):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            left += value
    return size


def _words(event: RealtimeEvent) -> Sequence[Any]:
    match event:
        case AudioEvent():
            return [event.audio]
        case TextEvent():
            return [event.delta]
        case TranscriptEvent() | UserOutputEvent():
            return [event.text]
        case ToolCallEvent():
            return [event.tool_call.raw_arguments]
        case ToolProgressEvent():
            return [event.tool_call.raw_arguments, event.progress.message, event.progress.data]
        case ToolResultEvent():
            return _of_execution(event.execution)
        case ConnectionEvent():
            return [event.reason]
        case ErrorEvent():
            return [str(event.error)]
    return []


def _of_execution(execution: ToolExecution) -> Sequence[Any]:
    held = [execution.call.raw_arguments, execution.arguments, execution.content, execution.value]
    if (output := execution.output) is not None:
        held += [output.for_llm, output.for_user, output.media, output.artifact_tags]
        held += [each.data for each in output.attachments]
    if execution.error is not None:
        held += execution.error.args
    if execution.actions is not None:
        held.append(execution.actions.state_delta)
    return [*held, *(each.data for each in execution.result.attachments)]


MOST_MEMBERS: Final = 64
"""Of so many members of one container each is looked at; of more, the first so many stand for all."""

MOST_LOOKED_AT: Final = MOST_MEMBERS**2
"""How many are looked at in all; what containers hold that are reached behind these does not count."""

_ANYTHING: Final = 48  # bytes
_TEXTS: Final = (str, bytes, bytearray)
_PLAIN: Final = (list, tuple, set, frozenset, deque)
_CONTAINERS: Final = (dict, *_PLAIN)


def weigh(values: Iterable[Any]) -> int:
    """Return about how many bytes the values hold, each counted once, in a time that does not grow with them."""
    size, room = 0.0, MOST_LOOKED_AT
    seen = set[int]()
    left: deque[tuple[Any, float]] = deque([(tuple(values), 1.0)])  # containers, and for how many of their kind they stand
    while left and room:
        container, times = left.popleft()
        count, members = _members(container)
        some = list(islice(members, min(MOST_MEMBERS, room)))  # at one go: a tool's thread may be changing it
        room -= len(some)
        times *= max(count / len(some), 1.0) if some else 1.0
        for each in some:
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, _TEXTS):
                size += times * getsizeof(each)
            elif isinstance(each, _CONTAINERS):
                size += times * getsizeof(each)
                left.append((each, times))
            else:
                size += times * _ANYTHING
    return int(size)


def _members(container: Any) -> tuple[int, Iterator[Any]]:
    """How many members a container has, and these; as plain ones of its kind have them, whatever is made of it."""
    if isinstance(container, dict):
        return 2 * dict.__len__(container), chain.from_iterable(dict.items(container))
    kind = next(each for each in _PLAIN if isinstance(container, each))
    return kind.__len__(container), kind.__iter__(container)
