"""The one loop: model, calls, results, model, until an answer or the last round.

What lives here: one turn as a stream of typed events. How calls are carried out is the executor's; what a provider's wire looks
like is ``patchbay.models``'; callbacks, clients and the blocking door are the runner's.

Nothing that a model writes can raise out of here (law 2): duplicate or missing call ids, names and arguments that a server would
refuse to read back are mended in the conversation's view, never in the record of what the model wrote. No timeout and no cancel
scope is held across a ``yield`` (law 10); closing the generator stops the model and the tools.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from patchbay.errors import ConfigurationError, UpstreamError
from patchbay.executor import Batch, Executor, ToolExecution
from patchbay.models.chat import ChatModel, ChatRequest, ModelReply, ReasoningDelta, TextDelta
from patchbay.schema import read_arguments
from patchbay.tools import well_formed
from patchbay.types import IncompleteCall, Message, Reply, ToolCall, ToolSpec, Usage


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
class ToolCallEvent:
    """A call is about to be carried out. Rounds (``iteration``) count from 1."""

    type: ClassVar = "tool_call"
    tool_call: ToolCall
    iteration: int


@dataclass(frozen=True, slots=True)
class ToolResultEvent:
    """A call has settled. These come as calls settle; the messages and ``tool_executions`` are in call order."""

    type: ClassVar = "tool_result"
    execution: ToolExecution
    iteration: int


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
    its result. ``finish_reason`` is "stop", "length", "content_filter" or "max_iterations". ``usage`` is summed over all rounds.
    """

    type: ClassVar = "final"
    content: str | None
    messages: list[Message]
    iterations: int
    finish_reason: str
    tool_executions: tuple[ToolExecution, ...]
    usage: Usage


LoopEvent: TypeAlias = TextEvent | ReasoningEvent | ToolCallEvent | ToolResultEvent | IterationEndEvent | FinalEvent

# What a server is sure to accept as a function's name.
_SAFE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ENDINGS = {"length", "content_filter"}


async def turn(
    model: ChatModel,
    executor: Executor,
    messages: Sequence[Message],
    *,
    tool_choice: Any = None,
    parameters: Mapping[str, Any] | None = None,
    max_iterations: int = 10,
    stream: bool = False,
) -> AsyncGenerator[LoopEvent, None]:
    """Ask ``model`` until it answers without calling a tool, or ``max_iterations`` rounds are over.

    The last event is a FinalEvent. A ``tool_choice`` that demands a call is for the first round, then it is "auto": the model
    must be able to answer. The calls of the last round are carried out too, so that no call stays without its result.
    ``messages`` is not changed. What the model's server does wrong is raised as UpstreamError. Raises ConfigurationError for
    ``max_iterations`` below 1.
    """
    if isinstance(max_iterations, bool) or not isinstance(max_iterations, int) or max_iterations < 1:
        raise ConfigurationError(f"max_iterations must be a whole number of at least 1, not {max_iterations!r}.")
    state = _Turn(list(messages), tuple(tool.spec for tool in executor.tools.values()), dict(parameters or {}), executor)
    content: str | None = None
    finish_reason = "max_iterations"
    iteration = 0
    while iteration < max_iterations:
        iteration += 1
        request = state.request(tool_choice if iteration == 1 else relaxed(tool_choice), stream=stream)
        answer = _Answer()
        responses = model.respond(request)
        try:
            async for response in responses:
                event = answer.take(response)
                if event is not None:
                    yield event
        finally:
            if (close := getattr(responses, "aclose", None)) is not None:
                await close()
        reply, reason = answer.whole()
        for event in answer.unsaid():
            yield event
        content = reply.content if reply.content is not None else content
        calls = state.add_reply(reply, answer.usage)
        if not calls:
            finish_reason = reason if reason in _ENDINGS else "stop"
            yield IterationEndEvent(iteration, finish_reason)
            break
        for call in calls:
            yield ToolCallEvent(_as_call(call), iteration)
        batch: Batch = executor.start(calls, messages=state.messages, iteration=iteration)
        try:
            async for execution in batch:
                yield ToolResultEvent(execution, iteration)
        finally:
            await batch.stop()
        state.add_results(batch.executions)
        yield IterationEndEvent(iteration, "tool_calls")
    yield FinalEvent(content, state.messages, iteration, finish_reason, tuple(state.executions), state.usage)


