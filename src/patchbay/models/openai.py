"""A ChatModel over the client of the ``openai`` package, sync or async, or over any object that looks like one.

What lives here: one request through ``client.chat.completions.create`` and its answer put together, in the dialect of the
provider on the other side. What makes a model without tool calling answer with calls is ``patchbay.models.wrap``; this file
neither knows nor cares whether its client is wrapped. What is particular to a provider stands in ``providers``; what a server
refuses by name is learnt with ``learnt``.

The package itself is not imported: errors and answers are read by their attributes.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from patchbay.errors import ConfigurationError, UpstreamError
from patchbay.models.assemble import Assembly, whole_reply
from patchbay.models.blocking import blocking_chunks, open_in_thread
from patchbay.models.chat import ChatRequest, ModelEvent, ModelReply
from patchbay.models.clienterrors import client_errors
from patchbay.models.learnt import Learnt, asked, demands_stream
from patchbay.models.offer import Offer, Told
from patchbay.models.providers import Provider, provider_at
from patchbay.models.wire import decode
from patchbay.tools.threads import run_in_thread


class OpenAIChatModel:
    """A ChatModel over an ``openai.OpenAI``, ``openai.AsyncOpenAI`` or look-alike client.

    A sync client is driven from a thread. Cancelling closes a stream at once, whichever the client; a sync client's request that
    is not a stream cannot be interrupted: its thread goes on to its end and its answer is dropped. The client's errors are raised
    as UpstreamError, with the client's own as ``__cause__``.

    ``model`` is the name of the model for requests that hold none. ``provider`` is whose dialect is spoken; by default it is told
    from the host of the client's URL. ``learnt`` may be shared by models that talk to the same server.
    """

    def __init__(
        self, client: Any, *, model: str | None = None, provider: Provider | None = None, learnt: Learnt | None = None
    ) -> None:
        self._named = {} if model is None else {"model": model}
        self._client = client
        self._create = client.chat.completions.create
        # Over a client of ours the answer is read as it came: the SDK's objects of it would be taken apart again at once.
        self._post = getattr(self._create, "patchbay_post", None)
        self._create_whole = self._create if self._post is None else client.chat.completions.with_raw_response.create
        self._known = _parameter_names(self._create)
        self._is_async = hasattr(client, "__aenter__")
        self._provider = provider_at(str(getattr(client, "base_url", ""))) if provider is None else provider
        self._offer = Offer(self._provider)
        self._learnt = Learnt() if learnt is None else learnt

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``.

        Raises ConfigurationError where no model is named, UpstreamError, UpstreamTimeoutError, and over a wrapped client
        ToolChoiceError and InvalidRequestError.
        """
        told = self._offer.of(request.tools)
        body = self._provider.prepare({**self._named, **told.body(request)})
        if not body.get("model"):
            raise ConfigurationError("No model is named: a client serves many. Name one with each request (model=...).")
        whole = None if request.stream else await self._whole(body)
        if whole is not None:
            yield self._read(whole, told)
            return
        answer = Assembly()
        async with aclosing(self._chunks(body)) as chunks:
            async for chunk in chunks:
                for event in answer.add(chunk):
                    if request.stream:
                        yield event
        yield self._read(answer.end(), told)

    async def _whole(self, body: dict[str, Any]) -> ModelReply | None:
        """The answer at once; None for a model that answers in a stream only."""
        known = self._learnt.of(body.get("model"))
        if known.only_streams:
            return None
        try:
            return whole_reply(await asked(self._answer, body, known, self._provider.sent_back))
        except UpstreamError as error:
            if not demands_stream(error):
                raise
        known.only_streams = True
        return None

    def _read(self, end: ModelReply, told: Told) -> ModelReply:
        """The reply in OpenAI's words, with the tools' own names. Raises UpstreamError where the server says that it failed."""
        reason = self._provider.finish_reasons.get(end.finish_reason or "", end.finish_reason)
        if reason == "error":
            raise UpstreamError(f"The model's server failed in mid-answer: {end.finish_reason}.")
        return ModelReply(told.own(end.reply), reason, end.usage)

    async def _answer(self, body: dict[str, Any]) -> Any:
        with client_errors(self._keys):
            answer = self._created(body) if self._is_async else await run_in_thread(lambda: self._created(body))
            answer = await answer if inspect.isawaitable(answer) else answer
            return answer if self._post is None else _document(answer.content)

    def _created(self, body: dict[str, Any]) -> Any:
        if self._post is not None and (answer := self._post(body)) is not None:
            return answer
        return self._create_whole(**self._arguments(body))

    async def _chunks(self, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
        wanted = {"stream_options": {"include_usage": True}, **body, "stream": True}
        stream = await asked(self._stream, wanted, self._learnt.of(body.get("model")), self._provider.sent_back)
        if not hasattr(stream, "__aiter__"):
            stream = blocking_chunks(stream)
        try:
            with client_errors(self._keys):
                async for chunk in stream:
                    yield chunk
        finally:
            await _close(stream)

    async def _stream(self, body: dict[str, Any]) -> Any:
        with client_errors(self._keys):
            if self._is_async:
                return await self._create(**self._arguments(body))
            stream = await open_in_thread(lambda: self._create(**self._arguments(body)))
            return await stream if inspect.isawaitable(stream) else stream

    def _keys(self) -> tuple[Any, ...]:
        """What no error may say."""
        return (getattr(self._client, "api_key", None),)

    def _arguments(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body as the client's arguments: what it has no argument for goes into ``extra_body``."""
        extra = {key: value for key, value in body.items() if self._known is not None and key not in self._known}
        if not extra:
            return body
        arguments = {key: value for key, value in body.items() if key not in extra}
        given = arguments.get("extra_body")
        arguments["extra_body"] = {**extra, **given} if isinstance(given, dict) else extra
        return arguments


def _parameter_names(create: Any) -> frozenset[str] | None:
    """The names of the arguments that a client's method takes; None where it takes any, or does not tell."""
    try:
        parameters = inspect.signature(create).parameters
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()) or "extra_body" not in parameters:
        return None
    return frozenset(parameters)


def _document(content: bytes) -> Any:
    try:
        return decode(content)
    except (ValueError, RecursionError):
        return content.decode("utf-8", "replace")


async def _close(stream: Any) -> None:
    for name in ("aclose", "close"):
        if (close := getattr(stream, name, None)) is not None:
            closing = close()
            if inspect.isawaitable(closing):
                await closing
            return
