"""A ChatModel over the client of the ``openai`` package, sync or async, or over any object that looks like one.

The package itself is not imported: errors and answers are read by their attributes. A sync client's stream is read in a thread.
A thread that waits for a socket cannot be interrupted, and closing its file descriptor neither wakes it nor tells the server;
shutting the connection down does both.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, Final

from patchbay.errors import ConfigurationError, UpstreamError
from patchbay.models.capabilities import Capabilities, demands_stream, request_with_retries
from patchbay.models.chat_model import ChatRequest, ModelEvent, ModelReply, ReplyAssembler, whole_reply
from patchbay.models.error_bodies import client_errors
from patchbay.models.providers import Provider, provider_at
from patchbay.models.tool_encoder import EncodedTools, ToolEncoder
from patchbay.models.wire import decode
from patchbay.tools.threads import run_in_thread

_READ_AHEAD: Final = 64
"""Maximum of chunks that the thread reads ahead: a slow reader slows the server down instead of filling memory."""

_END: Final = object()
_opening: set[asyncio.Task[Any]] = set()


async def open_in_thread(create: Callable[[], Any]) -> Any:
    """Call ``create`` in a thread; if the caller is cancelled meanwhile, close its result when it arrives."""
    task = asyncio.get_running_loop().create_task(run_in_thread(create))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        _opening.add(task)
        task.add_done_callback(_close_unwanted)
        raise


async def blocking_chunks(stream: Iterable[Any]) -> AsyncGenerator[Any, None]:
    """Yield the chunks of a blocking ``stream``; closing this ends the stream's connection at once."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[Any] = asyncio.Queue()
    free = threading.Semaphore(_READ_AHEAD)
    stopped = threading.Event()

    def hand_over(item: Any) -> None:
        loop.call_soon_threadsafe(arrived.put_nowait, item)

    def read() -> None:
        try:
            for chunk in stream:
                free.acquire()
                if stopped.is_set():
                    return
                hand_over(chunk)
        except Exception:
            if not stopped.is_set():  # after a stop it is only the connection that was cut
                raise
        finally:
            _close_stream(stream)

    reader = loop.create_task(run_in_thread(read))
    reader.add_done_callback(lambda _reader: arrived.put_nowait(_END))
    try:
        while (chunk := await arrived.get()) is not _END:
            free.release()
            yield chunk
        await reader  # raises what the stream raised
    finally:
        if not reader.done():
            stopped.set()
            free.release()
            _shut_down(stream)
            reader.cancel()


def _close_unwanted(task: asyncio.Task[Any]) -> None:
    _opening.discard(task)
    if not task.cancelled() and task.exception() is None:
        threading.Thread(target=_close_stream, args=(task.result(),), daemon=True).start()


def _close_stream(stream: Any) -> None:
    if (close := getattr(stream, "close", None)) is not None:
        close()


def _shut_down(stream: Any) -> None:
    """Shut the stream's own connection down; one that many streams share (HTTP/2) is left alone."""
    extensions = getattr(getattr(stream, "response", None), "extensions", None) or {}
    if extensions.get("http_version") == b"HTTP/2" or "network_stream" not in extensions:
        return
    connection = extensions["network_stream"].get_extra_info("socket")
    if connection is None:
        return
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # already closed by the other side
        pass


class OpenAIChatModel:
    """A ChatModel over an ``openai.OpenAI``, ``openai.AsyncOpenAI`` or look-alike client.

    A sync client is driven from a thread. Cancelling closes a stream at once, whichever the client; a sync client's request that
    is not a stream cannot be interrupted: its thread runs to its end and the answer is dropped. The client's errors are raised
    as UpstreamError, with the client's own as ``__cause__``.

    ``model`` is the name of the model for requests without one. ``provider`` decides the dialect, by default by the host of the
    client's URL. ``capabilities`` may be shared by models that talk to the same server.
    """

    def __init__(
        self, client: Any, *, model: str | None = None, provider: Provider | None = None, capabilities: Capabilities | None = None
    ) -> None:
        self._named = {} if model is None else {"model": model}
        self._client = client
        self._create = client.chat.completions.create
        # A wrapped client returns the raw response: the SDK's objects would only be taken apart again.
        self._post = getattr(self._create, "patchbay_post", None)
        self._create_whole = self._create if self._post is None else client.chat.completions.with_raw_response.create
        self._known = _parameter_names(self._create)
        self._is_async = hasattr(client, "__aenter__")
        self._provider = provider_at(str(getattr(client, "base_url", ""))) if provider is None else provider
        self._encoder = ToolEncoder(self._provider)
        self._capabilities = Capabilities() if capabilities is None else capabilities

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``.

        Raises ConfigurationError where no model is named, UpstreamError, UpstreamTimeoutError, and over a wrapped client
        ToolChoiceError and InvalidRequestError.
        """
        tools = self._encoder.of(request.tools)
        body = self._provider.prepare({**self._named, **tools.body(request)})
        if not body.get("model"):
            raise ConfigurationError("No model is named: a client serves many. Name one with each request (model=...).")
        whole = None if request.stream else await self._whole(body)
        if whole is not None:
            yield self._read(whole, tools)
            return
        answer = ReplyAssembler()
        async with aclosing(self._chunks(body)) as chunks:
            async for chunk in chunks:
                for event in answer.add(chunk):
                    if request.stream:
                        yield event
        yield self._read(answer.end(), tools)

    async def _whole(self, body: dict[str, Any]) -> ModelReply | None:
        """Request a whole answer; None for a model that answers in a stream only."""
        known = self._capabilities.of(body.get("model"))
        if known.only_streams:
            return None
        try:
            return whole_reply(await request_with_retries(self._answer, body, known, self._provider.sent_back))
        except UpstreamError as error:
            if not demands_stream(error):
                raise
        known.only_streams = True
        return None

    def _read(self, end: ModelReply, tools: EncodedTools) -> ModelReply:
        """Translate a reply's finish reason and the tools' names in it. Raises UpstreamError for the reason "error"."""
        reason = self._provider.finish_reasons.get(end.finish_reason or "", end.finish_reason)
        if reason == "error":
            raise UpstreamError(f"The model's server failed in mid-answer: {end.finish_reason}.")
        return ModelReply(tools.own(end.reply), reason, end.usage)

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
        stream = await request_with_retries(
            self._stream, wanted, self._capabilities.of(body.get("model")), self._provider.sent_back
        )
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
        """Return the secrets to redact from errors."""
        return (getattr(self._client, "api_key", None),)

    def _arguments(self, body: dict[str, Any]) -> dict[str, Any]:
        """Turn a body into arguments of the client; members that it has no argument for go into ``extra_body``."""
        extra = {key: value for key, value in body.items() if self._known is not None and key not in self._known}
        if not extra:
            return body
        arguments = {key: value for key, value in body.items() if key not in extra}
        given = arguments.get("extra_body")
        arguments["extra_body"] = {**extra, **given} if isinstance(given, dict) else extra
        return arguments


def _parameter_names(create: Any) -> frozenset[str] | None:
    """Return the names of a method's arguments; None if it takes any, or has no signature."""
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
