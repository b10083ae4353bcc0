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
from patchbay.tools.threads import run_in_thread

_logger = logging.getLogger(__name__)
_TYPES_REMEMBERED = 1000


@dataclass
class BusEvent:
    """Something that happened: ``type`` is a topic such as "tool.call", ``data`` JSON, ``timestamp`` seconds since the epoch."""

    type: str
    data: dict[str, Any] = field(default_factory=dict)
    timestamp: float = field(default_factory=time.time)
    source: str = ""


Handler = Callable[[BusEvent], Any]
Filter = Callable[[BusEvent], object]


@dataclass(frozen=True)
class DeadLetter:
    """An event that did not get to a handler, and why."""

    event: BusEvent
    handler_name: str
    error: str
    timestamp: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class _StoredSession:
    """An immutable copy of an event in the bus."""

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
    queue: deque[_StoredSession] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    loop: asyncio.AbstractEventLoop | None = None

    @property
    def at_work(self) -> bool:
        return self.task is not None and not self.task.done() and self.loop is not None and not self.loop.is_closed()


class EventBus:
    """Topics and listeners. ``queue_size`` events may wait for one listener; those beyond become dead letters.

    The last ``history_size`` events are kept for ``replay``, the last ``dead_letter_size`` dead letters to be looked at.
    """

    def __init__(self, history_size: int = 1000, dead_letter_size: int = 500, *, queue_size: int = 1000) -> None:
        if queue_size < 1:
            raise ConfigurationError(f"queue_size must be at least 1, not {queue_size!r}.")
        self._queue_size = queue_size
        self._subscriptions: list[_Subscription] = []
        self._matching: dict[str, tuple[_Subscription, ...]] = {}
        self._history: deque[_StoredSession] = deque(maxlen=history_size)
        self._dead_letters: deque[DeadLetter] = deque(maxlen=dead_letter_size)
        self._guard = threading.Lock()  # loops of several threads may publish
        self._counts = {"published": 0, "delivered": 0, "failed": 0, "dropped": 0}

    def subscribe(self, event_type: str, handler: Handler, *, priority: int = 0, filter_func: Filter | None = None) -> None:
        """Have ``handler`` told of events of this type: "tool.call", all below "tool.*", or everything "*".

        It may be sync (then it runs in a thread) or async. It gets one event after the other, in order, and gets a
        copy. Where ``filter_func`` returns nothing true, it is not told. An event is handed out by ``priority``, the highest
        first, whatever the patterns; a handler that takes its time does not keep the next one waiting.
        """
        with self._guard:
            self._subscriptions.append(_Subscription(event_type, handler, priority, filter_func))
            self._subscriptions.sort(key=lambda subscription: -subscription.priority)
            self._matching.clear()

    def unsubscribe(self, event_type: str, handler: Handler) -> bool:
        """Tell ``handler`` nothing more of this pattern, also not what waits for it; returns whether it was subscribed."""
        with self._guard:
            gone = [item for item in self._subscriptions if item.pattern == event_type and item.handler == handler]
            for subscription in gone:
                self._subscriptions.remove(subscription)
                subscription.queue.clear()
            self._matching.clear()
            return bool(gone)

    async def publish(self, event: BusEvent) -> int:
        """Hand ``event`` to its listeners, without waiting for them; returns how many it was handed to. Never raises."""
        kept = _StoredSession(event.type, dumps(event.data), event.timestamp, event.source)
        handed = 0
        with self._guard:
            self._counts["published"] += 1
            self._history.append(kept)
            for subscription in self._listeners(event.type):
                if len(subscription.queue) < self._queue_size:
                    subscription.queue.append(kept)
                    self._wake(subscription)
                    handed += 1
                else:
                    self._counts["dropped"] += 1
                    self._bury(subscription.handler, kept, "the handler's queue is full")
        return handed

    async def drain(self) -> None:
        """Wait until the listeners have been told of everything so far. Bound it with ``asyncio.timeout``: a handler may hang."""
        while True:
            with self._guard:
                for subscription in self._subscriptions:
                    if subscription.queue:
                        self._wake(subscription)
                here = asyncio.get_running_loop()
                working = [item.task for item in self._subscriptions if item.at_work and item.loop is here]
            tasks = [task for task in working if task is not None and task is not asyncio.current_task()]
            if not tasks:
                return
            await asyncio.wait(tasks)

    async def replay(self, handler: Handler, event_type: str | None = None, last_n: int | None = None) -> int:
        """Tell ``handler`` of past events, the oldest first, and wait for it; returns how many it took without raising.

        ``event_type`` is a pattern as in ``subscribe`` (None: all), ``last_n`` counts after it.
        """
        with self._guard:
            past = [kept for kept in self._history if event_type is None or _matches(event_type, kept.type)]
        if last_n is not None:
            past = past[-last_n:] if last_n > 0 else []
        taken = 0
        for kept in past:
            taken += await self._deliver(handler, None, kept)
        return taken

    def get_stats(self) -> dict[str, int]:
        """Return counts: published, delivered, failed, dropped; waiting, history_size, dead_letter_size, subscriptions."""
        with self._guard:
            return {
                **self._counts,
                "waiting": sum(len(subscription.queue) for subscription in self._subscriptions),
                "history_size": len(self._history),
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
        """Forget the dead letters; returns how many there were."""
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

    def _wake(self, subscription: _Subscription) -> None:
        """Have someone empty the queue; the guard is held."""
        if not subscription.at_work:
            subscription.loop = asyncio.get_running_loop()
            # Not in the publisher's context: the task goes on to events of others.
            subscription.task = subscription.loop.create_task(self._empty(subscription), context=contextvars.Context())

    async def _empty(self, subscription: _Subscription) -> None:
        while True:
            with self._guard:
                if not subscription.queue:
                    subscription.task = None
                    return
                kept = subscription.queue.popleft()
            await self._deliver(subscription.handler, subscription.filter_func, kept)

    async def _deliver(self, handler: Handler, filter_func: Filter | None, kept: _StoredSession) -> bool:
        try:
            told = await _tell(handler, filter_func, kept)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # A SystemExit too: raised out of a task it would stop the loop.
            with self._guard:
                self._counts["failed"] += 1
                self._bury(handler, kept, describe(error))
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            return False
        if told:
            with self._guard:
                self._counts["delivered"] += 1
        return True

    def _bury(self, handler: Handler, kept: _StoredSession, error: str) -> None:
        name = getattr(handler, "__qualname__", None) or type(handler).__name__
        self._dead_letters.append(DeadLetter(kept.copy(), name, error))
        _logger.warning("The event %r did not get to the handler %s: %s", kept.type, name, error)


def _matches(pattern: str, event_type: str) -> bool:
    if pattern == "*":
        return True
    # "a.*" is for what is below "a", however deep, and not for "a".
    return event_type.startswith(pattern[:-1]) if pattern.endswith(".*") else event_type == pattern


async def _tell(handler: Handler, filter_func: Filter | None, kept: _StoredSession) -> bool:
    """Run the filter and the handler, what is not async in a thread; returns whether the filter let the event through."""
    if filter_func is not None and not await run_in_thread(lambda: bool(filter_func(kept.copy()))):
        return False
    event = kept.copy()
    result = handler(event) if _is_async(handler) else await run_in_thread(lambda: handler(event))
    if inspect.isawaitable(result):
        await result
    return True


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
