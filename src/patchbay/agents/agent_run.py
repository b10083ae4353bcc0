"""One run of an ``LlmAgent``: a turn of the loop as events of a session.

``TimedModel`` puts the model's time limit and the bus around the model, ``ToolResponseRecorder`` records the results of calls.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from patchbay.agents import topics
from patchbay.agents.agent_tools import ANSWER_TOOL, REMINDER, check_transfer
from patchbay.agents.base import USER
from patchbay.agents.content import Content, Event, EventActions, FunctionResponse, Part, ToolProgress, UserOutput
from patchbay.agents.context import InvocationContext, RunFailed, time_exceeded, within_time
from patchbay.agents.convert import reply_content, response_part, result_parts, to_messages, without_old_files
from patchbay.agents.view import model_contents
from patchbay.errors import ConfigurationError, HookAbortError, PatchbayError, ToolArgumentsError
from patchbay.executor import ToolExecution
from patchbay.loop import (
    FinalEvent,
    IterationEndEvent,
    LoopEvent,
    ReasoningEvent,
    ReplyEvent,
    TextEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UserOutputEvent,
    turn,
)
from patchbay.loop.conversation import DELIVERED
from patchbay.loop.events import IncompleteAnswerError, OutOfTimeError, next_model_event
from patchbay.models.chat_model import ChatModel, ChatRequest, ModelEvent, ModelReply, TextDelta
from patchbay.tools import AgentScope, ToolActions, merge_actions
from patchbay.tools.context import on_top
from patchbay.tools.results import describe
from patchbay.types import NO_USAGE, Message, ToolCall, Usage

if TYPE_CHECKING:
    from patchbay.agents.llm_agent import LlmAgent


Instruction: TypeAlias = str | Callable[[InvocationContext], Any]
"""Text, or a function of the context (sync or async) that returns it."""

_KEY = re.compile(r"\{(\w[\w:.]*)(\??)\}")


async def render(instruction: Instruction, ctx: InvocationContext) -> str:
    """Return the instruction's text for this run.

    ``{key}`` becomes the state's value under ``key``, and stays as it is where there is none, so JSON may stand in an
    instruction; ``{key?}`` becomes nothing then.
    """
    if callable(instruction):
        text = instruction(ctx)
        text = await text if inspect.isawaitable(text) else text
    else:
        text = instruction
    return substitute(str(text or ""), ctx.session.state)


def substitute(text: str, state: Mapping[str, Any]) -> str:
    """Put values of ``state`` into ``text``; what they hold is not looked at again."""
    if "{" not in text:
        return text

    def value(match: re.Match[str]) -> str:
        found = state.get(match[1])
        if found is not None:
            return str(found)
        return "" if match[2] else match[0]

    return _KEY.sub(value, text)


_logger = logging.getLogger(__name__)


def timed_model(ctx: InvocationContext, agent: LlmAgent) -> ChatModel:
    """Return the agent's model, with what there is to be done around it.

    One that cannot be used raises what ``LlmAgent.chat_model`` does when it is first asked: a callback may answer in its place.
    """
    try:
        model = agent.chat_model()
    except ConfigurationError as error:
        return UnusableModel(error)
    is_plain = ctx.bus is None and ctx.run_config.llm_timeout is None
    return model if is_plain else TimedModel(ctx, agent, model)


def as_run_failed(error: Exception) -> RunFailed:
    """Return what a model raised as the end of a run."""
    if isinstance(error, IncompleteAnswerError):
        return RunFailed("NO_RESPONSE", "Model returned no response")
    if isinstance(error, PatchbayError):
        return RunFailed(error.code.upper(), str(error))
    _logger.error("The model failed", exc_info=error)
    return RunFailed("MODEL_ERROR", describe(error))


class UnusableModel:
    """A model that raises ``error`` when it is asked."""

    def __init__(self, error: ConfigurationError) -> None:
        self._error = error

    def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:  # noqa: ARG002  (a ChatModel's)
        """Raise the error."""
        raise self._error


class TimedModel:
    """The model of ``agent`` in one run."""

    def __init__(self, ctx: InvocationContext, agent: LlmAgent, model: ChatModel) -> None:
        self._ctx = ctx
        self._model = model
        self._name = agent.model_name
        self._time_left = ctx.run_config.llm_timeout

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer as the model does. Raises RunFailed."""
        end: ModelReply | None = None
        bus = self._ctx.bus
        if bus is not None:
            await self._ctx.publish(topics.LLM_REQUEST, {"model": self._name})
        self._time_left = self._ctx.run_config.llm_timeout
        responses: Any = None
        try:
            responses = self._model.respond(request)
            source = aiter(responses)
            while (event := await self._next(source)) is not None:
                if isinstance(event, ModelReply):
                    end = event
                    continue
                if bus is not None and request.stream and isinstance(event, TextDelta):
                    await self._ctx.publish(topics.LLM_STREAM_CHUNK, {"text": event.text})
                yield event
        except RunFailed as late:
            await self._tell(late)
            raise
        except Exception as error:
            failure = as_run_failed(error)
            await self._tell(failure)
            raise failure from error
        finally:
            if (close := getattr(responses, "aclose", None)) is not None:
                await close()
        if end is None:
            failure = as_run_failed(IncompleteAnswerError())
            await self._tell(failure)
            raise failure
        if bus is not None:
            usage = end.usage.counts()
            about = {"model": self._name, "usage": usage, "finish_reason": end.finish_reason}
            await self._ctx.publish(topics.LLM_RESPONSE, about)
        yield end

    async def _next(self, source: AsyncIterator[ModelEvent]) -> ModelEvent | None:
        """What the model says next, within its time; None at its end. What a slow consumer takes is not the model's time."""
        if self._time_left is None:
            return await next_model_event(source, None)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            event = await next_model_event(source, began + self._time_left)
        except OutOfTimeError:
            words = f"LLM call timed out after {self._ctx.run_config.llm_timeout}s"
            raise RunFailed("TIMEOUT", words) from None
        self._time_left -= clock() - began
        return event

    async def _tell(self, failure: RunFailed) -> None:
        await self._ctx.publish(topics.LLM_ERROR, {"error": failure.code, "message": str(failure)})


