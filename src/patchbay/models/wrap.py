"""``wrap``: an ``openai`` client whose ``chat.completions`` has working tools, and is otherwise the client it was.

It works at the HTTP client under the SDK, not over its methods: one request of the SDK goes through an ``Exchange``, and
the SDK reads the answer as if the server had written it. So everything that rests on ``create`` works by itself (streams,
``parse`` and ``stream`` helpers, raw responses, retries, timeouts, ``with_options``), and everything else is not touched.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from patchbay.errors import ConfigurationError, PatchbayError, UpstreamError
from patchbay.models.capabilities import Capabilities
from patchbay.models.error_bodies import OURS, error_body, error_message
from patchbay.models.exchange import Exchange, Rejection
from patchbay.models.exchange_driver import drive_async
from patchbay.models.options import TextOptions, make_options

if TYPE_CHECKING:
    import openai

    Client = TypeVar("Client", bound=openai.OpenAI | openai.AsyncOpenAI)
else:
    Client = TypeVar("Client")

_json = msgspec.json.Encoder()
_read_json = msgspec.json.Decoder().decode
_MOST_ERROR_BYTES = 1024 * 1024
_CHANGED_HEADERS = frozenset({"content-length", "content-type", "content-encoding", "transfer-encoding", "connection"})


def wrap(client: Client, **options: Any) -> Client:
    """A client of the same type on the same connections, with working ``tools``; the options are TextOptions'.

    Without ``tools`` a request goes out, and its answer comes back, byte for byte. Errors come as the SDK's own: what the request
    got wrong as ``BadRequestError``, an unmet ``tool_choice`` as ``InternalServerError`` with the code "tool_choice_unmet". The
    wrapped client takes over: closing it closes the connections of the one it was made from. Raises ConfigurationError.
    """
    return wrapped(client, make_options("wrap", options), Capabilities())


def wrapped(client: Client, options: TextOptions, capabilities: Capabilities) -> Client:
    """Wrap a client with capabilities that several clients may share. Raises ConfigurationError."""
    http_client = getattr(client, "_client", None)
    send = getattr(http_client, "send", None)
    if send is None or not hasattr(client, "with_options"):
        raise ConfigurationError(f"wrap takes an openai.OpenAI or openai.AsyncOpenAI client, not {type(client).__name__}.")
    transforming = _transforming_client(http_client, options, capabilities)
    made = client.with_options(http_client=transforming)
    completions = made.chat.completions
    if _is_sdks_own(completions.create):
        direct = _without_transform(made, transforming.patchbay.library.Response)
        completions.create = direct  # type: ignore[method-assign]
    return made  # type: ignore[return-value]


def _is_sdks_own(create: Any) -> bool:
    """Whether it is the SDK's method, not a function over it (of a tracer, say), which is to see all arguments."""
    return type(create) is MethodType and str(create.__func__.__globals__["__name__"]).startswith("openai.")


def _without_transform(client: Any, response: type) -> Callable[..., Any]:
    """Wrap the SDK's ``create``: what is plain JSON is sent as it is, by the client's ``post`` or as the ``extra_body``.

    The SDK walks through all of a body to turn its own objects and iterables into JSON, and writes it with ``json``, which costs
    more than all the rest of a long request. What holds such things takes that way as before, and so does the rest of a request
    that is more than a body. ``patchbay_post`` returns the whole answer as the HTTP client read it; None for a request that
    ``create`` has to make.
    """
    create, post = client.chat.completions.create, client.post
    known = inspect.signature(create).parameters.keys()
    completion = importlib.import_module("openai.types.chat").ChatCompletion
    takes_bytes = _takes_bytes(client)

    def post_plain(body: dict[str, Any], cast_to: type = response) -> Any:
        names = body.keys()
        if not (names >= _NEEDED and names.isdisjoint(_NOT_OF_THE_BODY)) or (content := _plain_json(body)) is None:
            return None
        given = {"content": content} if takes_bytes else {"body": body}
        return post("/chat/completions", cast_to=cast_to, options={"security": {"bearer_auth": True}}, **given)

    @functools.wraps(create)
    def direct(*args: Any, **given: Any) -> Any:
        if not args and given.keys() <= known and (answer := post_plain(given, completion)) is not None:
            return answer
        extra = given.get("extra_body")
        moved = {
            name: given[name]
            for name in ("messages", "tools")
            if type(given.get(name)) is list and _plain_json(given[name]) is not None
        }
        if moved and (extra is None or isinstance(extra, Mapping)):
            rest = {name: value for name, value in given.items() if name not in moved}
            if "messages" in moved:
                rest["messages"] = ()  # the SDK wants to see some
            given = {**rest, "extra_body": {**moved, **(extra or {})}}
        return create(*args, **given)

    direct.patchbay_post = post_plain  # type: ignore[attr-defined]
    return direct


