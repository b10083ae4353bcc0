"""What every agent is: a name in a tree, callbacks around its work, and errors that become its last event."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, ClassVar

from patchbay.agents import topics
from patchbay.agents.callbacks import Callbacks, as_callbacks, ask
from patchbay.agents.content import Content, Event, EventActions, Part
from patchbay.agents.context import InvocationContext, RunFailed, callback_errors, events_within_time, within_time
from patchbay.errors import ConfigurationError, InvalidRequestError, PatchbayError
from patchbay.tools.results import describe

_logger = logging.getLogger(__name__)


USER = "user"
"""The author of what the user says; no agent may be called so."""


class BaseAgent:
    """An agent: write ``_run_async_impl(ctx)``, an async generator of events.

    ``name`` is an identifier, unique in its tree. An agent has one parent at most (``parent_agent``). What
    ``before_agent_callback(ctx)`` returns (a Content or text) is said in the agent's place; what ``after_agent_callback(ctx)``
    returns is said after it, unless the agent has failed. What a subclass declares (``key: str``, ``limit: int = 3``) is taken by
    keyword; it is not checked. Raises ConfigurationError for a name or a tree that cannot work,
    TypeError for what is no agent.
    """

    keeps_time: ClassVar[bool] = False
    """Whether ``_run_async_impl`` ends by itself when the run's time is up; otherwise it is stopped then."""

    def __init__(
        self,
        *,
        name: str,
        description: str = "",
        sub_agents: Sequence[BaseAgent] = (),
        before_agent_callback: Callbacks = None,
        after_agent_callback: Callbacks = None,
        **fields: Any,
    ) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ConfigurationError(f"An agent's name must be an identifier (letters, digits, _), not {name!r}.")
        if name == USER:
            raise ConfigurationError(f"No agent may be called {USER!r}: that is who writes the user's messages.")
        self.name = name
        self.description = description
        self.parent_agent: BaseAgent | None = None
        self.sub_agents: list[BaseAgent] = list(sub_agents)
        self.before_agent_callback = as_callbacks(before_agent_callback, "before_agent_callback")
        self.after_agent_callback = as_callbacks(after_agent_callback, "after_agent_callback")
        self._set_fields(fields)
        self._adopt()

    def _set_fields(self, fields: dict[str, Any]) -> None:
        """Set what subclasses have declared, each agent its own copy of a default. Raises TypeError."""
        declared: dict[str, None] = {}
        for kind in reversed(type(self).__mro__):
            if issubclass(kind, BaseAgent) and not kind.__module__.startswith("patchbay."):
                declared |= {name: None for name, hint in inspect.get_annotations(kind).items() if "ClassVar" not in str(hint)}
        if unknown := [name for name in fields if name not in declared]:
            raise TypeError(f"{type(self).__name__} has no parameter {unknown[0]!r}; a subclass may declare one as a field.")
        for name in declared:
            if name in vars(self):
                continue  # one of this class's own, declared again
            if name in fields:
                setattr(self, name, fields[name])
            elif hasattr(type(self), name):
                setattr(self, name, copy.copy(getattr(type(self), name)))
            elif type(self).__init__.__module__.startswith("patchbay."):  # else its own __init__ may set it
                raise TypeError(f"{type(self).__name__} needs {name!r}, which it declares without a default.")

    @property
    def root_agent(self) -> BaseAgent:
        """The agent at the top of the tree."""
        agent = self
        while agent.parent_agent is not None:
            agent = agent.parent_agent
        return agent

    def find_agent(self, name: str) -> BaseAgent | None:
        """Return the agent of this name in the whole tree, or None."""
        return next((agent for agent in self.root_agent.walk() if agent.name == name), None)

    def find_sub_agent(self, name: str) -> BaseAgent | None:
        """Return the agent of this name below this one, or None."""
        return next((agent for agent in self.walk() if agent.name == name and agent is not self), None)

    def walk(self) -> Iterator[BaseAgent]:
        """Yield this agent and all below it, each before its own."""
        yield self
        for agent in self.sub_agents:
            yield from agent.walk()

    def run_async(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """Work, as events; each is in the session's log when it is yielded. What goes wrong is an event with ``error_code``."""
        return self.events(ctx.child(self))

    async def events(self, ctx: InvocationContext, *, bug: tuple[str, str] = ("AGENT_ERROR", "")) -> AsyncGenerator[Event, None]:
        """Do as ``run_async`` in a context of the agent's own; ``bug`` is the code of what it raises, and words before it."""
        try:
            if self.before_agent_callback:
                if (said := await _callback_event(self.before_agent_callback, ctx)) is not None:
                    yield said
                    return
                if (changed := await _record_changes(ctx)) is not None:
                    yield changed  # at once: the instruction and the sub-agents are to see it
                if ctx.end_invocation:
                    return
            work = self._run_async_impl(ctx)
            events = work if self.keeps_time else events_within_time(ctx.budget, work)
            recorded = ctx.shared.recorded
            try:
                async for event in events:
                    if event.id not in recorded:
                        await ctx.record(event)
                    yield event
            finally:
                await events.aclose()
            if self.after_agent_callback and (said := await _callback_event(self.after_agent_callback, ctx)) is not None:
                yield said
            if (changed := await _record_changes(ctx)) is not None:
                yield changed
            return
        except (Exception, asyncio.CancelledError) as error:
            if is_being_stopped(error):
                raise
            failure = _error_event(ctx, error, *bug)
        try:
            await ctx.record(failure)
        except InvalidRequestError:  # what a callback gave as a code or as content cannot be kept
            failure = ctx.error(str(failure.error_code), str(failure.error_message))
            await ctx.record(failure)
        await ctx.publish(topics.AGENT_ERROR, {"agent": self.name, "error": failure.error_code, "message": failure.error_message})
        yield failure

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """Work, as events; they are recorded as they are yielded. Overridden by every kind of agent."""
        raise NotImplementedError(f"{type(self).__name__} must write _run_async_impl.")

    def _adopt(self) -> None:
        for agent in self.sub_agents:
            if not isinstance(agent, BaseAgent):
                raise TypeError(f"sub_agents of {self.name!r} must be agents, not {type(agent).__name__}.")
            if agent.parent_agent is not None:
                raise ConfigurationError(
                    f"The agent {agent.name!r} has a parent already, {agent.parent_agent.name!r}: make another one."
                )
        names: set[str] = set()
        for agent in self.walk():
            if agent.name in names:
                raise ConfigurationError(f"Two agents of one tree are named {agent.name!r}: nobody could tell them apart.")
            names.add(agent.name)
        for agent in self.sub_agents:
            agent.parent_agent = self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def as_content(said: Any) -> Content | None:
    """Return what a callback or a user said as a Content: None, text, or one already. Raises TypeError for anything else."""
    if said is None or isinstance(said, Content):
        return said
    if isinstance(said, str):
        return Content("model", [Part(said)])
    raise TypeError(f"A Content or a text was expected, not {type(said).__name__}.")


def is_being_stopped(error: BaseException) -> bool:
    """Whether this is the cancellation of the run, and not one that an agent's own code raised."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


def _error_event(ctx: InvocationContext, error: BaseException, code: str, words: str) -> Event:
    if isinstance(error, RunFailed):
        failure = error.event if error.event is not None else ctx.event()
        failure.error_code, failure.error_message = error.code, str(error)
        return failure
    _logger.error("The agent %r failed", ctx.agent.name, exc_info=error)
    return ctx.error(error.code.upper() if isinstance(error, PatchbayError) else code, words + describe(error))


async def _callback_event(callbacks: Callbacks, ctx: InvocationContext) -> Event | None:
    """Return what a callback says, as an event in the log; None where it says nothing. Raises RunFailed."""
    with callback_errors():
        content = as_content(await within_time(ctx.budget, lambda: ask(callbacks, ctx)))
    if content is None:
        return None
    event = ctx.event()
    event.content = content
    await ctx.record(event)
    return event


async def _record_changes(ctx: InvocationContext) -> Event | None:
    """Return the changes of the state that are in no event yet, as one in the log; None where there are none."""
    changes = ctx.take_changes()
    if not changes:
        return None
    event = ctx.event(actions=EventActions(changes))
    await ctx.record(event)
    return event
