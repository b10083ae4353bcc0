"""Limits of a run's calls: budgets of rounds, calls and time, pausable timers, parallel calls, and repeated calls.

While a person decides about a call, its timers are paused: the tool's, the run's, and, if a tool has begun that run, those of
that tool's call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

from patchbay.tools import Tool
from patchbay.tools.tool import checked_count, checked_timeout
from patchbay.types import ToolCall

T = TypeVar("T")


class Budget:
    """The rounds, calls and seconds of one run; None for no limit. Raises ConfigurationError for an invalid limit.

    Parallel agents of one run share one Budget. Failed calls count too. The clock starts with ``start_clock()``, and can be
    paused (``paused``). ``exceeded`` is the finish_reason of the first limit that was reached: "max_iterations", "max_calls" or
    "max_seconds".
    """

    def __init__(
        self, *, max_iterations: int | None = None, max_calls: int | None = None, max_seconds: float | None = None
    ) -> None:
        self.max_iterations = checked_count(max_iterations, "max_iterations") if max_iterations is not None else None
        self.max_calls = checked_count(max_calls, "max_calls") if max_calls is not None else None
        self.max_seconds = checked_timeout(max_seconds, "max_seconds") if max_seconds is not None else None
        self.iterations = 0
        self.calls = 0
        self.exceeded: str | None = None
        self.ends: float | None = None
        """The deadline, by the event loop's clock; None before ``start_clock()``, without a limit, and during a pause."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the clock; None before ``start_clock()`` and without a limit."""
        self._left = 0.0
        self._pauses = 0
        self._watchers: set[Callable[[float | None], None]] = set()

    def start_clock(self) -> None:
        """Start the clock, if it is not running already."""
        if self.max_seconds is not None and self.loop is None:
            self.loop = asyncio.get_running_loop()
            self._left = self.max_seconds
            if not self._pauses:
                self._set(self.loop.time() + self._left)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the clock within the block. Pauses may overlap: it goes on when the last one has ended."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def pause(self) -> None:
        """Pause the clock until ``resume`` has been called as often as this."""
        self._pauses += 1
        if self._pauses == 1 and self.loop is not None and self.ends is not None:
            self._left = self.ends - self.loop.time()
            self._set(None)

    def resume(self) -> None:
        """End one pause."""
        self._pauses -= 1
        if not self._pauses and self.loop is not None:
            self._set(self.loop.time() + self._left)

    def watch(self, moved: Callable[[float | None], None]) -> None:
        """Call ``moved`` with the new deadline whenever ``ends`` changes."""
        self._watchers.add(moved)

    def unwatch(self, moved: Callable[[float | None], None]) -> None:
        """Stop calling ``moved``."""
        self._watchers.discard(moved)

    def take_iteration(self) -> bool:
        """Use one round; False if none is left, or no time."""
        if self.max_iterations is not None and self.iterations >= self.max_iterations:
            self.exceeded = self.exceeded or "max_iterations"
            return False
        if self.ends is not None and asyncio.get_running_loop().time() >= self.ends:
            self.out_of_time()
            return False
        self.iterations += 1
        return True

    def take_call(self) -> bool:
        """Use one call; False if none is left."""
        if self.max_calls is not None and self.calls >= self.max_calls:
            self.exceeded = self.exceeded or "max_calls"
            return False
        self.calls += 1
        return True

    def out_of_time(self) -> None:
        """Mark the deadline as exceeded."""
        self.exceeded = self.exceeded or "max_seconds"

    def _set(self, ends: float | None) -> None:
        self.ends = ends
        for moved in list(self._watchers):
            moved(ends)


class OutOfTimeError(Exception):
    """The time of the run is up."""


async def in_time(work: Awaitable[T], budget: Budget) -> T:
    """Await ``work`` within the budget's time, whose end moves when the clock is paused. Raises OutOfTimeError when it is up."""
    if budget.loop is None:
        return await work
    timeout = asyncio.timeout_at(budget.ends)

    def move(ends: float | None) -> None:
        if not timeout.expired():
            timeout.reschedule(ends)

    budget.watch(move)
    try:
        async with timeout:
            return await work
    except TimeoutError:
        if not timeout.expired():
            raise  # the work's own
        raise OutOfTimeError from None
    finally:
        budget.unwatch(move)


class PausableTimer:
    """Calls ``then`` after ``seconds``, not counting pauses; for tools' limits."""

    __slots__ = ("_handle", "_left", "_pauses", "_then", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, then: Callable[[], None]) -> None:
        self.loop: asyncio.AbstractEventLoop | None = loop
        self._then = then
        self._left = 0.0
        self._pauses = 0
        self._handle: asyncio.TimerHandle | None = loop.call_later(seconds, then)

    def pause(self) -> None:
        """Pause until ``resume`` has been called as often as this."""
        self._pauses += 1
        if self._pauses == 1 and self.loop is not None and self._handle is not None:
            self._left = self._handle.when() - self.loop.time()
            self._handle.cancel()

    def resume(self) -> None:
        """End one pause."""
        self._pauses -= 1
        if not self._pauses and self.loop is not None and self._handle is not None:
            self._handle = self.loop.call_later(self._left, self._then)

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


Clock: TypeAlias = Budget | PausableTimer

# The clocks of the calls that the current code is part of.
_enclosing_clocks: ContextVar[tuple[Clock, ...]] = ContextVar("_enclosing_clocks", default=())


