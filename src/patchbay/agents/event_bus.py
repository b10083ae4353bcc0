"""The event bus: runs publish events under topics, subscribers receive them.

| topic | when | data |
|---|---|---|
| session.created | a run begins a new session | session_id, user_id, title |
| session.updated | a user's message was recorded | session_id, user_id |
| agent.start | an agent begins | agent, model |
| llm.request | a request is about to be sent | model |
| llm.stream.chunk | a piece of its text, where the run streams | text |
| llm.response | its answer is whole | model, usage, finish_reason |
| llm.error | there is none | error (a code), message |
| tool.call | a call is about to run | tool, args, call_id |
| tool.progress | a tool reports its progress | tool, call_id, message, fraction, data |
| tool.result | a call has settled | tool, response, call_id |
| tool.error | one has failed; tool.result comes too | tool, error, code, call_id |
| agent.transfer | an agent hands over | from, to |
| agent.error | a run or an agent ends without an answer | agent, error (a code), message |
| agent.response | an agent has answered | agent, text, session_id |
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from patchbay.agents.json_copy import dumps
from patchbay.errors import ConfigurationError
from patchbay.tools.results import describe
from patchbay.tools.threads import is_async, run_in_thread

_logger = logging.getLogger(__name__)
_TYPES_REMEMBERED = 1000


@dataclass
class BusEvent:
    """An event: ``type`` is a topic such as "tool.call", ``data`` JSON, ``timestamp`` seconds since the epoch."""

    type: str
    data: dict[str, Any] = field(default_factory=dict)
    timestamp: float = field(default_factory=time.time)
    source: str = ""


Handler = Callable[[BusEvent], Any]
Filter = Callable[[BusEvent], object]


@dataclass(frozen=True)
class DeadLetter:
    """An event that was not delivered to a handler, and why."""

    event: BusEvent
    handler_name: str
    error: str
    timestamp: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class _StoredEvent:
    """An immutable copy of an event."""

    type: str
    body: bytes
    timestamp: float
    source: str

    def copy(self) -> BusEvent:
        data = msgspec.json.decode(self.body)
        return BusEvent(self.type, data if isinstance(data, dict) else {"data": data}, self.timestamp, self.source)


@dataclass(eq=False)
class _Subscription:
    pattern: str
    handler: Handler
    priority: int
    filter_func: Filter | None
    queue: deque[_StoredEvent] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done() and self.loop is not None and not self.loop.is_closed()


class EventBus:
    """Delivers events to subscribers by topic. ``queue_size`` events may wait for one handler; further ones become dead letters.

    Stores the last ``dead_letter_size`` dead letters.
    """

    def __init__(self, dead_letter_size: int = 500, *, queue_size: int = 1000) -> None:
        if queue_size < 1:
            raise ConfigurationError(f"queue_size must be at least 1, not {queue_size!r}.")
        self._queue_size = queue_size
        self._subscriptions: list[_Subscription] = []
        self._matching: dict[str, tuple[_Subscription, ...]] = {}
        self._dead_letters: deque[DeadLetter] = deque(maxlen=dead_letter_size)
        self._guard = threading.Lock()  # loops of several threads may publish
        self._counts = {"published": 0, "delivered": 0, "failed": 0, "dropped": 0}

    def subscribe(self, event_type: str, handler: Handler, *, priority: int = 0, filter_func: Filter | None = None) -> None:
        """Call ``handler`` with events of this type: "tool.call", all below "tool.*", or everything "*".

        It may be sync (then it runs in a thread) or async. It gets copies, one at a time and in order, but only of events for
        which ``filter_func`` is true. Handlers with a higher ``priority`` get an event first; a slow handler does not delay the
        others.
        """
        with self._guard:
            self._subscriptions.append(_Subscription(event_type, handler, priority, filter_func))
            self._subscriptions.sort(key=lambda subscription: -subscription.priority)
            self._matching.clear()

    def unsubscribe(self, event_type: str, handler: Handler) -> bool:
        """Remove a subscription and its waiting events; return whether there was one."""
        with self._guard:
            removed = [item for item in self._subscriptions if item.pattern == event_type and item.handler == handler]
            for subscription in removed:
                self._subscriptions.remove(subscription)
                subscription.queue.clear()
            self._matching.clear()
            return bool(removed)

    async def publish(self, event: BusEvent) -> int:
        """Queue ``event`` for its handlers, without waiting for them; return their number. Never raises."""
        stored = _StoredEvent(event.type, dumps(event.data), event.timestamp, event.source)
        queued = 0
        with self._guard:
            self._counts["published"] += 1
            for subscription in self._listeners(event.type):
                if len(subscription.queue) < self._queue_size:
                    subscription.queue.append(stored)
                    self._start(subscription)
                    queued += 1
                else:
                    self._counts["dropped"] += 1
                    self._add_dead_letter(subscription.handler, stored, "the handler's queue is full")
        return queued

    async def drain(self) -> None:
        """Wait until all queued events are handled. Use ``asyncio.timeout``: a handler may hang."""
        while True:
            with self._guard:
                for subscription in self._subscriptions:
                    if subscription.queue:
                        self._start(subscription)
                here = asyncio.get_running_loop()
                working = [item.task for item in self._subscriptions if item.is_running and item.loop is here]
            tasks = [task for task in working if task is not None and task is not asyncio.current_task()]
            if not tasks:
                return
            await asyncio.wait(tasks)

    def get_stats(self) -> dict[str, int]:
        """Return counts: published, delivered, failed, dropped; waiting, dead_letter_size, subscriptions."""
        with self._guard:
            return {
                **self._counts,
                "waiting": sum(len(subscription.queue) for subscription in self._subscriptions),
                "dead_letter_size": len(self._dead_letters),
                "subscriptions": len(self._subscriptions),
            }

    def get_dead_letters(self, last_n: int | None = None) -> list[DeadLetter]:
        """Return the last dead letters, the oldest first."""
        with self._guard:
            letters = list(self._dead_letters)
        if last_n is None:
            return letters
        return letters[-last_n:] if last_n > 0 else []

    def clear_dead_letters(self) -> int:
        """Delete the dead letters; return their number."""
        with self._guard:
            count = len(self._dead_letters)
            self._dead_letters.clear()
            return count

    def _listeners(self, event_type: str) -> tuple[_Subscription, ...]:
        found = self._matching.get(event_type)
        if found is None:
            if len(self._matching) >= _TYPES_REMEMBERED:
                self._matching.clear()
            found = tuple(item for item in self._subscriptions if _matches(item.pattern, event_type))
            self._matching[event_type] = found
        return found

    def _start(self, subscription: _Subscription) -> None:
        """Start the task that empties the queue; the guard is held."""
        if not subscription.is_running:
            subscription.loop = asyncio.get_running_loop()
            # Not in the publisher's context: the task also handles events of other publishers.
            subscription.task = subscription.loop.create_task(self._run(subscription), context=contextvars.Context())

    async def _run(self, subscription: _Subscription) -> None:
        while True:
            with self._guard:
                if not subscription.queue:
                    subscription.task = None
                    return
                stored = subscription.queue.popleft()
            await self._deliver(subscription.handler, subscription.filter_func, stored)

    async def _deliver(self, handler: Handler, filter_func: Filter | None, stored: _StoredEvent) -> bool:
        try:
            delivered = await _call(handler, filter_func, stored)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # A SystemExit too: raised out of a task it would stop the loop.
            with self._guard:
                self._counts["failed"] += 1
                self._add_dead_letter(handler, stored, describe(error))
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            return False
        if delivered:
            with self._guard:
                self._counts["delivered"] += 1
        return True

    def _add_dead_letter(self, handler: Handler, stored: _StoredEvent, error: str) -> None:
        name = getattr(handler, "__qualname__", None) or type(handler).__name__
        self._dead_letters.append(DeadLetter(stored.copy(), name, error))
        _logger.warning("The event %r was not delivered to the handler %s: %s", stored.type, name, error)


def _matches(pattern: str, event_type: str) -> bool:
    if pattern == "*":
        return True
    # "a.*" is for all topics below "a", but not for "a".
    return event_type.startswith(pattern[:-1]) if pattern.endswith(".*") else event_type == pattern


async def _call(handler: Handler, filter_func: Filter | None, stored: _StoredEvent) -> bool:
    """Call the filter and the handler, sync ones in a thread; return whether the event passed the filter."""
    if filter_func is not None and not await run_in_thread(lambda: bool(filter_func(stored.copy()))):
        return False
    event = stored.copy()
    result = handler(event) if is_async(handler) else await run_in_thread(lambda: handler(event))
    if inspect.isawaitable(result):
        await result
    return True
