"""Tool calls of a session: their state per response, which of them may run, and the texts of their results."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from patchbay.errors import HookAbortError, ToolError
from patchbay.executor import Batch, ToolExecution
from patchbay.executor.invocation import emit_call_end
from patchbay.loop import ToolCallEvent
from patchbay.realtime.call_assembly import PartialCall
from patchbay.realtime.config import RealtimeLimits
from patchbay.realtime.events import ErrorEvent, RealtimeEvent
from patchbay.realtime.history import Transcript
from patchbay.realtime.providers.base import Line
from patchbay.realtime.session_tools import SessionTools
from patchbay.realtime.turns import Turn
from patchbay.types import IncompleteCall, Message, ToolCall, ToolResult

if TYPE_CHECKING:
    from patchbay.realtime.responses import ResponseController


ABANDONED: Final = json.dumps(
    {"abandoned": True, "error": "The call was given up, because the conversation has gone on. What it did until then stands."}
)
"""The result of a call that was stopped because the user continued."""


class NotRunError(ToolError, RuntimeError):
    """The call's response was interrupted, cancelled or lost; the tool did not run."""

    code = "not_run"

    def __init__(self, tool_name: str) -> None:
        super().__init__(
            f"The response that called {tool_name!r} was not completed, and the tool did not run.", tool_name=tool_name
        )


class RoundsError(ToolError, RuntimeError):
    """The turn has had ``limit`` responses with calls; the tool did not run."""

    code = "max_rounds"

    def __init__(self, tool_name: str, *, limit: int) -> None:
        super().__init__(f"Tools were called in {limit} responses already, which is the most for one turn", tool_name=tool_name)

    @property
    def for_model(self) -> str:
        """Tell the model to answer without further calls."""
        return f"Error: {self}: {self.tool_name!r} did not run. Answer with what you have."


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call in a round. ``wire_id`` and ``wire_name`` are the server's."""

    call: ToolCall
    wire_id: str
    wire_name: str
    partial: PartialCall | None = None
    text: str | None = None
    """The result for the model, once known."""
    answered: bool = False
    """True if the result was sent, or is not wanted any more."""
    execution: ToolExecution | None = None
    abandoned: bool = False
    """True if its outcome is discarded."""
    still_running: bool = False
    """True if its result was that it is still running; the outcome follows as a line."""


@dataclass(slots=True, eq=False)
class Round:
    """The calls of one response, in call order. ``controller`` is the connection that expects the results.

    ``number`` counts responses in the ``turn``, which is None if no call is to run. ``is_open``: more calls may come.
    ``is_delivered``: each call has its result.
    """

    number: int
    controller: ResponseController
    turn: Turn | None
    calls: list[PendingCall] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    is_open: bool = True
    is_delivered: bool = False
    wants_response: bool = True
    abort_reported: bool = False
    timer: asyncio.TimerHandle | None = None

    @property
    def is_complete(self) -> bool:
        """True if all results are known."""
        return not self.is_open and all(one.text is not None or one.answered for one in self.calls)

    @property
    def aborted(self) -> HookAbortError | None:
        """The error of a hook that ended the turn, if any."""
        return next((each.error for each in self.executions if isinstance(each.error, HookAbortError)), None)

    @property
    def executions(self) -> list[ToolExecution]:
        """Finished executions, in call order."""
        return [one.execution for one in self.calls if one.execution is not None]

    def deliver(self) -> None:
        """Mark the round as done and stop its timer."""
        self.is_delivered = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def rejected_execution(call: ToolCall, error: ToolError) -> ToolExecution:
    """Return the execution of a call that did not run."""
    result = ToolResult(call.id, call.name, error.for_model, is_error=True, code=error.code)
    return ToolExecution(call, None, None, result, error)


def still_running_text(name: str) -> str:
    """Return the result of a call whose tool is not done yet."""
    note = f"The tool {name!r} is still running. Its result will be told when it is there: go on without it, do not call again."
    return json.dumps({"status": "running", "note": note}, ensure_ascii=False)


def results_text(calls: Iterable[PendingCall]) -> str:
    """Return results as lines for a new connection, each quoted as data."""
    known = ((one.call.name, one.text) for one in calls if one.text is not None)
    return "\n".join(f"[The tool {name} returned] {json.dumps(text, ensure_ascii=False)}" for name, text in known)


STOP: Final = json.dumps(
    {"stop": True, "warning": "Too many tool calls in a short time: this one did not run. Answer without tools."}
)
"""The result of a call beyond the rate limit."""


class FloodError(ToolError, RuntimeError):
    """The call did not run because too many had started shortly before."""

    code = "rate_limited"

    def __init__(self, tool_name: str) -> None:
        super().__init__("tool-call rate limit reached", tool_name=tool_name)

    @property
    def for_model(self) -> str:
        """Return the text fixed by the contract."""
        return STOP


