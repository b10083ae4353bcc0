"""``wrap``: an ``openai`` client whose ``chat.completions`` has working tools, and is otherwise the client it was.

The door is put at the HTTP client under the SDK, not over its methods: one request of the SDK goes through an ``Exchange``, and
the SDK reads the answer as if the server had written it. So everything that rests on ``create`` works by itself (streams,
``parse`` and ``stream`` helpers, raw responses, retries, timeouts, ``with_options``), and everything else never comes by here.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from patchbay.errors import ConfigurationError, PatchbayError, UpstreamError
from patchbay.models.clienterrors import OURS
from patchbay.models.exchange import Exchange
from patchbay.models.faults import error_body, error_message
from patchbay.models.modes import ModeMemory
from patchbay.models.options import TextOptions, make_options

if TYPE_CHECKING:
    import openai

    Client = TypeVar("Client", bound=openai.OpenAI | openai.AsyncOpenAI)
else:
    Client = TypeVar("Client")

_json = msgspec.json.Encoder()
_MOST_ERROR_BYTES = 1024 * 1024
_CHANGED_HEADERS = frozenset({"content-length", "content-type", "content-encoding", "transfer-encoding", "connection"})


def wrap(client: Client, **options: Any) -> Client:
    """A client of the same type on the same connections, with working ``tools``; the options are TextOptions'.

    Without ``tools`` a request goes out, and its answer comes back, byte for byte. Errors come as the SDK's own: what the request
    got wrong as ``BadRequestError``, an unmet ``tool_choice`` as ``InternalServerError`` with the code "tool_choice_unmet". The
    wrapped client takes over: closing it closes the connections of the one it was made from. Raises ConfigurationError.
    """
    return wrapped(client, make_options("wrap", options), ModeMemory())


def wrapped(client: Client, options: TextOptions, memory: ModeMemory) -> Client:
    """Do as ``wrap``, with a memory of what was learnt that several clients may share. Raises ConfigurationError."""
    http_client = getattr(client, "_client", None)
    send = getattr(http_client, "send", None)
    if send is None or not hasattr(client, "with_options"):
        raise ConfigurationError(f"wrap takes an openai.OpenAI or openai.AsyncOpenAI client, not {type(client).__name__}.")
    door = _door(http_client, options, memory)
    made = client.with_options(http_client=door)
    completions = made.chat.completions
    if _is_sdks_own(completions.create):
        direct = _without_transform(completions.create, made.post, door.patchbay.library.Response)
        completions.create = direct  # type: ignore[method-assign]
    return made  # type: ignore[return-value]


def _is_sdks_own(create: Any) -> bool:
    """Whether nobody has put a function of theirs before the SDK's, such as for traces: that one is to see all arguments."""
    return type(create) is MethodType and str(create.__func__.__globals__["__name__"]).startswith("openai.")


def _without_transform(create: Callable[..., Any], post: Callable[..., Any], response: type) -> Callable[..., Any]:
    """Wrap the SDK's ``create``: what is plain JSON is sent as it is, by the client's ``post`` or as the ``extra_body``.

    The SDK walks through all of a body to turn its own objects and iterables into JSON, which costs more than all the rest of a
    long request. What holds such things takes that way as before, and so does the rest of a request that is more than a body.
    ``patchbay_post`` returns the whole answer as the HTTP client read it; None for a request that ``create`` has to make.
    """
    known = inspect.signature(create).parameters.keys()
    completion = importlib.import_module("openai.types.chat").ChatCompletion

    def posted(body: dict[str, Any], cast_to: type = response) -> Any:
        names = body.keys()
        if not (names >= _NEEDED and names.isdisjoint(_NOT_OF_THE_BODY) and _is_plain(body)):
            return None
        return post("/chat/completions", cast_to=cast_to, body=body, options={"security": {"bearer_auth": True}})

    @functools.wraps(create)
    def direct(*args: Any, **given: Any) -> Any:
        if not args and given.keys() <= known and (answer := posted(given, completion)) is not None:
            return answer
        extra = given.get("extra_body")
        moved = {name: given[name] for name in ("messages", "tools") if _is_plain_list(given.get(name))}
        if moved and (extra is None or isinstance(extra, Mapping)):
            rest = {name: value for name, value in given.items() if name not in moved}
            if "messages" in moved:
                rest["messages"] = ()  # the SDK wants to see some
            given = {**rest, "extra_body": {**moved, **(extra or {})}}
        return create(*args, **given)

    direct.patchbay_post = posted  # type: ignore[attr-defined]
    return direct