def count_within(*clocks: Clock) -> None:
    """Let ``paused`` pause these clocks too in the current task."""
    _enclosing_clocks.set((*_enclosing_clocks.get(), *clocks))


@contextmanager
def paused(clock: Clock) -> Iterator[None]:
    """Pause ``clock`` and the clocks of the current task (``count_within``)."""
    clocks = (*_enclosing_clocks.get(), clock)
    for each in clocks:
        _in_its_loop(each, each.pause)
    try:
        yield
    finally:
        for each in clocks:
            _in_its_loop(each, each.resume)


def _in_its_loop(clock: Clock, what: Callable[[], None]) -> None:
    # A tool in a thread may have begun a run of its own, in another loop.
    if clock.loop is None or clock.loop is asyncio.get_running_loop():
        what()
        return
    try:
        clock.loop.call_soon_threadsafe(what)
    except RuntimeError:  # that loop is closed
        pass


# The tools whose calls the current code is part of: a nested call must not wait for the outer call to end.
_enclosing_tools: ContextVar[tuple[Tool, ...]] = ContextVar("_enclosing_tools", default=())


class Permits:
    """The places that a call holds while its tool runs: one of its tool's, if that has a limit, and one of its run's."""

    __slots__ = ("_acquired", "_run_semaphore", "_tool")

    def __init__(self, tool: Tool, run_semaphore: asyncio.Semaphore) -> None:
        self._tool = tool
        self._run_semaphore = run_semaphore
        self._acquired: list[asyncio.Semaphore] = []

    async def acquire(self) -> None:
        """Wait for both places, in the order of calls. While it waits for its tool it holds no place of the run.

        A call that is made, even indirectly, by a call of the same tool does not wait for a place of the tool.
        """
        tool = self._tool
        if tool.max_parallel is not None and not any(tool is each for each in _enclosing_tools.get()):
            semaphore = _semaphore(tool, tool.max_parallel)
            await semaphore.acquire()
            self._acquired.append(semaphore)
            _enclosing_tools.set((*_enclosing_tools.get(), tool))
        await self._run_semaphore.acquire()
        self._acquired.append(self._run_semaphore)

    def release(self) -> None:
        """Release the places; also for a tool that was abandoned, which must not block others."""
        while self._acquired:
            self._acquired.pop().release()


def _semaphore(tool: Tool, most: int) -> asyncio.Semaphore:
    """Return the semaphore of a tool for the running event loop; it is stored with the tool."""
    loop = asyncio.get_running_loop()
    by_loop: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = vars(tool).setdefault("_permits_by_loop", {})
    semaphore = by_loop.get(loop)
    if semaphore is None:
        for other in [each for each in list(by_loop) if each.is_closed()]:  # a list: other threads' loops add theirs
            by_loop.pop(other, None)
        semaphore = by_loop[loop] = asyncio.Semaphore(most)
    return semaphore


class RepeatedCalls:
    """Counts for one run how often a call gave the same result, as long as no call of the run gives anything new.

    Tests that are rerun after each edit are not a repetition, since each edit is a new call; two alternating calls are. Only
    calls of earlier replies count: ``next_reply`` begins another one. Two numbers are stored for each call.
    """

    def __init__(self) -> None:
        self._fresh: list[tuple[ToolCall, str]] = []
        self._seen: set[int] = set()
        self._counts: dict[int, tuple[int, int]] = {}  # call -> (its last result, how often it came in a row)

    def add(self, call: ToolCall, content: str) -> None:
        """Add a call that ran, and its result."""
        self._fresh.append((call, content))

    def add_history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Add the calls, with their results, that a conversation has after the last message of its user."""
        begin = len(messages)
        while begin and messages[begin - 1].get("role") != "user":
            begin -= 1
        called: dict[str, ToolCall] = {}
        for message in messages[begin:]:
            if message.get("role") == "assistant":
                self.next_reply()
                made = message.get("tool_calls")
                for each in made if isinstance(made, list) else ():  # a client's: it may be anything
                    if isinstance(each, Mapping) and isinstance(function := each.get("function"), Mapping):
                        call = ToolCall("", str(function.get("name")), str(function.get("arguments")))
                        called[str(each.get("id"))] = call
            elif message.get("role") == "tool" and (found := called.get(str(message.get("tool_call_id")))) is not None:
                self.add(found, str(message.get("content")))

    def next_reply(self) -> None:
        """Count the added calls: only now, since most turns have no second reply with calls."""
        if not self._fresh:
            return
        # Equal calls of one reply count once: each was made before the others' results were known.
        for key, result in dict.fromkeys((_key(call), hash(content)) for call, content in self._fresh):
            self._count(key, result)
        self._fresh.clear()

    def times(self, call: ToolCall) -> int:
        """Return how often in a row this call gave the same result."""
        return self._counts.get(_key(call), (0, 0))[1] if self._counts else 0

    def _count(self, key: int, result: int) -> None:
        pair = hash((key, result))
        if pair not in self._seen:
            self._seen.add(pair)
            self._counts.clear()
        last, times = self._counts.get(key, (result, 0))
        self._counts[key] = (result, times + 1 if last == result else 1)


def _key(call: ToolCall) -> int:
    """Return a number that is the same for equal calls, whatever the spacing and order of their arguments."""
    # Hashes the text, since different numbers may have the same hash: -1 and -2.
    arguments = call.arguments
    return hash((call.name, json.dumps(arguments, sort_keys=True) if arguments else call.raw_arguments.strip()))
