"""One turn: ask the model, carry out its calls, give it the results, until it answers or a limit is met."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Mapping, Sequence
from typing import Any

from patchbay.executor import Batch, Executor, Run, ToolProgress
from patchbay.executor.batch import as_call
from patchbay.executor.budget import checked_count
from patchbay.loop.answer import Answer, OutOfTimeError, next_event
from patchbay.loop.conversation import Conversation
from patchbay.loop.events import (
    FinalEvent,
    IterationEndEvent,
    LoopEvent,
    ReplyEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from patchbay.models.chat import ChatModel
from patchbay.types import Message, ToolCall, ToolSpec

_ENDINGS = {"length", "content_filter"}


async def turn(
    model: ChatModel,
    executor: Executor | Run,
    messages: Sequence[Message],
    *,
    tool_choice: Any = None,
    parameters: Mapping[str, Any] | None = None,
    max_iterations: int | None = 10,
    stream: bool = False,
    external: Sequence[ToolSpec] = (),
    without: Container[type[LoopEvent]] = (),
) -> AsyncGenerator[LoopEvent, None]:
    """Ask ``model`` until it answers without calling a tool, or a limit is met: ``max_iterations`` rounds, or the run's budget.

    ``executor`` may be a Run that has begun, with its budget, surroundings and attachments; of an Executor one is begun here. The
    last event is a FinalEvent, also where a limit ends the turn, and by then every call has its result: those of the last round
    are carried out, one beyond the budget is told so, one that the end of the time finds running is stopped. A ``tool_choice``
    that demands a call is for the first round, then it is "auto": the model must be able to answer. ``messages`` is not changed.
    ToolCallEvents and ToolResultEvents are left out where they are in ``without``: to tell what nobody looks at costs too.

    ``external`` are tools that the caller carries out itself. The model is told of them too, and of no other tool that has the
    name of one. A reply that calls one ends the turn with the finish_reason "tool_calls": its other calls are carried out, and
    those of external tools are the FinalEvent's ``pending``.

    What the model's server does wrong is raised as UpstreamError. Raises ConfigurationError for ``max_iterations`` below 1;
    with None the run's budget alone counts the rounds.
    """
    checked_count(max_iterations, "max_iterations")
    run = executor if isinstance(executor, Run) else executor.begin()
    budget = run.budget
    conversation = Conversation(list(messages), dict(parameters or {}), run, tuple(external))
    content: str | None = None
    finish_reason = "max_iterations"
    pending: tuple[ToolCall, ...] = ()
    iteration = 0
    while max_iterations is None or iteration < max_iterations:
        if not budget.take_iteration():
            break
        iteration += 1
        request = conversation.request(tool_choice if iteration == 1 else relaxed(tool_choice), stream=stream)
        answer = Answer()
        responses = model.respond(request)
        source = aiter(responses)
        in_time = True
        try:
            while (response := await next_event(source, budget.ends)) is not None:
                event = answer.take(response)
                if event is not None:
                    yield event
        except OutOfTimeError:
            in_time = False
            budget.out_of_time()
        finally:
            if (close := getattr(responses, "aclose", None)) is not None:
                await close()
        if not in_time and answer.end is None:
            said = "".join(answer.said)
            conversation.add_unfinished(said)
            content = said or content
            yield IterationEndEvent(iteration, "max_seconds")
            break
        reply, reason = answer.whole()
        for event in answer.unsaid():
            yield event
        content = reply.content if reply.content is not None else content
        written = conversation.add_reply(reply, answer.usage)
        calls = tuple(as_call(call) for call in written)
        yield ReplyEvent(reply, calls, iteration, answer.usage, reason)
        if not calls:
            finish_reason = reason if reason in _ENDINGS else "stop"
            yield IterationEndEvent(iteration, finish_reason)
            break
        if external and (pending := conversation.left_to_caller(written)):
            written = [call for call in written if call not in pending]
            calls = tuple(as_call(call) for call in written)
        if ToolCallEvent not in without:
            for call in calls:
                yield ToolCallEvent(call, iteration)
        # The tools' own list: what they do to it, at once or when they were left to themselves, is not the conversation's.
        batch: Batch = run.start(written, messages=list(conversation.messages), iteration=iteration)
        try:
            while (news := await batch.next_news()) is not None:
                if isinstance(news, ToolProgress):
                    yield ToolProgressEvent(news.call, news.progress, iteration)
                elif ToolResultEvent not in without:
                    yield ToolResultEvent(news, iteration)
        finally:
            await batch.stop()
        conversation.add_results(batch.executions)
        yield IterationEndEvent(iteration, "tool_calls")
        if pending:
            finish_reason = "tool_calls"
            break
        if budget.exceeded is not None:
            break
    if finish_reason == "max_iterations" and budget.exceeded is not None:
        finish_reason = budget.exceeded
    executions = tuple(conversation.executions)
    yield FinalEvent(content, conversation.messages, iteration, finish_reason, executions, conversation.usage, pending)


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
