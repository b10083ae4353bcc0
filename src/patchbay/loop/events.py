"""The events of a turn, and the model's answer while it arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from patchbay.errors import HookAbortError, UpstreamError
from patchbay.executor import Budget, ToolExecution
from patchbay.executor.limits import in_time
from patchbay.models.chat_model import ModelEvent, ModelReply, ReasoningDelta, TextDelta
from patchbay.tools import Progress
from patchbay.types import NO_USAGE, Message, Reply, ToolCall, Usage


@dataclass(frozen=True, slots=True)
class TextEvent:
    """A piece of the model's text."""

    type: ClassVar = "text"
    delta: str


@dataclass(frozen=True, slots=True)
class ReasoningEvent:
    """A piece of the model's reasoning."""

    type: ClassVar = "reasoning"
    delta: str


@dataclass(frozen=True, slots=True)
class ReplyEvent:
    """The model's reply is complete, and none of its calls has begun.

    ``calls`` are those of ``reply`` with their final ids, an incomplete one included, which will fail. ``usage`` and
    ``finish_reason`` are the server's for this reply.
    """

    type: ClassVar = "reply"
    reply: Reply
    calls: tuple[ToolCall, ...]
    iteration: int
    usage: Usage
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """A call is about to run. Rounds (``iteration``) count from 1."""

    type: ClassVar = "tool_call"
    tool_call: ToolCall
    iteration: int


@dataclass(frozen=True, slots=True)
class ToolProgressEvent:
    """Progress of a running tool, for people who wait; the model does not get it."""

    type: ClassVar = "tool_progress"
    tool_call: ToolCall
    progress: Progress
    iteration: int


@dataclass(frozen=True, slots=True)
class ToolResultEvent:
    """A call has settled. These come as calls settle; the messages and ``tool_executions`` are in call order."""

    type: ClassVar = "tool_result"
    execution: ToolExecution
    iteration: int


@dataclass(frozen=True, slots=True)
class UserOutputEvent:
    """A tool's output for the user: a text, files by their refs, or both. ``handled``: this is the answer to the user."""

    type: ClassVar = "user_output"
    tool_call: ToolCall
    text: str
    media: tuple[str, ...]
    handled: bool


@dataclass(frozen=True, slots=True)
class IterationEndEvent:
    """A round is over, its results included. ``finish_reason`` is "tool_calls" if the model called tools."""

    type: ClassVar = "iteration_end"
    iteration: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class FinalEvent:
    """The turn is over.

    ``content`` is the last text of the model, None where there is none. ``messages`` is the whole conversation, each call with
    its result. ``finish_reason`` is "stop", "length", "content_filter", or the limit that ended the turn: "max_iterations",
    "max_calls" or "max_seconds"; or "abort_turn" or "hard_abort", where ``aborted`` is the hook's decision. ``usage`` is summed
    over all rounds. ``handled``: tools have given the user the answer, and the model was not asked again.

    With "tool_calls" the turn ended with calls of external tools, which are left to the caller: ``pending`` has them, and they
    alone have no result in ``messages`` yet (``patchbay.transcript.insert_results`` adds theirs).
    """

    type: ClassVar = "final"
    content: str | None
    messages: list[Message]
    iterations: int
    finish_reason: str
    tool_executions: tuple[ToolExecution, ...]
    usage: Usage
    pending: tuple[ToolCall, ...] = ()
    aborted: HookAbortError | None = None
    handled: bool = False


LoopEvent: TypeAlias = (
    TextEvent
    | ReasoningEvent
    | ReplyEvent
    | ToolCallEvent
    | ToolProgressEvent
    | ToolResultEvent
    | UserOutputEvent
    | IterationEndEvent
    | FinalEvent
)


class IncompleteAnswerError(UpstreamError):
    """The model's events ended without a ModelReply."""

    def __init__(self) -> None:
        super().__init__("The model's answer ended before it was complete.")


def next_model_event(events: AsyncIterator[ModelEvent], budget: Budget) -> Awaitable[ModelEvent | None]:
    """Return an awaitable of the model's next event, None at its end. It raises OutOfTimeError when the budget's time is up.

    The limit is on this one wait: it is over before anything is handed to a consumer (law 10).
    """
    # Most turns have no limit, and need no further coroutine.
    return anext(events, None) if budget.loop is None else in_time(anext(events, None), budget)


@dataclass
class ModelAnswer:
    """The model's answer while it arrives."""

    end: ModelReply | None = None
    texts: list[str] = field(default_factory=list)
    has_reasoning: bool = False

    def add(self, response: Any) -> LoopEvent | None:
        """Add an event of the model; return the turn's event for it, if there is one."""
        if self.end is not None:
            raise UpstreamError("The model went on after its reply was complete.")
        if isinstance(response, TextDelta):
            if not response.text:
                return None
            self.texts.append(response.text)
            return TextEvent(response.text)
        if isinstance(response, ReasoningDelta):
            self.has_reasoning = self.has_reasoning or bool(response.text)
            return ReasoningEvent(response.text) if response.text else None
        if not isinstance(response, ModelReply):
            raise TypeError(f"A model gave {type(response).__name__}: TextDelta, ReasoningDelta or ModelReply was expected.")
        _check(response)
        self.end = response
        return None

    def settle(self, end: ModelReply) -> None:
        """Set the whole reply. Raises TypeError for an invalid one."""
        _check(end)
        self.end = end

    def ended(self) -> ModelReply:
        """Return the model's whole reply. Raises IncompleteAnswerError if there is none."""
        if self.end is None:
            raise IncompleteAnswerError
        return self.end

    def missing_deltas(self, reply: Reply) -> list[LoopEvent]:
        """Return the events of a ``reply`` that came without deltas."""
        events: list[LoopEvent] = []
        if reply.reasoning and not self.has_reasoning:
            events.append(ReasoningEvent(reply.reasoning))
        if reply.content and not self.texts:
            events.append(TextEvent(reply.content))
        return events

    @property
    def usage(self) -> Usage:
        """The tokens of this answer."""
        return self.end.usage if self.end is not None else NO_USAGE


def _check(end: ModelReply) -> None:
    """Raise TypeError for an invalid reply, with a message that names the model as the cause."""
    reply = end.reply
    if not isinstance(reply, Reply):
        raise TypeError(f"A model gave a ModelReply of {type(reply).__name__}: a Reply was expected.")
    for name, text in (("content", reply.content), ("reasoning", reply.reasoning), ("finish_reason", end.finish_reason)):
        if text is not None and not isinstance(text, str):
            raise TypeError(f"A model gave a reply whose {name} is {type(text).__name__}: expected text.")
    for call in reply.tool_calls:
        if not isinstance(call, ToolCall) or not isinstance(call.raw_arguments, str):
            raise TypeError(f"A model gave an invalid call; its arguments must be JSON text: {call!r:.200}")
    if not isinstance(end.usage, Usage):
        raise TypeError(f"A model gave a reply whose usage is {type(end.usage).__name__}: expected a Usage.")
