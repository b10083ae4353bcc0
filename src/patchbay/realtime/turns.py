"""Turns of the user, one after another, each with its own run for tool calls.

A turn starts with speech, with a text, with a request, or with an unrequested response. It ends when it is answered
and no tool of it runs, when the user or the program continues, on failure, or with the session. Its end is reported once its
tools have ended.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from patchbay.errors import HookAbortError, PatchbayError
from patchbay.executor import Budget, Executor, Run, ToolExecution
from patchbay.hooks.types import HookScope
from patchbay.loop.observers import ObservedTurn, emit_request_counts, emit_response_counts, summary_of
from patchbay.realtime.config import RESULT_CHARS
from patchbay.realtime.history import Transcript
from patchbay.realtime.providers.base import Line
from patchbay.realtime.server_events import Status
from patchbay.realtime.session_tools import SessionTools
from patchbay.tools import Tool
from patchbay.tools.result_store import MemoryResultStore, ReadResult

if TYPE_CHECKING:
    from patchbay.hooks import HookManager
    from patchbay.media import MediaStore


_MAX_INPUT_CHARS: Final = 64 * 1024
"""Characters of the user's speech that are reported with the end of a turn."""

_MAX_EXECUTIONS: Final = 256
"""Executions that are reported with the end of a turn, the last ones."""


class Turn:
    """``text`` is what it starts with, "" if it ``is_spoken``."""

    def __init__(self, run: Run, text: str, *, is_spoken: bool) -> None:
        self.run = run
        self.is_spoken = is_spoken
        self.rounds = 0
        """The number of responses with calls."""
        self.responses = 0
        self.is_answered = False
        """True if the last response ended without calls."""
        self._status: Status = "cancelled"
        self._failure: PatchbayError | None = None
        self._content = ""
        self._executions: deque[dict[str, Any]] = deque(maxlen=_MAX_EXECUTIONS)
        hooks = run.hooks
        self._hooks = hooks if hooks is not None and hooks.observed else None
        self._observed = ObservedTurn(self._hooks, text) if self._hooks is not None else None

    def add_input(self, text: str) -> None:
        """Add a transcript of the user."""
        if (observed := self._observed) is not None and len(observed.message) < _MAX_INPUT_CHARS:
            observed.message = f"{observed.message} {text}".strip()

    def set_content(self, text: str) -> None:
        """Set the model's answer."""
        self._content = text

    def on_response_started(self, *, messages: int, tools: int) -> None:
        """Count a response and report it to observers."""
        self.responses += 1
        self.is_answered = False
        if self._observed is not None and self._hooks is not None:
            emit_request_counts(self._hooks, self.responses, messages=messages, tools=tools)

    def on_response_done(self, status: Status, *, chars: int, calls: int) -> None:
        """Record how a response ended."""
        self._status = status
        self.is_answered = status in ("completed", "incomplete") and not calls
        if self._observed is not None and self._hooks is not None:
            emit_response_counts(self._hooks, self.responses, chars=chars, calls=calls)

    def record_execution(self, execution: ToolExecution) -> None:
        """Record an execution."""
        if self._observed is not None:
            self._executions.append(summary_of(execution))

    def record_error(self, error: PatchbayError) -> None:
        """Record the first error."""
        self._failure = self._failure or error

    def cancel_unanswered(self) -> None:
        """Mark the turn as cancelled unless it is answered."""
        if not self.is_answered:
            self._status = "cancelled"

    def finish(self) -> None:
        """Report the end to observers, once."""
        observed, self._observed = self._observed, None
        if observed is not None:
            observed.end(self._ending(observed), self.responses, self._content, list(self._executions))

    def _ending(self, observed: ObservedTurn) -> str:
        """Return the status for observers, and report what went wrong before it."""
        if isinstance(self._failure, HookAbortError):
            return observed.aborted(self._failure)
        if self._failure is not None or self._status == "failed":
            return observed.failed("llm", str(self._failure or "The model's answer failed."))
        return "aborted" if self._status == "cancelled" else "completed"


_MAX_UNCLAIMED: Final = 8
"""Utterances between turns that the next turn starts with."""


