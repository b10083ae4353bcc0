"""The runner of agents: takes a user's message, yields the events of the run; runs of one session are sequential."""

from __future__ import annotations

import asyncio
import copy
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import msgspec

from patchbay.agents.agent_tools import AgentTool
from patchbay.agents.base import USER, BaseAgent, InvocationContext, Shared
from patchbay.agents.chat_history import BaseChatHistoryService
from patchbay.agents.content import Content, Event, EventActions, Part, new_id
from patchbay.agents.event_bus import EventBus
from patchbay.agents.llm_agent import LlmAgent
from patchbay.agents.run_config import RunConfig
from patchbay.agents.sessions.base import BaseSessionService
from patchbay.agents.sessions.log import Session
from patchbay.agents.sessions.memory import InMemorySessionService
from patchbay.background import run_blocking
from patchbay.errors import ConfigurationError
from patchbay.executor.callbacks import checked_hooks
from patchbay.executor.results import checked_media
from patchbay.types import NO_USAGE, Usage

if TYPE_CHECKING:
    from patchbay.agents.durable.runs import DurableRuns
    from patchbay.agents.durable.steps import RunSteps
    from patchbay.hooks import HookManager, HookScope
    from patchbay.media import MediaStore

_TITLE = 30
_DEFAULT_CONFIG = RunConfig()
_logger = logging.getLogger(__name__)


