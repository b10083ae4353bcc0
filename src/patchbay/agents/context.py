"""One run as its agents, callbacks and tools see it: its limits, what is shared, and the one way an event is recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from patchbay.agents.content import Content, Event, EventActions, Part
from patchbay.agents.event_bus import BusEvent, EventBus
from patchbay.errors import ConfigurationError
from patchbay.executor import Budget
from patchbay.executor.limits import checked_count
from patchbay.tools import State
from patchbay.tools.results import describe
from patchbay.tools.tool import checked_timeout
from patchbay.types import NO_USAGE, Usage

if TYPE_CHECKING:
    from patchbay.agents.base import BaseAgent
    from patchbay.agents.sessions.base import BaseSessionService
    from patchbay.agents.sessions.log import Session
    from patchbay.hooks import HookManager, HookScope
    from patchbay.media import MediaStore


T = TypeVar("T")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Limits and manners of one run; times are in seconds, None is no limit.

    ``max_llm_calls`` and ``max_tool_calls`` count over all agents of the run, those of parallel branches included.
    ``run_timeout`` is for the whole run, callbacks and agents of one's own included, from the moment on when it has its session;
    ``llm_timeout`` for each answer of a model, ``tool_timeout`` for tools without a limit of their own. With ``streaming`` the
    run's events include partial ones, as a model writes.

    A model is shown what was said in the last ``max_history_events`` events of a session; of a longer one down to three quarters
    of that, since what it is shown begins at the same event for as long as it can, so that its server's prompt cache holds. A
    message of more than ``max_message_length`` characters is refused. ``context`` is the caller's own, for callbacks and tools.
    Raises ConfigurationError for a limit that cannot be kept.
    """

    max_llm_calls: int | None = 50
    max_tool_calls: int | None = None
    run_timeout: float | None = None
    llm_timeout: float | None = None
    tool_timeout: float | None = None
    streaming: bool = False
    max_history_events: int | None = 100
    max_message_length: int | None = None
    context: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("max_llm_calls", "max_tool_calls", "max_history_events", "max_message_length"):
            checked_count(getattr(self, name), name)
        for name in ("run_timeout", "llm_timeout", "tool_timeout"):
            checked_timeout(getattr(self, name), name)

    def budget(self) -> Budget:
        """Return a Budget of these limits, unused."""
        return Budget(max_iterations=self.max_llm_calls, max_calls=self.max_tool_calls, max_seconds=self.run_timeout)


@dataclass(kw_only=True)
class GenerateContentConfig:
    """How a model is asked to write. What is None is left to the model's server; ``extra`` is passed on in OpenAI's words.

    Raises ConfigurationError for what no server takes.
    """

    temperature: float | None = None
    max_output_tokens: int | None = None
    top_p: float | None = None
    stop_sequences: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            number = getattr(self, name)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
                raise ConfigurationError(f"{name} must be a number, or None; not {number!r}.")
        checked_count(self.max_output_tokens, "max_output_tokens")
        stops = self.stop_sequences
        if not isinstance(stops, list | tuple) or not all(isinstance(stop, str) for stop in stops):
            raise ConfigurationError(f"stop_sequences must be a list of texts, not {stops!r}.")

    def parameters(self) -> dict[str, Any]:
        """Return these in OpenAI's words."""
        said = {
            "temperature": self.temperature,
            "max_tokens": self.max_output_tokens,
            "top_p": self.top_p,
            "stop": list(self.stop_sequences) or None,
        }
        return {**{name: value for name, value in said.items() if value is not None}, **self.extra}