@dataclass(frozen=True)
class SessionContext:
    """Context of a session's turns. ``scope`` applies to each turn, with its own turn id."""

    scope: HookScope
    hooks: HookManager | None = None
    media: MediaStore | None = None


class Turns:
    """``current`` is the turn in progress, None if there is none."""

    def __init__(self, context: SessionContext, tools: SessionTools, transcript: Transcript, *, max_calls: int) -> None:
        self.current: Turn | None = None
        self._context = context
        self._tools = tools
        self._transcript = transcript
        self._max_calls = max_calls
        self._executor: Executor | None = None
        self._results = MemoryResultStore(max_chars=RESULT_CHARS)
        self._has_reader = False
        self._answering: Turn | None = None  # of the response in progress
        self._ending: list[Turn] = []
        self._unclaimed_input: deque[str] = deque(maxlen=_MAX_UNCLAIMED)  # speech between turns

    # Start and end

    def end_current(self, *, is_spoken: bool = False) -> None:
        """End the current turn. Speech continues a spoken turn that has no response yet."""
        turn = self.current
        if turn is not None and not (is_spoken and turn.is_spoken and not turn.responses):
            turn.cancel_unanswered()
            self.finish()

    def begin_turn(self, text: str = "", *, is_spoken: bool = False) -> Turn:
        """Start a turn, unless one is in progress."""
        self._unclaimed_input.clear()
        if self.current is None:
            self.current = Turn(self._run(), text, is_spoken=is_spoken)
        return self.current

    def ensure(self) -> Turn:
        """Return the current turn, or start one for an unrequested response."""
        return self.current if self.current is not None else self.begin_turn(" ".join(self._unclaimed_input), is_spoken=True)

    def finish(self) -> None:
        """End the current turn."""
        turn, self.current = self.current, None
        if turn is not None:
            self._ending.append(turn)

    def report_finished(self, has_running: Callable[[Turn], bool]) -> None:
        """Report the ends of turns without running calls."""
        for turn in [each for each in self._ending if not has_running(each)]:
            self._ending.remove(turn)
            turn.finish()

    # Events

    def on_line(self, line: Line) -> None:
        """Record an utterance."""
        if line.role == "assistant":
            if self._answering is not None:
                self._answering.set_content(line.text)
        elif self.current is not None:
            self.current.add_input(line.text)
        else:
            self._unclaimed_input.append(line.text)

    def on_response_started(self, *, wanted: bool) -> None:
        """Record the start of a response. An unwanted one belongs to no turn."""
        self._answering = self.ensure() if wanted else None
        if self._answering is not None:
            self._answering.on_response_started(messages=len(self._transcript), tools=len(self._tools.wire_tools()))

    def on_response_done(self, status: Status, *, chars: int, calls: int) -> None:
        """Record the end of a response."""
        turn, self._answering = self._answering, None
        if turn is not None:
            turn.on_response_done(status, chars=chars, calls=calls)

    def record_error(self, error: PatchbayError) -> None:
        """Record an error of the current turn."""
        if self.current is not None:
            self.current.record_error(error)

    # Runs

    def update_tools(self) -> None:
        """Use the current tools in the current turn; running calls keep theirs."""
        self._executor = None
        if self.current is not None:
            run = self.current.run
            readers = {name: tool for name, tool in run.tools.items() if isinstance(tool, ReadResult)}
            run.set_tools({**self._tools.available, **readers})

    def take_new_reader(self, run: Run) -> Tool | None:
        """Return the tool that reads long results, the first time that a run has one."""
        if self._has_reader:
            return None
        found = next((tool for tool in run.tools.values() if isinstance(tool, ReadResult)), None)
        self._has_reader = found is not None
        return found

    def _run(self) -> Run:
        context = self._context
        if self._executor is None:
            tools = self._tools.available.values()
            self._executor = Executor(tools, hooks=context.hooks, media=context.media)
        return self._executor.begin_run(
            budget=Budget(max_calls=self._max_calls),
            scope=replace(context.scope, turn_id=uuid.uuid4().hex),
            results=self._results,
            offer_reader=self._has_reader,
        )
