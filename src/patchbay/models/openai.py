"""A ChatModel over the client of the ``openai`` package, sync or async, or over any object that looks like one.

What lives here: one request through ``client.chat.completions.create`` and its answer put together. What makes a model without
tool calling answer with calls is ``patchbay.models.wrap``; this file neither knows nor cares whether its client is wrapped.

The package itself is not imported: errors and answers are read by their attributes.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from patchbay.errors import UpstreamError, UpstreamTimeoutError
from patchbay.models.assemble import Assembly, whole_reply
from patchbay.models.blocking import blocking_chunks, open_in_thread
from patchbay.models.chat import ChatRequest, ModelEvent
from patchbay.tools.threads import run_in_thread


class OpenAIChatModel:
    """A ChatModel over an ``openai.OpenAI``, ``openai.AsyncOpenAI`` or look-alike client.

    A sync client is driven from a thread. Cancelling closes a stream at once, whichever the client; a sync client's request that
    is not a stream cannot be interrupted: its thread goes on to its end and its answer is dropped. The client's errors are raised
    as UpstreamError, with the client's own as ``__cause__``.
    """

    def __init__(self, client: Any) -> None:
        self._create = client.chat.completions.create
        self._is_async = hasattr(client, "__aenter__")
        self._asks_for_usage = True

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``. Raises UpstreamError, UpstreamTimeoutError."""
        body = _body(request)
        if not request.stream:
            yield whole_reply(await self._answer(body))
            return
        answer = Assembly()
        async with aclosing(self._chunks({**body, "stream": True})) as chunks:
            async for chunk in chunks:
                for event in answer.add(chunk):
                    yield event
        yield answer.end()

    async def _answer(self, body: dict[str, Any]) -> Any:
        with _client_errors():
            if self._is_async:
                return await self._create(**body)
            answer = await run_in_thread(lambda: self._create(**body))
            return await answer if inspect.isawaitable(answer) else answer

    async def _chunks(self, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
        stream = await self._open(body)
        if not hasattr(stream, "__aiter__"):
            stream = blocking_chunks(stream)
        try:
            with _client_errors():
                async for chunk in stream:
                    yield chunk
        finally:
            await _close(stream)

    async def _open(self, body: dict[str, Any]) -> Any:
        """Open the stream, asking for usage unless this server has refused that before."""
        if not self._asks_for_usage or "stream_options" in body:
            return await self._stream(body)
        try:
            return await self._stream({**body, "stream_options": {"include_usage": True}})
        except UpstreamError as error:
            # A server that knows no stream_options says so by name; what it counts is then not to be had.
            if error.upstream_status not in (400, 422) or "stream_options" not in f"{error} {error.body}":
                raise
        self._asks_for_usage = False
        return await self._stream(body)

    async def _stream(self, body: dict[str, Any]) -> Any:
        with _client_errors():
            if self._is_async:
                return await self._create(**body)
            stream = await open_in_thread(lambda: self._create(**body))
            return await stream if inspect.isawaitable(stream) else stream


def _body(request: ChatRequest) -> dict[str, Any]:
    body: dict[str, Any] = {**request.parameters, "messages": list(request.messages)}
    if request.tools:
        body["tools"] = [spec.to_openai() for spec in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = request.tool_choice
    return body


async def _close(stream: Any) -> None:
    for name in ("aclose", "close"):
        if (close := getattr(stream, name, None)) is not None:
            closing = close()
            if inspect.isawaitable(closing):
                await closing
            return


@contextmanager
def _client_errors() -> Iterator[None]:
    """Raise a client's error as one of ours; what is not about the server (a wrong argument, a bug) stays what it is."""
    try:
        yield
    except Exception as error:
        if isinstance(error, json.JSONDecodeError):
            raise UpstreamError(f"The upstream's answer is not JSON: {error}") from error
        if not type(error).__module__.startswith(("openai", "httpx", "httpcore")):
            raise
        body = getattr(error, "body", None)
        timed_out = any(base.__name__ in ("APITimeoutError", "TimeoutException") for base in type(error).__mro__)
        raise (UpstreamTimeoutError if timed_out else UpstreamError)(
            str(error) or type(error).__name__,
            upstream_status=getattr(error, "status_code", None),
            body=body if isinstance(body, str) else "" if body is None else json.dumps(body, default=str),
        ) from error
