"""The calls of one reply under way: which runs when, what has settled, and how all of it is stopped.

Each call runs in a task of its own, so a tool that cancels its own task harms nobody else. Deadlines are timers that cancel a
task and say why; no scope is held open, so nothing here can cancel a consumer (law 10). What one call goes through is
``flight``'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from patchbay.errors import (
    CallBudgetError,
    HookAbortError,
    IncompleteCallError,
    RunTimeoutError,
    ToolArgumentsError,
    ToolTimeoutError,
)
from patchbay.executor.clock import Alarm
from patchbay.executor.execution import ToolExecution
from patchbay.executor.find import find_tool
from patchbay.executor.flight import Flight
from patchbay.executor.settle import NAME_SHOWN, NOT_BEGUN, edited_note, note, told
from patchbay.executor.told import tell_settled
from patchbay.schema.arguments import UnreadableArgumentsError, read_arguments
from patchbay.tools import well_formed
from patchbay.tools.context import Progress
from patchbay.tools.interrupts import is_users_interrupt
from patchbay.tools.output import OutputError
from patchbay.types import IncompleteCall, Message, ToolCall, ToolResult

if TYPE_CHECKING:
    from patchbay.executor.run import Run

PROGRESS_KEPT = 1000
"""How many pieces of progress wait for a consumer that is busy; what comes then is dropped. Results never are."""

_logger = logging.getLogger(__name__)
# Tasks that ignored their cancellation. Without a reference here they could be garbage-collected half way.
_left_running: set[asyncio.Task[Any]] = set()


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """A running tool said how far it is."""

    call: ToolCall
    progress: Progress


News: TypeAlias = ToolExecution | ToolProgress


class Batch:
    """The calls of one reply, under way: iterate for the executions as they settle, then ``executions`` has all in call order.

    ``next_news()`` has the progress of the tools too. Leaving the iteration early stops nothing: call ``stop()``, always.
    """

    def __init__(self, run: Run, calls: Sequence[ToolCall | IncompleteCall], messages: Sequence[Message], iteration: int) -> None:
        self.run = run
        self.aborted: HookAbortError | None = None
        """The hook's decision that ended the turn, if one did."""
        self.has_outputs = False
        """Whether a call told apart what it has for the model and for the user."""
        self.messages = messages
        self.iteration = iteration
        self._calls = tuple(map(as_call, calls))
        self._settled: list[ToolExecution | None] = [None] * len(calls)
        self._left = len(calls)
        self._news: deque[News] = deque()
        self._progress_waiting = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        # The state as it is now: calls of one reply do not see what those beside them have done.
        around = run.surroundings
        self.surroundings = replace(around, state=dict(around.state)) if around.state else around
        self._loop = asyncio.get_running_loop()
        self._flights: dict[asyncio.Task[None], Flight] = {}
        self._stages: deque[list[Flight]] = deque()
        self._in_stage = 0
        self._alone: deque[asyncio.Future[None]] = deque()
        run.repeats.next_reply()
        for index, call in enumerate(calls):
            flight = self._checked(index, call)
            if flight is None:
                continue
            if flight.tool.sequential or not self._stages or self._stages[-1][-1].tool.sequential:
                self._stages.append([flight])
            else:
                self._stages[-1].append(flight)
        if run.budget.loop is not None and self._stages:
            if (ends := run.budget.ends) is not None and self._loop.time() >= ends:
                self._out_of_time()
            else:
                self._end_at(ends)
                run.budget.watch(self._end_at)
        self._next_stage()

    @property
    def executions(self) -> list[ToolExecution]:
        """What has settled, in call order; complete once the iteration has ended or ``stop()`` has returned."""
        return [execution for execution in self._settled if execution is not None]

    def __aiter__(self) -> AsyncIterator[ToolExecution]:
        return self

    async def __anext__(self) -> ToolExecution:
        """Return the next execution that settles."""
        while (news := await self.next_news()) is not None:
            if isinstance(news, ToolExecution):
                return news
        raise StopAsyncIteration

    async def next_news(self) -> News | None:
        """Return the next execution that settles, or piece of progress; None when all calls have settled and all was told."""
        while not self._news:
            if not self._left:
                return None
            await self._something_new()
        news = self._news.popleft()
        if isinstance(news, ToolProgress):
            self._progress_waiting -= 1
        return news

    async def stop(self) -> None:
        """Cancel what still runs, wait for it, and settle it as cancelled. Does nothing once all calls have settled."""
        if not self._left:
            return
        self._end_waiting(None)
        flights = list(self._flights.values())
        for flight in flights:
            self._end(flight, asyncio.CancelledError())
        # A task that ignores its cancellation is abandoned by its timer, which settles the call.
        while self._left:
            await self._something_new()
        if ending := [flight.task for flight in flights if flight.task in self._flights]:
            await asyncio.wait(ending)

    def cancel(self, call_id: str) -> None:
        """Cancel one call; those beside it go on. It settles as in ``stop()``, which this does not wait for."""
        for stage in list(self._stages):
            for flight in [each for each in stage if each.call.id == call_id]:
                stage.remove(flight)
                self._record(flight.index, self._failed(flight.call, asyncio.CancelledError(), None, NOT_BEGUN), flight)
            if not stage:
                self._stages.remove(stage)
        for flight in [each for each in self._flights.values() if each.call.id == call_id and not self.is_settled(each)]:
            self._end(flight, asyncio.CancelledError())

    def tell(self, flight: Flight, progress: Progress) -> None:
        """Pass on what a tool says of its work, from any thread."""
        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001  (the public one raises where there is none)
            self._told(flight, progress)
            return
        try:
            self._loop.call_soon_threadsafe(self._told, flight, progress)
        except RuntimeError:  # the loop was closed: a thread that runs on has nobody to tell
            pass

    def settle(self, flight: Flight, execution: ToolExecution) -> None:
        """Record how a flight ended, now."""
        if flight.decision_log is not None and flight.decision_log.edited:
            words = edited_note(flight.json_arguments)
            execution = replace(execution, result=replace(execution.result, content=f"{words}\n{execution.content}"))
        if execution.arguments is not None:
            self.run.repeats.add(execution.call, execution.result.content)
        self._record(flight.index, execution, flight)
        self._in_stage -= 1
        if not self._in_stage:
            if self._stages:
                self._next_stage()
        elif self._alone:
            self._let_one_go()

    def fail(self, flight: Flight, error: BaseException) -> None:
        """Record that a flight failed, with what the model is told of it."""
        if self._settled[flight.index] is not None:
            return  # a tool that ignored its cancellation has ended after all: its call has its one result already
        # Who returns an error instead of raising one says all that there is to say of it.
        has_run = flight.has_run and not isinstance(error, OutputError)
        words = note(flight.tool, begun=flight.given is not None, has_run=has_run, stopped=flight.ending is not None)
        self.settle(flight, self._failed(flight.call, error, flight.given, words, flight.seconds))

    def abort(self, why: HookAbortError) -> None:
        """End all that is under way, and what has not begun: a hook has ended the turn."""
        if self.aborted is None:
            self.aborted = why
        self._end_waiting(None)
        for flight in list(self._flights.values()):
            if not self.is_settled(flight):
                self._end(flight, asyncio.CancelledError())

    async def alone(self) -> None:
        """Wait until no other call is under way: for a call that hooks have made one of a sequential tool, beside others."""
        waiter = self._loop.create_future()
        self._alone.append(waiter)
        self._let_one_go()
        try:
            await waiter
        finally:
            if waiter in self._alone:
                self._alone.remove(waiter)

    def _let_one_go(self) -> None:
        if self._in_stage == len(self._alone):  # all that are under way wait to be alone
            self._alone.popleft().set_result(None)

    def is_settled(self, flight: Flight) -> bool:
        """Whether the flight's call has its result."""
        return self._settled[flight.index] is not None

    def limit(self, flight: Flight, seconds: float) -> Alarm:
        """Set the time that the flight's tool has from now on."""
        return Alarm(self._loop, seconds, partial(self._time_up, flight, seconds))

    def _checked(self, index: int, call: ToolCall | IncompleteCall) -> Flight | None:
        """Find the tool and check the arguments; what fails here settles at once, and nothing has run."""
        run = self.run
        mine = self._calls[index]
        error: BaseException
        if not run.budget.take_call():
            error = CallBudgetError(mine.name[:NAME_SHOWN], limit=run.budget.max_calls or 0)
        elif isinstance(call, IncompleteCall):
            error = IncompleteCallError(mine.name[:NAME_SHOWN])
        else:
            try:
                tool = find_tool(run.tools, mine.name)
                try:
                    return Flight(self, index, mine, tool, tool.validate(mine.raw_arguments, run.executor.validation))
                except ToolArgumentsError as misfit:
                    if not (run.executor.before and tool.acts):
                        raise
                    return Flight(self, index, mine, tool, written_arguments(mine, misfit), misfit)
            except BaseException as failure:  # (a validator may run the caller's code, and that may do anything)
                if is_users_interrupt(failure):
                    raise
                error = failure
        self._record(index, self._failed(mine, error))
        return None

    def _next_stage(self) -> None:
        """Start the calls that may run together now: those up to the next sequential one, or that one alone."""
        if self._stages:
            stage = self._stages.popleft()
            self._in_stage = len(stage)
            for flight in stage:
                task = flight.task = self._loop.create_task(flight.carry_out())
                self._flights[task] = flight
                task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        flight = self._flights.pop(task, None)
        if flight is None:
            return
        if flight.grace is not None:
            flight.grace.cancel()
        failure = None if task.cancelled() else task.exception()
        if self._settled[flight.index] is None:
            self.fail(flight, flight.ending or failure or asyncio.CancelledError())
        flight.context = flight.task = None  # circles that would wait for the garbage collector

    def _end_at(self, ends: float | None) -> None:
        """Set the end of the run's time, by the event loop's clock; None while that stands still."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(ends, self._out_of_time) if ends is not None else None

    def _time_up(self, flight: Flight, seconds: float) -> None:
        self._end(flight, ToolTimeoutError(flight.tool.name, limit=seconds))

    def _out_of_time(self) -> None:
        budget = self.run.budget
        budget.out_of_time()
        limit = budget.max_seconds or 0.0
        self._end_waiting(limit)
        for flight in list(self._flights.values()):
            self._end(flight, RunTimeoutError(flight.tool.name, limit=limit))

    def _end_waiting(self, limit: float | None) -> None:
        """Settle the calls that have not begun: the run is stopped, or its time (``limit``) is up."""
        stages, self._stages = self._stages, deque()
        for flight in (flight for stage in stages for flight in stage):
            error = asyncio.CancelledError() if limit is None else RunTimeoutError(flight.tool.name, limit=limit)
            self._record(flight.index, self._failed(flight.call, error, None, NOT_BEGUN), flight)

    def _end(self, flight: Flight, why: BaseException) -> None:
        """Cancel a flight. It settles when its task has ended, or has ignored the cancellation for too long."""
        if flight.ending is not None:
            return  # it is cleaning up; a second cancellation would cut that off
        flight.ending = why
        flight.stop()
        if flight.task in self._flights:
            flight.grace = self._loop.call_later(self.run.executor.cancel_grace, self._abandon, flight.task)

    def _abandon(self, task: asyncio.Task[None]) -> None:
        """Leave a task to itself that ignored its cancellation."""
        if task.done():
            return  # just now: its done callback is on the way
        flight = self._flights.pop(task)
        _logger.warning("A tool ignored its cancellation for %s s and is left running: %r", self.run.executor.cancel_grace, task)
        _left_running.add(task)
        task.add_done_callback(_forget)
        flight.slots.free()
        self.fail(flight, flight.ending or asyncio.CancelledError())

    def _failed(
        self,
        call: ToolCall,
        error: BaseException,
        arguments: dict[str, Any] | None = None,
        words: str = "",
        seconds: float = 0.0,
    ) -> ToolExecution:
        content, code = told(call.name, error)
        content = self.run.shortened(well_formed(content + words))
        result = ToolResult(call.id, call.name, content, is_error=True, code=code)
        return ToolExecution(call, arguments, None, result, error, seconds)

    def _record(self, index: int, execution: ToolExecution, flight: Flight | None = None) -> None:
        self._settled[index] = execution
        if (hooks := self.run.hooks) is not None and (hooks.observed or hooks.recorders):
            tell_settled(hooks, self.iteration, execution, flight)
        self._news.append(execution)
        self._left -= 1
        if not self._left and self.run.budget.loop is not None:
            self.run.budget.unwatch(self._end_at)
            self._end_at(None)
        self._wake()
        if (watch := self.run.on_settled) is not None:
            _show(watch, execution)

    def _told(self, flight: Flight, progress: Progress) -> None:
        if self.is_settled(flight):
            return
        if self._progress_waiting < PROGRESS_KEPT:
            self._progress_waiting += 1
            self._news.append(ToolProgress(flight.call, progress))
            self._wake()
        if (watch := self.run.executor.on_progress) is not None:
            _show(watch, flight.call, progress)

    async def _something_new(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


def _show(watch: Callable[..., object], *about: Any) -> None:
    try:
        watch(*about)
    except Exception:  # it only watches: what it raises is not the tool's doing
        _logger.exception("The callback %r failed", watch)


def _forget(task: asyncio.Task[Any]) -> None:
    _left_running.discard(task)
    if not task.cancelled():
        task.exception()  # looked at, so that asyncio does not report it as never retrieved


def written_arguments(call: ToolCall, misfit: ToolArgumentsError) -> dict[str, Any]:
    """Return the arguments as the model wrote them. Raises ``misfit`` where they are not even a JSON object."""
    try:
        return read_arguments(call.raw_arguments)
    except UnreadableArgumentsError:
        raise misfit from None


def as_call(call: ToolCall | IncompleteCall) -> ToolCall:
    """Return the call itself, also of one that was cut off."""
    return call if isinstance(call, ToolCall) else ToolCall(call.id, call.name, call.raw_arguments)
