"""Agents made of agents: in sequence, in a loop, in parallel.

A child's failure is an event with ``error_code``; it ends a sequence or a loop, but not parallel siblings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from patchbay.agents.base import BaseAgent, InvocationContext
from patchbay.agents.content import Event
from patchbay.executor.callbacks import Callbacks
from patchbay.tools import ToolContext
from patchbay.tools.tool import checked_count

_WAITING = 100
"""The most events of parallel branches that wait for a busy consumer; then the branches wait too."""


def exit_loop(tool_context: ToolContext) -> None:
    """End the loop: its goal is reached."""
    tool_context.actions.escalate = True


class SequentialAgent(BaseAgent):
    """Runs its sub-agents in order, until one escalates or fails."""

    keeps_time = True

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        for agent in self.sub_agents:
            is_over = False
            async with aclosing(agent.run_async(ctx)) as events:
                async for event in events:
                    is_over = is_over or _ends(ctx, event)
                    yield event
            if is_over or ctx.end_invocation:
                return


class LoopAgent(BaseAgent):
    """Runs its sub-agents in order, ``max_iterations`` times (None: until one of them ends the loop).

    A child that escalates or fails ends the loop when it has finished; an escalation does not reach the agents around the loop.
    Raises ConfigurationError for ``max_iterations`` below 1.
    """

    keeps_time = True

    def __init__(
        self,
        *,
        name: str,
        description: str = "",
        sub_agents: Sequence[BaseAgent] = (),
        max_iterations: int | None = 10,
        before_agent_callback: Callbacks = None,
        after_agent_callback: Callbacks = None,
        **fields: Any,
    ) -> None:
        self.max_iterations = checked_count(max_iterations, "max_iterations")
        super().__init__(
            name=name,
            description=description,
            sub_agents=sub_agents,
            before_agent_callback=before_agent_callback,
            after_agent_callback=after_agent_callback,
            **fields,
        )

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        rounds = 0
        while self.sub_agents and (self.max_iterations is None or rounds < self.max_iterations):
            rounds += 1
            for agent in self.sub_agents:
                is_over = False
                async with aclosing(agent.run_async(ctx)) as events:
                    async for event in events:
                        if _ends(ctx, event):
                            is_over = True
                            ctx.shared.handled_escalations.add(event.id)
                        yield event
                if is_over or ctx.end_invocation:
                    return


class ParallelAgent(BaseAgent):
    """Runs its sub-agents in parallel, each on its own branch: it sees earlier events, but not those of its siblings.

    Their events are yielded as they happen. A child's exception becomes the event PARALLEL_ERROR, and the others go on. All of
    them share the limits of the run.
    """

    keeps_time = True

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        places = asyncio.Semaphore(_WAITING)
        tasks = [asyncio.create_task(self._branch(ctx, agent, queue, places)) for agent in self.sub_agents]
        try:
            running = len(tasks)
            while running:
                event = await queue.get()
                if event is None:
                    running -= 1
                else:
                    places.release()
                    yield event
            await asyncio.gather(*tasks)  # raises errors that are no event of a branch
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _branch(
        self, ctx: InvocationContext, agent: BaseAgent, queue: asyncio.Queue[Event | None], places: asyncio.Semaphore
    ) -> None:
        """Run one child, and queue its events and a final None."""
        child = ctx.child(agent, branch=f"{self.name}.{agent.name}")
        try:
            async with aclosing(
                agent.events(child, unexpected=("PARALLEL_ERROR", f"Sub-agent {agent.name!r} failed: "))
            ) as events:
                async for event in events:
                    queue.put_nowait(event)  # before the wait, to keep the order of the log
                    await places.acquire()
        finally:
            queue.put_nowait(None)


def _ends(ctx: InvocationContext, event: Event) -> bool:
    """Whether a child's event ends the sequence or loop: an error, or an escalation that no inner loop has handled."""
    if event.partial:
        return False
    if event.error_code is not None:
        return True
    return bool(event.actions.escalate) and event.id not in ctx.shared.handled_escalations