_NEEDED: Final = frozenset({"messages", "model"})
_NOT_OF_THE_BODY: Final = frozenset({"extra_body", "extra_headers", "extra_query", "stream", "timeout"})
"""What ``create`` takes besides the members of a body, or sees to itself."""


def _takes_bytes(client: Any) -> bool:
    """Whether a client may be given its body as bytes: those made from the SDK's own may read it (Azure's, for its URL)."""
    sdk = importlib.import_module("openai")
    return type(client) in (sdk.OpenAI, sdk.AsyncOpenAI) and "content" in inspect.signature(client.post).parameters


def _plain_json(value: Any) -> bytes | None:
    """The JSON of a value that is plain JSON; None for anything that the SDK has to turn into JSON, or refuses.

    The encoder writes more than that (bytes, dates, dataclasses, NaN as null): what reads back as it was is plain.
    """
    try:
        content = _json.encode(value)
        return content if _read_json(content) == value else None
    except (TypeError, ValueError, RecursionError):
        return None


def _transforming_client(http_client: Any, options: TextOptions, capabilities: Capabilities) -> Any:
    """A copy of an HTTP client (of httpx, or its successor) whose ``send`` goes through the exchange for chat completions."""
    if isinstance(http_client, _TransformingClient):  # wrapping again replaces the options
        http_client = http_client.patchbay.original
    kind = type(http_client)
    library = importlib.import_module(_library(kind))
    base = _AsyncClient if isinstance(http_client, library.AsyncClient) else _SyncClient
    transforming = copy.copy(http_client)
    transforming.__class__ = type(kind.__name__, (base, kind), {"__del__": _no_del})
    transforming.patchbay = _Settings(options, capabilities, library, http_client)
    return transforming


def _library(kind: type) -> str:
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("httpx2", "httpx"):
            return root
    raise ConfigurationError(f"wrap does not know the HTTP client {kind.__name__}.")


def _no_del(_self: Any) -> None:
    """The connections belong to the client that was wrapped; it closes them when it goes."""


@dataclass(frozen=True)
class _Settings:
    """What a transforming client needs; ``original`` keeps the client alive whose connections are shared."""

    options: TextOptions
    capabilities: Capabilities
    library: Any
    original: Any


class _TransformingClient:
    """What both kinds share."""

    patchbay: _Settings
    is_async = False

    def _exchange(self, request: Any) -> Exchange | Any | None:
        """The exchange for a request, an answer that refuses it, or None where the request is none of ours."""
        if request.method != "POST" or not request.url.path.rstrip("/").endswith("/chat/completions"):
            return None
        try:
            body = request.content
        except self.patchbay.library.RequestNotRead:
            return None
        try:
            exchange = Exchange(body, self.patchbay.options, self.patchbay.capabilities)
        except PatchbayError as error:
            return self._failure(request, error)
        return None if exchange.transparent else exchange

    def _request(self, request: Any, exchange: Exchange) -> Any:
        """The request of the next attempt: the client's own, or one with another body."""
        if exchange.request is request.content:
            return request
        library = self.patchbay.library
        headers = request.headers.copy()
        headers["content-length"] = str(len(exchange.request))
        # As a stream: from content the HTTP client would work out the headers again.
        body = library.ByteStream(exchange.request)
        changed = library.Request(request.method, request.url, headers=headers, stream=body, extensions=request.extensions)
        changed.read()  # hooks of the HTTP client may look at its content
        return changed

    def _failure(self, request: Any, error: PatchbayError) -> Any:
        """An error as a server would have sent it; with the header that keeps the SDK from repeating what would fail again."""
        if isinstance(error, _ErrorStatusError):
            return error.response
        retry = {} if error.retryable else {"x-should-retry": "false"}
        return self.patchbay.library.Response(
            error.status,
            headers={"content-type": "application/json", **retry},
            content=json.dumps(error_body(error)).encode(),
            request=request,
            extensions={OURS: error},
        )

    async def _send(self, request: Any, forward: Callable[..., Any], *, stream: bool) -> Any:
        """The response that the SDK reads; ``forward`` is the HTTP client's own ``send``."""
        is_async = self.is_async
        exchange = self._exchange(request)
        if exchange is None:
            return await forward(request, stream=stream) if is_async else forward(request, stream=stream)
        if not isinstance(exchange, Exchange):
            return exchange
        send = lambda: forward(self._request(request, exchange), stream=exchange.streaming)  # noqa: E731
        upstream = _Upstream(send, exchange, is_async=is_async)
        library = self.patchbay.library
        chunks = drive_async(exchange, upstream, (PatchbayError, library.TransportError))
        try:
            first = await anext(chunks, b"")
        except PatchbayError as error:
            return self._failure(request, error)
        if not (exchange.streaming or stream):
            await chunks.aclose()
            return self._answer(request, upstream, first)

        async def pieces() -> AsyncGenerator[bytes, None]:
            yield first
            try:
                async for data in chunks:
                    yield data
            except PatchbayError as error:
                yield exchange.error_event(error)

        class Body(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc,name-defined]
            def __iter__(self) -> Iterator[bytes]:
                body = pieces()
                return iter(lambda: _completed(anext(body, b"")), b"")

            def __aiter__(self) -> AsyncIterator[bytes]:
                return pieces()

            def close(self) -> None:
                _completed(chunks.aclose())

            async def aclose(self) -> None:
                await chunks.aclose()

        response = self._response(request, upstream, stream=Body())
        if not stream:
            await response.aread() if is_async else response.read()
        return response

    def _answer(self, request: Any, upstream: _Upstream, first: bytes) -> Any:
        """A whole answer; the upstream's own response where nothing in it was changed."""
        response = upstream.response
        unchanged = response is not None and not upstream.exchange.fell_back and first is response.content
        return response if unchanged else self._response(request, upstream, content=first)

    def _response(self, request: Any, upstream: _Upstream, **body: Any) -> Any:
        exchange, response = upstream.exchange, upstream.response
        headers, status, extensions = {}, 200, {}
        if not exchange.fell_back:
            headers = {name: value for name, value in response.headers.items() if name.lower() not in _CHANGED_HEADERS}
            status, extensions = response.status_code, response.extensions
        headers["content-type"] = "text/event-stream; charset=utf-8" if exchange.streaming else "application/json"
        upstream.transformed = self.patchbay.library.Response(
            status, headers=headers, request=request, extensions=extensions, **body
        )
        return upstream.transformed


