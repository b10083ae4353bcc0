"""Which calls run: those within the limits of the session and of the user's turn; the others have a result that says why not.

What lives here: the beginning of a call. What does not: its end (``answers``).
"""

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
from patchbay.executor.told import tell_settled
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
"""The result of a call that was stopped because the user went on."""


class NotRunError(ToolError, RuntimeError):
    """A call whose response was interrupted, cancelled or broke off; the tool did not run."""

    code = "not_run"

    def __init__(self, tool_name: str) -> None:
        super().__init__(
            f"The response that called {tool_name!r} was not completed, and the tool did not run.", tool_name=tool_name
        )


class RoundsError(ToolError, RuntimeError):
    """A call beyond the responses with calls that one turn may have (``limit``); the tool did not run."""

    code = "max_rounds"

    def __init__(self, tool_name: str, *, limit: int) -> None:
        super().__init__(f"Tools were called in {limit} responses already, which is the most for one turn", tool_name=tool_name)

    @property
    def for_model(self) -> str:
        """Say that there is no more to be had."""
        return f"Error: {self}: {self.tool_name!r} did not run. Answer with what you have."


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call that is ours. ``call`` is as the executor knows it, ``wire_id`` and ``wire_name`` are as the server does."""

    call: ToolCall
    wire_id: str
    wire_name: str
    heard: PartialCall | None = None
    text: str | None = None
    """Its one result, once that is known."""
    told: bool = False
    """Whether it has that, on its connection, or none is wanted there (any more)."""
    execution: ToolExecution | None = None
    given_up: bool = False
    """What becomes of it is told to nobody."""
    runs_on: bool = False
    """Its one result was that it is still running; what becomes of it is told as a line."""


@dataclass(slots=True, eq=False)
class Round:
    """The calls of one response, in call order. ``talk`` is the connection on which their results are wanted.

    ``number`` is that of the response in its ``turn``, which is None where none of the calls is to run.
    ``is_open``: more calls may come, because the response is not over. ``is_delivered``: each call has its result there.
    """

    number: int
    talk: ResponseController
    turn: Turn | None
    calls: list[PendingCall] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    is_open: bool = True
    is_delivered: bool = False
    responds: bool = True
    has_told_abort: bool = False
    timer: asyncio.TimerHandle | None = None

    @property
    def is_known(self) -> bool:
        """Whether each call's result is known."""
        return not self.is_open and all(one.text is not None or one.told for one in self.calls)

    @property
    def aborted(self) -> HookAbortError | None:
        """The decision of a hook that ended the turn, if one did."""
        return next((each.error for each in self.executions if isinstance(each.error, HookAbortError)), None)

    @property
    def executions(self) -> list[ToolExecution]:
        """What has settled, in call order."""
        return [one.execution for one in self.calls if one.execution is not None]

    def deliver(self) -> None:
        """Be done: nothing is told by this round any more."""
        self.is_delivered = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def refusal(call: ToolCall, error: ToolError) -> ToolExecution:
    """Return what became of a call that did not run."""
    result = ToolResult(call.id, call.name, error.for_model, is_error=True, code=error.code)
    return ToolExecution(call, None, None, result, error)


def still_running(name: str) -> str:
    """Return the result of a call whose tool is not done yet."""
    note = f"The tool {name!r} is still running. Its result will be told when it is there: go on without it, do not call again."
    return json.dumps({"status": "running", "note": note}, ensure_ascii=False)


def returned(calls: Iterable[PendingCall]) -> str:
    """Return what a new connection is told of results that an old one was given, a line of each: in quotes, as data."""
    known = ((one.call.name, one.text) for one in calls if one.text is not None)
    return "\n".join(f"[The tool {name} returned] {json.dumps(text, ensure_ascii=False)}" for name, text in known)


STOP: Final = json.dumps(
    {"stop": True, "warning": "Too many tool calls in a short time: this one did not run. Answer without tools."}
)
"""What the model is told in the place of a result."""


class FloodError(ToolError, RuntimeError):
    """A call that did not run, because too many had begun shortly before."""

    code = "rate_limited"

    def __init__(self, tool_name: str) -> None:
        super().__init__("tool-call rate limit reached", tool_name=tool_name)

    @property
    def for_model(self) -> str:
        """The words of the contract."""
        return STOP


class SlidingWindowLimit:
    """At most ``most`` calls begin in any ``seconds``; those that are refused do not count."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._begun: deque[float] = deque(maxlen=most)

    def take(self, now: float) -> bool:
        """Begin a call at this time; False where it may not."""
        if len(self._begun) == self._most and now - self._begun[0] < self._seconds:
            return False
        self._begun.append(now)
        return True

    def reset(self) -> None:
        """Begin anew."""
        self._begun.clear()


MOST_OUTCOMES: Final = 64
"""How many wait to be told; then the oldest go."""


class LateResults:
    """Those that wait."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[ToolExecution, str, bool]] = deque()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._waiting)

    @property
    def ask(self) -> bool:
        """Whether the model is to answer to any of them."""
        return any(asks for _, _, asks in self._waiting)

    def add(self, execution: ToolExecution, text: str, *, asks: bool = True) -> ToolExecution | None:
        """Add one, told as ``text`` and to be answered where it ``asks``; return the one that goes, if there are too many."""
        self._waiting.append((execution, text, asks))
        return self._waiting.popleft()[0] if len(self._waiting) > MOST_OUTCOMES else None

    def take(self) -> Sequence[Line]:
        """Return all as lines; they wait no longer."""
        lines = [Line("user", text) for _, text, _ in self._waiting]
        self._waiting.clear()
        return lines

    def clear(self) -> Sequence[ToolExecution]:
        """Return all that are told to nobody; they wait no longer."""
        executions = [execution for execution, _, _ in self._waiting]
        self._waiting.clear()
        return executions


