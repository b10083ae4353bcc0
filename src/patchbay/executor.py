"""The one door that every tool call goes through: find, check, run under a deadline, settle, record.

Whatever happens to a call it ends as one ToolExecution, and its error is one that a model can act on (law 2);
a failing call never loses its siblings, and each is recorded the moment it settles (laws 1, 3). What a tool
is lives in ``patchbay.tools``; when a model is asked again lives in ``patchbay.loop``.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from patchbay.errors import ConfigurationError, IncompleteCallError, ToolError, ToolTimeoutError, UnknownToolError
from patchbay.tools import Tool, ToolContext, Validation, collect_tools, render_error, render_result, well_formed
from patchbay.tools.base import checked_timeout
from patchbay.types import IncompleteCall, Message, ToolCall, ToolResult

CANCEL_GRACE = 5.0
"""Seconds that a tool which was cancelled is waited for before it is left to itself."""

_THREAD_RUNS_ON = " It could not be interrupted and may still be running: its effects may still happen."
_NAME_SHOWN = 100
_logger = logging.getLogger(__name__)
# Tasks that ignored their cancellation. Without a reference here they could be garbage-collected half way.
_left_running: set[asyncio.Task[Any]] = set()


@dataclass(frozen=True)
class ToolExecution:
    """What became of one call.

    ``arguments`` are those the tool was given, coerced and with defaults (None: it was not run);
    ``call.raw_arguments`` is what the model wrote. ``value`` is what the tool returned, ``result`` what the
    model is shown. ``error`` is None on success, else a ToolError or whatever the tool raised. ``seconds`` is
    how long it ran.
    """

    call: ToolCall
    arguments: dict[str, Any] | None
    value: Any
    result: ToolResult
    error: BaseException | None = None
    seconds: float = 0.0

    @property
    def is_error(self) -> bool:
        """Whether the call failed."""
        return self.error is not None

    @property
    def content(self) -> str:
        """What the model is shown."""
        return self.result.content


class Executor:
    """Carries out calls of ``tools`` (functions and Tools, mixed).

    ``validation`` says how arguments are checked (None: they need only be a JSON object), ``tool_timeout`` is
    the limit in seconds of tools that have none of their own, ``max_parallel`` how many calls of one reply
    run at the same time. Raises TypeError for what is no tool, ConfigurationError for limits that cannot be
    kept.
    """

    def __init__(
        self,
        tools: Iterable[Any],
        *,
        validation: Validation | None = Validation(),  # noqa: B008  (frozen)
        tool_timeout: float | None = None,
        max_parallel: int = 32,
        cancel_grace: float = CANCEL_GRACE,
    ) -> None:
        if isinstance(max_parallel, bool) or not isinstance(max_parallel, int) or max_parallel < 1:
            raise ConfigurationError(f"max_parallel must be a whole number of at least 1, not {max_parallel!r}.")
        if not math.isfinite(cancel_grace) or cancel_grace < 0:
            raise ConfigurationError(f"cancel_grace must be a number of seconds of at least 0, not {cancel_grace!r}.")
        self.tools = collect_tools(tools)
        self.validation = validation
        self.tool_timeout = checked_timeout(tool_timeout, "tool_timeout")
        self.max_parallel = max_parallel
        self.cancel_grace = cancel_grace

    def start(self, calls: Sequence[ToolCall | IncompleteCall], *, messages: Sequence[Message] = (), iteration: int = 1) -> Batch:
        """Start all of ``calls`` now, and return them as a Batch; the caller must ``stop()`` it when it is done with it.

        ``messages`` and ``iteration`` are for the tools' contexts. Needs a running event loop.
        """
        return Batch(self, calls, messages, iteration)

    async def run(
        self,
        calls: Sequence[ToolCall | IncompleteCall],
        *,
        messages: Sequence[Message] = (),
        iteration: int = 1,
        on_settled: Callable[[ToolExecution], None] | None = None,
    ) -> list[ToolExecution]:
        """Carry out ``calls`` in parallel and return their executions in call order.

        ``on_settled`` is told each the moment it settles; what it raises is raised here. Either way, and when this is cancelled,
        the tools are stopped and waited for first.
        """
        batch = self.start(calls, messages=messages, iteration=iteration)
        try:
            async for execution in batch:
                if on_settled is not None:
                    on_settled(execution)
            return batch.executions
        finally:
            await batch.stop()

    def find(self, name: str) -> Tool:
        """Return the tool of this name. Raises UnknownToolError with the nearest names."""
        tool = self.tools.get(name)
        if tool is None:
            available = tuple(self.tools)
            # Matching is quadratic in the name, and the name is whatever the model wrote.
            shown = name[:_NAME_SHOWN]
            raise UnknownToolError(shown, nearest=tuple(difflib.get_close_matches(shown, available)), available=available)
        return tool


class Batch:
    """The calls of one reply, under way: iterate for the executions as they settle, then ``executions`` has all in call order.

    Each call runs in a task of its own, so a tool that cancels its own task harms nobody else. Leaving the
    iteration early stops nothing: call ``stop()``, always.
    """

    def __init__(
        self, executor: Executor, calls: Sequence[ToolCall | IncompleteCall], messages: Sequence[Message], iteration: int
    ) -> None:
        self._executor = executor
        self._messages = messages
        self._iteration = iteration
        self._calls = tuple(_as_call(call) for call in calls)
        self._settled: list[ToolExecution | None] = [None] * len(calls)
        self._news: deque[ToolExecution] = deque()
        self._left = len(calls)
        self._waiter: asyncio.Future[None] | None = None
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._contexts: dict[int, ToolContext] = {}
        self._arguments: dict[int, dict[str, Any]] = {}
        self._gate = asyncio.Semaphore(executor.max_parallel) if len(calls) > executor.max_parallel else None
        loop = asyncio.get_running_loop()
        for index, call in enumerate(calls):
            checked = self._check(index, call)
            if checked is not None:
                task = loop.create_task(self._carry_out(index, *checked))
                self._tasks[task] = index
                task.add_done_callback(self._task_done)

    @property
    def executions(self) -> list[ToolExecution]:
        """What has settled, in call order; complete once the iteration has ended or ``stop()`` has returned."""
        return [execution for execution in self._settled if execution is not None]

    def __aiter__(self) -> Batch:
        return self

    async def __anext__(self) -> ToolExecution:
        """Return the next execution that settles."""
        while not self._news:
            if not self._left:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._news.popleft()

    async def stop(self) -> None:
        """Cancel what still runs, wait for it, and settle it as cancelled. Does nothing once all calls have settled."""
        if not self._left:
            return
        for context in self._contexts.values():
            context.cancelled.set()
        await _cancel(list(self._tasks), self._executor.cancel_grace)
        for index in range(len(self._calls)):
            if self._settled[index] is None:
                self._settle_cancelled(index)

    def _check(self, index: int, call: ToolCall | IncompleteCall) -> tuple[Tool, dict[str, Any]] | None:
        """Find the tool and check the arguments; what fails here settles at once, and nothing has run."""
        if isinstance(call, IncompleteCall):
            self._settle(index, IncompleteCallError(call.name[:_NAME_SHOWN]))
            return None
        try:
            tool = self._executor.find(call.name)
            return tool, tool.validate(call.raw_arguments, self._executor.validation)
        except Exception as error:  # noqa: BLE001  (a validator may run the caller's code: it is the call's failure, not the run's)
            self._settle(index, error)
            return None

    async def _carry_out(self, index: int, tool: Tool, arguments: dict[str, Any]) -> None:
        call = self._calls[index]
        context = ToolContext(call_id=call.id, name=call.name, messages=self._messages, iteration=self._iteration)
        self._contexts[index], self._arguments[index] = context, arguments
        if self._gate is not None:
            async with self._gate:
                await self._run(index, tool, arguments, context)
        else:
            await self._run(index, tool, arguments, context)

    async def _run(self, index: int, tool: Tool, arguments: dict[str, Any], context: ToolContext) -> None:
        limit = tool.timeout if tool.timeout is not None else self._executor.tool_timeout
        started = time.perf_counter()
        try:
            if limit is None:
                value = await tool.run(arguments, context)
            else:
                value = await _within(limit, tool, arguments, context, self._executor.cancel_grace)
        except asyncio.CancelledError:
            raise  # whether the run is being stopped or the tool raised it: _task_done settles the call
        except BaseException as error:  # (SystemExit too: a tool that calls sys.exit() must not end the host)
            if _is_users_interrupt(error):
                raise
            note = _THREAD_RUNS_ON if isinstance(error, ToolTimeoutError) and not tool.interruptible else ""
            self._settle(index, error, time.perf_counter() - started, note)
        else:
            seconds = time.perf_counter() - started
            result = ToolResult(call_id=context.call_id, name=tool.name, content=render_result(value))
            self._record(index, ToolExecution(self._calls[index], arguments, value, result, None, seconds))

    def _task_done(self, task: asyncio.Task[None]) -> None:
        index = self._tasks.pop(task, None)
        if index is None or self._settled[index] is not None:
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            self._settle(index, error)
        else:
            self._settle_cancelled(index)

    def _settle_cancelled(self, index: int) -> None:
        self._settle(index, asyncio.CancelledError())

    def _settle(self, index: int, error: BaseException, seconds: float = 0.0, note: str = "") -> None:
        """Record a failure, with what the model is told of it."""
        call = self._calls[index]
        if isinstance(error, ToolError):
            content, code = error.for_model, error.code
        elif isinstance(error, asyncio.CancelledError):
            content, code = f"Error: tool {call.name[:_NAME_SHOWN]!r} was cancelled before it finished.", "cancelled"
        else:
            content, code = render_error(call.name, error), ToolError.code
        result = ToolResult(call.id, call.name, well_formed(content + note), is_error=True, code=code)
        self._record(index, ToolExecution(call, self._arguments.get(index), None, result, error, seconds))

    def _record(self, index: int, execution: ToolExecution) -> None:
        if self._settled[index] is not None:
            return  # a tool that ignored its cancellation has ended after all: its call has its one result already
        self._settled[index] = execution
        self._news.append(execution)
        self._left -= 1
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def _within(limit: float, tool: Tool, arguments: dict[str, Any], context: ToolContext, grace: float) -> Any:
    """Run the tool for at most ``limit`` seconds; raises ToolTimeoutError, which a TimeoutError of the tool's own never is.

    The tool runs in a task of its own: one that ignores its cancellation cannot hold up the deadline for
    longer than ``grace``.
    """
    work = asyncio.get_running_loop().create_task(_awaited(tool, arguments, context))
    try:
        await asyncio.wait((work,), timeout=limit)
    except asyncio.CancelledError:
        await _cancel([work], grace)
        raise
    if work.done():
        return work.result()
    context.cancelled.set()
    await _cancel([work], grace)
    raise ToolTimeoutError(tool.name, limit=limit)


async def _awaited(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> Any:
    try:
        return await tool.run(arguments, context)
    except (SystemExit, KeyboardInterrupt) as error:
        if _is_users_interrupt(error):
            raise
        # Raised out of a task, it would stop the event loop itself.
        raise ToolError(f"tool {tool.name!r} failed: {type(error).__name__}: {error}", tool_name=tool.name) from error


def _is_users_interrupt(error: BaseException) -> bool:
    """Whether this is a Ctrl-C: those reach the main thread only, so in any other the tool raised it by itself."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


async def _cancel(tasks: list[asyncio.Task[Any]], grace: float) -> None:
    """Cancel ``tasks`` and wait until they have ended, but not longer than ``grace`` seconds."""
    for task in tasks:
        task.cancel()
    _, pending = await asyncio.wait(tasks, timeout=grace)
    for task in pending:
        _logger.warning("A tool ignored its cancellation for %s s and is left running: %r", grace, task)
        _left_running.add(task)
        task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _left_running.discard(task)
    if not task.cancelled():
        task.exception()  # looked at, so that asyncio does not report it as never retrieved


def _as_call(call: ToolCall | IncompleteCall) -> ToolCall:
    return call if isinstance(call, ToolCall) else ToolCall(call.id, call.name, call.raw_arguments)
