"""Whose turn it is: turns of the user's, one after the other, each with a run of its own for the tools that are called in it.

What lives here: when a turn begins and when it is over. What does not: its calls (``answers``), what is told of it (``turn``).

A turn begins when the user is heard to speak, says something, or is to be answered; or with a response that nobody asked for. It
is over when it is answered and no tool of it is still running, when the user or the program goes on, when it has failed, or with
the session. The tools of one that is over come to their end behind it, and then its end is told.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from patchbay.errors import HookAbortError, PatchbayError
from patchbay.executor import Budget, Executor, Run, ToolExecution
from patchbay.hooks.scope import HookScope
from patchbay.loop.told import ObservedTurn, summary_of, tell_answered, tell_asked
from patchbay.realtime.config import RESULT_CHARS
from patchbay.realtime.history import Transcript
from patchbay.realtime.providers.base import Line
from patchbay.realtime.server_events import Status
from patchbay.realtime.session_tools import SessionTools
from patchbay.tools import Tool
from patchbay.tools.context import Progress
from patchbay.tools.kept import MemoryResultStore, ReadResult
from patchbay.types import ToolCall

if TYPE_CHECKING:
    from patchbay.hooks import HookManager
    from patchbay.media import MediaStore


_LONGEST_SAID: Final = 64 * 1024
"""So many characters of what the user is heard to say in a turn are told with its end."""

_MOST_EXECUTIONS: Final = 256
"""So many of its calls are told with its end, the last ones: a model that goes on by itself may call for ever."""


class Turn:
    """``said`` is what it began with, "" where that is heard by and by: then it ``is_spoken``."""

    def __init__(self, run: Run, said: str, *, is_spoken: bool) -> None:
        self.run = run
        self.is_spoken = is_spoken
        self.rounds = 0
        """How many responses with calls there were."""
        self.responses = 0
        self.is_answered = False
        """Whether the last response has ended by itself, and called nothing."""
        self._status: Status = "cancelled"
        self._failure: PatchbayError | None = None
        self._content = ""
        self._executions: deque[dict[str, Any]] = deque(maxlen=_MOST_EXECUTIONS)
        hooks = run.hooks
        self._hooks = hooks if hooks is not None and hooks.observed else None
        self._observed = ObservedTurn(self._hooks, said) if self._hooks is not None else None

    def heard(self, text: str) -> None:
        """The user was heard to say something."""
        if (observed := self._observed) is not None and len(observed.said) < _LONGEST_SAID:
            observed.said = f"{observed.said} {text}".strip()

    def answered(self, text: str) -> None:
        """The model has said something."""
        self._content = text

    def response_began(self, *, messages: int, tools: int) -> None:
        """The model answers, and knows so many messages and tools."""
        self.responses += 1
        self.is_answered = False
        if self._observed is not None and self._hooks is not None:
            tell_asked(self._hooks, self.responses, messages=messages, tools=tools)

    def response_ended(self, status: Status, *, chars: int, calls: int) -> None:
        """It has ended, with so many characters and calls."""
        self._status = status
        self.is_answered = status in ("completed", "incomplete") and not calls
        if self._observed is not None and self._hooks is not None:
            tell_answered(self._hooks, self.responses, chars=chars, calls=calls)

    def settled(self, execution: ToolExecution) -> None:
        """A call has settled."""
        if self._observed is not None:
            self._executions.append(summary_of(execution))

    def failed(self, error: PatchbayError) -> None:
        """Something went wrong with the answer."""
        self._failure = self._failure or error

    def left(self) -> None:
        """The user or the program goes on, or the session ends."""
        if not self.is_answered:
            self._status = "cancelled"

    def over(self) -> None:
        """Tell of its end, once."""
        observed, self._observed = self._observed, None
        if observed is not None:
            observed.over(self._ending(observed), self.responses, self._content, list(self._executions))

    def _ending(self, observed: ObservedTurn) -> str:
        """How it has ended, in the words of observers; with what went wrong, they are told that first."""
        if isinstance(self._failure, HookAbortError):
            return observed.aborted(self._failure)
        if self._failure is not None or self._status == "failed":
            return observed.failed("llm", str(self._failure or "The model's answer failed."))
        return "aborted" if self._status == "cancelled" else "completed"


_UTTERANCES: Final = 8


@dataclass(frozen=True)
class SessionContext:
    """What is around the turns of a session. ``scope`` is that of each, but for the turn's id."""

    scope: HookScope
    hooks: HookManager | None = None
    media: MediaStore | None = None


