"""What happens in a turn, as events: plain data, each with its ``type`` as a word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from patchbay.errors import HookAbortError
from patchbay.executor import ToolExecution
from patchbay.tools import Progress
from patchbay.types import Message, Reply, ToolCall, Usage


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
    """The model's reply is whole, and none of its calls has begun.

    ``calls`` are those of ``reply``, each with the id that it has from here on; one that was cut off is among them, and will be
    answered with an error. ``usage`` and ``finish_reason`` are this reply's, as its server said them.
    """

    type: ClassVar = "reply"
    reply: Reply
    calls: tuple[ToolCall, ...]
    iteration: int
    usage: Usage
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """A call is about to be carried out. Rounds (``iteration``) count from 1."""

    type: ClassVar = "tool_call"
    tool_call: ToolCall
    iteration: int


@dataclass(frozen=True, slots=True)
class ToolProgressEvent:
    """A running tool said how far it is. This is for people who wait: the model is never told."""

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
    """A tool has something for the user: a text, files by their refs, or both. ``handled``: this is the answer to the user."""

    type: ClassVar = "user_output"
    tool_call: ToolCall
    text: str
    media: tuple[str, ...]
    handled: bool


@dataclass(frozen=True, slots=True)
class IterationEndEvent:
    """A round is over, its results included. ``finish_reason`` is "tool_calls" where the model called tools."""

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
    alone have no result in ``messages`` yet (``patchbay.loop.answered`` puts theirs in).
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
