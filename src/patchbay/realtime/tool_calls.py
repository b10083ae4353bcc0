"""Tool calls of a session: their state per response, and the texts of their results."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from patchbay.errors import HookAbortError, ToolError
from patchbay.executor import Batch, ToolExecution
from patchbay.realtime.call_assembly import PartialCall
from patchbay.realtime.providers.base import CallResult
from patchbay.realtime.turns import Turn
from patchbay.types import IncompleteCall, ToolCall, ToolResult

if TYPE_CHECKING:
    from patchbay.realtime.responses import ResponseController


ABANDONED: Final = json.dumps(
    {"abandoned": True, "error": "The call was given up, because the conversation has gone on. What it did until then stands."}
)
"""The result of a call that was stopped because the user continued."""

STOP: Final = json.dumps(
    {"stop": True, "warning": "Too many tool calls in a short time: this one did not run. Answer without tools."}
)
"""The result of a call beyond the rate limit."""


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


class FloodError(ToolError, RuntimeError):
    """The call did not run because too many had started shortly before."""

    code = "rate_limited"

    def __init__(self, tool_name: str) -> None:
        super().__init__("tool-call rate limit reached", tool_name=tool_name)

    @property
    def for_model(self) -> str:
        """Return the text fixed by the contract."""
        return STOP


Fate: TypeAlias = Literal["wanted", "background", "abandoned", "withdrawn"]
"""What becomes of a call's result: it is sent with its round; it is sent later as a line, because the call was reported as still
running or its connection was lost; it is dropped, because the user continued; it is dropped and not answered at all, because the
server has withdrawn the call."""


@dataclass(slots=True, eq=False)
class RoundCall:
    """A call in a round. ``partial`` has the server's id and name for it."""

    call: ToolCall
    partial: PartialCall
    execution: ToolExecution | None = None
    fate: Fate = "wanted"

    @property
    def is_known(self) -> bool:
        """True if the model may be sent the call's result, or that it is still running."""
        return self.fate == "background" or (self.fate == "wanted" and self.execution is not None)

    @property
    def text(self) -> str:
        """The result for the model when the round is answered."""
        if self.fate == "wanted" and self.execution is not None:
            return self.execution.content
        return still_running_text(self.call.name) if self.fate == "background" else ABANDONED

    @property
    def result(self) -> CallResult:
        """The result on the wire."""
        return CallResult(self.partial.call_id, self.partial.name, self.text)

    @property
    def to_run(self) -> ToolCall | IncompleteCall:
        """The call, or an IncompleteCall if it was cut off."""
        call = self.call
        is_whole = self.partial.done and not self.partial.truncated
        return call if is_whole else IncompleteCall(call.id, call.name, call.raw_arguments, call.raw_arguments)


@dataclass(slots=True, eq=False)
class Round:
    """The calls of one response by id, in call order. ``controller`` is the connection that expects the results.

    ``number`` counts responses in the ``turn``. ``is_delivered``: the results were sent, or are sent as lines.
    """

    number: int
    controller: ResponseController
    turn: Turn
    calls: dict[str, RoundCall] = field(default_factory=dict)
    batch: Batch | None = None
    is_delivered: bool = False
    wants_response: bool = True
    abort_reported: bool = False
    timer: asyncio.TimerHandle | None = None

    @property
    def is_complete(self) -> bool:
        """True if all results are known."""
        return all(one.execution is not None or one.fate == "withdrawn" for one in self.calls.values())

    @property
    def is_settled(self) -> bool:
        """True if no call runs any more."""
        return all(one.execution is not None for one in self.calls.values())

    @property
    def aborted(self) -> HookAbortError | None:
        """The error of a hook that ended the turn, if any."""
        return self.batch.aborted if self.batch is not None else None

    def deliver(self) -> None:
        """Mark the round as answered and stop its timer."""
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


def result_line(name: str, text: str) -> str:
    """Return a result as a line of the conversation, quoted as data."""
    return f"[The tool {name} returned] {json.dumps(text, ensure_ascii=False)}"


def results_text(calls: Iterable[RoundCall]) -> str:
    """Return results as lines of the conversation."""
    return "\n".join(result_line(one.call.name, one.text) for one in calls)


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
