"""One turn of the user's: the run of its calls, how far it is, and what observers are told of it.

What lives here: a turn from what the user said to its end. What does not: when it begins and when it is over (``turns``).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from patchbay.errors import HookAbortError, PatchbayError
from patchbay.executor import Run, ToolExecution
from patchbay.loop.told import ObservedTurn, summary_of, tell_answered, tell_asked
from patchbay.realtime.news import Status

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
