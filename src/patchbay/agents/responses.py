"""The results of one reply's calls on their way into the log: each at once, together where they settle together.

A call's result is recorded the moment it has settled, whoever is slow to take the run's events, so that a killed run loses none
(law 3). To whom the run is told they are one event, in call order. In the log they stand as they settled, and a view puts
them in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from patchbay.agents.content import Event, EventActions
from patchbay.agents.context import InvocationContext
from patchbay.agents.messages import result_parts
from patchbay.executor import ToolExecution
from patchbay.tools import ToolActions, merge_actions
from patchbay.tools.actions import on_top
from patchbay.tools.results import describe
from patchbay.types import ToolCall

_logger = logging.getLogger(__name__)


class Responses:
    """Records what becomes of ``calls``; ``settled`` is told of each, ``flush`` returns when all of them are in the log."""

    def __init__(self, ctx: InvocationContext, calls: Sequence[ToolCall]) -> None:
        self._ctx = ctx
        self._places = {call.id: place for place, call in enumerate(calls)}
        self._executions: list[ToolExecution | None] = [None] * len(calls)
        self._waiting: list[int] = []
        self._writing: tuple[Event, dict[str, Any]] | None = None
        self._recorded: list[Event] = []
        self._written: dict[str, Any] = {}
        self._handle: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self.actions = ToolActions()

    def settled(self, execution: ToolExecution) -> None:
        """Take up a call that has settled; it is written with those that settle in the same breath."""
        place = self._places[execution.call.id]
        self._executions[place] = execution
        self._waiting.append(place)
        if self._handle is None and (self._task is None or self._task.done()):
            # Two rounds of the event loop: who waits for all of them may then write them without a task of their own.
            loop = asyncio.get_running_loop()
            self._handle = loop.call_soon(self._soon, loop)

    async def flush(self) -> None:
        """Write what has not been written, and wait until it is. Raises what the session service does, and may be tried again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._task is not None:
            # Not awaited itself: who is cancelled here would cancel it, half way.
            await asyncio.wait((self._task,))
            self._task = None
        await self._write()

    @property
    def event(self) -> Event:
        """All responses as one event, in call order; None of them is left out once ``flush`` has returned."""
        if len(self._recorded) == 1:
            return self._recorded[0]
        # Not the actions' own changes: those of callbacks went into the log with them.
        delta = {key: value for event in self._recorded for key, value in event.actions.state_delta.items()}
        event = self._event([execution for execution in self._executions if execution is not None], delta)
        self._ctx.told(event)
        return event

    def _soon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = loop.call_soon(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = None
        self._task = loop.create_task(self._write_ahead())

    async def _write_ahead(self) -> None:
        """Write before anybody waits for it; what fails here is tried again by ``flush``, which somebody hears of."""
        try:
            await self._write()
        except Exception as error:  # noqa: BLE001  (a service fails as it likes)
            _logger.warning("The results of calls could not be recorded at once: %s", describe(error))

    async def _write(self) -> None:
        while self._waiting or self._writing is not None:
            if self._ctx.branch is None:
                news, event = await self._written_one()
            else:
                async with self._ctx.shared.writing:  # what is changed on top of others' changes is to be what they made
                    news, event = await self._written_one()
            self._written.update(news)
            self._recorded.append(event)

    async def _written_one(self) -> tuple[dict[str, Any], Event]:
        if self._writing is None:
            self._writing = self._next()
        # The same event where it is tried again: a service keeps it once, also if it had kept it and could not say so.
        event, news = self._writing
        await self._ctx.record(event)
        self._writing = None
        return news, event

    def _next(self) -> tuple[Event, dict[str, Any]]:
        """Return the event of what has settled and is not written, and what it changes in the state."""
        places, self._waiting = sorted(self._waiting), []
        group = [execution for place in places if (execution := self._executions[place]) is not None]
        # What all calls so far ask for, in call order; what of it is in the log already need not be said again.
        self.actions = merge_actions([execution for execution in self._executions if execution is not None])
        delta = self.actions.state_delta
        if not delta:
            return self._event(group, {}), {}
        news = {key: value for key, value in delta.items() if key not in self._written or self._written[key] != value}
        return self._event(group, {key: self._on_others(key, value) for key, value in news.items()}), news

    def _on_others(self, key: str, value: Any) -> Any:
        """Return ``value`` on top of what parallel branches have made of the key, where it was changed and not assigned."""
        if key not in self.actions.state_found or value is None:
            return value
        found = self._written.get(key, self.actions.state_found[key])
        now = self._ctx.session.state.get(key)
        return value if now is None or found is None else on_top(now, found, value)

    def _event(self, executions: Sequence[ToolExecution], delta: dict[str, Any]) -> Event:
        parts = [part for execution in executions for part in result_parts(execution)]
        actions = EventActions(delta, transfer_to_agent=self.actions.transfer_to_agent, escalate=self.actions.escalate)
        return self._ctx.event(parts, role="user", actions=actions)
