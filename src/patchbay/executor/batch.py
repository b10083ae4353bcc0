"""The running calls of one reply: their order, their results, and how they are stopped.

Each call runs in a task of its own, so a tool that cancels its own task harms no other call. Deadlines are timers that cancel a
task and record why; no timeout scope is open across a ``yield`` (law 10).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from patchbay.errors import (
    CallBudgetError,
    HookAbortError,
    IncompleteCallError,
    RepeatedCallError,
    RunTimeoutError,
    ToolArgumentsError,
    ToolTimeoutError,
)
from patchbay.executor.invocation import Invocation, emit_call_end
from patchbay.executor.limits import PausableTimer
from patchbay.executor.results import NAME_SHOWN, NOT_BEGUN, ToolExecution, edited_note, effects_note, error_for_model, has_files
from patchbay.executor.run import RunState
from patchbay.schema.arguments import UnreadableArgumentsError, read_arguments
from patchbay.tools import well_formed
from patchbay.tools.context import Progress, ToolContext
from patchbay.tools.output import OutputError, ToolOutput
from patchbay.tools.threads import is_users_interrupt
from patchbay.types import Attachment, IncompleteCall, Message, ToolCall, ToolResult

PROGRESS_KEPT = 1000
"""The most progress events that wait for a busy consumer; further ones are dropped. Results never are."""

_logger = logging.getLogger(__name__)
# Tasks that ignored their cancellation. Without a reference here they could be garbage-collected half way.
_abandoned: set[asyncio.Task[Any]] = set()


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """Progress that a running tool reported."""

    call: ToolCall
    progress: Progress


BatchEvent: TypeAlias = ToolExecution | ToolProgress


class Batch:
    """The running calls of one reply: iterate for executions as they settle, then ``executions`` has all in call order.

    ``next_event()`` also returns the tools' progress. Leaving the iteration early stops nothing: always call ``stop()``.
    """

    def __init__(
        self, run: RunState, calls: Sequence[ToolCall | IncompleteCall], messages: Sequence[Message], iteration: int
    ) -> None:
        self.run = run
        self.aborted: HookAbortError | None = None
        """The hook's decision that ended the turn, if one did."""
        self.has_outputs = False
        """Whether a call returned a ToolOutput."""
        self.messages = messages
        self.iteration = iteration
        self._calls = tuple(map(as_call, calls))
        self._settled: list[ToolExecution | None] = [None] * len(calls)
        self._left = len(calls)
        self._events: deque[BatchEvent] = deque()
        self._progress_waiting = 0
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        # A copy of the state: calls of one reply do not see each other's changes.
        scope = run.agent_scope
        self.agent_scope = replace(scope, state=dict(scope.state)) if scope.state else scope
        self._loop = asyncio.get_running_loop()
        self._invocations: dict[asyncio.Task[None], Invocation] = {}
        self._stages: deque[list[Invocation]] = deque()
        self._in_stage = 0
        self._exclusive_waiters: deque[asyncio.Future[None]] = deque()
        run.repeats.next_reply()
        self._number = run.call_log.next_reply() if run.call_log is not None else 0
        for index, call in enumerate(calls):
            invocation = self._checked(index, call)
            if invocation is None:
                continue
            if invocation.tool.sequential or not self._stages or self._stages[-1][-1].tool.sequential:
                self._stages.append([invocation])
            else:
                self._stages[-1].append(invocation)
        run.offer_not_loaded()
        if run.budget.loop is not None and self._stages:
            if (ends := run.budget.ends) is not None and self._loop.time() >= ends:
                self._out_of_time()
            else:
                self._end_at(ends)
                run.budget.watch(self._end_at)
        self._next_stage()

    @property
    def executions(self) -> list[ToolExecution]:
        """The settled calls, in call order; complete once the iteration has ended or ``stop()`` has returned."""
        return [execution for execution in self._settled if execution is not None]

    def __aiter__(self) -> AsyncIterator[ToolExecution]:
        return self

    async def __anext__(self) -> ToolExecution:
        """Return the next execution that settles."""
        while (event := await self.next_event()) is not None:
            if isinstance(event, ToolExecution):
                return event
        raise StopAsyncIteration

    async def next_event(self) -> BatchEvent | None:
        """Return the next execution or progress; None after the last one."""
        while not self._events:
            if not self._left:
                return None
            await self._wait_for_event()
        event = self._events.popleft()
        if isinstance(event, ToolProgress):
            self._progress_waiting -= 1
        return event

    async def stop(self) -> None:
        """Cancel the running calls, wait for them, and settle them as cancelled. Does nothing once all calls have settled."""
        if not self._left:
            return
        self._settle_waiting(None)
        invocations = list(self._invocations.values())
        for invocation in invocations:
            self._end(invocation, asyncio.CancelledError())
        # A task that ignores its cancellation is abandoned by its timer, which settles the call.
        while self._left:
            await self._wait_for_event()
        if ending := [invocation.task for invocation in invocations if invocation.task in self._invocations]:
            await asyncio.wait(ending)

    def cancel(self, call_id: str) -> None:
        """Cancel one call without waiting; the others go on."""
        for stage in list(self._stages):
            for invocation in [each for each in stage if each.call.id == call_id]:
                stage.remove(invocation)
                self._record(
                    invocation.index, self._failed(invocation.call, asyncio.CancelledError(), None, NOT_BEGUN), invocation
                )
            if not stage:
                self._stages.remove(stage)
        for invocation in [each for each in self._invocations.values() if each.call.id == call_id and not self._has_result(each)]:
            self._end(invocation, asyncio.CancelledError())

    def _settle(self, invocation: Invocation, execution: ToolExecution) -> None:
        """Record the execution of an invocation, and start the next calls."""
        if invocation.decision_log is not None and invocation.decision_log.edited:
            note = edited_note(invocation.json_arguments)
            execution = replace(execution, result=replace(execution.result, content=f"{note}\n{execution.content}"))
        self.has_outputs = self.has_outputs or execution.output is not None
        if execution.arguments is not None:
            self.run.repeats.add(execution.call, execution.result.content)
        self._record(invocation.index, execution, invocation)
        self._in_stage -= 1
        if not self._in_stage:
            if self._stages:
                self._next_stage()
        elif self._exclusive_waiters:
            self._admit_exclusive()

    def _fail(self, invocation: Invocation, error: BaseException) -> None:
        """Record that an invocation failed, with the message for the model."""
        if self._settled[invocation.index] is not None:
            return  # an abandoned tool has ended: its call has its one result already
        self._settle(invocation, self._failure(invocation, error))

    def _failure(self, invocation: Invocation, error: BaseException) -> ToolExecution:
        """Return the execution of an invocation that failed, with the message for the model."""
        # A returned error is complete as it is.
        has_run = invocation.has_run and not isinstance(error, OutputError)
        note = effects_note(
            invocation.tool, begun=invocation.given is not None, has_run=has_run, stopped=invocation.ending is not None
        )
        return self._failed(invocation.call, error, invocation.given, note, invocation.seconds)

    def _abort(self, why: HookAbortError) -> None:
        """Cancel all calls, because a hook has ended the turn."""
        if self.aborted is None:
            self.aborted = why
        self._settle_waiting(None)
        for invocation in list(self._invocations.values()):
            if not self._has_result(invocation):
                self._end(invocation, asyncio.CancelledError())

    async def _wait_exclusive(self) -> None:
        """Wait until no other call runs: for a call that hooks have redirected to a sequential tool."""
        waiter = self._loop.create_future()
        self._exclusive_waiters.append(waiter)
        self._admit_exclusive()
        try:
            await waiter
        finally:
            if waiter in self._exclusive_waiters:
                self._exclusive_waiters.remove(waiter)

    def _admit_exclusive(self) -> None:
        if self._in_stage == len(self._exclusive_waiters):  # all running calls wait
            self._exclusive_waiters.popleft().set_result(None)

    def _has_result(self, invocation: Invocation) -> bool:
        """Whether the invocation's call has its result."""
        return self._settled[invocation.index] is not None

    def _set_timer(self, invocation: Invocation, seconds: float) -> PausableTimer:
        """Start the time limit of the invocation's tool."""
        return PausableTimer(self._loop, seconds, partial(self._time_up, invocation, seconds))

    def _checked(self, index: int, call: ToolCall | IncompleteCall) -> Invocation | None:
        """Find the tool and check the arguments; a failure settles at once, and nothing has run."""
        run = self.run
        tool_call = self._calls[index]
        error: BaseException
        if not run.budget.take_call():
            error = CallBudgetError(tool_call.name[:NAME_SHOWN], limit=run.budget.max_calls or 0)
        elif isinstance(call, IncompleteCall):
            error = IncompleteCallError(tool_call.name[:NAME_SHOWN])
        elif times := run.refused.get(tool_call.id):
            error = RepeatedCallError(tool_call.name[:NAME_SHOWN], times=times)
        else:
            try:
                tool, invalid_arguments = run.find_called(tool_call.name), None
                try:
                    arguments = tool.validate(tool_call.raw_arguments, run.executor.validation)
                except ToolArgumentsError as why:
                    if not (run.executor.before and tool.acts):
                        raise
                    arguments, invalid_arguments = raw_arguments(tool_call, why), why
                return Invocation(
                    run,
                    self.iteration,
                    index,
                    tool_call,
                    tool,
                    arguments,
                    invalid_arguments,
                    self._set_timer,
                    self._wait_exclusive,
                )
            except BaseException as failure:  # (a validator may run the caller's code, which may raise anything)
                if is_users_interrupt(failure):
                    raise
                error = failure
        self._record(index, self._failed(tool_call, error))
        return None

    def _next_stage(self) -> None:
        """Start the calls that may run together: those up to the next sequential one, or that one alone."""
        if self._stages:
            stage = self._stages.popleft()
            self._in_stage = len(stage)
            for invocation in stage:
                task = invocation.task = self._loop.create_task(self._run(invocation))
                self._invocations[task] = invocation
                task.add_done_callback(self._task_done)

    async def _run(self, invocation: Invocation) -> None:
        """Run an invocation to its end, and settle it. A cancellation is settled when the task is done."""
        run, call = self.run, invocation.call
        context = invocation.context = ToolContext(
            call_id=call.id,
            name=call.name,
            raw_arguments=call.raw_arguments,
            messages=self.messages,
            iteration=self.iteration,
            agent_scope=self.agent_scope,
            on_progress=partial(self._report_progress, invocation),
        )
        if run.media is not None:
            context.media = run.media
        try:
            if (log := run.call_log) is None or not invocation.tool.acts or invocation.tool.records_own_steps:
                execution = await self._execute(invocation, context)
            else:
                place = invocation.index
                invocation.begin = partial(log.begin, self._number, place)
                execution = await log.settle(self._number, place, call, partial(self._execute_or_fail, invocation, context))
        except asyncio.CancelledError:
            context.stop()  # for a thread, also where other code cancelled the task
            raise  # by the tool, or because it is being stopped: ``_task_done`` sees which
        except BaseException as error:  # (SystemExit too: a tool that calls sys.exit() must not end the host)
            if is_users_interrupt(error):
                raise
            self._fail(invocation, invocation.ending or error)
            if isinstance(error, HookAbortError) and invocation.ending is None:
                self._abort(error)
            return
        if self._has_result(invocation):
            return  # the task was abandoned while its outcome was recorded
        self._settle(invocation, execution)
        if isinstance(execution.error, HookAbortError):
            self._abort(execution.error)

    async def _execute(self, invocation: Invocation, context: ToolContext) -> ToolExecution:
        """Run an invocation, and return its execution. Raises what ends the call."""
        run = self.run
        value = await invocation.run(context)
        if type(value) is ToolOutput:
            if has_files(value):
                value = await run.store_files(value, invocation.tool.name)
            if value.is_error:
                raise OutputError(value, tool_name=invocation.tool.name)
        invocation.check_running()
        content: str
        attachments: tuple[Attachment, ...] = ()
        if type(value) is str and run.is_short(value):
            content = value
        else:
            content, attachments = await run.render(value, invocation.tool.name)
            invocation.check_running()
        actions = context.outcome()
        if (check := self.agent_scope.check) is not None and actions:
            check(actions)
        result = ToolResult(invocation.call.id, invocation.tool.name, content, attachments=attachments)
        return ToolExecution(invocation.call, invocation.given, value, result, None, invocation.seconds, actions)

    async def _execute_or_fail(self, invocation: Invocation, context: ToolContext) -> ToolExecution:
        """Run an invocation; its failures are executions too, but not the end of a call that is being stopped."""
        try:
            return await self._execute(invocation, context)
        except asyncio.CancelledError:
            if not isinstance(invocation.ending, ToolTimeoutError):
                raise
            context.stop()
            return self._failure(invocation, invocation.ending)
        except BaseException as error:
            if is_users_interrupt(error):
                raise
            return self._failure(invocation, invocation.ending or error)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        invocation = self._invocations.pop(task, None)
        if invocation is None:
            return
        if invocation.grace is not None:
            invocation.grace.cancel()
        failure = None if task.cancelled() else task.exception()
        if self._settled[invocation.index] is None:
            self._fail(invocation, invocation.ending or failure or asyncio.CancelledError())
        invocation.context = invocation.task = None  # circles that would wait for the garbage collector

    def _end_at(self, ends: float | None) -> None:
        """Set the run's deadline, by the event loop's clock; None during a pause."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(ends, self._out_of_time) if ends is not None else None

    def _time_up(self, invocation: Invocation, seconds: float) -> None:
        self._end(invocation, ToolTimeoutError(invocation.tool.name, limit=seconds))

    def _out_of_time(self) -> None:
        budget = self.run.budget
        budget.out_of_time()
        limit = budget.max_seconds or 0.0
        self._settle_waiting(limit)
        for invocation in list(self._invocations.values()):
            self._end(invocation, RunTimeoutError(invocation.tool.name, limit=limit))

    def _settle_waiting(self, limit: float | None) -> None:
        """Settle the calls that have not begun; ``limit`` is the run's if its time is up, None if it is stopped."""
        stages, self._stages = self._stages, deque()
        for invocation in (invocation for stage in stages for invocation in stage):
            error = asyncio.CancelledError() if limit is None else RunTimeoutError(invocation.tool.name, limit=limit)
            self._record(invocation.index, self._failed(invocation.call, error, None, NOT_BEGUN), invocation)

    def _end(self, invocation: Invocation, why: BaseException) -> None:
        """Cancel an invocation. It settles when its task has ended, or has ignored the cancellation for too long."""
        if invocation.ending is not None:
            return  # it is cleaning up; a second cancellation would cut that off
        invocation.ending = why
        invocation.stop()
        if invocation.task in self._invocations:
            invocation.grace = self._loop.call_later(self.run.executor.cancel_grace, self._abandon, invocation.task)

    def _abandon(self, task: asyncio.Task[None]) -> None:
        """Abandon a task that ignores cancellation."""
        if task.done():
            return  # its done callback is scheduled
        invocation = self._invocations.pop(task)
        _logger.warning("A tool ignored its cancellation for %s s and is left running: %r", self.run.executor.cancel_grace, task)
        _abandoned.add(task)
        task.add_done_callback(_forget_task)
        invocation.permits.release()
        self._fail(invocation, invocation.ending or asyncio.CancelledError())

    def _failed(
        self,
        call: ToolCall,
        error: BaseException,
        arguments: dict[str, Any] | None = None,
        note: str = "",
        seconds: float = 0.0,
    ) -> ToolExecution:
        content, code = error_for_model(call.name, error)
        content = self.run.shorten(well_formed(content + note))
        result = ToolResult(call.id, call.name, content, is_error=True, code=code)
        return ToolExecution(call, arguments, None, result, error, seconds)

    def _record(self, index: int, execution: ToolExecution, invocation: Invocation | None = None) -> None:
        self._settled[index] = execution
        if (hooks := self.run.hooks) is not None and (hooks.observed or hooks.recorders):
            emit_call_end(hooks, self.iteration, execution, invocation)
        self._events.append(execution)
        self._left -= 1
        if not self._left and self.run.budget.loop is not None:
            self.run.budget.unwatch(self._end_at)
            self._end_at(None)
        self._changed.set()
        if (watch := self.run.on_settled) is not None:
            _notify(watch, execution)

    def _report_progress(self, invocation: Invocation, progress: Progress) -> None:
        """Record a tool's progress, from any thread."""
        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001  (the public one raises where there is none)
            self._record_progress(invocation, progress)
            return
        try:
            self._loop.call_soon_threadsafe(self._record_progress, invocation, progress)
        except RuntimeError:  # the loop was closed: nothing reads the progress any more
            pass

    def _record_progress(self, invocation: Invocation, progress: Progress) -> None:
        if self._has_result(invocation):
            return
        if self._progress_waiting < PROGRESS_KEPT:
            self._progress_waiting += 1
            self._events.append(ToolProgress(invocation.call, progress))
            self._changed.set()
        if (watch := self.run.executor.on_progress) is not None:
            _notify(watch, invocation.call, progress)

    async def _wait_for_event(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _notify(watch: Callable[..., object], *about: Any) -> None:
    try:
        watch(*about)
    except Exception:  # an observer's error is not the tool's
        _logger.exception("The callback %r failed", watch)


def _forget_task(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not report it


def raw_arguments(call: ToolCall, invalid: ToolArgumentsError) -> dict[str, Any]:
    """Return the arguments as the model wrote them. Raises ``invalid`` if they are not a JSON object."""
    try:
        return read_arguments(call.raw_arguments)
    except UnreadableArgumentsError:
        raise invalid from None


def as_call(call: ToolCall | IncompleteCall) -> ToolCall:
    """Return a ToolCall, also for an incomplete call."""
    return call if isinstance(call, ToolCall) else ToolCall(call.id, call.name, call.raw_arguments)
