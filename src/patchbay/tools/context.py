"""What a tool may know of the call it runs, what it may report while it runs, and what it may ask of the run around it."""

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

from patchbay.tools.state import State
from patchbay.types import Message


@dataclass
class ToolActions:
    """What a call asks of its run besides its result.

    ``transfer_to_agent`` names the agent that goes on, ``escalate`` ends the enclosing loop, ``state_delta`` are changes of the
    session's state (None deletes a key). ``state_found`` is what was there, under those keys of it where a value was changed and
    not assigned anew (``State.found``).
    """

    transfer_to_agent: str | None = None
    escalate: bool | None = None
    state_delta: dict[str, Any] = field(default_factory=dict)
    state_found: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.transfer_to_agent or self.escalate or self.state_delta)


class Acted(Protocol):
    """What has actions: an execution. ``actions`` is None where the call failed."""

    @property
    def actions(self) -> ToolActions | None:
        """What the call asks for."""
        ...


def merge_actions(executions: Iterable[Acted]) -> ToolActions:
    """Put the actions of calls together, in the order given; calls that failed ask for nothing.

    The last ``transfer_to_agent`` stands; ``escalate`` does where any call asked for it. Of two calls that *assigned* a key the
    later one has its way. What was *changed* is changed on top of what the earlier calls made of it: a number that a call added
    to or took from, a list that it appended to, the members of a dict or set that it put in or took out. Five calls that each do
    ``state["n"] += 1`` at the same time make five. What all of them together only changed is in ``state_found``.
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
            merged.state_delta[key] = on_top(theirs, found, value) if changed_twice else value
    merged.state_found = only_changed
    return merged


def on_top(theirs: Any, found: Any, mine: Any) -> Any:
    """Return ``theirs`` with the change that made ``mine`` of ``found``; ``mine`` where there is no such change."""
    try:
        return _changed(theirs, found, mine)
    except Exception:  # noqa: BLE001  (what is in a container compares as it likes)
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
        kept = {key: value for key, value in theirs.items() if key in mine or key not in found}
        return kept | {key: value for key, value in mine.items() if key not in found or value != found[key]}
    return mine


@dataclass(frozen=True, slots=True)
class Progress:
    """What a running tool says of its work: ``fraction`` is from 0 to 1, ``data`` anything for programs; no model is shown it."""

    message: str | None = None
    fraction: float | None = None
    data: Any = None


@dataclass(frozen=True, kw_only=True)
class AgentScope:
    """What is around a turn's calls, the same for all of them: given by an agent, empty without one.

    ``state`` is what the calls' states read through to; it is never written to. ``session`` and ``invocation_context`` are the
    agents' own objects, handed through. ``invocation_id`` names the run, and is the same when the run is taken up again.
    ``idempotency_key`` is the key of the one call that this is around, where the caller has given it one.
    ``check`` is shown what a call asks of the run, and raises what the call fails with where that cannot be.
    """

    agent_name: str = ""
    session: Any = None
    invocation_id: str = ""
    invocation_context: Any = None
    state: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[ToolActions], None] | None = None
    idempotency_key: str = ""


NO_SCOPE = AgentScope()
"""The scope of a call that no agent made."""


class ToolContext:
    """One call, as its tool sees it.

    ``call_id`` (also ``function_call_id``) and ``name`` are the call's. ``messages`` is the conversation so far, the call's own
    message last; read it, do not change it. ``iteration`` counts the model's rounds from 1. ``cancelled`` is set when the call's
    time is up or its run was stopped: a tool that runs in a thread cannot be interrupted and should look at it.
    ``raw_arguments`` is the text that the model wrote as its arguments; where a hook has changed them, or somebody has approved
    them, the text of what the tool is given.

    ``state`` is the session's state with this call's changes over it: they are kept when the call succeeds and dropped when it
    fails. ``actions`` asks something of the run: ``actions.transfer_to_agent``, ``actions.escalate``. ``agent_name``,
    ``session``, ``invocation_id`` and ``invocation_context`` tell of the agent; they are empty where there is none.
    """

    hooks: Any = None
    """The hooks of the turn that made the call, for tools that begin turns of their own; None where there are none."""

    media: Any = None
    """The store of the files that go along with results; None: the process's own (``patchbay.media.shared_store()``)."""

    facts: Mapping[str, Any] = MappingProxyType({})
    """The facts of the call (``Tool.facts``): those that were approved, where approval was needed; else empty."""

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
        # Made when it is first looked at, which few tools do. Whoever comes second of this and ``stop``, in any thread, sees the
        # other's mark.
        if self._cancelled is None:
            self._cancelled = threading.Event()
        if self._is_stopped:
            self._cancelled.set()
        return self._cancelled

    def stop(self) -> None:
        """Signal the tool that the call is being stopped. For the executor."""
        self._is_stopped = True
        if self._cancelled is not None:
            self._cancelled.set()

    @property
    def function_call_id(self) -> str:
        """The call's id, by its other name."""
        return self.call_id

    @property
    def state(self) -> State:
        """The state as this call sees it; ``state.delta`` has the call's own changes."""
        if self._state is None:
            self._state = State(self.agent_scope.state)
        return self._state

    @property
    def actions(self) -> ToolActions:
        """What the call asks of its run."""
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
        """32 hexadecimal digits for services that do a thing once per key: the same when this call is carried out again.

        A run that has no id is not taken up again: its calls get keys of their own. A call of another process that came with a
        key has that one, whatever it looks like.
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

    def with_facts(self, facts: Mapping[str, Any]) -> ToolContext:
        """Return the same call as a tool sees it that has found out ``facts``; the state, the actions and the end are shared."""
        _ = self.cancelled, self.state, self.actions  # made now, so that both have the same
        other = copy.copy(self)
        other.facts = facts
        return other

    def progress(self, message: str | None = None, *, fraction: float | None = None, data: Any = None) -> None:
        """Say how far the work is, from any thread; it reaches the run's events and never the conversation.

        ``fraction`` is brought into 0 to 1. Once the call is over or stopped, nothing is said any more.
        """
        if self._on_progress is None or self._is_stopped or (self._cancelled is not None and self._cancelled.is_set()):
            return
        if fraction is not None:
            fraction = None if math.isnan(fraction) else min(1.0, max(0.0, fraction))
        self._on_progress(Progress(message, fraction, data))

    def outcome(self) -> ToolActions:
        """Return what the call asks for in the end, its changes of the state included. For the executor."""
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
"""The seed's other name for it."""