def outcome(call: ToolCall, text: str) -> str:
    """Return the line that tells what has become of a call whose result could not wait. It stands in quotes, as data."""
    return f"[Result of the tool {call.name} that was still running] {json.dumps(text, ensure_ascii=False)}"


class CallAdmission:
    """``under_way`` are the calls that have no execution yet, by their ids; ``settled`` is told of those that do not run."""

    def __init__(
        self,
        limits: RealtimeLimits,
        offered: SessionTools,
        remembered: Transcript,
        *,
        emit: Callable[[RealtimeEvent], None],
        settled: Callable[[ToolExecution], None],
    ) -> None:
        self.under_way: dict[str, tuple[Round, PendingCall]] = {}
        self._max_rounds = limits.max_rounds
        self._flood = SlidingWindowLimit(limits.flood_calls, limits.flood_seconds)
        self._offered = offered
        self._remembered = remembered
        self._emit = emit
        self._settled = settled

    def reset(self) -> None:
        """Count no longer how many calls have begun lately."""
        self._flood.reset()

    def takes_early(self, turn: Turn, heard: PartialCall) -> bool:
        """Whether a call may begin while its response goes on: its tool has no effects, and nobody may put another in its place.

        Then it counts as one that has begun.
        """
        if turn.rounds >= self._max_rounds or not heard.call_id:  # which may be told at the end
            return False
        tool = self._offered.tools.get(self._offered.own_name(heard.name))
        if tool is None or tool.annotations.get("read_only") is not True or tool.source or tool.owner or tool.sequential:
            return False
        hooks = turn.run.hooks
        return not (hooks is not None and hooks.chains.of_tools) and self._takes()

    def own(self, current: Round, heard: PartialCall) -> PendingCall:
        """Take a call into its round: under the tool's own name, with an id that no other call has."""
        heard.begun = True
        known = current.turn.run.call_ids if current.turn is not None else set[str]()
        call_id = heard.call_id
        if not call_id or call_id in self.under_way or call_id in known:
            call_id = f"call_{uuid.uuid4().hex[:24]}"
        known.add(call_id)
        call = ToolCall(call_id, self._offered.own_name(heard.name), heard.text or "{}")
        return PendingCall(call, heard.call_id, heard.name, heard)

    def begin(self, current: Round, turn: Turn, calls: Sequence[PendingCall]) -> None:
        """Begin those of the calls that may."""
        admitted: list[PendingCall] = []
        for one in calls:
            if turn.rounds > self._max_rounds:
                self._refuse(current, turn, one, RoundsError(one.call.name, limit=self._max_rounds))
            elif not self._takes():
                self._refuse(current, turn, one, FloodError(one.call.name))
            else:
                admitted.append(one)
        if turn.rounds > self._max_rounds + 1:  # it was told so once, and calls on
            current.responds = current.responds and current.talk.goes_on_by_itself
        if turn.rounds == self._max_rounds + 2:  # once: a model that goes on by itself may do so for long
            error = RoundsError(calls[0].call.name if calls else "", limit=self._max_rounds)
            turn.failed(error)
            self._emit(ErrorEvent(error))
        if admitted:
            self.start(current, turn, admitted)

    def start(self, current: Round, turn: Turn, calls: Sequence[PendingCall]) -> None:
        """Have calls carried out."""
        for one in calls:
            self.under_way[one.call.id] = current, one
            self._emit(ToolCallEvent(one.call, current.number))
        written = [_written(one) for one in calls]
        current.batches.append(turn.run.start(written, messages=self._messages(calls), iteration=current.number))

    def _takes(self) -> bool:
        return self._flood.take(asyncio.get_running_loop().time())

    def _refuse(self, current: Round, turn: Turn, one: PendingCall, error: ToolError) -> None:
        """Settle a call that does not run."""
        self.under_way[one.call.id] = current, one
        self._emit(ToolCallEvent(one.call, current.number))
        execution = refusal(one.call, error)
        hooks = turn.run.hooks
        if hooks is not None and (hooks.observed or hooks.recorders):
            tell_settled(hooks, current.number, execution, None)
        self._settled(execution)

    def _messages(self, calls: Sequence[PendingCall]) -> list[Message]:
        """The conversation as tools see it, the calls' own message last."""
        called: Message = {"role": "assistant", "content": None, "tool_calls": [one.call.to_openai() for one in calls]}
        return [*self._remembered.messages(), called]


def _written(one: PendingCall) -> ToolCall | IncompleteCall:
    """The call, or what there is of one that was cut off, by its server or by us."""
    call = one.call
    is_whole = one.heard is None or (one.heard.done and not one.heard.is_cut)
    return call if is_whole else IncompleteCall(call.id, call.name, call.raw_arguments, call.raw_arguments)
