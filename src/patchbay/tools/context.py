"""What a tool may know of the call it carries out, and what it may say while it runs.

What lives here: the context as tools see it. What does not: who fills it in (``patchbay.executor``; the part about agents comes
as ``AgentScope`` from whoever runs the turn), and what becomes of the actions (``actions``).
"""

from __future__ import annotations

import copy
import hashlib
import math
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from patchbay.tools.actions import ToolActions
from patchbay.tools.state import State
from patchbay.types import Message


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
    ``idempotency_key`` is the key of the one call that this is around, where whoever asks for it has given it one.
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
    """What the tool has found out about the call (``Tool.facts``): what was approved, where somebody had to; else empty."""

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
        """Tell the tool that the call is being stopped. For whoever carries it out."""
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
        _ = self.cancelled, self.state, self.actions  # made now, if nobody has looked at them, so that both have the same
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
        """Return what the call asks for in the end, its changes of the state included. For whoever settles the call."""
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