_NEEDED: Final = frozenset({"messages", "model"})
_NOT_OF_THE_BODY: Final = frozenset({"extra_body", "extra_headers", "extra_query", "stream", "timeout"})
"""What ``create`` takes besides the members of a body, or sees to itself."""


def _is_plain(value: Any) -> bool:
    try:
        _json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _is_plain_list(value: Any) -> bool:
    return type(value) is list and _is_plain(value)


def _door(http_client: Any, options: TextOptions, memory: ModeMemory) -> Any:
    """A copy of an HTTP client (of httpx, or its successor) whose ``send`` goes through the exchange for chat completions."""
    if isinstance(http_client, _Door):  # wrapping again replaces the options
        http_client = http_client.patchbay.original
    kind = type(http_client)
    library = importlib.import_module(_library(kind))
    base = _AsyncDoor if _is_async(http_client, library) else _SyncDoor
    door = copy.copy(http_client)
    door.__class__ = type(kind.__name__, (base, kind), {"__del__": _no_del})
    door.patchbay = _Settings(options, memory, library, http_client)
    return door


def _library(kind: type) -> str:
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("httpx2", "httpx"):
            return root
    raise ConfigurationError(f"wrap does not know the HTTP client {kind.__name__}.")


def _is_async(http_client: Any, library: Any) -> bool:
    return isinstance(http_client, library.AsyncClient)


def _no_del(_self: Any) -> None:
    """The connections belong to the client that was wrapped; it closes them when it goes."""


class _Settings:
    """What a door needs; ``original`` keeps the client alive whose connections are shared."""

    def __init__(self, options: TextOptions, memory: ModeMemory, library: Any, original: Any) -> None:
        self.options = options
        self.memory = memory
        self.library = library
        self.original = original


class _Door:
    """What both doors share."""

    patchbay: _Settings

    def _exchange(self, request: Any) -> Exchange | Any | None:
        """The exchange for a request, an answer that refuses it, or None where the request is none of ours."""
        if request.method != "POST" or not request.url.path.rstrip("/").endswith("/chat/completions"):
            return None
        try:
            body = request.content
        except self.patchbay.library.RequestNotRead:
            return None
        try:
            exchange = Exchange(body, self.patchbay.options, self.patchbay.memory)
        except PatchbayError as error:
            return self._failure(request, error)
        return None if exchange.transparent else exchange

    def _request(self, request: Any, exchange: Exchange) -> Any:
        """The request of the next attempt: the client's own, or one with another body."""
        if exchange.request is request.content:
            return request
        headers = request.headers.copy()
        headers["content-length"] = str(len(exchange.request))
        return self.patchbay.library.Request(
            request.method, request.url, headers=headers, content=exchange.request, extensions=request.extensions
        )

    def _failure(self, request: Any, error: PatchbayError) -> Any:
        """An error as a server would have sent it; the SDK is told not to repeat what would fail again."""
        retry = {} if error.retryable else {"x-should-retry": "false"}
        return self.patchbay.library.Response(
            error.status,
            headers={"content-type": "application/json", **retry},
            content=json.dumps(error_body(error)).encode(),
            request=request,
            extensions={OURS: error},
        )

    def _rescued(self, request: Any, exchange: Exchange) -> Any | None:
        """The answer that an earlier attempt gave, when the last one failed."""
        saved = exchange.rescue()
        if saved is None:
            return None
        kind = "text/event-stream; charset=utf-8" if exchange.streaming else "application/json"
        return self.patchbay.library.Response(200, headers={"content-type": kind}, content=saved, request=request)

    def _whole(self, request: Any, upstream: Any, exchange: Exchange, content: bytes) -> Any:
        """A whole answer; the upstream's own where nothing in it was changed."""
        unchanged = content is upstream.content
        return upstream if unchanged else self._response(request, upstream, exchange, content=content)

    def _response(self, request: Any, upstream: Any, exchange: Exchange, **body: Any) -> Any:
        kept = {name: value for name, value in upstream.headers.items() if name.lower() not in _CHANGED_HEADERS}
        kept["content-type"] = "text/event-stream; charset=utf-8" if exchange.streaming else "application/json"
        return self.patchbay.library.Response(
            upstream.status_code, headers=kept, request=request, extensions=upstream.extensions, **body
        )


