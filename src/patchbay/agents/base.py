"""The base of all agents, and the context of a run that agents, callbacks and tools share."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from patchbay.agents.content import Content, Event, EventActions, Part, new_id
from patchbay.agents.event_bus import BusEvent, EventBus
from patchbay.agents.run_config import RunConfig, RunFailed, callback_errors, events_within_time, within_time
from patchbay.agents.sessions.base import BaseSessionService
from patchbay.agents.sessions.log import Session
from patchbay.errors import ConfigurationError, InvalidRequestError, PatchbayError
from patchbay.executor import Budget
from patchbay.executor.callbacks import Callbacks, as_callbacks, first_answer
from patchbay.tools import State
from patchbay.tools.results import describe
from patchbay.types import NO_USAGE, Usage

if TYPE_CHECKING:
    from patchbay.agents.durable.steps import RunSteps
    from patchbay.hooks import HookManager, HookScope
    from patchbay.media import MediaStore

_logger = logging.getLogger(__name__)
_MISSING: Final = object()


USER = "user"
"""The author of the user's messages; no agent may have this name."""


@dataclass
class Shared:
    """The state that all agents of one run share."""

    budget: Budget
    usage: Usage = NO_USAGE
    ended: bool = False
    recorded: set[str] = field(default_factory=set)
    """The ids of events in the log."""
    handled_escalations: set[str] = field(default_factory=set)
    """The ids of events that have ended a loop."""
    call_ids: set[str] = field(default_factory=set)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The lock of parallel branches that compute and record changes of the state."""
    turns: int = 0
    """The number of turns of the agents."""
    tools: int = 0
    """The most tools that one of the agents has."""
    rewound: bool = False
    """Whether a hook has hidden the run from models."""


@dataclass(kw_only=True, eq=False, repr=False)
class InvocationContext:
    """The context of one run for one agent: callbacks get it as ``ctx``, tools as ``tool_context.invocation_context``."""

    agent: BaseAgent
    session: Session
    """Only read it; a callback's changes of ``state`` are recorded with the agent's next event."""
    session_service: BaseSessionService
    invocation_id: str
    """The run's."""
    run_config: RunConfig
    shared: Shared
    user_content: Content | None = None
    bus: EventBus | None = None
    hooks: HookManager | None = None
    """The hooks of the run's turns."""
    hook_scope: HookScope | None = None
    """Identifies the run to hooks."""
    media: MediaStore | None = None
    """The store of results' files, None for the process's own."""
    steps: RunSteps | None = None
    """The recorded steps of a durable run."""
    owner_key: str | None = None
    """The ``Session.key`` of the caller's session, in a run of an agent as a tool."""
    branch: str | None = None
    """The path through parallel agents, None outside of them."""
    _state: State | None = field(default=None, init=False)

    @property
    def state(self) -> State:
        """The session's state; changes are recorded with the agent's next event."""
        if self._state is None:
            self._state = State(self.session.state)
        return self._state

    @property
    def agent_name(self) -> str:
        """The agent's name."""
        return self.agent.name

    @property
    def app_name(self) -> str:
        """The session's application."""
        return self.session.app_name

    @property
    def user_id(self) -> str:
        """The session's user."""
        return self.session.user_id

    @property
    def session_key(self) -> str:
        """The key of the session that the run's files belong to."""
        return self.owner_key if self.owner_key is not None else self.session.key

    @property
    def budget(self) -> Budget:
        """The limits of the run, shared by all its agents."""
        return self.shared.budget

    @property
    def llm_call_count(self) -> int:
        """The number of requests to models in this run."""
        return self.shared.budget.iterations

    @property
    def usage(self) -> Usage:
        """The tokens that the run has used, over all agents."""
        return self.shared.usage

    @property
    def end_invocation(self) -> bool:
        """Whether the run ends after the current step; may be set."""
        return self.shared.ended

    @end_invocation.setter
    def end_invocation(self, ended: bool) -> None:
        self.shared.ended = ended

    def child(self, agent: BaseAgent, *, branch: str | None = None) -> InvocationContext:
        """Return the context of the same run for ``agent``; ``branch`` is appended to the path through parallel agents."""
        child = copy.copy(self)
        child.agent = agent
        child._state = None  # noqa: SLF001  (its own changes)
        if branch is not None:
            child.branch = branch if self.branch is None else f"{self.branch}.{branch}"
        return child

    def turn_scope(self, model: str) -> HookScope | None:
        """Return the hook scope of a turn of this agent that begins now; None without hooks."""
        if self.hooks is None or self.hook_scope is None:
            return None
        self.shared.turns += 1
        given, number = self.hook_scope.turn_id, self.shared.turns
        turn_id = (given if number == 1 else f"{given}.{number}") if given else new_id()
        return replace(self.hook_scope, agent_id=self.agent.name, turn_id=turn_id, model=model)

    def event(
        self, parts: list[Part] | None = None, *, role: str = "model", actions: EventActions | None = None, **about: Any
    ) -> Event:
        """Return an event of this agent in this run."""
        return Event(
            author=self.agent.name,
            invocation_id=self.invocation_id,
            branch=self.branch,
            content=None if parts is None else Content(role, parts),
            actions=actions if actions is not None else EventActions(),
            **about,
        )

    def error(self, code: str, message: str) -> Event:
        """Return the last event of a run without an answer."""
        return self.event(error_code=code, error_message=message)

    async def record(self, event: Event) -> None:
        """Append ``event`` to the session's log, with the changes of ``state`` since the last one.

        Ignores partial events, and those recorded already. Raises the session service's errors.
        """
        recorded = self.shared.recorded
        if event.partial or event.id in recorded:
            return
        if not event.invocation_id:
            event.invocation_id = self.invocation_id
        if event.branch is None:
            event.branch = self.branch
        if self._state is not None and (changes := self._state.take_delta()):
            event.actions.state_delta = {**changes, **event.actions.state_delta}
        await self.session_service.append_event(self.session, event)
        recorded.add(event.id)

    def take_changes(self) -> dict[str, Any]:
        """Return the changes of ``state`` that are in no event yet; the caller records them."""
        return self._state.take_delta() if self._state is not None else {}

    def mark_recorded(self, event: Event) -> None:
        """Mark ``event`` as recorded: the log has its content already, in other events."""
        self.shared.recorded.add(event.id)

    async def publish(self, topic: str, data: Mapping[str, Any]) -> None:
        """Publish on the bus, if there is one."""
        if self.bus is not None:
            await self.bus.publish(BusEvent(topic, dict(data), source=self.agent.name))


