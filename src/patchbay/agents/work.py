"""One run of an ``LlmAgent``: a turn of the loop as events of a session.

What lives here: which event follows from what happens in the turn, and when it is written. What does not: asking the model
(``asking``), the results of calls (``responses``), the loop and the executor themselves.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from patchbay.agents import topics
from patchbay.agents.asking import asked_model, no_answer
from patchbay.agents.base import USER
from patchbay.agents.content import Content, Event, EventActions, FunctionResponse, Part, ToolProgress, UserOutput
from patchbay.agents.context import InvocationContext
from patchbay.agents.failures import NoAnswerError, in_time, out_of_time
from patchbay.agents.instructions import filled, written_out
from patchbay.agents.messages import reply_content, response_part, to_messages, without_old_files
from patchbay.agents.responses import Responses
from patchbay.agents.structured import ANSWER_TOOL, REMINDER
from patchbay.agents.transfer import check_transfer
from patchbay.agents.view import settled_contents
from patchbay.errors import HookAbortError, ToolArgumentsError
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
from patchbay.tools import Surroundings
from patchbay.types import NO_USAGE, Message, Usage

if TYPE_CHECKING:
    from patchbay.agents.llm_agent import LlmAgent

MAX_REMINDERS: Final = 2
"""How often a model is reminded to give its answer by the tool that takes it."""

_FORCED: Final = {"type": "function", "function": {"name": ANSWER_TOOL}}


class Work:
    """One run of ``agent`` in ``ctx``."""

    def __init__(self, agent: LlmAgent, ctx: InvocationContext) -> None:
        self._agent = agent
        self._ctx = ctx
        self._config = ctx.run_config
        self._executor = agent.executor
        self._schema = agent.answer_tool if agent.output_schema is not None else None
        self._said: list[str] = []
        self._counted: list[Usage] = []
        self._words: Event | None = None
        self._end: FinalEvent | None = None
        self._responses: Responses | None = None
        self._answer: ToolExecution | None = None
        self._transfer: str | None = None

    async def events(self) -> AsyncGenerator[Event, None]:
        """Run the agent. Raises NoAnswerError for a limit that was met, and a model that gave no answer."""
        agent, ctx = self._agent, self._ctx
        if ctx.bus is not None:
            await ctx.publish(topics.AGENT_START, {"agent": agent.name, "model": agent.model_name})
        run = self._executor.begin(
            budget=ctx.shared.budget,
            surroundings=Surroundings(
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
        model = asked_model(ctx, agent)
        messages = await self._messages()
        config = agent.generate_content_config
        parameters = config.parameters() if config is not None else {}
        choice: Any = _FORCED if self._schema is not None and len(self._executor.tools) == 1 else None
        reminders = 0
        while True:
            happenings = turn(
                model,
                run,
                messages,
                tool_choice=choice,
                parameters=parameters,
                max_iterations=None,
                stream=self._config.streaming,
                without=_ALL_TOLD if ctx.bus is None and self._schema is None else _CALLS_TOLD,
            )
            try:
                while True:
                    try:
                        happening = await anext(happenings)
                    except StopAsyncIteration:
                        break
                    except Exception as error:
                        raise self._no_answer(error) from error
                    if (tell := _TOLD.get(type(happening))) is None:
                        continue
                    event = await tell(self, happening)
                    if event is not None:
                        yield event
                    if isinstance(happening, IterationEndEvent) and happening.finish_reason == "tool_calls" and self._is_over:
                        break
            finally:
                try:
                    await happenings.aclose()
                finally:
                    # Also where the run is stopped: what has been done is not forgotten.
                    if self._responses is not None:
                        await self._responses.flush()
            if self._transfer is not None and not ctx.end_invocation:
                async with aclosing(self._handed_over(self._transfer)) as events:
                    async for event in events:
                        yield event
                return
            if self._answer is not None:
                yield await self._answered(ctx.event(), self._answer.value)
                return
            if self._schema is None or self._end is None or (words := self._words) is None:
                return
            try:
                value = self._schema.read(self._end.content or "")
            except (ToolArgumentsError, ValueError) as error:
                complaint = f"The answer does not fit output_schema: {error}"
                if reminders == MAX_REMINDERS or ctx.end_invocation:
                    raise NoAnswerError("OUTPUT_INVALID", complaint, words) from error
                words.error_code, words.error_message = "OUTPUT_INVALID", complaint
            else:
                yield await self._answered(words, value)
                return
            # Both are in the log, where the model will look for them in the next turn, and no answer to whom the run is told.
            await ctx.record(words)
            await ctx.record(ctx.event([Part(REMINDER)], role="user"))
            reminders += 1
            messages, choice = [*self._end.messages, {"role": "user", "content": REMINDER}], _FORCED

    def _no_answer(self, error: Exception) -> NoAnswerError:
        """What a model raises is the end of the run."""
        failure = error if isinstance(error, NoAnswerError) else no_answer(error)
        failure.event = self._so_far()
        return failure

    async def _messages(self) -> list[Message]:
        """What the model is shown at first: the instruction, and of the session what the agent is to see."""
        agent, ctx = self._agent, self._ctx
        if isinstance(agent.instruction, str):
            instruction = filled(agent.instruction, ctx.session.state)
        else:
            instruction = await in_time(ctx.budget, lambda: written_out(agent.instruction, ctx))
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
        contents = settled_contents(events[begin:], limit=limit, branch=ctx.branch)
        return messages + to_messages(without_old_files(contents), self._executor.tools)

    @property
    def _is_over(self) -> bool:
        """Whether the agent is done at the end of this round."""
        return self._transfer is not None or self._answer is not None or self._ctx.end_invocation

    async def _text(self, happening: TextEvent) -> Event | None:
        self._said.append(happening.delta)
        return self._ctx.event([Part(happening.delta)], partial=True) if self._config.streaming else None

    async def _reasoning(self, happening: ReasoningEvent) -> Event | None:
        return self._ctx.event([Part(happening.delta, thought=True)], partial=True) if self._config.streaming else None

    async def _reply(self, happening: ReplyEvent) -> Event | None:
        ctx = self._ctx
        ctx.shared.usage += happening.usage
        self._counted.append(happening.usage)
        content = reply_content(happening.reply, happening.calls)
        event = ctx.event(usage=happening.usage.counts(), finish_reason=happening.finish_reason)
        event.content = content
        self._said = []
        if not happening.calls:
            if not content.text:
                raise NoAnswerError("NO_RESPONSE", "Model returned no response", event)
            if self._schema is not None:
                self._words = event  # where a value is wanted
                return None
            if self._agent.output_key is not None:
                event.actions.state_delta[self._agent.output_key] = content.text
            await ctx.record(event)
            return event
        self._responses = Responses(ctx, happening.calls)
        await ctx.record(event)
        if ctx.bus is not None:
            for call in event.get_function_calls():
                await ctx.publish(topics.TOOL_CALL, {"tool": call.name, "args": call.args, "call_id": call.id})
        return event

    def _settled(self, execution: ToolExecution) -> None:
        assert self._responses is not None
        self._responses.settled(execution)

    async def _result(self, happening: ToolResultEvent) -> None:
        execution = happening.execution
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

    async def _progress(self, happening: ToolProgressEvent) -> Event:
        call, said = happening.tool_call, happening.progress
        progress = ToolProgress(call.name, call.id, said.message, said.fraction, said.data)
        about = {"tool": call.name, "call_id": call.id, "message": said.message, "fraction": said.fraction, "data": said.data}
        await self._ctx.publish(topics.TOOL_PROGRESS, about)
        return self._ctx.event(partial=True, progress=progress)

    async def _round_over(self, _happening: IterationEndEvent) -> Event | None:
        if (responses := self._responses) is None:
            return None
        await responses.flush()
        self._responses = None
        self._transfer = responses.actions.transfer_to_agent
        return responses.event

    async def _output(self, happening: UserOutputEvent) -> Event:
        call = happening.tool_call
        event = self._ctx.event(output=UserOutput(call.name, call.id, happening.text, list(happening.media), happening.handled))
        await self._ctx.record(event)
        return event

    async def _turn_over(self, happening: FinalEvent) -> Event | None:
        """Raise NoAnswerError where a turn ended because of a limit, or of a hook."""
        used, self._counted = self._counted, []
        if happening.aborted is not None or happening.finish_reason == "max_seconds":
            # That of an answer which no reply came of.
            self._ctx.shared.usage += _rest_of(happening.usage, sum(used, NO_USAGE))
        if happening.aborted is not None:
            raise self._aborted(happening.aborted)
        self._end = happening
        budget = self._ctx.shared.budget
        match happening.finish_reason:
            case "max_seconds":
                raise out_of_time(budget, self._so_far())
            case "max_iterations":
                words = f"Exceeded max LLM calls ({budget.max_iterations}). Possible infinite loop."
                raise NoAnswerError("MAX_LLM_CALLS", words, self._so_far())
            case "max_calls":
                raise NoAnswerError("MAX_TOOL_CALLS", f"Exceeded max tool calls ({budget.max_calls}).", self._so_far())
        if not happening.handled:
            return None
        # The log says it to the model. The user has had the answer: to whom the run is told, this one says nothing more.
        await self._ctx.record(self._ctx.event([Part(DELIVERED)]))
        answer = self._ctx.event([Part("")])
        self._ctx.told(answer)
        return answer

    def _aborted(self, why: HookAbortError) -> NoAnswerError:
        event = self._so_far()
        if why.hard:
            ctx = self._ctx
            event = event if event is not None else ctx.event()
            event.actions = EventActions(rewind_before_invocation_id=ctx.invocation_id)
            ctx.end_invocation = ctx.shared.taken_back = True
        return NoAnswerError("HOOK_ABORT", str(why), event)

    def _so_far(self) -> Event | None:
        """What the model has said of an answer that is not whole, if it has."""
        text = "".join(self._said)
        return self._ctx.event([Part(text)]) if text else None

    async def _handed_over(self, name: str) -> AsyncGenerator[Event, None]:
        await self._ctx.publish(topics.AGENT_TRANSFER, {"from": self._agent.name, "to": name})
        target = self._agent.find_agent(name)
        assert target is not None  # check_transfer has seen to it
        async with aclosing(target.run_async(self._ctx)) as events:
            async for event in events:
                yield event

    async def _answered(self, event: Event, value: Any) -> Event:
        """Make ``event`` that of an answer that has a type: its text is JSON."""
        thoughts = [part for part in event.content.parts if part.thought] if event.content is not None else []
        event.content = Content("model", [*thoughts, Part(json.dumps(value, ensure_ascii=False))])
        if self._agent.output_key is not None:
            event.actions.state_delta[self._agent.output_key] = value
        await self._ctx.record(event)
        return event


def _rest_of(usage: Usage, counted: Usage) -> Usage:
    return Usage(
        usage.prompt_tokens - counted.prompt_tokens,
        usage.completion_tokens - counted.completion_tokens,
        usage.total_tokens - counted.total_tokens,
    )


_CALLS_TOLD: Final = (ToolCallEvent,)
"""What the event with the whole reply has told already."""

_ALL_TOLD: Final = (ToolCallEvent, ToolResultEvent)
"""The same where nobody but the log has use for results; there they come by ``on_settled``."""

_TOLD: Final[dict[type[LoopEvent], Callable[[Work, Any], Awaitable[Event | None]]]] = {
    TextEvent: Work._text,  # noqa: SLF001  (its own)
    ReasoningEvent: Work._reasoning,  # noqa: SLF001
    ReplyEvent: Work._reply,  # noqa: SLF001
    ToolProgressEvent: Work._progress,  # noqa: SLF001
    ToolResultEvent: Work._result,  # noqa: SLF001
    UserOutputEvent: Work._output,  # noqa: SLF001
    IterationEndEvent: Work._round_over,  # noqa: SLF001
    FinalEvent: Work._turn_over,  # noqa: SLF001
}
"""What is done about each thing that happens in a turn; the event that follows from it is in the log by then, if it is kept."""