class _RefusalError(UpstreamError):
    """The upstream answered with an error; the SDK is given that answer as it is."""

    def __init__(self, response: Any) -> None:
        said = error_message(response.content)
        super().__init__(f"The upstream answered {response.status_code}: {said}", upstream_status=response.status_code)
        self.response = response


def _is_stream(response: Any) -> bool:
    return str(response.headers.get("content-type", "")).startswith("text/event-stream")


class _SyncDoor(_Door):
    """``send`` of a synchronous client."""

    def send(self, request: Any, *, stream: bool = False, **rest: Any) -> Any:
        """Send a request; chat completions with tools go through an exchange."""
        forward = super().send  # type: ignore[misc]
        exchange = self._exchange(request)
        if not isinstance(exchange, Exchange):
            return exchange if exchange is not None else forward(request, stream=stream, **rest)
        answer = _SyncAnswer(lambda: forward(self._request(request, exchange), stream=exchange.streaming, **rest), exchange)
        try:
            answer.start()
        except _RefusalError as refusal:
            return self._rescued(request, exchange) or refusal.response
        except (PatchbayError, self.patchbay.library.TransportError) as error:
            answer.close()
            saved = self._rescued(request, exchange)
            if saved is not None:
                return saved
            if isinstance(error, PatchbayError):
                return self._failure(request, error)
            raise
        except BaseException:
            answer.close()
            raise
        if not (exchange.streaming or stream):
            answer.close()
            return self._whole(request, answer.upstream, exchange, answer.first)
        library = self.patchbay.library

        class Body(library.SyncByteStream):  # type: ignore[misc,name-defined]
            def __iter__(self) -> Iterator[bytes]:
                yield from answer.rest(library.TransportError)

            def close(self) -> None:
                answer.close()

        answer.made = made = self._response(request, answer.upstream, exchange, stream=Body())
        if not stream:
            made.read()
        return made


class _SyncAnswer:
    """The bytes of an answer, over as many attempts as it takes.

    ``upstream`` is the response being read, ``made`` the one that the SDK reads: it names the connection that is really in use.
    """

    def __init__(self, ask: Callable[[], Any], exchange: Exchange) -> None:
        self._ask = ask
        self._exchange = exchange
        self._chunks = self._attempts()
        self.first = b""
        self.upstream: Any = None
        self.made: Any = None

    def start(self) -> None:
        """Read up to the first bytes for the client: what fails until then is an error answer."""
        self.first = next(self._chunks, b"")

    def rest(self, broken: type[Exception]) -> Iterator[bytes]:
        """All bytes. A failure of ours is an event of the stream; one of the connection is raised, as the SDK expects it."""
        yield self.first
        try:
            yield from self._chunks
        except (PatchbayError, broken) as error:
            saved = self._exchange.rescue()
            if saved is not None:
                yield saved
            elif isinstance(error, PatchbayError):
                yield self._exchange.error_event(error)
            else:
                raise

    def close(self) -> None:
        """Let the upstream go."""
        self._chunks.close()
        if self.upstream is not None:
            self.upstream.close()

    def _attempts(self) -> Generator[bytes, None, None]:
        exchange, again = self._exchange, True
        while again:
            self.upstream = upstream = self._ask()
            if self.made is not None:
                self.made.extensions = upstream.extensions
            if not upstream.is_success:
                upstream.read()
                if not exchange.refused(upstream.status_code, upstream.text[:_MOST_ERROR_BYTES]):
                    raise _RefusalError(upstream)
                continue
            if exchange.streaming and _is_stream(upstream):
                for data in upstream.iter_bytes():
                    out = exchange.feed(data)
                    if out:
                        yield out
                    if exchange.finished:
                        break
                out, again = exchange.end()
            else:
                out, again = exchange.answer(upstream.read())
            upstream.close()
            if out:
                yield out