class RunFailed(Exception):  # noqa: N818  (it is an outcome of a run, which no caller catches)
    """An agent ends without an answer; ``code`` and the message are those of its last event.

    ``event`` is that event, where there is something to keep of the incomplete answer: its text so far, the tokens it took.
    """

    def __init__(self, code: str, message: str, event: Event | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.event = event


@contextmanager
def callback_errors() -> Iterator[None]:
    """Make what a callback raises, or what is wrong with what it returned, a RunFailed with the code CALLBACK_ERROR."""
    try:
        yield
    except RunFailed:
        raise
    except Exception as error:
        _logger.exception("A callback failed")
        raise RunFailed("CALLBACK_ERROR", describe(error)) from error


def time_exceeded(budget: Budget, event: Event | None = None) -> RunFailed:
    """Return the end of a run whose time is up."""
    budget.out_of_time()
    return RunFailed("RUN_TIMEOUT", f"The run timed out after {budget.max_seconds}s", event)


async def within_time(budget: Budget, work: Callable[[], Awaitable[T]]) -> T:
    """Wait for ``work()`` as long as the run has time. Raises RunFailed then, and where there was none left."""
    if budget.loop is None:
        return await work()
    if budget.ends is not None and budget.loop.time() >= budget.ends:
        raise time_exceeded(budget)
    try:
        async with budget.time_left() as limit:
            return await work()
    except TimeoutError:
        # A TimeoutError of its own is none of ours.
        if not limit.expired():
            raise
        raise time_exceeded(budget) from None


async def events_within_time(budget: Budget, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """Yield what comes while the run has time; the limit is on each wait, and never on a consumer (law 10)."""
    async with aclosing(events):
        while True:
            try:
                event = await within_time(budget, lambda: anext(events))
            except StopAsyncIteration:
                return
            yield event


@dataclass
class Shared:
    """What all agents of one run share: its limits, what it has used, and which events have been seen to.

    ``recorded`` are the ids of events in the log, ``escalations_met`` those of events that have ended a loop,
    ``call_ids`` those of calls. ``writing`` is held by the one parallel branch that works out its changes and records them.
    ``turns`` counts the turns of its agents, ``rewound`` says that a hook wants all of the run out of the model's sight.
    """

    budget: Budget
    usage: Usage = NO_USAGE
    ended: bool = False
    recorded: set[str] = field(default_factory=set)
    escalations_met: set[str] = field(default_factory=set)
    call_ids: set[str] = field(default_factory=set)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    turns: int = 0
    rewound: bool = False


class InvocationContext:
    """One run, as an agent of it sees it; callbacks get it as their ``ctx``, tools as ``tool_context.invocation_context``.

    ``session`` is read, and written through ``state``: what a callback puts there goes into the log with the agent's next event.
    ``branch`` names the way through parallel agents, None outside of them. ``invocation_id`` is the run's. Setting
    ``end_invocation`` ends the run after what is being done now. ``hooks`` are those that are asked about its turns, None
    where there are none, and ``hook_scope`` is what they are told of the run. ``media`` has the files that go along with what
    tools say, None for the process's own store; they are those of the session that ``session_key`` names (``Session.key``): this
    one, or that of the caller of the agent as a tool.
    """

    def __init__(
        self,
        *,
        agent: BaseAgent,
        session: Session,
        session_service: BaseSessionService,
        invocation_id: str,
        run_config: RunConfig,
        user_content: Content | None = None,
        bus: EventBus | None = None,
        shared: Shared | None = None,
        hooks: HookManager | None = None,
        hook_scope: HookScope | None = None,
        media: MediaStore | None = None,
        session_key: str | None = None,
    ) -> None:
        self.agent = agent
        self.session = session
        self.session_service = session_service
        self.invocation_id = invocation_id
        self.run_config = run_config
        self.user_content = user_content
        self.bus = bus
        self.branch: str | None = None
        self.shared = shared if shared is not None else Shared(run_config.budget())
        self.hooks = hooks
        self.hook_scope = hook_scope
        self.media = media
        self._session_key = session_key
        self._state: State | None = None

    @property
    def state(self) -> State:
        """The session's state; what is changed in it is kept with the agent's next event."""
        if self._state is None:
            self._state = State(self.session.state)
        return self._state

    @property
    def agent_name(self) -> str:
        """The name of the agent at work."""
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
        """Whose files those of this run are."""
        return self._session_key if self._session_key is not None else self.session.key

    @property
    def budget(self) -> Budget:
        """What the run may still use, shared by all its agents."""
        return self.shared.budget

    @property
    def llm_call_count(self) -> int:
        """How often a model was asked in this run."""
        return self.shared.budget.iterations

    @property
    def usage(self) -> Usage:
        """The tokens that the run has used, over all agents."""
        return self.shared.usage

    @property
    def end_invocation(self) -> bool:
        """Whether the run ends here."""
        return self.shared.ended

    @end_invocation.setter
    def end_invocation(self, ended: bool) -> None:
        self.shared.ended = ended

    def child(self, agent: BaseAgent, *, branch: str | None = None) -> InvocationContext:
        """Return the same run as ``agent`` sees it; ``branch`` is one more step on the way through parallel agents."""
        mine = InvocationContext.__new__(InvocationContext)
        vars(mine).update(vars(self))
        mine.agent = agent
        mine._state = None  # noqa: SLF001  (its own changes)
        if branch is not None:
            mine.branch = branch if self.branch is None else f"{self.branch}.{branch}"
        return mine

    def turn_scope(self, model: str) -> HookScope | None:
        """Return the hook scope of a turn of this agent that begins now; None where there are no hooks."""
        if self.hooks is None or self.hook_scope is None:
            return None
        self.shared.turns += 1
        turn_id = f"{self.invocation_id}-turn-{self.shared.turns}"
        return replace(self.hook_scope, agent_id=self.agent.name, turn_id=turn_id, model=model)

    def event(
        self, parts: list[Part] | None = None, *, role: str = "model", actions: EventActions | None = None, **about: Any
    ) -> Event:
        """Return an event of this agent's in this run."""
        return Event(
            author=self.agent.name,
            invocation_id=self.invocation_id,
            branch=self.branch,
            content=None if parts is None else Content(role, parts),
            actions=actions if actions is not None else EventActions(),
            **about,
        )

    def error(self, code: str, message: str) -> Event:
        """Return the event that a run ends with where there is no answer."""
        return self.event(error_code=code, error_message=message)

    async def record(self, event: Event) -> None:
        """Put ``event`` into the session's log, with the changes of ``state`` since the last one.

        Each event is kept once, and partial ones not. Raises what the session service does.
        """
        recorded = self.shared.recorded
        if event.partial or event.id in recorded:
            return
        if not event.invocation_id:
            event.invocation_id = self.invocation_id
        if event.branch is None:
            event.branch = self.branch
        if self._state is not None and (changes := self._state.take()):
            event.actions.state_delta = {**changes, **event.actions.state_delta}
        await self.session_service.append_event(self.session, event)
        recorded.add(event.id)

    def take_changes(self) -> dict[str, Any]:
        """Return what was changed in ``state`` and is in no event yet; it is the caller's to record."""
        return self._state.take() if self._state is not None else {}

    def mark_recorded(self, event: Event) -> None:
        """Take note that what ``event`` says is in the log already, in pieces."""
        self.shared.recorded.add(event.id)

    async def publish(self, topic: str, data: Mapping[str, Any]) -> None:
        """Tell the bus, if there is one."""
        if self.bus is not None:
            await self.bus.publish(BusEvent(topic, dict(data), source=self.agent.name))


CallbackContext = ReadonlyContext = InvocationContext
"""What callbacks get, and functions that write an instruction."""
