"""One turn: the model is asked, its calls are run, it is asked again, until an answer or a limit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from patchbay.errors import HookAbortError
from patchbay.executor import Batch, Executor, Run, ToolExecution, ToolProgress
from patchbay.executor.batch import as_call
from patchbay.executor.limits import OutOfTimeError, checked_count, in_time
from patchbay.loop.conversation import Conversation
from patchbay.loop.events import (
    FinalEvent,
    IterationEndEvent,
    LoopEvent,
    ModelAnswer,
    ReplyEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UserOutputEvent,
    next_model_event,
)
from patchbay.loop.hooks import RequestHookView, ResponseHookView
from patchbay.loop.observers import emit_output, emit_request, emit_response, observed_turn
from patchbay.models.chat_model import ChatModel, ChatRequest
from patchbay.types import IncompleteCall, Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from patchbay.hooks import TurnHooks


def user_outputs(executions: Sequence[ToolExecution]) -> Iterator[UserOutputEvent]:
    """Yield an event for each call that has something for the user, in call order."""
    for execution in executions:
        output = execution.output
        if output is None:
            continue
        handled = output.response_handled and not execution.is_error
        media = output.media if handled else ()
        if output.shown or media:
            yield UserOutputEvent(execution.call, output.shown, media, handled)


def all_handled(executions: Sequence[ToolExecution]) -> bool:
    """Whether each of these calls has given the user the answer, so that the model need not."""
    outputs = [execution.output for execution in executions]
    return bool(outputs) and all(
        output is not None and output.response_handled and not execution.is_error
        for output, execution in zip(outputs, executions, strict=True)
    )


_ENDINGS = {"length", "content_filter"}


def turn(
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
    final_answer_without_tools: bool = False,
) -> AsyncGenerator[LoopEvent, None]:
    """Ask ``model`` until it answers without calling a tool, or a limit is met: ``max_iterations`` rounds, or the run's budget.

    ``executor`` may be a Run that has begun, with its budget, agent_scope and attachments; of an Executor one is begun here. The
    last event is a FinalEvent, also where a limit ends the turn, and by then every call has its result: those of the last round
    are carried out, one beyond the budget is told so, one that the end of the time finds running is stopped. A ``tool_choice``
    that demands a call is for the first round, then it is "auto": the model must be able to answer. ``messages`` is not changed.
    ReplyEvents, ToolCallEvents and ToolResultEvents are left out where they are in ``without``: an unused event costs time.

    ``external`` are tools that the caller carries out itself. The model is told of them too, and of no other tool that has the
    name of one. A reply that calls one ends the turn with the finish_reason "tool_calls": its other calls are carried out, and
    those of external tools are the FinalEvent's ``pending``.

    With ``final_answer_without_tools`` the model is asked once more where the rounds or the calls are used up, without the
    run's tools. Where it calls one all the same, and at another limit, the limit is what the turn has ended by.

    Hooks of the run are asked before and after each request. One that ends the turn does so with finish_reason "abort_turn", or
    "hard_abort" and the messages as they were. What the model's server does wrong is raised as UpstreamError. Raises
    ConfigurationError for ``max_iterations`` below 1; with None the run's budget alone counts the rounds.
    """
    if max_iterations is not None:
        checked_count(max_iterations, "max_iterations")
    run = executor if isinstance(executor, Run) else executor.begin()
    conversation = Conversation(list(messages), dict(parameters or {}), run, tuple(external))
    state = _Turn(
        run, run.hooks, model, conversation, messages, tool_choice, max_iterations, stream, without, final_answer_without_tools
    )
    events = state.events()
    return events if run.hooks is None or not run.hooks.observed else observed_turn(run.hooks, events, messages)


@dataclass(slots=True, eq=False)
class _Turn:
    """A turn under way. ``events`` is what happens, in order; the methods below it are the steps of a round, in the same order.

    ``ending`` is why the turn is over, "" while it goes on: the step that ends it says so. Of the round that is under way,
    ``answer`` is the model's and ``calls`` are those in it that are ours to carry out, as the model wrote them.
    """

    run: Run
    hooks: TurnHooks | None
    model: ChatModel
    conversation: Conversation
    begun_with: Sequence[Message]
    tool_choice: Any
    max_iterations: int | None
    stream: bool
    without: Container[type[LoopEvent]]
    final_answer_without_tools: bool
    iteration: int = 0
    request: ChatRequest = field(init=False)
    answer: ModelAnswer = field(init=False)
    calls: Sequence[ToolCall | IncompleteCall] = ()
    ending: str = ""
    content: str | None = None
    pending: tuple[ToolCall, ...] = ()
    aborted: HookAbortError | None = None
    handled: bool = False

    async def events(self) -> AsyncGenerator[LoopEvent, None]:
        """Run round after round. Closes the model's stream and stops the tools on every way out."""
        hooks, budget = self.hooks, self.run.budget
        while self.begin_round():
            answer = self.answer
            if hooks is not None:
                await self.ask_before(hooks)
            if answer.end is None and not self.ending:
                responses = self.model.respond(self.request)
                source = aiter(responses)
                try:
                    while (said := await next_model_event(source, budget)) is not None:
                        if (event := answer.take(said)) is not None:
                            yield event
                except OutOfTimeError:
                    budget.out_of_time()
                    if answer.end is None:  # not where it was whole by then
                        self.ending = "max_seconds"
                finally:
                    if (close := getattr(responses, "aclose", None)) is not None:
                        await close()
                if hooks is not None and not self.ending:
                    await self.ask_after(hooks)
            if not self.ending:
                for event in self.reply():
                    yield event
            elif self.aborted is None:
                yield self.unfinished()
            if self.ending:
                break
            # The tools' own list: what they do to it, at once or when they were left to themselves, is not the conversation's.
            batch = self.run.start(self.calls, messages=list(self.conversation.messages), iteration=self.iteration)
            try:
                while (settled := await batch.next_event()) is not None:
                    if isinstance(settled, ToolProgress):
                        yield ToolProgressEvent(settled.call, settled.progress, self.iteration)
                    elif ToolResultEvent not in self.without:
                        yield ToolResultEvent(settled, self.iteration)
            finally:
                await batch.stop()
            for event in self.results(batch):
                yield event
        yield self.end()

    def begin_round(self) -> bool:
        """Begin a round with a request; False where the turn is over, or may have no more rounds."""
        was_last = self.max_iterations is not None and self.iteration >= self.max_iterations
        is_over = was_last or self.ending or not self.run.budget.take_iteration()
        if is_over and not self.has_closing_round():
            return False
        self.iteration += 1
        if self.iteration == 2 and self.tool_choice is not None:
            self.tool_choice = relaxed(self.tool_choice)
        self.answer = ModelAnswer()
        if self.hooks is not None:
            self.run.restore_tools()
        self.request = self.conversation.request(self.tool_choice, stream=self.stream)
        return True

    def has_closing_round(self) -> bool:
        """Where a limit has ended the turn, let the model answer without tools, once; return whether it is to."""
        if not self.final_answer_without_tools or self.limit() not in ("max_iterations", "max_calls"):
            return False
        self.final_answer_without_tools = False
        self.ending, self.tool_choice = "", None
        self.run.disable_tools()
        return True

    def limit(self) -> str:
        """Why the turn is over."""
        return self.ending or self.run.budget.exceeded or "max_iterations"

    async def ask_before(self, hooks: TurnHooks) -> None:
        """Let hooks see the request. They may change it, have an answer in the model's place, or end the turn."""
        if hooks.chains.before_llm:
            asked = RequestHookView(hooks, self.run, self.request, self.iteration, self.tool_choice)
            try:
                if (going := hooks.before_llm(asked)) is not None:
                    given = await in_time(going, self.run.budget)
                    if given is not None:
                        self.answer.settle(given)
            except HookAbortError as error:
                self.abort(error)
            except OutOfTimeError:
                self.out_of_time()
            self.request = asked.request
        if hooks.observed and self.answer.end is None and not self.ending:
            emit_request(hooks, self.request, self.iteration)

    async def ask_after(self, hooks: TurnHooks) -> None:
        """Let hooks see the model's answer. They may change it, or end the turn. Raises IncompleteAnswerError."""
        answer = self.answer
        end = answer.ended()
        if hooks.observed:
            emit_response(hooks, end, self.iteration)
        if not hooks.chains.after_llm:
            return
        asked = ResponseHookView(hooks, self.run, self.request, end, self.iteration)
        try:
            if (going := hooks.after_llm(asked)) is not None:
                await in_time(going, self.run.budget)
                answer.settle(asked.end)
            return
        except HookAbortError as error:
            self.abort(error)
        except OutOfTimeError:
            self.out_of_time()
        self.conversation.usage += answer.usage  # it is no part of the conversation, and has cost its tokens

    def unfinished(self) -> LoopEvent:
        """Keep what the model had said when the time was up."""
        said = "".join(self.answer.said)
        self.conversation.add_unfinished(said)
        self.content = said or self.content
        return IterationEndEvent(self.iteration, "max_seconds")

    def reply(self) -> list[LoopEvent]:
        """Take the answer into the conversation. Without calls it is the turn's last. Raises IncompleteAnswerError."""
        answer, conversation, iteration = self.answer, self.conversation, self.iteration
        end = answer.ended()
        reply, reason, usage = end.reply, end.finish_reason, end.usage
        events = answer.missing_deltas(reply)
        if reply.content is not None:
            self.content = reply.content
        written = conversation.add_reply(reply, usage)
        calls = tuple(map(as_call, written))
        if ReplyEvent not in self.without:
            events.append(ReplyEvent(reply, calls, iteration, usage, reason))
        if not calls:
            self.ending = reason if reason in _ENDINGS else "stop"
            events.append(IterationEndEvent(iteration, self.ending))
            return events
        if conversation.external and (pending := conversation.external_calls(written)):
            self.pending = pending
            written = [call for call in written if call not in pending]
            calls = tuple(map(as_call, written))
        self.calls = written
        if ToolCallEvent not in self.without:
            events += [ToolCallEvent(call, iteration) for call in calls]
        return events

    def results(self, batch: Batch) -> list[LoopEvent]:
        """Take the results into the conversation, tell what is in them for the user, and see whether the turn is over."""
        executions = batch.executions
        self.conversation.add_results(executions)
        events: list[LoopEvent] = []
        if batch.has_outputs:
            for shown in user_outputs(executions):
                if self.hooks is not None and self.hooks.observed:
                    emit_output(self.hooks, shown, self.iteration)
                events.append(shown)
        end_of_round = "tool_calls"
        if batch.aborted is not None:
            end_of_round = self.abort(batch.aborted)
        elif self.pending:
            self.ending = "tool_calls"
        elif self.run.budget.exceeded is not None:
            self.ending = self.run.budget.exceeded
        elif batch.has_outputs and all_handled(executions):
            self.handled = True
            self.content, self.ending = self.conversation.add_delivered(), "stop"
        events.append(IterationEndEvent(self.iteration, end_of_round))
        return events

    def end(self) -> FinalEvent:
        """What the turn came to."""
        conversation, aborted = self.conversation, self.aborted
        return FinalEvent(
            self.content,
            list(self.begun_with) if aborted is not None and aborted.hard else conversation.messages,
            self.iteration,
            self.limit(),
            tuple(conversation.executions),
            conversation.usage,
            self.pending,
            aborted,
            self.handled,
        )

    def abort(self, why: HookAbortError) -> str:
        """End the turn because a hook has said so, and return the ending; calls left to the caller are answered as cancelled."""
        self.aborted = why
        self.ending = ending = "hard_abort" if why.hard else "abort_turn"
        self.content = None
        if self.pending:
            self.conversation.answer_as_cancelled(self.pending)
            self.pending = ()
        return ending

    def out_of_time(self) -> None:
        """End the turn because the time was up while a hook was asked."""
        self.run.budget.out_of_time()
        self.ending = "max_seconds"


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