class Runner:
    """Runs ``agent`` for users of the application ``app_name``.

    ``session_service`` stores sessions (default: in memory), ``bus`` gets the events of runs (``patchbay.agents.event_bus``), and
    ``history_service`` the messages of users and agents. ``hooks`` (``patchbay.hooks``) are called in the turns of all agents,
    those of tools included. ``media`` stores the files of results (None: ``patchbay.media.shared_store``); those of a session
    are deleted with it. Two runs of one session are sequential.

    With ``durable`` (a ``patchbay.agents.durable.DurableRuns``, its URL, or True for a SQLite file) each answer of a model and
    each result of a tool is recorded, and a run whose process was killed goes on in another one, without repeating them; sessions
    are by default in its database. Such runs yield whole answers only, and do not end where the iteration is left.

    Use it as a context manager (``async with``, or ``with`` around plain ``for`` loops), or ``aclose()`` it, to close the
    connections of models that were created from names.
    """

    def __init__(
        self,
        agent: BaseAgent,
        app_name: str = "patchbay",
        session_service: BaseSessionService | None = None,
        *,
        bus: EventBus | None = None,
        history_service: BaseChatHistoryService | None = None,
        hooks: HookManager | None = None,
        media: MediaStore | None = None,
        durable: DurableRuns | str | bool | None = None,
    ) -> None:
        if not isinstance(agent, BaseAgent):
            raise TypeError(f"agent must be an agent, not {type(agent).__name__}.")
        kinds: dict[str, tuple[Any, type, str]] = {
            "session_service": (session_service, BaseSessionService, "a session service, such as DatabaseSessionService(url)"),
            "bus": (bus, EventBus, "an EventBus"),
            "history_service": (history_service, BaseChatHistoryService, "a history service"),
        }
        for name, (value, kind, expected) in kinds.items():
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name} must be {expected}, not {type(value).__name__}.")
        self.hooks = checked_hooks(hooks)
        self.media = checked_media(media)
        self.agent = agent
        self.app_name = app_name
        self.durable = durable = _durable_runs(durable)
        self._steps: RunSteps | None = None
        if durable is not None:
            if history_service is not None:
                raise ConfigurationError("A runner with durable runs has no history_service: their session has the messages.")
            session_service = session_service if session_service is not None else durable.sessions
            durable.add(self)
        self.session_service = session_service if session_service is not None else InMemorySessionService()
        self.bus = bus
        self.history_service = history_service
        if self.media is not None:
            self.session_service.release_from(self.media)

    def run(
        self,
        user_id: str,
        session_id: str,
        message: str | Content,
        run_config: RunConfig | None = None,
        *,
        run_id: str | None = None,
    ) -> RunEvents:
        """Run one turn; iterate over the result for its events: ``async for``, or ``for`` without an event loop.

        Creates the session if there is none. A failure is a last event with ``error_code``; only errors of recording events are
        raised. Leaving the iteration early stops the model and the tools. A tool must not run another turn of its own session,
        which would wait for this one. ``run_id`` is that of a durable run: of one that exists the events are yielded. Raises
        TypeError for a message that is neither text nor a Content.
        """
        if isinstance(message, str):
            content = Content("user", [Part(message)])
        elif isinstance(message, Content):
            content = message if message.role == USER else msgspec.structs.replace(message, role=USER)
        else:
            raise TypeError(f"message must be text or a Content, not {type(message).__name__}.")
        config = run_config if run_config is not None else _DEFAULT_CONFIG
        if not isinstance(config, RunConfig):
            raise TypeError(f"run_config must be a RunConfig, not {type(config).__name__}.")
        state = _RunStatus()
        if self.durable is not None:
            return RunEvents(state, self._durable_events(state, user_id, session_id, content, config, run_id))
        return RunEvents(state, self._events(state, user_id, session_id, content, config))

    run_async = run

    def with_steps(self, steps: RunSteps, sessions: BaseSessionService) -> Runner:
        """Return the runner that carries out one durable run, with its copy of the session."""
        runner = copy.copy(self)
        runner.durable, runner._steps, runner.session_service = None, steps, sessions  # noqa: SLF001  (its own copy)
        return runner

    def title_of(self, content: Content) -> str:
        """Return the title of a session that begins with this message."""
        return content.text[:_TITLE]

    async def aclose(self) -> None:
        """Close the connections of models that were created from names, as opened by this event loop's runs, and durable runs."""
        if self.durable is not None:
            await self.durable.aclose()
        for agent in _all_agents(self.agent, set()):
            if isinstance(agent, LlmAgent):
                await agent.aclose()

    def close(self) -> None:
        """Close the connections of runs in plain ``for`` loops."""
        run_blocking(self.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        if self.durable is not None:
            await self.durable.start()  # and goes on with runs of processes that were killed
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _events(
        self, run: _RunStatus, user_id: str, session_id: str, content: Content, config: RunConfig
    ) -> AsyncGenerator[Event, None]:
        run.ended = asyncio.Event()
        try:
            if config.max_message_length is not None and len(content.text) > config.max_message_length:
                problem = f"The message has {len(content.text)} characters; {config.max_message_length} are allowed."
                yield Event(author="system", error_code="MESSAGE_TOO_LONG", error_message=problem)
                return
            async with self.session_service.lock(self.app_name, user_id, session_id):
                ctx = run.context = await self._begin_run(user_id, session_id, content, config)
                try:
                    events = self.agent.run_async(ctx)
                    try:
                        async for event in events:
                            if event.is_final_response() and event.content is not None:
                                text = event.content.text
                                await self._record_answer(ctx, event, text)
                                run.text = text
                            yield event
                    finally:
                        await events.aclose()
                finally:
                    if ctx.shared.rewound:
                        await _record_rewind(ctx)
        finally:
            run.ended.set()

    async def _durable_events(
        self, run: _RunStatus, user_id: str, session_id: str, content: Content, config: RunConfig, run_id: str | None
    ) -> AsyncGenerator[Event, None]:
        durable = self.durable
        assert durable is not None
        added = await durable.submit(self.agent.name, content, run_id=run_id, session=session_id, user=user_id, config=config)
        async with aclosing(durable.events(added.id)) as events:
            async for event in events:
                yield event
        ended = await durable.get(added.id)
        run.text, run.usage = ended.text, Usage.from_openai(ended.usage) if ended.usage is not None else None

    async def _begin_run(self, user_id: str, session_id: str, content: Content, config: RunConfig) -> InvocationContext:
        """Record the user's message, in a session that may be new."""
        session, is_new = await self._session(user_id, session_id, content)
        ctx = InvocationContext(
            agent=self.agent,
            session=session,
            session_service=self.session_service,
            invocation_id=self._steps.run_id if self._steps is not None else new_id(),
            run_config=config,
            shared=Shared(config.budget()),
            user_content=content,
            bus=self.bus,
            hooks=self.hooks,
            hook_scope=self._hook_scope(session) if self.hooks is not None else None,
            media=self.media,
            steps=self._steps,
        )
        ctx.budget.start_clock()
        await ctx.record(Event(author=USER, invocation_id=ctx.invocation_id, content=content))
        if self.bus is not None:
            ids = {"session_id": session.id, "user_id": user_id}
            if is_new:
                await ctx.publish("session.created", {**ids, "title": session.title})
            await ctx.publish("session.updated", ids)
        if self.history_service is not None:
            await self._add_to_history(session, self.agent.name, "user", content.text)
        return ctx

    def _hook_scope(self, session: Session) -> HookScope:
        from patchbay.hooks import HookScope

        inbound = {"channel": self.app_name, "chat_id": session.id, "sender_id": session.user_id}
        return HookScope(session_key=session.key, context={"inbound": inbound})

    async def _session(self, user_id: str, session_id: str, content: Content) -> tuple[Session, bool]:
        service = self.session_service
        session = await service.get_session_for_run(self.app_name, user_id, session_id)
        if session is not None:
            return session, False
        about: dict[str, Any] = {"agent_name": self.agent.name, "session_id": session_id, "title": self.title_of(content)}
        return await service.create_session(self.app_name, user_id, **about), True

    async def _record_answer(self, ctx: InvocationContext, event: Event, text: str) -> None:
        session = ctx.session
        if event.author != session.last_agent:
            await self.session_service.update_last_agent(self.app_name, session.user_id, session.id, event.author)
            session.last_agent = event.author
        if self.bus is not None:
            await ctx.publish("agent.response", {"agent": event.author, "text": text, "session_id": session.id})
        if self.history_service is not None:
            await self._add_to_history(session, event.author, "assistant", text)

    async def _add_to_history(self, session: Session, agent: str, role: str, text: str) -> None:
        """Add a message to the history. An error does not end the run, since the log has the message."""
        if self.history_service is None or not text:
            return
        try:
            await self.history_service.add_message(session.user_id, agent, session.id, role, text)
        except Exception:
            _logger.exception("A message of the session %r could not be written into the history", session.id)


async def _record_rewind(ctx: InvocationContext) -> None:
    """Repeat the rewind at the end of the log, if parallel branches have appended events after it."""
    last = ctx.session.events[-1]
    if last.actions.rewind_before_invocation_id is None:
        actions = EventActions(rewind_before_invocation_id=ctx.invocation_id)
        await ctx.record(Event(author=ctx.agent.name, actions=actions))


@dataclass
class _RunStatus:
    """The state of a run. Separate from RunEvents, which the generator must not keep alive: dropping that ends the run."""

    text: str | None = None
    context: InvocationContext | None = None
    ended: asyncio.Event | None = None
    usage: Usage | None = None


class RunEvents:
    """The events of one run, as they happen: iterate once.

    Leaving a loop over them stops the run, and so does dropping this. ``aclose()`` waits until it has stopped: do so before the
    event loop itself ends.
    """

    def __init__(self, state: _RunStatus, events: AsyncGenerator[Event, None]) -> None:
        self._state = state
        # Until iteration begins: leaving the loop then drops the generator, and the event loop closes it. A reference here would
        # keep the session locked as long as this object exists.
        self._unstarted: AsyncGenerator[Event, None] | None = events
        self._source = weakref.ref(events)

    @property
    def text(self) -> str | None:
        """The last answer so far."""
        return self._state.text

    @property
    def context(self) -> InvocationContext | None:
        """The run's context; None before it has begun."""
        return self._state.context

    @property
    def usage(self) -> Usage:
        """The tokens used by the run so far, in all agents and rounds; those of a durable run when it is over."""
        if self._state.usage is not None:
            return self._state.usage
        return self.context.usage if self.context is not None else NO_USAGE

    def __aiter__(self) -> AsyncIterator[Event]:
        source, self._unstarted = self._source(), None
        return source if source is not None else self

    async def __anext__(self) -> Event:
        if (source := self._source()) is None:
            raise StopAsyncIteration
        return await anext(source)

    async def aclose(self) -> None:
        """Stop the run, if it is not over, and wait until its tools have ended.

        While a task waits for the next event this raises RuntimeError: cancel that task instead.
        """
        if (source := self._source()) is not None:
            await source.aclose()
        elif self._state.ended is not None:
            await self._state.ended.wait()

    def __iter__(self) -> Generator[Event, None, None]:
        """Iterate in sync code; all such runs share one background event loop."""
        if (source := self._source()) is None:
            return
        try:
            while (event := run_blocking(anext(source, None))) is not None:
                yield event
        finally:
            run_blocking(source.aclose())


def _durable_runs(given: DurableRuns | str | bool | None) -> DurableRuns | None:  # noqa: FBT001  (the option as it was given)
    if given is None or given is False:
        return None
    from patchbay.agents.durable.runs import DEFAULT_URL, DurableRuns

    return given if isinstance(given, DurableRuns) else DurableRuns(DEFAULT_URL if given is True else given)


def _all_agents(agent: BaseAgent, seen: set[int]) -> Iterator[BaseAgent]:
    """Yield the agents of the tree and their agent tools, each once."""
    for each in agent.walk():
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        for tool in each.tools if isinstance(each, LlmAgent) else ():
            if isinstance(tool, AgentTool):
                yield from _all_agents(tool.agent.root_agent, seen)
