"""A ChatModel over the client of the ``openai`` package, sync or async, or over any object that looks like one.

The package itself is not imported: errors and answers are read by their attributes. The package's own client sends bytes and
returns HTTP responses, below its types; any other object is called as its ``create`` wants it, and its answers are read as JSON.
A sync client's stream is read in a thread. A thread that waits for a socket cannot be interrupted, and closing its file
descriptor neither wakes it nor tells the server; shutting the connection down does both.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

from typing_extensions import override

from patchbay._trace import trace_headers
from patchbay.constraints.backends import Backend, backend_of
from patchbay.errors import ConfigurationError, UpstreamError
from patchbay.models.attempt import ATTEMPT_LOG
from patchbay.models.capabilities import Capabilities
from patchbay.models.chat_model import ChatRequest, ModelEvent
from patchbay.models.encoder import EventEncoder, Events
from patchbay.models.error_bodies import client_errors
from patchbay.models.exchange import Exchange, UpstreamRejection
from patchbay.models.exchange_driver import (
    DESCRIBES_LATER,
    DESCRIBING,
    AsyncUpstream,
    ask_without_refused_fields,
    open_answer,
    read_events,
)
from patchbay.models.options import TextOptions
from patchbay.models.providers import Provider, provider_at
from patchbay.models.sdk import REQUEST_OPTIONS, raw_post
from patchbay.models.tool_encoder import ToolEncoder
from patchbay.models.wire import Chunk, decode, decode_chunk, encode
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


async def blocking_chunks(stream: Iterable[Any], response: Any = None) -> AsyncGenerator[Any, None]:
    """Yield the chunks of a blocking ``stream``; closing this ends its connection, that of ``response``, at once."""
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
            _close_stream(stream if response is None else response)

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
            _shut_down(getattr(stream, "response", None) if response is None else response)
            reader.cancel()


def _close_unwanted(task: asyncio.Task[Any]) -> None:
    _opening.discard(task)
    if not task.cancelled() and task.exception() is None:
        threading.Thread(target=_close_stream, args=(task.result(),), daemon=True).start()


def _close_stream(stream: Any) -> None:
    if (close := getattr(stream, "close", None)) is not None:
        close()


def _shut_down(response: Any) -> None:
    """Shut the response's own connection down; one that many share (HTTP/2) is left alone."""
    extensions = getattr(response, "extensions", None) or {}
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
    client's URL. ``options`` say how tools are sent, by default natively. ``capabilities`` may be shared by models that talk to
    the same server.
    """

    def __init__(
        self,
        client: Any,
        *,
        model: str | None = None,
        provider: Provider | None = None,
        options: TextOptions | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        self._named = {} if model is None else {"model": model}
        self._client = client
        self._provider = provider_at(str(getattr(client, "base_url", ""))) if provider is None else provider
        # Unknown tools must reach the executor: its error tells the model which there are.
        self._options = TextOptions(tools="native", unknown_tools="keep") if options is None else options
        self._capabilities = Capabilities() if capabilities is None else capabilities
        self._encoder = ToolEncoder(self._provider)
        self._post = raw_post(client)

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``.

        Raises ConfigurationError where no model is named, UpstreamError, UpstreamTimeoutError, ToolChoiceError and
        InvalidRequestError.
        """
        tools = self._encoder.of(request.tools)
        body = self._provider.prepare({**self._named, **tools.body(request)})
        if not body.get("model"):
            raise ConfigurationError("No model is named: a client serves many. Name one with each request (model=...).")
        if request.stream:
            body = {"stream_options": {"include_usage": True}, **body, "stream": True}
        known = self._capabilities.of(body["model"])
        answer = await ask_without_refused_fields(self._request, body, known, self._provider.sent_back)
        async with aclosing(read_events(answer, tools, self._provider, stream=request.stream)) as events:
            async for event, _ in events:
                yield event

    async def _request(self, body: dict[str, Any]) -> AsyncGenerator[Events, None]:
        call: dict[str, Any] = {name: body[name] for name in REQUEST_OPTIONS if name in body}
        sent = {name: value for name, value in body.items() if name not in call and name != "extra_body"}
        if headers := trace_headers():
            call["extra_headers"] = {**headers, **(call.get("extra_headers") or {})}
        exchange = Exchange(encode(sent | (body.get("extra_body") or {})), self._options, self._capabilities, EventEncoder())
        exchange.attempt_log = ATTEMPT_LOG.get()
        client, post = self._client, self._post
        return await open_answer(exchange, _LookAlikeUpstream(client, call) if post is None else _SdkUpstream(client, call, post))