class ToolResponseRecorder:
    """Records the results of ``calls``: ``settled`` takes each, ``flush`` returns when all of them are in the log."""

    def __init__(self, ctx: InvocationContext, calls: Sequence[ToolCall]) -> None:
        self._ctx = ctx
        self._places = {call.id: place for place, call in enumerate(calls)}
        self._executions: list[ToolExecution | None] = [None] * len(calls)
        self._waiting: list[int] = []
        self._writing: tuple[Event, dict[str, Any]] | None = None
        self._recorded: list[Event] = []
        self._written: dict[str, Any] = {}
        self._handle: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self.actions = ToolActions()

    def settled(self, execution: ToolExecution) -> None:
        """Take up a call that has settled; it is written with those that settle in the same breath."""
        place = self._places[execution.call.id]
        self._executions[place] = execution
        self._waiting.append(place)
        if self._handle is None and (self._task is None or self._task.done()):
            # Two rounds of the event loop: who waits for all of them may then write them without a task of their own.
            loop = asyncio.get_running_loop()
            self._handle = loop.call_soon(self._soon, loop)

    async def flush(self) -> None:
        """Write what has not been written, and wait until it is. Raises what the session service does, and may be tried again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._task is not None:
            # Not awaited itself: who is cancelled here would cancel it, half way.
            await asyncio.wait((self._task,))
            self._task = None
        await self._write()

    @property
    def event(self) -> Event:
        """All responses as one event, in call order; None of them is left out once ``flush`` has returned."""
        if len(self._recorded) == 1:
            return self._recorded[0]
        # Not the actions' own changes: those of callbacks went into the log with them.
        delta = {key: value for event in self._recorded for key, value in event.actions.state_delta.items()}
        event = self._event([execution for execution in self._executions if execution is not None], delta)
        self._ctx.mark_recorded(event)
        return event

    def _soon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = loop.call_soon(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = None
        self._task = loop.create_task(self._write_ahead())

    async def _write_ahead(self) -> None:
        """Write ahead of ``flush``, which tries again, and raises, what fails here."""
        try:
            await self._write()
        except Exception as error:  # noqa: BLE001  (a service fails as it likes)
            _logger.warning("The results of calls could not be recorded at once: %s", describe(error))

    async def _write(self) -> None:
        while self._waiting or self._writing is not None:
            if self._ctx.branch is None:
                news, event = await self._write_next()
            else:
                async with self._ctx.shared.writing:  # what is changed on top of others' changes is to be what they made
                    news, event = await self._write_next()
            self._written.update(news)
            self._recorded.append(event)

    async def _write_next(self) -> tuple[dict[str, Any], Event]:
        if self._writing is None:
            self._writing = self._next()
        # The same event where it is tried again: a service keeps it once, also if it had kept it and could not say so.
        event, news = self._writing
        await self._ctx.record(event)
        self._writing = None
        return news, event

    def _next(self) -> tuple[Event, dict[str, Any]]:
        """Return the event of what has settled and is not written, and what it changes in the state."""
        places, self._waiting = sorted(self._waiting), []
        group = [execution for place in places if (execution := self._executions[place]) is not None]
        # What all calls so far ask for, in call order; what of it is in the log already need not be said again.
        self.actions = merge_actions([execution for execution in self._executions if execution is not None])
        delta = self.actions.state_delta
        if not delta:
            return self._event(group, {}), {}
        news = {key: value for key, value in delta.items() if key not in self._written or self._written[key] != value}
        return self._event(group, {key: self._on_others(key, value) for key, value in news.items()}), news

    def _on_others(self, key: str, value: Any) -> Any:
        """Return ``value`` on top of what parallel branches have made of the key, where it was changed and not assigned."""
        if key not in self.actions.state_found or value is None:
            return value
        found = self._written.get(key, self.actions.state_found[key])
        now = self._ctx.session.state.get(key)
        return value if now is None or found is None else on_top(now, found, value)

    def _event(self, executions: Sequence[ToolExecution], delta: dict[str, Any]) -> Event:
        parts = [part for execution in executions for part in result_parts(execution)]
        actions = EventActions(delta, transfer_to_agent=self.actions.transfer_to_agent, escalate=self.actions.escalate)
        return self._ctx.event(parts, role="user", actions=actions)


MAX_REMINDERS: Final = 2
"""How often a model is reminded to give its answer by the tool that takes it."""

_FORCED: Final = {"type": "function", "function": {"name": ANSWER_TOOL}}


class AgentRun:
    """One run of ``agent`` in ``ctx``."""

    def __init__(self, agent: LlmAgent, ctx: InvocationContext) -> None:
        self._agent = agent
        self._ctx = ctx
        self._config = ctx.run_config
        self._executor = agent.executor
        self._schema = agent.answer_tool if agent.output_schema is not None else None
        self._deltas: list[str] = []
        self._counted: list[Usage] = []
        self._untyped_answer: Event | None = None
        self._end: FinalEvent | None = None
        self._responses: ToolResponseRecorder | None = None
        self._answer: ToolExecution | None = None
        self._transfer: str | None = None

    async def events(self) -> AsyncGenerator[Event, None]:
        """Run the agent. Raises RunFailed for a limit that was met, and a model that gave no answer."""
        agent, ctx = self._agent, self._ctx
        if ctx.bus is not None:
            await ctx.publish(topics.AGENT_START, {"agent": agent.name, "model": agent.model_name})
        run = self._executor.begin(
            budget=ctx.shared.budget,
            agent_scope=AgentScope(
                agent_name=agent.name,
                session=ctx.session,
                invocation_id=ctx.invocation_id,
                invocation_context=ctx,
                state=ctx.session.state,
                check=partial(check_transfer, agent),
            ),
            attachments=agent.attachments,
            results=ctx.session_service.results(ctx.session),
            offer_reader=ctx.session.has_results,
            tool_timeout=self._config.tool_timeout,
            call_ids=ctx.shared.call_ids,
            on_settled=self._settled,
            hooks=ctx.hooks,
            media=ctx.media,
            scope=ctx.turn_scope(agent.model_name) if ctx.hooks is not None else None,
        )
        model = timed_model(ctx, agent)
        messages = await self._messages()
        config = agent.generate_content_config
        parameters = config.parameters() if config is not None else {}
        choice: Any = _FORCED if self._schema is not None and len(self._executor.tools) == 1 else None
        reminders = 0
        while True:
            loop_events = turn(
                model,
                run,
                messages,
                tool_choice=choice,
                parameters=parameters,
                max_iterations=None,
                stream=self._config.streaming,
                without=_UNUSED_WITHOUT_BUS if ctx.bus is None and self._schema is None else _UNUSED,
            )
            try:
                while True:
                    try:
                        item = await anext(loop_events)
                    except StopAsyncIteration:
                        break
                    except Exception as error:
                        raise self._as_run_failed(error) from error
                    if (handle := _HANDLERS.get(type(item))) is None:
                        continue
                    event = await handle(self, item)
                    if event is not None:
                        yield event
                    if isinstance(item, IterationEndEvent) and item.finish_reason == "tool_calls" and self._is_done:
                        break
            finally:
                try:
                    await loop_events.aclose()
                finally:
                    # Also where the run is stopped: what has been done is not forgotten.
                    if self._responses is not None:
                        await self._responses.flush()
            if self._transfer is not None and not ctx.end_invocation:
                async with aclosing(self._run_target(self._transfer)) as events:
                    async for event in events:
                        yield event
                return
            if self._answer is not None:
                yield await self._record_typed_answer(ctx.event(), self._answer.value)
                return
            if self._schema is None or self._end is None or (words := self._untyped_answer) is None:
                return
            try:
                value = self._schema.read(self._end.content or "")
            except (ToolArgumentsError, ValueError) as error:
                complaint = f"The answer does not fit output_schema: {error}"
                if reminders == MAX_REMINDERS or ctx.end_invocation:
                    raise RunFailed("OUTPUT_INVALID", complaint, words) from error
                words.error_code, words.error_message = "OUTPUT_INVALID", complaint
            else:
                yield await self._record_typed_answer(words, value)
                return
            # Both are in the log, for the model in the next turn; the consumer of the run gets neither as an answer.
            await ctx.record(words)
            await ctx.record(ctx.event([Part(REMINDER)], role="user"))
            reminders += 1
            messages, choice = [*self._end.messages, {"role": "user", "content": REMINDER}], _FORCED

    def _as_run_failed(self, error: Exception) -> RunFailed:
        """What a model raises is the end of the run."""
        failure = error if isinstance(error, RunFailed) else as_run_failed(error)
        failure.event = self._partial_event()
        return failure

    async def _messages(self) -> list[Message]:
        """What the model is shown at first: the instruction, and of the session what the agent is to see."""
        agent, ctx = self._agent, self._ctx
        if isinstance(agent.instruction, str):
            instruction = substitute(agent.instruction, ctx.session.state)
        else:
            instruction = await within_time(ctx.budget, lambda: render(agent.instruction, ctx))
        if self._schema is not None:
            instruction = f"{instruction}\n\n{REMINDER}" if instruction else REMINDER
        messages: list[Message] = [{"role": "system", "content": instruction}] if instruction else []
        events, limit = ctx.session.events, self._config.max_history_events
        if agent.include_contents == "none":
            return messages
        if agent.include_contents == "default":
            session = ctx.session
            key = ((session.app_name, session.user_id, session.id), agent.name, ctx.branch, limit)
            return messages + ctx.session_service.past_turns.messages(key, events, self._executor.tools)
        begin = next((at for at in range(len(events) - 1, -1, -1) if events.peek(at).author == USER), 0)
        contents = model_contents(events[begin:], limit=limit, branch=ctx.branch)
        return messages + to_messages(without_old_files(contents), self._executor.tools)

    @property
    def _is_done(self) -> bool:
        """Whether the agent is done at the end of this round."""
        return self._transfer is not None or self._answer is not None or self._ctx.end_invocation

    async def _text(self, item: TextEvent) -> Event | None:
        self._deltas.append(item.delta)
        return self._ctx.event([Part(item.delta)], partial=True) if self._config.streaming else None

    async def _reasoning(self, item: ReasoningEvent) -> Event | None:
        return self._ctx.event([Part(item.delta, thought=True)], partial=True) if self._config.streaming else None

    async def _reply(self, item: ReplyEvent) -> Event | None:
        ctx = self._ctx
        ctx.shared.usage += item.usage
        self._counted.append(item.usage)
        content = reply_content(item.reply, item.calls)
        event = ctx.event(usage=item.usage.counts(), finish_reason=item.finish_reason)
        event.content = content
        self._deltas = []
        if not item.calls:
            if not content.text:
                raise RunFailed("NO_RESPONSE", "Model returned no response", event)
            if self._schema is not None:
                self._untyped_answer = event  # where a value is wanted
                return None
            if self._agent.output_key is not None:
                event.actions.state_delta[self._agent.output_key] = content.text
            await ctx.record(event)
            return event
        self._responses = ToolResponseRecorder(ctx, item.calls)
        await ctx.record(event)
        if ctx.bus is not None:
            for call in event.get_function_calls():
                await ctx.publish(topics.TOOL_CALL, {"tool": call.name, "args": call.args, "call_id": call.id})
        return event

    def _settled(self, execution: ToolExecution) -> None:
        assert self._responses is not None
        self._responses.settled(execution)

    async def _result(self, item: ToolResultEvent) -> None:
        execution = item.execution
        if self._schema is not None and execution.call.name == ANSWER_TOOL and not execution.is_error:
            self._answer = execution
        if self._ctx.bus is None:
            return
        response = response_part(execution).function_response or FunctionResponse(execution.call.name)
        about = {"tool": response.name, "response": response.response, "call_id": response.id}
        await self._ctx.publish(topics.TOOL_RESULT, about)
        if execution.error is not None:
            wrong = {"error": response.response.get("error"), "code": execution.result.code}
            await self._ctx.publish(topics.TOOL_ERROR, {"tool": response.name, **wrong, "call_id": response.id})

    async def _progress(self, item: ToolProgressEvent) -> Event:
        call, said = item.tool_call, item.progress
        progress = ToolProgress(call.name, call.id, said.message, said.fraction, said.data)
        about = {"tool": call.name, "call_id": call.id, "message": said.message, "fraction": said.fraction, "data": said.data}
        await self._ctx.publish(topics.TOOL_PROGRESS, about)
        return self._ctx.event(partial=True, progress=progress)

    async def _iteration_end(self, _happening: IterationEndEvent) -> Event | None:
        if (responses := self._responses) is None:
            return None
        await responses.flush()
        self._responses = None
        self._transfer = responses.actions.transfer_to_agent
        return responses.event

    async def _output(self, item: UserOutputEvent) -> Event:
        call = item.tool_call
        event = self._ctx.event(output=UserOutput(call.name, call.id, item.text, list(item.media), item.handled))
        await self._ctx.record(event)
        return event

    async def _turn_end(self, item: FinalEvent) -> Event | None:
        """Raise RunFailed where a turn ended because of a limit, or of a hook."""
        used, self._counted = self._counted, []
        if item.aborted is not None or item.finish_reason == "max_seconds":
            # That of an answer which no reply came of.
            self._ctx.shared.usage += _uncounted(item.usage, sum(used, NO_USAGE))
        if item.aborted is not None:
            raise self._aborted(item.aborted)
        self._end = item
        budget = self._ctx.shared.budget
        match item.finish_reason:
            case "max_seconds":
                raise time_exceeded(budget, self._partial_event())
            case "max_iterations":
                words = f"Exceeded max LLM calls ({budget.max_iterations}). Possible infinite loop."
                raise RunFailed("MAX_LLM_CALLS", words, self._partial_event())
            case "max_calls":
                raise RunFailed("MAX_TOOL_CALLS", f"Exceeded max tool calls ({budget.max_calls}).", self._partial_event())
        if not item.handled:
            return None
        # In the log for the model. The user has had the answer already, so the event for the consumer has no text.
        await self._ctx.record(self._ctx.event([Part(DELIVERED)]))
        answer = self._ctx.event([Part("")])
        self._ctx.mark_recorded(answer)
        return answer

    def _aborted(self, why: HookAbortError) -> RunFailed:
        event = self._partial_event()
        if why.hard:
            ctx = self._ctx
            event = event if event is not None else ctx.event()
            event.actions = EventActions(rewind_before_invocation_id=ctx.invocation_id)
            ctx.end_invocation = ctx.shared.rewound = True
        return RunFailed("HOOK_ABORT", str(why), event)

    def _partial_event(self) -> Event | None:
        """What the model has said of an answer that is not whole, if it has."""
        text = "".join(self._deltas)
        return self._ctx.event([Part(text)]) if text else None

    async def _run_target(self, name: str) -> AsyncGenerator[Event, None]:
        await self._ctx.publish(topics.AGENT_TRANSFER, {"from": self._agent.name, "to": name})
        target = self._agent.find_agent(name)
        assert target is not None  # check_transfer has seen to it
        async with aclosing(target.run_async(self._ctx)) as events:
            async for event in events:
                yield event

    async def _record_typed_answer(self, event: Event, value: Any) -> Event:
        """Make ``event`` that of an answer that has a type: its text is JSON."""
        thoughts = [part for part in event.content.parts if part.thought] if event.content is not None else []
        event.content = Content("model", [*thoughts, Part(json.dumps(value, ensure_ascii=False))])
        if self._agent.output_key is not None:
            event.actions.state_delta[self._agent.output_key] = value
        await self._ctx.record(event)
        return event


def _uncounted(usage: Usage, counted: Usage) -> Usage:
    return Usage(
        usage.prompt_tokens - counted.prompt_tokens,
        usage.completion_tokens - counted.completion_tokens,
        usage.total_tokens - counted.total_tokens,
    )


_UNUSED: Final = (ToolCallEvent,)
"""What the event with the whole reply has told already."""

_UNUSED_WITHOUT_BUS: Final = (ToolCallEvent, ToolResultEvent)
"""The same where only the log uses results; it gets them by ``on_settled``."""

_HANDLERS: Final[dict[type[LoopEvent], Callable[[AgentRun, Any], Awaitable[Event | None]]]] = {
    TextEvent: AgentRun._text,  # noqa: SLF001  (its own)
    ReasoningEvent: AgentRun._reasoning,  # noqa: SLF001
    ReplyEvent: AgentRun._reply,  # noqa: SLF001
    ToolProgressEvent: AgentRun._progress,  # noqa: SLF001
    ToolResultEvent: AgentRun._result,  # noqa: SLF001
    UserOutputEvent: AgentRun._output,  # noqa: SLF001
    IterationEndEvent: AgentRun._iteration_end,  # noqa: SLF001
    FinalEvent: AgentRun._turn_end,  # noqa: SLF001
}
"""What is done about each thing that happens in a turn; the event that follows from it is in the log by then, if it is kept."""
