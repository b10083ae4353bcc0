"""The context of a tool call: the call, its state, its progress, and the actions that it asks of its run."""

from __future__ import annotations

import copy
import hashlib
import math
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from patchbay._trace import trace_headers
from patchbay.tools.state import State
from patchbay.types import Message


@dataclass
class ToolActions:
    """The actions that a call asks of its run besides its result.

    ``transfer_to_agent`` names the agent that takes over, ``escalate`` ends the enclosing loop, ``state_delta`` are changes of
    the session's state (None deletes a key). ``state_found`` has the previous values of the keys whose value was changed and not
    assigned (``State.found``).
    """

    transfer_to_agent: str | None = None
    escalate: bool | None = None
    state_delta: dict[str, Any] = field(default_factory=dict)
    state_found: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.transfer_to_agent or self.escalate or self.state_delta)


class Acted(Protocol):
    """An execution. ``actions`` is None if the call failed."""

    @property
    def actions(self) -> ToolActions | None:
        """The call's actions."""
        ...


def merge_actions(executions: Iterable[Acted]) -> ToolActions:
    """Merge the actions of calls, in the order given; failed calls have none.

    The last ``transfer_to_agent`` wins; ``escalate`` is set if any call set it. Of two calls that *assign* a key the later one
    wins. *Changes* are merged with those of earlier calls: a number added to or subtracted from, a list appended to, members of
    a dict or set added or removed. Five concurrent calls that each do ``state["n"] += 1`` add five. ``state_found`` has the keys
    that all calls only changed.
    """
    merged = ToolActions()
    only_changed: dict[str, Any] = {}
    for execution in executions:
        if (actions := execution.actions) is None:
            continue
        merged.transfer_to_agent = actions.transfer_to_agent or merged.transfer_to_agent
        merged.escalate = actions.escalate or merged.escalate
        for key, value in actions.state_delta.items():
            theirs, found = merged.state_delta.get(key), actions.state_found.get(key)
            if found is None:
                only_changed.pop(key, None)
            elif key not in merged.state_delta:
                only_changed[key] = found
            changed_twice = theirs is not None and found is not None and value is not None
            merged.state_delta[key] = merge_change(theirs, found, value) if changed_twice else value
    merged.state_found = only_changed
    return merged


def merge_change(theirs: Any, found: Any, mine: Any) -> Any:
    """Return ``theirs`` with the change from ``found`` to ``mine`` applied; ``mine`` if it cannot be applied."""
    try:
        return _changed(theirs, found, mine)
    except Exception:  # noqa: BLE001  (members of a container may raise anything when compared)
        return mine


def _changed(theirs: Any, found: Any, mine: Any) -> Any:
    values = (theirs, found, mine)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return theirs + (mine - found)
    if all(isinstance(value, list) for value in values):
        grown = mine[: len(found)] == found == theirs[: len(found)]
        return [*theirs, *mine[len(found) :]] if grown else mine
    if all(isinstance(value, set) for value in values):
        return (theirs - (found - mine)) | (mine - found)
    if all(isinstance(value, dict) for value in values):
        remaining = {key: value for key, value in theirs.items() if key in mine or key not in found}
        return remaining | {key: value for key, value in mine.items() if key not in found or value != found[key]}
    return mine


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a running tool: ``fraction`` is from 0 to 1, ``data`` anything for programs. Models do not get it."""

    message: str | None = None
    fraction: float | None = None
    data: Any = None


@dataclass(frozen=True, kw_only=True)
class AgentScope:
    """The agent's context of a turn's calls, the same for all of them; empty without an agent.

    ``session`` and ``invocation_context`` are the agents' own objects.
    """

    agent_name: str = ""
    session: Any = None
    invocation_id: str = ""
    """The name of the run, the same when the run is resumed."""
    invocation_context: Any = None
    state: Mapping[str, Any] = field(default_factory=dict)
    """The base of the calls' states; it is only read."""
    check: Callable[[ToolActions], None] | None = None
    """Validates a call's actions: what it raises is the call's failure."""
    idempotency_key: str = ""
    """The key of a single call, if its caller gave one."""


NO_SCOPE = AgentScope()
"""The scope of a call without an agent."""