class _ClientUpstream(AsyncUpstream, ABC):
    """A client as the server behind an exchange. ``call`` are the arguments of the request that are not part of its body."""

    def __init__(self, client: Any, call: Mapping[str, Any]) -> None:
        self._client = client
        self._call = call
        self._is_async = hasattr(client, "__aenter__")
        self._pieces: AsyncIterator[Any] | None = None

    @override
    async def describe(self) -> Any:
        client = self._client
        if (with_options := getattr(client, "with_options", None)) is not None:
            client = with_options(timeout=DESCRIBING, max_retries=0)
        list_models = getattr(getattr(client, "models", None), "list", None)
        if list_models is None:
            return {}
        try:
            async with asyncio.timeout(DESCRIBING):
                listed = await self._document(list_models)
                if backend_of(listed) is not Backend.LLAMA_CPP or (get := self._properties_of(client)) is None:
                    return listed
                properties = await self._document(get)
                return listed if backend_of(properties) is None else properties
        except Exception:  # noqa: BLE001  (whatever a look-alike raises, the request itself may succeed)
            return None

    async def _document(self, get: Callable[[], Any]) -> Any:
        """Return what ``get`` returns, {} where the server refuses it. Raises an error where the server may answer it later."""
        try:
            with client_errors(self._keys):
                return _plain(await self._run(get))
        except UpstreamError as error:
            if error.upstream_status in (None, *DESCRIBES_LATER):
                raise
            return {}

    def _properties_of(self, client: Any) -> Callable[[], Any] | None:
        """Return the function that gets llama.cpp's ``/props``; None for a client that is not the SDK's."""

    async def send(self, body: bytes) -> UpstreamRejection | bytes | Mapping[str, Any] | None:
        """Send a request; see AsyncUpstream."""
        try:
            with client_errors(self._keys):
                return await self._send(body)
        except UpstreamError as error:
            if error.upstream_status is None:
                raise
            return UpstreamRejection(error.upstream_status, f"{error} {error.body}", error)

    @abstractmethod
    async def _send(self, body: bytes) -> bytes | Mapping[str, Any] | None:
        """Send a request; return a whole answer, or None for a stream."""

    @override
    async def read(self) -> Any:
        assert self._pieces is not None
        with client_errors(self._keys):
            return await anext(self._pieces, None)

    @override
    async def close(self) -> None:
        if self._pieces is not None:
            await _close(self._pieces)

    async def _run(self, function: Callable[[], Any]) -> Any:
        """Call the client, a blocking one in a thread; what it opens is closed if the caller has left meanwhile."""
        made = function() if self._is_async else await open_in_thread(function)
        return await made if inspect.isawaitable(made) else made

    def _keys(self) -> tuple[Any, ...]:
        """Return the secrets to redact from errors."""
        return (getattr(self._client, "api_key", None),)


class _SdkUpstream(_ClientUpstream):
    """A client of the SDK, by its ``post``: connections, keys, URLs and retries are its own."""

    def __init__(self, client: Any, call: Mapping[str, Any], post: Callable[[bytes, Mapping[str, Any]], Any]) -> None:
        super().__init__(client, call)
        self._post = post
        self._response: Any = None

    @override
    def _properties_of(self, client: Any) -> Callable[[], Any]:
        url = f"{str(client.base_url).rstrip('/').removesuffix('/v1')}/props"
        return lambda: client.get(url, cast_to=object)

    async def _send(self, body: bytes) -> bytes | None:
        self._response = response = await self._run(lambda: self._opened(body))
        if not _is_event_stream(response):
            return cast("bytes", await response.aread() if self._is_async else response.content)
        self._pieces = response.aiter_bytes() if self._is_async else blocking_chunks(response.iter_bytes(), response)
        return None

    def _opened(self, body: bytes) -> Any:
        response = self._post(body, self._call)
        if not self._is_async and not _is_event_stream(response):
            response.read()  # here, in a thread
        return response

    async def close(self) -> None:
        """Close the stream, and its response."""
        await super().close()
        if self._is_async and self._response is not None:
            await self._response.aclose()


class _LookAlikeUpstream(_ClientUpstream):
    """Any other object with ``chat.completions.create``, whose answers are plain dicts or objects of the SDK."""

    async def _send(self, body: bytes) -> Mapping[str, Any] | None:
        create = self._client.chat.completions.create
        arguments = _arguments({**decode(body), **self._call}, _parameter_names(create))
        answer = await self._run(lambda: create(**arguments))
        if not arguments.get("stream"):
            return cast("Mapping[str, Any]", _plain(answer))
        self._pieces = _chunks(answer if hasattr(answer, "__aiter__") else blocking_chunks(answer))
        return None


async def _chunks(stream: Any) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks of a look-alike's stream."""
    try:
        async for chunk in stream:
            yield decode_chunk(encode(_plain(chunk)))
    finally:
        await _close(stream)


def _plain(answer: Any) -> Any:
    """Return an object of the SDK, or a look-alike's dict, as JSON."""
    dump = getattr(answer, "model_dump", None)
    return answer if dump is None else dump(exclude_unset=True)


def _is_event_stream(response: Any) -> bool:
    return str(response.headers.get("content-type", "")).startswith("text/event-stream")


def _arguments(body: dict[str, Any], known: frozenset[str] | None) -> dict[str, Any]:
    """Turn a body into arguments of ``create``; members that it has no argument for go into ``extra_body``."""
    extra = {key: value for key, value in body.items() if known is not None and key not in known}
    return {**{key: value for key, value in body.items() if key not in extra}, "extra_body": extra} if extra else body


def _parameter_names(create: Any) -> frozenset[str] | None:
    """Return the names of a method's arguments; None if it takes any, or has no signature."""
    try:
        parameters = inspect.signature(create).parameters
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()) or "extra_body" not in parameters:
        return None
    return frozenset(parameters)


async def _close(stream: Any) -> None:
    for name in ("aclose", "close"):
        if (close := getattr(stream, name, None)) is not None:
            closing: Awaitable[None] | None = close()
            if inspect.isawaitable(closing):
                await closing
            return