class _AsyncDoor(_Door):
    """``send`` of an asynchronous client."""

    async def send(self, request: Any, *, stream: bool = False, **rest: Any) -> Any:
        """Send a request; chat completions with tools go through an exchange."""
        forward = super().send  # type: ignore[misc]
        exchange = self._exchange(request)
        if not isinstance(exchange, Exchange):
            return exchange if exchange is not None else await forward(request, stream=stream, **rest)
        answer = _AsyncAnswer(lambda: forward(self._request(request, exchange), stream=exchange.streaming, **rest), exchange)
        try:
            await answer.start()
        except _RefusalError as refusal:
            return self._rescued(request, exchange) or refusal.response
        except (PatchbayError, self.patchbay.library.TransportError) as error:
            await answer.close()
            saved = self._rescued(request, exchange)
            if saved is not None:
                return saved
            if isinstance(error, PatchbayError):
                return self._failure(request, error)
            raise
        except BaseException:
            await answer.close()
            raise
        if not (exchange.streaming or stream):
            await answer.close()
            return self._whole(request, answer.upstream, exchange, answer.first)
        library = self.patchbay.library

        class Body(library.AsyncByteStream):  # type: ignore[misc,name-defined]
            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for data in answer.rest(library.TransportError):
                    yield data

            async def aclose(self) -> None:
                await answer.close()

        answer.made = made = self._response(request, answer.upstream, exchange, stream=Body())
        if not stream:
            await made.aread()
        return made


class _AsyncAnswer:
    """The bytes of an answer, over as many attempts as it takes.

    ``upstream`` is the response being read, ``made`` the one that the SDK reads: it names the connection that is really in use.
    """

    def __init__(self, ask: Callable[[], Awaitable[Any]], exchange: Exchange) -> None:
        self._ask = ask
        self._exchange = exchange
        self._chunks = self._attempts()
        self.first = b""
        self.upstream: Any = None
        self.made: Any = None

    async def start(self) -> None:
        """Read up to the first bytes for the client: what fails until then is an error answer."""
        self.first = await anext(self._chunks, b"")

    async def rest(self, broken: type[Exception]) -> AsyncIterator[bytes]:
        """All bytes. A failure of ours is an event of the stream; one of the connection is raised, as the SDK expects it."""
        yield self.first
        try:
            async for data in self._chunks:
                yield data
        except (PatchbayError, broken) as error:
            saved = self._exchange.rescue()
            if saved is not None:
                yield saved
            elif isinstance(error, PatchbayError):
                yield self._exchange.error_event(error)
            else:
                raise

    async def close(self) -> None:
        """Let the upstream go."""
        await self._chunks.aclose()
        if self.upstream is not None:
            await self.upstream.aclose()

    async def _attempts(self) -> AsyncGenerator[bytes, None]:
        exchange, again = self._exchange, True
        while again:
            self.upstream = upstream = await self._ask()
            if self.made is not None:
                self.made.extensions = upstream.extensions
            if not upstream.is_success:
                await upstream.aread()
                if not exchange.refused(upstream.status_code, upstream.text[:_MOST_ERROR_BYTES]):
                    raise _RefusalError(upstream)
                continue
            if exchange.streaming and _is_stream(upstream):
                async for data in upstream.aiter_bytes():
                    out = exchange.feed(data)
                    if out:
                        yield out
                    if exchange.finished:
                        break
                out, again = exchange.end()
            else:
                out, again = exchange.answer(await upstream.aread())
            await upstream.aclose()
            if out:
                yield out
