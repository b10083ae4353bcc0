"""The model of an agent's run, with a time limit for each answer and its events on the bus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from patchbay.agents.base import InvocationContext
from patchbay.agents.run_config import RunFailed, as_run_failed
from patchbay.errors import ConfigurationError
from patchbay.loop.events import IncompleteAnswerError
from patchbay.models.chat_model import ChatModel, ChatRequest, ModelEvent, ModelReply, TextDelta

_logger = logging.getLogger(__name__)


class UnusableModel:
    """A model whose ``respond`` raises ``error``: a callback may answer in its place."""

    def __init__(self, error: ConfigurationError) -> None:
        self._error = error

    def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:  # noqa: ARG002  (a ChatModel's)
        """Raise the error."""
        raise self._error


class TimedModel:
    """A model in one run: bounds the time of each answer, and publishes requests and answers on the bus."""

    def __init__(self, ctx: InvocationContext, model: ChatModel, name: str) -> None:
        self._ctx = ctx
        self._model = model
        self._name = name
        self._time_left = ctx.run_config.llm_timeout

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Yield the model's events. Raises RunFailed."""
        end: ModelReply | None = None
        bus = self._ctx.bus
        if bus is not None:
            await self._ctx.publish("llm.request", {"model": self._name})
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
                    await self._ctx.publish("llm.stream.chunk", {"text": event.text})
                yield event
            if end is None:
                raise IncompleteAnswerError  # noqa: TRY301  (published as all others)
        except Exception as error:
            failure = as_run_failed(error)
            await self._ctx.publish("llm.error", {"error": failure.code, "message": str(failure)})
            if failure is error:
                raise
            raise failure from error
        finally:
            if (close := getattr(responses, "aclose", None)) is not None:
                await close()
        if bus is not None:
            usage = end.usage.counts()
            about = {"model": self._name, "usage": usage, "finish_reason": end.finish_reason}
            await self._ctx.publish("llm.response", about)
        yield end

    async def _next(self, source: AsyncIterator[ModelEvent]) -> ModelEvent | None:
        """Return the model's next event within its time, None at its end. A slow consumer does not use up that time."""
        if self._time_left is None:
            return await anext(source, None)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._time_left) as limit:
                event = await anext(source, None)
        except TimeoutError:
            if not limit.expired():
                raise  # the model's own
            message = f"LLM call timed out after {self._ctx.run_config.llm_timeout}s"
            raise RunFailed("TIMEOUT", message) from None
        self._time_left -= clock() - began
        return event
