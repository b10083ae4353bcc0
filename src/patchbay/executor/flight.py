"""The way of one call: before -> frozen -> a slot -> run under its deadline -> after -> settle.

What lives here: that line, once. What does not: when it begins and who else is under way (``batch``), and what a failure is told
as (``settle``).
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from patchbay.errors import RepeatedCallError
from patchbay.executor.execution import ToolExecution
from patchbay.executor.freeze import frozen_copy
from patchbay.executor.hooks import first_answer, passed_through
from patchbay.executor.slots import Slots
from patchbay.tools import Tool
from patchbay.tools.context import Progress, ToolContext
from patchbay.types import Attachment, ToolCall, ToolResult

if TYPE_CHECKING:
    from patchbay.executor.batch import Batch


class Flight:
    """One call on its way. ``given`` is what its tool was given (None: it has not begun), ``ending`` why it is being stopped."""

    __slots__ = (
        "_arguments", "_batch", "_ended", "_started",
        "call", "context", "ending", "given", "grace", "index", "slots", "task", "tool",
    )  # fmt: skip

    def __init__(self, batch: Batch, index: int, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> None:
        self._batch = batch
        self._arguments = arguments
        self._started = self._ended = 0.0
        self.index = index
        self.call = call
        self.tool = tool
        self.slots = Slots(tool, batch.run.slots)
        self.given: dict[str, Any] | None = None
        self.context: ToolContext | None = None
        self.ending: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.grace: asyncio.TimerHandle | None = None

    @property
    def has_run(self) -> bool:
        """Whether the tool has ended, and ended well."""
        return self._ended > 0

    @property
    def seconds(self) -> float:
        """How long the tool has run."""
        return (self._ended or time.perf_counter()) - self._started if self._started else 0.0

    async def carry_out(self) -> None:
        """Go the whole way. Whatever happens becomes the call's result, but for what the batch settles itself: a cancellation."""
        batch = self._batch
        run = batch.run
        self.context = ToolContext(
            call_id=self.call.id,
            name=self.call.name,
            raw_arguments=self.call.raw_arguments,
            messages=batch.messages,
            iteration=batch.iteration,
            surroundings=batch.surroundings,
            on_progress=self._tell,
        )
        try:
            value = await self._value(self.context)
            self._go_on()
            content: str
            attachments: tuple[Attachment, ...] = ()
            if type(value) is str and run.is_short(value):
                content = value
            else:
                content, attachments = await run.rendered(value)
                self._go_on()
            actions = self.context.outcome()
            if actions and (check := batch.surroundings.check) is not None:
                check(actions)
        except asyncio.CancelledError:
            self.context.stop()  # for a thread, also where the task was cancelled by somebody else
            raise  # by the tool, or because it is being stopped: that is seen when this task has ended
        except BaseException as error:  # (SystemExit too: a tool that calls sys.exit() must not end the host)
            if is_users_interrupt(error):
                raise
            batch.fail(self, self.ending or error)
            return
        result = ToolResult(self.call.id, self.tool.name, content, attachments=attachments)
        batch.settle(self, ToolExecution(self.call, self.given, value, result, None, self.seconds, actions))

    def stop(self) -> None:
        """Tell the tool, and cancel the task."""
        if self.context is not None:
            self.context.stop()
        if self.task is not None:
            self.task.cancel()

    def _tell(self, progress: Progress) -> None:
        self._batch.tell(self, progress)

    def _go_on(self) -> None:
        """Raise CancelledError if the call is being stopped, and whatever was awaited has swallowed that."""
        if self.ending is not None:
            raise asyncio.CancelledError

    async def _value(self, context: ToolContext) -> Any:
        run, call, tool, arguments = self._batch.run, self.call, self.tool, self._arguments
        executor = run.executor
        if executor.max_repeats is not None and (times := run.repeats.times(call)) >= executor.max_repeats:
            raise RepeatedCallError(tool.name, times=times)
        if executor.before and (answer := await first_answer(executor.before, call, tool, arguments, context)) is not None:
            return answer
        # From here on the arguments are what they are: hooks keep theirs, the tool gets its own, the record keeps a third.
        hooked = executor.before or executor.after
        mine = frozen_copy(arguments) if hooked else arguments
        self._go_on()
        try:
            if not self.slots.take_now():
                await self.slots.take()
            value = await self._run(mine, context)
        finally:
            self.slots.free()
        self._go_on()
        if executor.after:
            value = await passed_through(executor.after, call, tool, arguments, context, value=value)
        return value

    async def _run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        limit = self.tool.timeout if self.tool.timeout is not None else self._batch.run.tool_timeout
        timer = self._batch.limit(self, limit) if limit is not None else None
        self.given = frozen_copy(arguments)
        self._started = time.perf_counter()
        try:
            value = await self.tool.run(arguments, context)
        finally:
            if timer is not None:
                timer.cancel()
        self._ended = time.perf_counter()
        return value


def is_users_interrupt(error: BaseException) -> bool:
    """Whether this is a Ctrl-C: those reach the main thread only, so in any other the tool raised it by itself."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
