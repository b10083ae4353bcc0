"""One run of an ``LlmAgent``: a turn of the loop as events of a session."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from patchbay.agents.agent_tools import ANSWER_TOOL, REMINDER, AnswerTool, check_transfer
from patchbay.agents.base import USER, InvocationContext
from patchbay.agents.content import Content, Event, EventActions, FunctionResponse, Part, ToolProgress, UserOutput
from patchbay.agents.convert import reply_content, response_part, to_messages, without_old_files
from patchbay.agents.run_config import RunFailed, as_run_failed, time_exceeded, within_time
from patchbay.agents.timed_model import TimedModel, UnusableModel
from patchbay.agents.tool_responses import ToolResponseRecorder
from patchbay.agents.view import model_contents
from patchbay.errors import ConfigurationError, HookAbortError, ToolArgumentsError
from patchbay.executor import Run, ToolExecution
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
from patchbay.models.chat_model import ChatModel
from patchbay.tools import AgentScope
from patchbay.types import NO_USAGE, Message, Usage

if TYPE_CHECKING:
    from patchbay.agents.llm_agent import LlmAgent

Instruction: TypeAlias = str | Callable[[InvocationContext], Any]
"""Text, or a function of the context (sync or async) that returns it."""

_KEY = re.compile(r"\{(\w[\w:.]*)(\??)\}")


async def render(instruction: Instruction, ctx: InvocationContext) -> str:
    """Return the instruction's text for this run.

    ``{key}`` becomes the state's value under ``key``, and stays unchanged without one, so an instruction may contain JSON;
    ``{key?}`` then becomes empty.
    """
    if callable(instruction):
        text = instruction(ctx)
        text = await text if inspect.isawaitable(text) else text
    else:
        text = instruction
    return substitute(str(text or ""), ctx.session.state)


def substitute(text: str, state: Mapping[str, Any]) -> str:
    """Replace ``{key}`` in ``text`` by values of ``state``, which are not substituted again."""
    if "{" not in text:
        return text

    def value(match: re.Match[str]) -> str:
        found = state.get(match[1])
        if found is not None:
            return str(found)
        return "" if match[2] else match[0]

    return _KEY.sub(value, text)


MAX_REMINDERS: Final = 2
"""The most reminders to give the answer by its tool."""

_FORCED: Final = {"type": "function", "function": {"name": ANSWER_TOOL}}


_UNUSED: Final = (ToolCallEvent,)
"""The ReplyEvent has the calls already."""

_UNUSED_WITHOUT_BUS: Final = (ToolCallEvent, ToolResultEvent)
"""Without an event bus: results are recorded by ``on_settled``."""


class AgentRun:
    """One run of ``agent`` in ``ctx``: a turn of the loop as events of a session."""

    def __init__(self, agent: LlmAgent, ctx: InvocationContext) -> None:
        self._agent = agent
        self._ctx = ctx
        self._config = ctx.run_config
        self._executor = agent.executor
        self._answer_tool = agent.answer_tool if agent.output_schema is not None else None
        self._deltas: list[str] = []
        self._counted = NO_USAGE
        self._untyped_answer: Event | None = None
        self._end: FinalEvent | None = None
        self._responses: ToolResponseRecorder | None = None
        self._answer: ToolExecution | None = None
        self._transfer: str | None = None
        self._reminders = 0
        self._steps = ctx.steps.of_agent(agent.name, ctx.invocation_id, ctx.branch) if ctx.steps is not None else None

    async def events(self) -> AsyncGenerator[Event, None]:
        """Run the agent. Raises RunFailed for a limit that was met, and a model that gave no answer."""
        agent, ctx = self._agent, self._ctx
        if ctx.bus is not None:
            await ctx.publish("agent.start", {"agent": agent.name, "model": agent.model_name})
        self._executor = await self._executor.with_toolsets()
        ctx.shared.tools = max(ctx.shared.tools, len(self._executor.tools))
        run, model = self._begin_run(), self._model()
        messages = await self._messages()
        config = agent.generate_content_config
        parameters = config.parameters() if config is not None else {}
        choice: Any = _FORCED if self._answer_tool is not None and len(self._executor.tools) == 1 else None
        while True:
            loop_events = turn(
                model,
                run,
                messages,
                tool_choice=choice,
                parameters=parameters,
                max_iterations=None,
                stream=self._config.streaming,
                without=_UNUSED_WITHOUT_BUS if ctx.bus is None else _UNUSED,
            )
            try:
                while True:
                    try:
                        item = await anext(loop_events)
                    except StopAsyncIteration:
                        break
                    except Exception as error:
                        raise self._as_run_failed(error) from error
                    if (handle := self._HANDLERS.get(type(item))) is None:
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
                    # Also where the run is stopped: the results of calls are not lost.
                    if self._responses is not None:
                        await self._responses.flush()
            if self._transfer is not None and not ctx.end_invocation:
                await ctx.publish("agent.transfer", {"from": agent.name, "to": self._transfer})
                target = agent.find_agent(self._transfer)
                assert target is not None  # by ``check_transfer``
                async with aclosing(target.run_async(ctx)) as events:
                    async for event in events:
                        yield event
                return
            if self._answer is not None:
                yield await self._record_typed_answer(ctx.event(), self._answer.value)
                return
            if self._answer_tool is None or self._end is None or self._untyped_answer is None:
                return
            if (answer := await self._read_untyped_answer(self._answer_tool, self._untyped_answer)) is not None:
                yield answer
                return
            messages, choice = [*self._end.messages, {"role": "user", "content": REMINDER}], _FORCED

    def _begin_run(self) -> Run:
        agent, ctx = self._agent, self._ctx
        return self._executor.begin_run(
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
            on_settled=self._on_call_end,
            hooks=ctx.hooks,
            media=ctx.media,
            scope=ctx.turn_scope(agent.model_name) if ctx.hooks is not None else None,
            call_log=self._steps,
        )

    def _model(self) -> ChatModel:
        ctx, agent = self._ctx, self._agent
        model: ChatModel
        try:
            model = agent.chat_model()
            if ctx.bus is not None or ctx.run_config.llm_timeout is not None:
                model = TimedModel(ctx, model, agent.model_name)
        except ConfigurationError as error:
            model = UnusableModel(error)
        return model if self._steps is None else self._steps.model(model)

    async def _read_untyped_answer(self, tool: AnswerTool, event: Event) -> Event | None:
        """Return the event of the value that the model wrote as text; None if it does not fit, and the model is reminded.

        Raises RunFailed after too many reminders.
        """
        ctx = self._ctx
        try:
            value = tool.read(event.content.text if event.content is not None else "")
        except (ToolArgumentsError, ValueError) as error:
            problem = f"The answer does not fit output_schema: {error}"
            if self._reminders == MAX_REMINDERS or ctx.end_invocation:
                raise RunFailed("OUTPUT_INVALID", problem, event) from error
            event.error_code, event.error_message = "OUTPUT_INVALID", problem
            # Both are in the log, for the model in the next turn; the consumer of the run gets neither as an answer.
            await ctx.record(event)
            await ctx.record(ctx.event([Part(REMINDER)], role="user"))
            self._reminders += 1
            return None
        return await self._record_typed_answer(event, value)

    def _as_run_failed(self, error: Exception) -> RunFailed:
        """Return an error of the model as the error that ends the run."""
        failure = as_run_failed(error)
        failure.event = self._partial_event()
        return failure

    async def _messages(self) -> list[Message]:
        """Return the first request's messages: the instruction, and the part of the session that the agent is to see."""
        agent, ctx = self._agent, self._ctx
        if isinstance(agent.instruction, str):
            instruction = substitute(agent.instruction, ctx.session.state)
        else:
            instruction = await within_time(ctx.budget, lambda: render(agent.instruction, ctx))
        if self._answer_tool is not None:
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
        self._counted += item.usage
        content = reply_content(item.reply, item.calls)
        event = ctx.event(usage=item.usage.counts(), finish_reason=item.finish_reason)
        event.content = content
        self._deltas = []
        if not item.calls:
            if not content.text:
                raise RunFailed("NO_RESPONSE", "Model returned no response", event)
            if self._answer_tool is not None:
                self._untyped_answer = event  # ``events`` reads a value from it
                return None
            if self._agent.output_key is not None:
                event.actions.state_delta[self._agent.output_key] = content.text
            await ctx.record(event)
            return event
        self._responses = ToolResponseRecorder(ctx, item.calls)
        await ctx.record(event)
        if ctx.bus is not None:
            for call in event.get_function_calls():
                await ctx.publish("tool.call", {"tool": call.name, "args": call.args, "call_id": call.id})
        return event

    def _on_call_end(self, execution: ToolExecution) -> None:
        assert self._responses is not None
        self._responses.add(execution)
        if self._answer_tool is not None and execution.call.name == ANSWER_TOOL and not execution.is_error:
            self._answer = execution

    async def _result(self, item: ToolResultEvent) -> None:
        execution = item.execution
        response = response_part(execution).function_response or FunctionResponse(execution.call.name)
        about = {"tool": response.name, "response": response.response, "call_id": response.id}
        await self._ctx.publish("tool.result", about)
        if execution.error is not None:
            failure = {"error": response.response.get("error"), "code": execution.result.code}
            await self._ctx.publish("tool.error", {"tool": response.name, **failure, "call_id": response.id})

    async def _progress(self, item: ToolProgressEvent) -> Event:
        call, report = item.tool_call, item.progress
        members = {"message": report.message, "fraction": report.fraction, "data": report.data}
        await self._ctx.publish("tool.progress", {"tool": call.name, "call_id": call.id, **members})
        progress = ToolProgress(call.name, call.id, **members)
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
        counted, self._counted = self._counted, NO_USAGE
        if item.aborted is not None or item.finish_reason == "max_seconds":
            # The tokens of an answer that is not in the log.
            self._ctx.shared.usage += _difference(item.usage, counted)
        if item.aborted is not None:
            raise self._aborted(item.aborted)
        self._end = item
        budget = self._ctx.shared.budget
        match item.finish_reason:
            case "max_seconds":
                raise time_exceeded(budget, self._partial_event())
            case "max_iterations":
                message = f"Exceeded max LLM calls ({budget.max_iterations}). Possible infinite loop."
                raise RunFailed("MAX_LLM_CALLS", message, self._partial_event())
            case "max_calls":
                raise RunFailed("MAX_TOOL_CALLS", f"Exceeded max tool calls ({budget.max_calls}).", self._partial_event())
        if not item.handled:
            return None
        # Recorded for the model. The user has had the answer already, so the event for the consumer has no text.
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
        """Return an event with the text of an unfinished answer, None if there is no text."""
        text = "".join(self._deltas)
        return self._ctx.event([Part(text)]) if text else None

    async def _record_typed_answer(self, event: Event, value: Any) -> Event:
        """Make ``event`` that of an answer that has a type: its text is JSON."""
        thoughts = [part for part in event.content.parts if part.thought] if event.content is not None else []
        event.content = Content("model", [*thoughts, Part(json.dumps(value, ensure_ascii=False))])
        if self._agent.output_key is not None:
            event.actions.state_delta[self._agent.output_key] = value
        await self._ctx.record(event)
        return event

    _HANDLERS: ClassVar[dict[type[LoopEvent], Callable[[AgentRun, Any], Awaitable[Event | None]]]] = {
        TextEvent: _text,
        ReasoningEvent: _reasoning,
        ReplyEvent: _reply,
        ToolProgressEvent: _progress,
        ToolResultEvent: _result,
        UserOutputEvent: _output,
        IterationEndEvent: _iteration_end,
        FinalEvent: _turn_end,
    }
    """The handlers of a turn's events. Each may return an event for the consumer: recorded, unless it is partial."""


def _difference(usage: Usage, counted: Usage) -> Usage:
    return Usage(
        usage.prompt_tokens - counted.prompt_tokens,
        usage.completion_tokens - counted.completion_tokens,
        usage.total_tokens - counted.total_tokens,
    )
