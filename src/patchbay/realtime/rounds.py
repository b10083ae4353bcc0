"""The calls of one response, from their beginning until each has its one result.

What lives here: what is known of each call, and its words. What does not: when calls begin (``admission``), and when their
results are told (``answers``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from patchbay.errors import HookAbortError, ToolError
from patchbay.executor import Batch, ToolExecution
from patchbay.realtime.calls import HeardCall
from patchbay.types import ToolCall, ToolResult

if TYPE_CHECKING:
    import asyncio

    from patchbay.realtime.talk import Talk
    from patchbay.realtime.turn import Turn

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
class OneCall:
    """A call that is ours. ``call`` is as the executor knows it, ``wire_id`` and ``wire_name`` are as the server does."""

    call: ToolCall
    wire_id: str
    wire_name: str
    heard: HeardCall | None = None
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
    talk: Talk
    turn: Turn | None
    calls: list[OneCall] = field(default_factory=list)
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


def returned(calls: Iterable[OneCall]) -> str:
    """Return what a new connection is told of results that an old one was given, a line of each: in quotes, as data."""
    known = ((one.call.name, one.text) for one in calls if one.text is not None)
    return "\n".join(f"[The tool {name} returned] {json.dumps(text, ensure_ascii=False)}" for name, text in known)