class ToolContext:
    """The context of one call, for its tool.

    ``call_id`` (also ``function_call_id``) and ``name`` are the call's. ``messages`` is the conversation so far, the call's own
    message last; read it, do not change it. ``iteration`` counts the model's rounds from 1. ``cancelled`` is set when the call's
    time is up or its run was stopped: a tool in a thread cannot be interrupted and should check it. ``raw_arguments`` is the
    arguments' text as the model wrote it, or, once a hook or approver has changed them, the JSON of the tool's arguments.

    ``state`` is the session's state with this call's changes, which are recorded if the call succeeds and dropped if it fails.
    ``actions`` asks the run for something: ``actions.transfer_to_agent``, ``actions.escalate``. ``agent_name``, ``session``,
    ``invocation_id`` and ``invocation_context`` are the agent's, empty without one.
    """

    hooks: Any = None
    """The hooks of the turn that made the call, for tools that begin turns themselves; None without hooks."""

    media: Any = None
    """The store of results' files; None: the process's own (``patchbay.media.shared_store()``)."""

    facts: Mapping[str, Any] = MappingProxyType({})
    """The facts of the call (``Tool.facts``), as approved if approval was needed; else empty."""

    def __init__(
        self,
        *,
        call_id: str,
        name: str,
        raw_arguments: str = "",
        messages: Sequence[Message] = (),
        iteration: int = 1,
        cancelled: threading.Event | None = None,
        agent_scope: AgentScope = NO_SCOPE,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> None:
        self.call_id = call_id
        self.name = name
        self.raw_arguments = raw_arguments
        self.messages = messages
        self.iteration = iteration
        self._cancelled = cancelled
        self._is_stopped = False
        self.agent_scope = agent_scope
        self._on_progress = on_progress
        self._actions: ToolActions | None = None
        self._state: State | None = None
        self._key = ""

    @property
    def cancelled(self) -> threading.Event:
        """Set when the call's time is up or its run was stopped."""
        # Created on first use, since few tools read it. The second of this and ``stop``, in any thread, sees the first's effect.
        if self._cancelled is None:
            self._cancelled = threading.Event()
        if self._is_stopped:
            self._cancelled.set()
        return self._cancelled

    def stop(self) -> None:
        """Tell the tool that its call is being stopped. For the executor."""
        self._is_stopped = True
        if self._cancelled is not None:
            self._cancelled.set()

    @property
    def function_call_id(self) -> str:
        """The call's id."""
        return self.call_id

    @property
    def state(self) -> State:
        """The state of this call; ``state.delta`` has its changes."""
        if self._state is None:
            self._state = State(self.agent_scope.state)
        return self._state

    @property
    def actions(self) -> ToolActions:
        """The actions that the call asks of its run."""
        if self._actions is None:
            self._actions = ToolActions()
        return self._actions

    @property
    def agent_name(self) -> str:
        """The name of the agent that made the call, "" without one."""
        return self.agent_scope.agent_name

    @property
    def session(self) -> Any:
        """The agent's session, None without one."""
        return self.agent_scope.session

    @property
    def invocation_id(self) -> str:
        """The id of the run, "" without an agent."""
        return self.agent_scope.invocation_id

    @property
    def invocation_context(self) -> Any:
        """The agent's own context of the run, None without one."""
        return self.agent_scope.invocation_context

    @property
    def idempotency_key(self) -> str:
        """A key for services that do a thing once per key: the same when this call is repeated in a resumed run.

        It is 32 hexadecimal digits, or the key that the caller in another process gave. A run without an id is never resumed: its
        calls get random keys.
        """
        if not self._key:
            if self.agent_scope.idempotency_key:
                self._key = self.agent_scope.idempotency_key
            elif self.invocation_id:
                text = f"{self.invocation_id}\n{self.call_id}"
                self._key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
            else:
                self._key = uuid.uuid4().hex
        return self._key

    @property
    def trace_headers(self) -> dict[str, str]:
        """The headers (``traceparent``, ``tracestate``) that carry the call's trace to other services; none without one."""
        return trace_headers()

    def with_facts(self, facts: Mapping[str, Any]) -> ToolContext:
        """Return a copy of the context with ``facts``; state, actions and cancellation are shared."""
        _ = self.cancelled, self.state, self.actions  # created now, so that both have the same
        other = copy.copy(self)
        other.facts = facts
        return other

    def progress(self, message: str | None = None, *, fraction: float | None = None, data: Any = None) -> None:
        """Report progress, from any thread; it reaches the run's events and never the conversation.

        ``fraction`` is clamped to 0 to 1. Ignored once the call is over or stopped.
        """
        if self._on_progress is None or self._is_stopped or (self._cancelled is not None and self._cancelled.is_set()):
            return
        if fraction is not None:
            fraction = None if math.isnan(fraction) else min(1.0, max(0.0, fraction))
        self._on_progress(Progress(message, fraction, data))

    def outcome(self) -> ToolActions:
        """Return the call's final actions, with its changes of the state. For the executor."""
        if self._state is None and self._actions is None:
            return ToolActions()
        actions = self.actions
        return ToolActions(
            actions.transfer_to_agent,
            actions.escalate,
            {**actions.state_delta, **(self._state.delta if self._state is not None else {})},
            self._state.found if self._state is not None else {},
        )

    def __repr__(self) -> str:
        return f"<ToolContext {self.name!r} {self.call_id!r}>"


Context = ToolContext
"""Another name of ToolContext."""
