"""An agent's model with its callbacks around it: a ChatModel for the loop.

What lives here: the callbacks before and after a model, its time, and what the bus is told. What does not: the loop that asks it
(``patchbay.loop``): calls that a callback returns are carried out as the model's own are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from patchbay.agents import topics
from patchbay.agents.callbacks import ask
from patchbay.agents.config import GenerateContentConfig
from patchbay.agents.context import InvocationContext
from patchbay.agents.failures import NoAnswerError, callbacks_fail
from patchbay.agents.request import (
    LlmResponse,
    as_llm_request,
    as_llm_response,
    as_model_reply,
    as_response,
    changed,
    usage_dict,
)
from patchbay.errors import PatchbayError
from patchbay.executor import Run
from patchbay.loop.answer import OutOfTimeError, UnfinishedError, next_event
from patchbay.models.chat import ChatModel, ChatRequest, ModelEvent, ModelReply, TextDelta
from patchbay.tools import Tool, collect_tools
from patchbay.tools.results import describe

if TYPE_CHECKING:
    from patchbay.agents.llm_agent import LlmAgent

_logger = logging.getLogger(__name__)


def asked_model(ctx: InvocationContext, agent: LlmAgent, run: Run) -> ChatModel:
    """Return the agent's model, with what there is to be done around it. Raises what ``LlmAgent.chat_model`` does."""
    model = agent.chat_model()
    wrapped = agent.before_model_callback or agent.after_model_callback or ctx.bus is not None
    return AskedModel(ctx, agent, model, run) if wrapped or ctx.run_config.llm_timeout is not None else model


def no_answer(error: Exception) -> NoAnswerError:
    """Return what a model raised as the end of a run."""
    if isinstance(error, UnfinishedError):
        return NoAnswerError("NO_RESPONSE", "Model returned no response")
    if isinstance(error, PatchbayError):
        return NoAnswerError(error.code.upper(), str(error))
    _logger.error("The model failed", exc_info=error)
    return NoAnswerError("MODEL_ERROR", describe(error))


class AskedModel:
    """The model of ``agent`` in one run."""

    def __init__(self, ctx: InvocationContext, agent: LlmAgent, model: ChatModel, run: Run) -> None:
        self._ctx = ctx
        self._agent = agent
        self._model = model
        self._run = run
        self._name = agent.model_name
        self._time_left = ctx.run_config.llm_timeout
        self._tools: tuple[Mapping[str, Tool], Mapping[str, Tool]] | None = None

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer as the model does, or as a callback does in its place. Raises NoAnswerError."""
        if self._agent.before_model_callback:
            request, answer = await self._before(request)
            if answer is not None:
                yield answer
                return
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
        except NoAnswerError as late:
            await self._tell(late)
            raise
        except Exception as error:
            failure = no_answer(error)
            await self._tell(failure)
            raise failure from error
        finally:
            if (close := getattr(responses, "aclose", None)) is not None:
                await close()
        if end is None:
            failure = no_answer(UnfinishedError())
            await self._tell(failure)
            raise failure
        if bus is not None:
            usage = usage_dict(end.usage)
            about = {"model": self._name, "usage": usage, "finish_reason": end.finish_reason}
            await self._ctx.publish(topics.LLM_RESPONSE, about)
        if self._agent.after_model_callback:
            end = await self._after(end)
        yield end

    async def _next(self, source: AsyncIterator[ModelEvent]) -> ModelEvent | None:
        """What the model says next, within its time; None at its end. What a slow consumer takes is not the model's time."""
        if self._time_left is None:
            return await next_event(source, None)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            event = await next_event(source, began + self._time_left)
        except OutOfTimeError:
            words = f"LLM call timed out after {self._ctx.run_config.llm_timeout}s"
            raise NoAnswerError("TIMEOUT", words) from None
        self._time_left -= clock() - began
        return event

    async def _before(self, request: ChatRequest) -> tuple[ChatRequest, ModelReply | None]:
        """Ask the callbacks; returns what is to be asked, and the answer if it has been given."""
        self._take_tools_back()
        name = getattr(self._model, "name", None)
        with callbacks_fail():
            asked = as_llm_request(
                request,
                config=self._agent.generate_content_config or GenerateContentConfig(),
                tools=self._run.tools,
                model=name,
                metadata={"user_id": self._ctx.user_id},
            )
            answer = await ask(self._agent.before_model_callback, self._ctx, asked)
            self._use(collect_tools(asked.tools_dict.values()))
            if answer is not None:
                return request, as_model_reply(await self._checked(as_response(answer)))
            specs = self._run.specs
            choice = request.tool_choice if specs else None
            return replace(changed(request, asked, model=name), tools=specs, tool_choice=choice), None

    def _use(self, tools: Mapping[str, Tool]) -> None:
        """Let the model call these in this round."""
        if tools != dict(self._run.tools):
            self._tools = self._run.tools, tools
            self._run.use(tools)

    def _take_tools_back(self) -> None:
        """Begin a round with what there is without callbacks, and what the run itself has added meanwhile."""
        if self._tools is not None:
            before, given = self._tools
            added = {name: tool for name, tool in self._run.tools.items() if name not in given}
            self._run.use({**before, **added})
            self._tools = None

    async def _after(self, end: ModelReply) -> ModelReply:
        with callbacks_fail():
            response = as_llm_response(end)
            answer = await ask(self._agent.after_model_callback, self._ctx, response)
            if answer is None and response == as_llm_response(end):
                return end
            # It may also have changed what it was given.
            answer = response if answer is None else as_response(answer)
            return as_model_reply(await self._checked(answer), instead_of=end)

    async def _checked(self, response: LlmResponse) -> LlmResponse:
        if response.error_code is not None:
            failure = NoAnswerError(response.error_code, response.error_message or "")
            await self._tell(failure)
            raise failure
        return response

    async def _tell(self, failure: NoAnswerError) -> None:
        await self._ctx.publish(topics.LLM_ERROR, {"error": failure.code, "message": str(failure)})