class Turns:
    """``current`` is the turn that is under way, None where there is none.

    ``settled`` and ``progress`` are told of the calls of their runs.
    """

    def __init__(self, around: SessionContext, offered: SessionTools, remembered: Transcript, *, max_calls: int) -> None:
        self.current: Turn | None = None
        self.settled: Callable[[ToolExecution], None] | None = None
        self.progress: Callable[[ToolCall, Progress], None] | None = None
        self._around = around
        self._offered = offered
        self._remembered = remembered
        self._max_calls = max_calls
        self._executor: Executor | None = None
        self._results = MemoryResultStore(max_chars=RESULT_CHARS)
        self._has_reader = False
        self._answering: Turn | None = None  # that of the response under way
        self._ending: list[Turn] = []
        self._heard: deque[str] = deque(maxlen=_UTTERANCES)  # between turns

    # Its beginning and its end

    def make_way(self, *, is_spoken: bool = False) -> None:
        """End the turn that is under way, answered or not. What is spoken goes on with what was, while nothing is answered."""
        turn = self.current
        if turn is not None and not (is_spoken and turn.is_spoken and not turn.responses):
            turn.left()
            self.over()

    def begin(self, said: str = "", *, is_spoken: bool = False) -> Turn:
        """Begin a turn, unless one is under way that this goes on with (``make_way``)."""
        self._heard.clear()
        if self.current is None:
            self.current = Turn(self._run(), said, is_spoken=is_spoken)
        return self.current

    def ensure(self) -> Turn:
        """Return the turn that is under way; where there is none, one begins that the model has begun."""
        return self.current if self.current is not None else self.begin(" ".join(self._heard), is_spoken=True)

    def over(self) -> None:
        """End the turn that is under way: it is answered, or has failed."""
        turn, self.current = self.current, None
        if turn is not None:
            self._ending.append(turn)

    def tell_ends(self, has_running: Callable[[Turn], bool]) -> None:
        """Tell of the ends of turns that are over, but for those that have calls running."""
        for turn in [each for each in self._ending if not has_running(each)]:
            self._ending.remove(turn)
            turn.over()

    # What happens in it

    def heard(self, line: Line) -> None:
        """Somebody has said something, to its end."""
        if line.role == "assistant":
            if self._answering is not None:
                self._answering.answered(line.text)
        elif self.current is not None:
            self.current.heard(line.text)
        else:
            self._heard.append(line.text)

    def response_began(self, *, wanted: bool) -> None:
        """The model answers. What is not wanted any more belongs to no turn."""
        self._answering = self.ensure() if wanted else None
        if self._answering is not None:
            self._answering.response_began(messages=len(self._remembered), tools=len(self._offered.told()))

    def response_ended(self, status: Status, *, chars: int, calls: int) -> None:
        """It has ended."""
        turn, self._answering = self._answering, None
        if turn is not None:
            turn.response_ended(status, chars=chars, calls=calls)

    def failed(self, error: PatchbayError) -> None:
        """There is no answer, or not all of one."""
        if self.current is not None:
            self.current.failed(error)

    # Its run

    def tools_changed(self) -> None:
        """Let the turn that is under way find the tools of now; calls that have begun keep theirs."""
        self._executor = None
        if self.current is not None:
            run = self.current.run
            readers = {name: tool for name, tool in run.tools.items() if isinstance(tool, ReadResult)}
            run.use({**self._offered.tools, **readers})

    def new_reader(self, run: Run) -> Tool | None:
        """Return the tool that reads long results when the first run has one."""
        if self._has_reader:
            return None
        found = next((tool for tool in run.tools.values() if isinstance(tool, ReadResult)), None)
        self._has_reader = found is not None
        return found

    def _run(self) -> Run:
        around = self._around
        if self._executor is None:
            tools = self._offered.tools.values()
            self._executor = Executor(tools, hooks=around.hooks, media=around.media, on_progress=self.progress)
        return self._executor.begin(
            budget=Budget(max_calls=self._max_calls),
            scope=replace(around.scope, turn_id=uuid.uuid4().hex),
            results=self._results,
            offer_reader=self._has_reader,
            on_settled=self.settled,
        )
