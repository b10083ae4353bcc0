"""Agents made of agents: one after the other, again and again, side by side.

What goes wrong in a child is an event with ``error_code``; it ends the sequence or the loop, and leaves its siblings side by side
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from patchbay.agents.base import BaseAgent, InvocationContext
from patchbay.agents.content import Event
from patchbay.executor.callbacks import Callbacks
from patchbay.executor.limits import checked_count
from patchbay.tools import ToolContext

_WAITING = 100
"""How many events of parallel branches wait for a consumer that is busy; then the branches wait too."""


def exit_loop(tool_context: ToolContext) -> None:
    """End the loop: its goal is reached."""
    tool_context.actions.escalate = True


class SequentialAgent(BaseAgent):
    """Runs its sub-agents in order. After a child that escalates, or fails, the rest is not run."""

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
    """Runs its sub-agents in order, again and again, ``max_iterations`` times (None: until one of them ends it).

    A child that escalates ends the loop when it has finished, and the loop alone: what is around it goes on. A child that fails
    ends the loop too. Raises ConfigurationError for ``max_iterations`` below 1.
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
                            ctx.shared.escalations_met.add(event.id)
                        yield event
                if is_over or ctx.end_invocation:
                    return


class ParallelAgent(BaseAgent):
    """Runs its sub-agents at the same time, each on a branch of its own: it sees what was said before, and not its siblings.

    Their events come as they happen. What a child raises becomes the event PARALLEL_ERROR; whatever goes wrong in one, the others
    go on. The limits of the run are for all of them together.
    """

    keeps_time = True

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        told: asyncio.Queue[Event | None] = asyncio.Queue()
        room = asyncio.Semaphore(_WAITING)
        tasks = [asyncio.create_task(self._branch(ctx, agent, told, room)) for agent in self.sub_agents]
        try:
            running = len(tasks)
            while running:
                event = await told.get()
                if event is None:
                    running -= 1
                else:
                    room.release()
                    yield event
            await asyncio.gather(*tasks)  # what no branch could tell as an event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _branch(
        self, ctx: InvocationContext, agent: BaseAgent, told: asyncio.Queue[Event | None], room: asyncio.Semaphore
    ) -> None:
        """Run one child; the last thing told is None."""
        mine = ctx.child(agent, branch=f"{self.name}.{agent.name}")
        try:
            async with aclosing(agent.events(mine, bug=("PARALLEL_ERROR", f"Sub-agent {agent.name!r} failed: "))) as events:
                async for event in events:
                    told.put_nowait(event)  # before any wait for room: events are told in the order of the log
                    await room.acquire()
        finally:
            told.put_nowait(None)


def _ends(ctx: InvocationContext, event: Event) -> bool:
    """Whether a child's event ends what runs it: it escalates (and no loop inside was meant), or says what went wrong."""
    if event.partial:
        return False
    if event.error_code is not None:
        return True
    return bool(event.actions.escalate) and event.id not in ctx.shared.escalations_met