def relaxed(tool_choice: Any) -> Any:
    """Return the tool_choice of the rounds after the first: one that demands a call no longer does."""
    if tool_choice == "required":
        return "auto"
    if isinstance(tool_choice, Mapping):
        allowed = tool_choice.get("allowed_tools")
        if tool_choice.get("type") == "allowed_tools" and isinstance(allowed, Mapping):
            return {**tool_choice, "allowed_tools": {**allowed, "mode": "auto"}}
        return "auto"
    return tool_choice


@dataclass
class _Answer:
    """One answer of the model while it arrives."""

    end: ModelReply | None = None
    said_text: bool = False
    said_reasoning: bool = False

    def take(self, response: Any) -> LoopEvent | None:
        """Return the event for what the model said, if it is one."""
        if self.end is not None:
            raise UpstreamError("The model went on after its reply was complete.")
        if isinstance(response, TextDelta):
            self.said_text = self.said_text or bool(response.text)
            return TextEvent(response.text) if response.text else None
        if isinstance(response, ReasoningDelta):
            self.said_reasoning = self.said_reasoning or bool(response.text)
            return ReasoningEvent(response.text) if response.text else None
        if not isinstance(response, ModelReply):
            raise TypeError(f"A model gave {type(response).__name__}: TextDelta, ReasoningDelta or ModelReply was expected.")
        self.end = response
        return None

    def whole(self) -> tuple[Reply, str | None]:
        """Return the reply and its finish_reason. Raises UpstreamError if the model stopped before it was whole."""
        if self.end is None:
            raise UpstreamError("The model's answer ended before it was complete.")
        return self.end.reply, self.end.finish_reason

    def unsaid(self) -> list[LoopEvent]:
        """Return events for what a model that does not stream said all at once."""
        if self.end is None:
            return []
        reply = self.end.reply
        events: list[LoopEvent] = []
        if reply.reasoning and not self.said_reasoning:
            events.append(ReasoningEvent(reply.reasoning))
        if reply.content and not self.said_text:
            events.append(TextEvent(reply.content))
        return events

    @property
    def usage(self) -> Usage:
        """The tokens of this answer."""
        return self.end.usage if self.end is not None else Usage()


@dataclass
class _Turn:
    """The conversation of one turn as it grows, and what was done in it."""

    messages: list[Message]
    specs: tuple[ToolSpec, ...]
    parameters: dict[str, Any]
    executor: Executor
    executions: list[ToolExecution] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        self._ids = {call.get("id") for message in self.messages for call in _calls_of(message)}

    def request(self, tool_choice: Any, *, stream: bool) -> ChatRequest:
        """Return what the model is asked now. The list is the model's own, so that a recorded request stays what it was."""
        return ChatRequest(list(self.messages), self.specs, tool_choice if self.specs else None, self.parameters, stream)

    def add_reply(self, reply: Reply, usage: Usage) -> list[ToolCall | IncompleteCall]:
        """Append the assistant's message; return its calls, each with an id that is its own in this conversation."""
        written: list[ToolCall | IncompleteCall] = [*reply.tool_calls, *reply.incomplete]
        calls = [self._with_own_id(call) for call in written]
        message: Message = {"role": "assistant", "content": reply.content and well_formed(reply.content)}
        if calls:
            message["tool_calls"] = [self._readable(call) for call in calls]
        self.messages.append(message)
        self.usage += usage
        return calls

    def add_results(self, executions: Sequence[ToolExecution]) -> None:
        """Append the results, in call order."""
        self.executions.extend(executions)
        self.messages.extend(execution.result.to_message() for execution in executions)

    def _with_own_id(self, call: ToolCall | IncompleteCall) -> ToolCall | IncompleteCall:
        # Some servers send no ids, some count from 0 in every answer, and some send what cannot be sent back.
        if not call.id or call.id in self._ids or well_formed(call.id) != call.id:
            call = replace(call, id=f"call_{uuid.uuid4().hex[:24]}")
        self._ids.add(call.id)
        return call

    def _readable(self, call: ToolCall | IncompleteCall) -> dict[str, Any]:
        """Return the call as a server will read it back: many refuse a name or arguments that are not well-formed."""
        name, arguments = call.name, call.raw_arguments
        if name not in self.executor.tools and not _SAFE_NAME.match(name):
            name = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unknown"
        arguments = well_formed(arguments) if _is_object(arguments) else "{}"
        return {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _is_object(text: str) -> bool:
    try:
        read_arguments(text)
    except ValueError:
        return False
    return text.lstrip().startswith("{")


def _as_call(call: ToolCall | IncompleteCall) -> ToolCall:
    return call if isinstance(call, ToolCall) else ToolCall(call.id, call.name, call.raw_arguments)


def _calls_of(message: Any) -> list[Mapping[str, Any]]:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list | tuple) else []
