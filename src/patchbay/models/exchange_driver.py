"""Drives an Exchange over a server: sends its requests, feeds it the responses, and yields the client's answer.

``Exchange.steps`` makes the decisions; this is the I/O. Only what a ChatModel leaves out since a server refuses it by name is
decided here (``ask_without_refused_fields``). A server may feed a stream that has begun to the exchange itself
(``ResponseWriter.direct_sink``): ``read`` then returns at the end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

from patchbay.errors import PatchbayError, UpstreamError
from patchbay.models.capabilities import ModelCapabilities
from patchbay.models.chat_model import ModelEvent, ModelReply
from patchbay.models.encoder import Events, Out
from patchbay.models.exchange import Exchange, Step, UpstreamRejection
from patchbay.models.providers import REASONING_FIELDS, Provider, keep_fields, without_fields
from patchbay.models.refusals import complained_of, demands_reasoning, dispensable_fields
from patchbay.models.tool_encoder import EncodedTools
from patchbay.models.wire import Chunk

DESCRIBING: Final = 0.5
"""Seconds for a server to describe itself: the first request with tools waits for it."""
DESCRIBES_LATER: Final = frozenset({401, 403, 429, 503})
"""Statuses of a server that may describe itself another time: with another key, or once its model is loaded."""


class AsyncUpstream(Protocol):
    """A server. Over a blocking client these methods block and never suspend (``wrap``)."""

    async def describe(self) -> Any:
        """Return the server's description, decoded: llama.cpp's ``/props``, else its list of models; {} without either.

        None if the server is slow to send them, or cannot be asked now.
        """
        return {}

    async def send(self, body: bytes, /) -> UpstreamRejection | bytes | Mapping[str, Any] | None:
        """Send a request; return an error status, a whole answer (its body, or decoded), or None for a stream to read."""

    async def read(self) -> bytes | Chunk | None:
        """Read the next piece of the stream, bytes or a decoded chunk; b"" or None at its end."""

    async def close(self) -> None:
        """Close the last response, if there is one."""


async def drive_async(
    exchange: Exchange[Out], upstream: AsyncUpstream, failures: tuple[type[Exception], ...] = (PatchbayError,)
) -> AsyncGenerator[Out, None]:
    """Yield the client's answer. Raises what the exchange and the upstream raise, unless there is an earlier answer.

    ``failures`` are the errors that fail one attempt; any other ends the exchange.
    """
    steps = exchange.steps()
    response: UpstreamRejection | bytes | Mapping[str, Any] | None = None
    failure: Exception | None = None
    attempts = 0
    try:
        while not exchange.complete:
            step: Any = steps.send(response) if failure is None else steps.throw(failure)
            response = failure = None
            try:
                if step is Step.DESCRIBE:
                    response = await upstream.describe()
                elif step is Step.SEND:
                    if attempts:
                        await upstream.close()
                    attempts += 1
                    response = await upstream.send(exchange.request)
                elif step is Step.RECEIVE:
                    while not exchange.finished and (data := await upstream.read()):
                        if out := exchange.feed(data):
                            yield out
            except failures as error:
                failure = error
            if not isinstance(step, Step):
                yield step
    finally:
        await upstream.close()


async def open_answer(exchange: Exchange[Out], upstream: AsyncUpstream) -> AsyncGenerator[Out, None]:
    """Send the first request, and return the answer once it has begun. Raises as ``drive_async``."""
    pieces = drive_async(exchange, upstream)
    first = await anext(pieces, None)

    async def answer() -> AsyncGenerator[Out, None]:
        async with aclosing(pieces):
            if first is not None:
                yield first
            async for piece in pieces:
                yield piece

    return answer()


async def read_events(
    answer: AsyncGenerator[Events, None], tools: EncodedTools, provider: Provider, *, stream: bool
) -> AsyncGenerator[tuple[ModelEvent, bytes], None]:
    """Yield the events of an answer, each with its logprobs: the deltas of a ``stream``, and the reply.

    Raises UpstreamError for an answer that the server gave up.
    """
    async with aclosing(answer):
        async for events in answer:
            for event, logprobs in events:
                if isinstance(event, ModelReply):
                    reason = provider.finish_reasons.get(event.finish_reason or "", event.finish_reason)
                    if reason == "error":
                        raise UpstreamError(f"The model's server failed in mid-answer: {event.finish_reason}.")
                    yield ModelReply(tools.own(event.reply), reason, event.usage), logprobs
                elif stream:
                    yield event, logprobs


async def ask_without_refused_fields(
    ask: Callable[[dict[str, Any]], Awaitable[AsyncGenerator[Events, None]]],
    body: dict[str, Any],
    known: ModelCapabilities,
    sent_back: frozenset[str],
) -> AsyncGenerator[Events, None]:
    """Call ``ask``, and again without fields that the server refuses by name, or with reasoning that it demands; record both.

    What concerns tools, roles or formats is retried inside of ``ask``, by the exchange. ``sent_back`` are the fields of messages
    that its provider knows. The last exception of ``ask`` is raised.
    """
    refused, all_reasoning, demanded = set(known.refused), known.all_reasoning, False
    while True:
        sent = _without_fields(body, sent_back, refused, all_reasoning=all_reasoning)
        try:
            answer = await ask(sent)
        except UpstreamError as error:
            if demands_reasoning(error):
                refused -= REASONING_FIELDS
                all_reasoning = demanded = True
                if _without_fields(body, sent_back, refused, all_reasoning=True) == sent:
                    raise
                continue
            named = complained_of(error, sent)
            if demanded:
                named -= REASONING_FIELDS
            if not named:
                raise
            refused |= named
        else:
            known.refused, known.all_reasoning = refused, all_reasoning
            return answer


def _without_fields(body: dict[str, Any], kept: frozenset[str], refused: set[str], *, all_reasoning: bool) -> dict[str, Any]:
    """Leave out of a body the refused parameters, and of its messages the refused fields and those that are not ``kept``."""
    messages = keep_fields(body["messages"], kept, all_reasoning=all_reasoning and not kept.isdisjoint(REASONING_FIELDS))
    body = {**body, "messages": messages}
    if not refused or refused.isdisjoint(dispensable_fields(body)):
        return body
    return {key: value for key, value in body.items() if key not in refused} | {"messages": without_fields(messages, refused)}