CallbackContext = ReadonlyContext = InvocationContext
"""The context's names in annotations of callbacks and instruction functions."""


class BaseAgent:
    """An agent: write ``_run_async_impl(ctx)``, an async generator of events.

    ``name`` is an identifier, unique in its tree. An agent has at most one parent (``parent_agent``). If
    ``before_agent_callback(ctx)`` returns a Content or text, that replaces the agent's run; what ``after_agent_callback(ctx)``
    returns is added after it, unless the agent has failed. Fields that a subclass declares (``key: str``, ``limit: int = 3``) are
    keyword parameters; their types are not checked. Raises ConfigurationError for an invalid name or tree, TypeError for anything
    but agents.
    """

    keeps_time: ClassVar[bool] = False
    """Whether ``_run_async_impl`` ends by itself when the run's time is up; otherwise it is stopped."""

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
            raise ConfigurationError(f"No agent may be named {USER!r}: that is the author of the user's messages.")
        self.name = name
        self.description = description
        self.parent_agent: BaseAgent | None = None
        self.sub_agents: list[BaseAgent] = list(sub_agents)
        self.before_agent_callback = as_callbacks(before_agent_callback, "before_agent_callback")
        self.after_agent_callback = as_callbacks(after_agent_callback, "after_agent_callback")
        self._set_fields(fields)
        self._adopt()

    def _set_fields(self, fields: dict[str, Any]) -> None:
        """Set the fields that subclasses have declared, with a copy of each default. Raises TypeError."""
        declared: dict[str, None] = {}
        for kind in reversed(type(self).__mro__):
            if issubclass(kind, BaseAgent) and not kind.__module__.startswith("patchbay."):
                declared |= {name: None for name, hint in inspect.get_annotations(kind).items() if "ClassVar" not in str(hint)}
        if unknown := [name for name in fields if name not in declared]:
            raise TypeError(f"{type(self).__name__} has no parameter {unknown[0]!r}; a subclass may declare one as a field.")
        for name in declared:
            if name in vars(self):
                continue  # an attribute of this class, declared again
            if name in fields:
                setattr(self, name, fields[name])
            elif (default := _default_of(getattr(type(self), name, _MISSING))) is not _MISSING:
                setattr(self, name, default)
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
        """Yield this agent and all below it, parents first."""
        yield self
        for agent in self.sub_agents:
            yield from agent.walk()

    def run_async(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """Run the agent and yield events, each recorded before it is yielded. A failure is an event with ``error_code``."""
        return self.events(ctx.child(self))

    async def events(
        self, ctx: InvocationContext, *, unexpected: tuple[str, str] = ("AGENT_ERROR", "")
    ) -> AsyncGenerator[Event, None]:
        """Run the agent in its own context; ``unexpected`` is the code of its exceptions, and the prefix of their messages."""
        try:
            if self.before_agent_callback:
                if (answer := await _callback_event(self.before_agent_callback, ctx)) is not None:
                    yield answer
                    return
                if (changed := await _record_changes(ctx)) is not None:
                    yield changed  # now, so that the instruction and the sub-agents see the changes
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
            if self.after_agent_callback and (answer := await _callback_event(self.after_agent_callback, ctx)) is not None:
                yield answer
            if (changed := await _record_changes(ctx)) is not None:
                yield changed
            return
        except (Exception, asyncio.CancelledError) as error:
            if is_being_stopped(error):
                raise
            failure = _error_event(ctx, error, *unexpected)
        try:
            await ctx.record(failure)
        except InvalidRequestError:  # a callback's code or content cannot be stored
            failure = ctx.error(str(failure.error_code), str(failure.error_message))
            await ctx.record(failure)
        await ctx.publish("agent.error", {"agent": self.name, "error": failure.error_code, "message": failure.error_message})
        yield failure

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """Run and yield events, which are recorded when they are yielded. Overridden by every kind of agent."""
        raise NotImplementedError(f"{type(self).__name__} must implement _run_async_impl.")

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
                raise ConfigurationError(f"Two agents of one tree are named {agent.name!r}: names must be unique.")
            names.add(agent.name)
        for agent in self.sub_agents:
            agent.parent_agent = self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def _default_of(declared: Any) -> Any:
    """Return a copy of the default of a declared field, as dataclasses and pydantic write it too; _MISSING if it has none."""
    if declared is _MISSING:
        return _MISSING
    if isinstance(declared, Field):
        if declared.default_factory is not MISSING:
            return declared.default_factory()
        declared = _MISSING if declared.default is MISSING else declared.default
    elif type(declared).__module__ == "pydantic.fields":
        if declared.is_required():
            return _MISSING
        declared = declared.get_default(call_default_factory=True)
    return declared if declared is _MISSING else copy.copy(declared)


def as_content(value: Any) -> Content | None:
    """Return a Content, None, or a text as a Content. Raises TypeError for anything else."""
    if value is None or isinstance(value, Content):
        return value
    if isinstance(value, str):
        return Content("model", [Part(value)])
    raise TypeError(f"A Content or a text was expected, not {type(value).__name__}.")


def is_being_stopped(error: BaseException) -> bool:
    """Whether this is the cancellation of the run, and not one that an agent's code raised."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


def _error_event(ctx: InvocationContext, error: BaseException, code: str, prefix: str) -> Event:
    if isinstance(error, RunFailed):
        failure = error.event if error.event is not None else ctx.event()
        failure.error_code, failure.error_message = error.code, str(error)
        return failure
    _logger.error("The agent %r failed", ctx.agent.name, exc_info=error)
    return ctx.error(error.code.upper() if isinstance(error, PatchbayError) else code, prefix + describe(error))


async def _callback_event(callbacks: Callbacks, ctx: InvocationContext) -> Event | None:
    """Return the recorded event of a callback's content; None if it returns none. Raises RunFailed."""
    with callback_errors():
        content = as_content(await within_time(ctx.budget, lambda: first_answer(as_callbacks(callbacks, "A callback"), ctx)))
    if content is None:
        return None
    event = ctx.event()
    event.content = content
    await ctx.record(event)
    return event


async def _record_changes(ctx: InvocationContext) -> Event | None:
    """Return a recorded event of the changes of the state that are in no event yet; None if there are none."""
    changes = ctx.take_changes()
    if not changes:
        return None
    event = ctx.event(actions=EventActions(changes))
    await ctx.record(event)
    return event