class SlidingWindowLimit:
    """At most ``most`` calls in any ``seconds``; refused ones do not count."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._begun: deque[float] = deque(maxlen=most)

    def try_acquire(self, now: float) -> bool:
        """Record a call at this time; return False if it exceeds the limit."""
        if len(self._begun) == self._most and now - self._begun[0] < self._seconds:
            return False
        self._begun.append(now)
        return True

    def reset(self) -> None:
        """Forget recorded calls."""
        self._begun.clear()


MAX_LATE_RESULTS: Final = 64
"""Maximum number of queued results; the oldest are dropped."""


class LateResults:
    """Queue of results that could not be sent in time, to be sent as lines at an idle moment."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[ToolExecution, str, bool]] = deque()

    def __bool__(self) -> bool:
        """True if any are queued."""
        return bool(self._waiting)

    @property
    def wants_response(self) -> bool:
        """True if the model is to respond to any of them."""
        return any(asks for _, _, asks in self._waiting)

    def add(self, execution: ToolExecution, text: str, *, asks: bool = True) -> ToolExecution | None:
        """Queue a result with its ``text``; return the oldest one if that was dropped."""
        self._waiting.append((execution, text, asks))
        return self._waiting.popleft()[0] if len(self._waiting) > MAX_LATE_RESULTS else None

    def drain_lines(self) -> Sequence[Line]:
        """Return all as lines and clear the queue."""
        lines = [Line("user", text) for _, text, _ in self._waiting]
        self._waiting.clear()
        return lines

    def drain(self) -> Sequence[ToolExecution]:
        """Return all executions and clear the queue."""
        executions = [execution for execution, _, _ in self._waiting]
        self._waiting.clear()
        return executions


def late_result_text(call: ToolCall, text: str) -> str:
    """Return the line for a result that was reported as still running, quoted as data."""
    return f"[Result of the tool {call.name} that was still running] {json.dumps(text, ensure_ascii=False)}"


class CallAdmission:
    """Decides which calls run. ``pending`` are calls without an execution, by id; ``on_execution`` gets rejected ones."""

    def __init__(
        self,
        limits: RealtimeLimits,
        tools: SessionTools,
        transcript: Transcript,
        *,
        emit: Callable[[RealtimeEvent], None],
        on_execution: Callable[[ToolExecution], None],
    ) -> None:
        self.pending: dict[str, tuple[Round, PendingCall]] = {}
        self._max_rounds = limits.max_rounds
        self.rate_limit = SlidingWindowLimit(limits.flood_calls, limits.flood_seconds)
        self._tools = tools
        self._transcript = transcript
        self._emit = emit
        self._on_execution = on_execution

    def admits_early(self, turn: Turn, partial: PartialCall) -> bool:
        """True if a call may run before its response ends: a read-only tool without hooks that could replace it.

        Counts against the rate limit.
        """
        if turn.rounds >= self._max_rounds or not partial.call_id:  # which may arrive at the end
            return False
        tool = self._tools.available.get(self._tools.original_name(partial.name))
        if tool is None or tool.annotations.get("read_only") is not True or tool.source or tool.owner or tool.sequential:
            return False
        hooks = turn.run.hooks
        return not (hooks is not None and hooks.chains.of_tools) and self._within_rate()

    def register(self, current: Round, partial: PartialCall) -> PendingCall:
        """Create the round's call, under the tool's own name and a unique id."""
        partial.claimed = True
        known = current.turn.run.call_ids if current.turn is not None else set[str]()
        call_id = partial.call_id
        if not call_id or call_id in self.pending or call_id in known:
            call_id = f"call_{uuid.uuid4().hex[:24]}"
        known.add(call_id)
        call = ToolCall(call_id, self._tools.original_name(partial.name), partial.text or "{}")
        return PendingCall(call, partial.call_id, partial.name, partial)

    def admit(self, current: Round, turn: Turn, calls: Sequence[PendingCall]) -> None:
        """Run the calls within the limits, reject the others."""
        admitted: list[PendingCall] = []
        for one in calls:
            if turn.rounds > self._max_rounds:
                self._refuse(current, turn, one, RoundsError(one.call.name, limit=self._max_rounds))
            elif not self._within_rate():
                self._refuse(current, turn, one, FloodError(one.call.name))
            else:
                admitted.append(one)
        if turn.rounds > self._max_rounds + 1:  # rejected once, and still calling
            current.wants_response = current.wants_response and current.controller.continues_unprompted
        if turn.rounds == self._max_rounds + 2:  # once: an unprompted model may call for long
            error = RoundsError(calls[0].call.name if calls else "", limit=self._max_rounds)
            turn.record_error(error)
            self._emit(ErrorEvent(error))
        if admitted:
            self.run(current, turn, admitted)

    def run(self, current: Round, turn: Turn, calls: Sequence[PendingCall]) -> None:
        """Run calls."""
        for one in calls:
            self.pending[one.call.id] = current, one
            self._emit(ToolCallEvent(one.call, current.number))
        to_run = [_as_call(one) for one in calls]
        current.batches.append(turn.run.start(to_run, messages=self._messages(calls), iteration=current.number))

    def _within_rate(self) -> bool:
        return self.rate_limit.try_acquire(asyncio.get_running_loop().time())

    def _refuse(self, current: Round, turn: Turn, one: PendingCall, error: ToolError) -> None:
        self.pending[one.call.id] = current, one
        self._emit(ToolCallEvent(one.call, current.number))
        execution = rejected_execution(one.call, error)
        hooks = turn.run.hooks
        if hooks is not None and (hooks.observed or hooks.recorders):
            emit_call_end(hooks, current.number, execution, None)
        self._on_execution(execution)

    def _messages(self, calls: Sequence[PendingCall]) -> list[Message]:
        """Return the conversation as tools see it, ending with the calls."""
        called: Message = {"role": "assistant", "content": None, "tool_calls": [one.call.to_openai() for one in calls]}
        return [*self._transcript.messages(), called]


def _as_call(one: PendingCall) -> ToolCall | IncompleteCall:
    """Return the call, or an IncompleteCall if it was cut off."""
    call = one.call
    is_whole = one.partial is None or (one.partial.done and not one.partial.truncated)
    return call if is_whole else IncompleteCall(call.id, call.name, call.raw_arguments, call.raw_arguments)
