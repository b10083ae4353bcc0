"""An agent's model with its limit of time and the bus around it: a ChatModel for the loop.

What lives here: each answer's time, and what the bus is told of it. What does not: the loop that asks it (``patchbay.loop``), and
the callbacks, which are hooks of the loop (``model_callbacks``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any

from patchbay.agents import topics
from patchbay.agents.context import InvocationContext
from patchbay.agents.failures import NoAnswerError
from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.loop.answer import OutOfTimeError, UnfinishedError, next_event
from patchbay.models.chat import ChatModel, ChatRequest, ModelEvent, ModelReply, TextDelta
from patchbay.tools.results import describe

if TYPE_CHECKING:
    from patchbay.agents.llm_agent import LlmAgent

_logger = logging.getLogger(__name__)


def asked_model(ctx: InvocationContext, agent: LlmAgent) -> ChatModel:
    """Return the agent's model, with what there is to be done around it.

    One that cannot be used raises what ``LlmAgent.chat_model`` does when it is first asked: a callback may answer in its place.
    """
    try:
        model = agent.chat_model()
    except ConfigurationError as error:
        return UnusableModel(error)
    is_plain = ctx.bus is None and ctx.run_config.llm_timeout is None
    return model if is_plain else AskedModel(ctx, agent, model)


def no_answer(error: Exception) -> NoAnswerError:
    """Return what a model raised as the end of a run."""
    if isinstance(error, UnfinishedError):
        return NoAnswerError("NO_RESPONSE", "Model returned no response")
    if isinstance(error, PatchbayError):
        return NoAnswerError(error.code.upper(), str(error))
    _logger.error("The model failed", exc_info=error)
    return NoAnswerError("MODEL_ERROR", describe(error))


class UnusableModel:
    """A model that raises ``error`` when it is asked."""

    def __init__(self, error: ConfigurationError) -> None:
        self._error = error

    def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:  # noqa: ARG002  (a ChatModel's)
        """Raise the error."""
        raise self._error


class AskedModel:
    """The model of ``agent`` in one run."""

    def __init__(self, ctx: InvocationContext, agent: LlmAgent, model: ChatModel) -> None:
        self._ctx = ctx
        self._model = model
        self._name = agent.model_name
        self._time_left = ctx.run_config.llm_timeout

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer as the model does. Raises NoAnswerError."""
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
            usage = end.usage.counts()
            about = {"model": self._name, "usage": usage, "finish_reason": end.finish_reason}
            await self._ctx.publish(topics.LLM_RESPONSE, about)
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

    async def _tell(self, failure: NoAnswerError) -> None:
        await self._ctx.publish(topics.LLM_ERROR, {"error": failure.code, "message": str(failure)})