class _ErrorStatusError(UpstreamError):
    """The upstream's error response, which the SDK is given as it is."""

    def __init__(self, response: Any) -> None:
        message = error_message(response.content)
        super().__init__(f"The upstream answered {response.status_code}: {message}", upstream_status=response.status_code)
        self.response = response


def _rejection(response: Any) -> Rejection:
    return Rejection(response.status_code, response.text[:_MOST_ERROR_BYTES], _ErrorStatusError(response))


class _Upstream:
    """The server behind the HTTP client. ``response`` is the one being read, ``transformed`` the one that the SDK reads.

    A blocking client blocks here too: nothing of it is awaited.
    """

    def __init__(self, send: Callable[[], Any], exchange: Exchange, *, is_async: bool) -> None:
        self._send = send
        self._is_async = is_async
        self.exchange = exchange
        self.response: Any = None
        self.transformed: Any = None
        self._next: Callable[[], Any]

    async def send(self, _body: bytes) -> Rejection | bytes | None:
        self.response = response = await self._send() if self._is_async else self._send()
        if self.transformed is not None:  # it names the connection that is really in use
            self.transformed.extensions = response.extensions
        is_stream = str(response.headers.get("content-type", "")).startswith("text/event-stream")
        if response.is_success and self.exchange.streaming and is_stream:
            pieces = response.aiter_bytes() if self._is_async else response.iter_bytes()
            self._next = functools.partial(anext if self._is_async else next, pieces, b"")
            return None
        content: bytes = await response.aread() if self._is_async else response.read()
        return content if response.is_success else _rejection(response)

    async def read(self) -> bytes:
        piece: bytes = await self._next() if self._is_async else self._next()
        return piece

    async def close(self) -> None:
        if self.response is None:
            return
        if self._is_async:
            await self.response.aclose()
        else:
            self.response.close()


def _completed(work: Awaitable[Any]) -> Any:
    """The result of what is awaited over a blocking client: it never waits, so it needs no event loop."""
    try:
        next(work.__await__())
    except StopIteration as end:
        return end.value
    raise RuntimeError("A blocking client was awaited.")


class _SyncClient(_TransformingClient):
    """``send`` of a synchronous client."""

    def send(self, request: Any, *, stream: bool = False, **rest: Any) -> Any:
        """Send a request; chat completions with tools go through an exchange."""
        return _completed(self._send(request, functools.partial(super().send, **rest), stream=stream))  # type: ignore[misc]


class _AsyncClient(_TransformingClient):
    """``send`` of an asynchronous client."""

    is_async = True

    async def send(self, request: Any, *, stream: bool = False, **rest: Any) -> Any:
        """Send a request; chat completions with tools go through an exchange."""
        return await self._send(request, functools.partial(super().send, **rest), stream=stream)  # type: ignore[misc]
