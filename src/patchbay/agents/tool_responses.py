"""Records the results of tool calls in a session's log as they settle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from patchbay.agents.base import InvocationContext
from patchbay.agents.content import Event, EventActions
from patchbay.agents.convert import result_parts
from patchbay.executor import ToolExecution
from patchbay.tools import ToolActions, merge_actions
from patchbay.tools.context import merge_change
from patchbay.tools.results import describe
from patchbay.types import ToolCall

_logger = logging.getLogger(__name__)


class ToolResponseRecorder:
    """Records the results of ``calls``: ``add`` takes each, ``flush`` returns when all of them are in the log."""

    def __init__(self, ctx: InvocationContext, calls: Sequence[ToolCall]) -> None:
        self._ctx = ctx
        self._places = {call.id: place for place, call in enumerate(calls)}
        self._executions: list[ToolExecution | None] = [None] * len(calls)
        self._waiting: list[int] = []
        self._unconfirmed: tuple[Event, dict[str, Any]] | None = None
        self._recorded: list[Event] = []
        self._changes: dict[str, Any] = {}
        self._handle: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self.actions = ToolActions()

    def add(self, execution: ToolExecution) -> None:
        """Add a call that has settled; calls that settle in the same iteration of the event loop are recorded together."""
        place = self._places[execution.call.id]
        self._executions[place] = execution
        self._waiting.append(place)
        if self._handle is None and (self._task is None or self._task.done()):
            # After two iterations of the event loop: a ``flush`` before that records them without an additional task.
            loop = asyncio.get_running_loop()
            self._handle = loop.call_soon(self._begin_soon, loop)

    async def flush(self) -> None:
        """Record what is not in the log yet. Raises what the session service raises; may be called again then."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._task is not None:
            # Not awaited itself: a cancellation of this would cancel it too, half way.
            await asyncio.wait((self._task,))
            self._task = None
        await self._record()

    @property
    def event(self) -> Event:
        """All responses as one event, in call order; complete once ``flush`` has returned."""
        if len(self._recorded) == 1:
            return self._recorded[0]
        # Not the actions' own changes: they were recorded with changes made by callbacks.
        delta = {key: value for event in self._recorded for key, value in event.actions.state_delta.items()}
        event = self._event([execution for execution in self._executions if execution is not None], delta)
        self._ctx.mark_recorded(event)
        return event

    def _begin_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = loop.call_soon(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = None
        self._task = loop.create_task(self._record_ahead())

    async def _record_ahead(self) -> None:
        """Record ahead of ``flush``, which tries again, and raises, what fails here."""
        try:
            await self._record()
        except Exception as error:  # noqa: BLE001  (a session service may raise anything)
            _logger.warning("The results of calls could not be recorded at once: %s", describe(error))

    async def _record(self) -> None:
        while self._waiting or self._unconfirmed is not None:
            if self._ctx.branch is None:
                changes, event = await self._record_next()
            else:
                async with self._ctx.shared.writing:  # a change that follows another needs its final values
                    changes, event = await self._record_next()
            self._changes.update(changes)
            self._recorded.append(event)

    async def _record_next(self) -> tuple[dict[str, Any], Event]:
        if self._unconfirmed is None:
            self._unconfirmed = self._next()
        # The same event on a second attempt: a service stores it once, even if the first attempt had stored it.
        event, changes = self._unconfirmed
        await self._ctx.record(event)
        self._unconfirmed = None
        return changes, event

    def _next(self) -> tuple[Event, dict[str, Any]]:
        """Return the event of what has settled and is not recorded, and its changes of the state."""
        places, self._waiting = sorted(self._waiting), []
        group = [execution for place in places if (execution := self._executions[place]) is not None]
        # The actions of all calls so far, in call order; those in the log already are not repeated.
        self.actions = merge_actions([execution for execution in self._executions if execution is not None])
        delta = self.actions.state_delta
        if not delta:
            return self._event(group, {}), {}
        changes = {key: value for key, value in delta.items() if key not in self._changes or self._changes[key] != value}
        return self._event(group, {key: self._merged(key, value) for key, value in changes.items()}), changes

    def _merged(self, key: str, value: Any) -> Any:
        """Return ``value`` merged with the changes of parallel branches, if it was changed and not assigned."""
        if key not in self.actions.state_found or value is None:
            return value
        found = self._changes.get(key, self.actions.state_found[key])
        now = self._ctx.session.state.get(key)
        return value if now is None or found is None else merge_change(now, found, value)

    def _event(self, executions: Sequence[ToolExecution], delta: dict[str, Any]) -> Event:
        parts = [part for execution in executions for part in result_parts(execution)]
        actions = EventActions(delta, transfer_to_agent=self.actions.transfer_to_agent, escalate=self.actions.escalate)
        return self._ctx.event(parts, role="user", actions=actions)
