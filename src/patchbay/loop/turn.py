"""One turn: the model is asked, its calls are run, it is asked again, until an answer or a limit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from patchbay.errors import HookAbortError
from patchbay.executor import Batch, Executor, Run, ToolExecution, ToolProgress
from patchbay.executor.batch import as_call
from patchbay.executor.limits import OutOfTimeError, in_time
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
from patchbay.tools.tool import checked_count
from patchbay.types import IncompleteCall, Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from patchbay.hooks import TurnHooks


def user_outputs(executions: Sequence[ToolExecution]) -> Iterator[UserOutputEvent]:
    """Yield an event for each call with output for the user, in call order."""
    for execution in executions:
        output = execution.output
        if output is None:
            continue
        handled = output.response_handled and not execution.is_error
        media = output.media if handled else ()
        if output.shown or media:
            yield UserOutputEvent(execution.call, output.shown, media, handled)


def all_handled(executions: Sequence[ToolExecution]) -> bool:
    """Whether each of these calls has given the user the answer, so that the model is not asked again."""
    return bool(executions) and all(
        (output := execution.output) is not None and output.response_handled and not execution.is_error
        for execution in executions
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
    """Ask ``model`` until it answers without calling a tool, or a limit is reached: ``max_iterations``, or the run's budget.

    ``executor`` may be a Run that has begun; of an Executor one is begun here. The last event is a FinalEvent, also if a limit
    ends the turn, and by then every call has its result: those of the last round run, one beyond the budget fails, one that
    still runs at the deadline is stopped. A ``tool_choice`` that demands a call is for the first round, then it is "auto".
    ``messages`` is not changed. ReplyEvents, ToolCallEvents and ToolResultEvents are left out if they are in ``without``: an
    unused event costs time.

    ``external`` are tools that the caller runs itself; they hide tools of the same name. A reply that calls one ends the turn
    with the finish_reason "tool_calls": its other calls run, and those of external tools are the FinalEvent's ``pending``.

    With ``final_answer_without_tools`` the model is asked once more, without the run's tools, when the rounds or the calls are
    used up. If it still calls one, the turn ends by the limit.

    Hooks of the run are called before and after each request. One that ends the turn sets finish_reason to "abort_turn", or to
    "hard_abort", with the messages as they were. Raises UpstreamError for failures of the model's server, ConfigurationError for
    ``max_iterations`` below 1; with None the run's budget alone limits the rounds.
    """
    if max_iterations is not None:
        checked_count(max_iterations, "max_iterations")
    run = executor if isinstance(executor, Run) else executor.begin_run()
    run.offer_known(messages, tool_choice)
    conversation = Conversation(list(messages), dict(parameters or {}), run, tuple(external))
    state = _Turn(
        run, run.hooks, model, conversation, messages, tool_choice, max_iterations, stream, without, final_answer_without_tools
    )
    events = state.events()
    return events if run.hooks is None or not run.hooks.observed else observed_turn(run.hooks, events, messages)


@dataclass(slots=True, eq=False)
class _Turn:
    """A running turn: ``events`` drives it, the methods below are the steps of a round in order.

    ``ending`` is the finish_reason, "" until a step ends the turn. ``answer`` is the model's in the current round, and ``calls``
    are those of it that the run executes, as the model wrote them.
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
                    while (item := await next_model_event(source, budget)) is not None:
                        if (event := answer.add(item)) is not None:
                            yield event
                except OutOfTimeError:
                    budget.out_of_time()
                    if answer.end is None:  # else it was complete in time
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
            # A copy: tools, also abandoned ones, may change it.
            batch = self.run.start_batch(self.calls, messages=list(self.conversation.messages), iteration=self.iteration)
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
        """Begin a round with a request; False if the turn is over, or no round is left."""
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
        """Begin the final answer without tools if a limit has ended the turn; return whether there is one."""
        if not self.final_answer_without_tools or self.limit() not in ("max_iterations", "max_calls"):
            return False
        self.final_answer_without_tools = False
        self.ending, self.tool_choice = "", None
        self.run.disable_tools()
        return True

    def limit(self) -> str:
        """Return why the turn is over."""
        return self.ending or self.run.budget.exceeded or "max_iterations"

    async def ask_before(self, hooks: TurnHooks) -> None:
        """Call the hooks before a request. They may change it, answer it, or end the turn."""
        if hooks.chains.before_llm:
            view = RequestHookView(hooks, self.run, self.request, self.iteration, self.tool_choice)
            try:
                if (given := await in_time(hooks.before_llm(view), self.run.budget)) is not None:
                    self.answer.settle(given)
            except HookAbortError as error:
                self.abort(error)
            except OutOfTimeError:
                self.out_of_time()
            self.request = view.request
        if hooks.observed and self.answer.end is None and not self.ending:
            emit_request(hooks, self.request, self.iteration)

    async def ask_after(self, hooks: TurnHooks) -> None:
        """Call the hooks after an answer. They may change it, or end the turn. Raises IncompleteAnswerError."""
        answer = self.answer
        end = answer.ended()
        hooks.usage = end.usage
        if hooks.observed:
            emit_response(hooks, end, self.iteration)
        if not hooks.chains.after_llm:
            return
        view = ResponseHookView(hooks, self.run, self.request, end, self.iteration)
        try:
            await in_time(hooks.after_llm(view), self.run.budget)
            answer.settle(view.end)
            return
        except HookAbortError as error:
            self.abort(error)
        except OutOfTimeError:
            self.out_of_time()
        self.conversation.usage += answer.usage  # the answer is dropped, but has cost its tokens

    def unfinished(self) -> LoopEvent:
        """Add the model's unfinished text to the conversation when the time is up."""
        text = "".join(self.answer.texts)
        self.conversation.add_unfinished(text)
        self.content = text or self.content
        return IterationEndEvent(self.iteration, "max_seconds")

    def reply(self) -> list[LoopEvent]:
        """Add the answer to the conversation. Without calls it is the turn's last. Raises IncompleteAnswerError."""
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
        if conversation.external and (pending := self.run.without_repeated(conversation.external_calls(written))):
            self.pending = pending
            written = [call for call in written if call not in pending]
            calls = tuple(map(as_call, written))
        self.calls = written
        if ToolCallEvent not in self.without:
            events += [ToolCallEvent(call, iteration) for call in calls]
        return events

    def results(self, batch: Batch) -> list[LoopEvent]:
        """Add the results to the conversation, return the events for the user, and end the turn if it is over."""
        executions = batch.executions
        self.conversation.add_results(executions)
        events: list[LoopEvent] = []
        if batch.has_outputs:
            for output in user_outputs(executions):
                if self.hooks is not None and self.hooks.observed:
                    emit_output(self.hooks, output, self.iteration)
                events.append(output)
        end_of_round = "tool_calls"
        if batch.aborted is not None:
            end_of_round = self.abort(batch.aborted)
        elif self.pending:
            self.ending = "tool_calls"
        elif self.run.budget.exceeded is not None:
            self.ending = self.run.budget.exceeded
        elif batch.has_outputs and all_handled(executions):
            self.conversation.add_delivered()
            self.handled, self.content, self.ending = True, "", "stop"
        events.append(IterationEndEvent(self.iteration, end_of_round))
        return events

    def end(self) -> FinalEvent:
        """Return the turn's final event."""
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
        """End the turn by a hook's decision, and return the ending; pending external calls are answered as cancelled."""
        self.aborted = why
        self.ending = ending = "hard_abort" if why.hard else "abort_turn"
        self.content = None
        if self.pending:
            self.conversation.answer_as_cancelled(self.pending)
            self.pending = ()
        return ending

    def out_of_time(self) -> None:
        """End the turn because the time was up during a hook."""
        self.run.budget.out_of_time()
        self.ending = "max_seconds"


def relaxed(tool_choice: Any) -> Any:
    """Return the tool_choice of the rounds after the first, which no longer demands a call."""
    if tool_choice == "required":
        return "auto"
    if isinstance(tool_choice, Mapping):
        allowed = tool_choice.get("allowed_tools")
        if tool_choice.get("type") == "allowed_tools" and isinstance(allowed, Mapping):
            return {**tool_choice, "allowed_tools": {**allowed, "mode": "auto"}}
        return "auto"
    return tool_choice
