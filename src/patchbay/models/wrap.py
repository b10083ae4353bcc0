"""``wrap``: an ``openai`` client whose ``chat.completions`` has working tools; nothing else about it changes.

It replaces the HTTP client under the SDK, not the SDK's methods: a request of the SDK goes through an ``Exchange``, and the SDK
reads the answer as if the server had written it. So all that is built on ``create`` works unchanged: streams, the ``parse`` and
``stream`` helpers, raw responses, retries, timeouts, ``with_options``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from patchbay.constraints.backends import Backend, backend_of
from patchbay.errors import ConfigurationError, PatchbayError, UpstreamError
from patchbay.models.capabilities import Capabilities
from patchbay.models.error_bodies import OURS, error_body, error_message
from patchbay.models.exchange import Exchange, UpstreamRejection
from patchbay.models.exchange_driver import DESCRIBES_LATER, DESCRIBING, AsyncUpstream, drive_async
from patchbay.models.options import TextOptions, make_options
from patchbay.models.sdk import BEARER, REQUEST_OPTIONS, is_sdks_own, library_of, takes_bytes

if TYPE_CHECKING:
    import openai

    Client = TypeVar("Client", bound=openai.OpenAI | openai.AsyncOpenAI)
else:
    Client = TypeVar("Client")

_json = msgspec.json.Encoder()
_read_json = msgspec.json.Decoder().decode
_MOST_ERROR_BYTES = 1024 * 1024
_MOST_DESCRIPTION_BYTES = 8 * 1024 * 1024
_CHANGED_HEADERS = frozenset({"content-length", "content-type", "content-encoding", "transfer-encoding", "connection"})


def wrap(client: Client, **options: Any) -> Client:
    """A client of the same type on the same connections, with working ``tools``; the options are TextOptions'.

    Without ``tools`` a request goes out, and its answer comes back, byte for byte. Errors are the SDK's own: an invalid request
    raises ``BadRequestError``, an unmet ``tool_choice`` ``InternalServerError`` with the code "tool_choice_unmet". Closing the
    wrapped client closes the one it was made from. A client with an X.509 workload identity sends its requests unchanged. Raises
    ConfigurationError.
    """
    settings = make_options("wrap", options)
    http_client = getattr(client, "_client", None)
    send = getattr(http_client, "send", None)
    if send is None or not hasattr(client, "with_options"):
        raise ConfigurationError(f"wrap takes an openai.OpenAI or openai.AsyncOpenAI client, not {type(client).__name__}.")
    made = client.with_options(http_client=_patchbay_client(http_client, settings, Capabilities()))
    completions = made.chat.completions
    if is_sdks_own(completions.create):
        completions.create = _without_transform(made)  # type: ignore[method-assign]
    return made  # type: ignore[return-value]


_NEEDED: Final = frozenset({"messages", "model"})
_FOR_CREATE: Final = frozenset({*REQUEST_OPTIONS, "extra_body", "stream"})
"""Arguments that ``create`` has to handle itself."""


def _without_transform(client: Any) -> Callable[..., Any]:
    """Wrap the SDK's ``create`` so that plain JSON is sent unchanged, by the client's ``post`` or in the ``extra_body``.

    The SDK walks through a body to turn its own objects and iterables into JSON, and encodes it with ``json``: most of the cost
    of a long request.
    """
    create, post = client.chat.completions.create, client.post
    known = inspect.signature(create).parameters.keys()
    completion = importlib.import_module("openai.types.chat").ChatCompletion
    as_bytes = takes_bytes(client)

    @functools.wraps(create)
    def direct(*args: Any, **given: Any) -> Any:
        names = given.keys()
        is_body = as_bytes and not args and _NEEDED <= names <= known and names.isdisjoint(_FOR_CREATE)
        if is_body and (content := _plain_json(given)) is not None:
            return post("/chat/completions", cast_to=completion, options=BEARER, content=content)
        extra = given.get("extra_body")
        moved = {name: given[name] for name in ("messages", "tools") if type(given.get(name)) is list and _is_plain(given[name])}
        if moved and (extra is None or isinstance(extra, Mapping)):
            given = {name: value for name, value in given.items() if name not in moved}
            if "messages" in moved:
                given["messages"] = ()  # the SDK wants to see some
            given["extra_body"] = {**moved, **(extra or {})}
        return create(*args, **given)

    return direct


def _plain_json(value: Any) -> bytes | None:
    """Encode a value if it is plain JSON; None for anything that the SDK has to convert or to refuse, NaN too."""
    try:
        content = _json.encode(value)
        return content if _read_json(content) == value else None
    except (TypeError, ValueError, RecursionError):
        return None


def _is_plain(value: Any) -> bool:
    """Whether a value is plain JSON, which the SDK has neither to convert nor to refuse."""
    try:
        return bool(msgspec.to_builtins(value) == value)  # bytes, dates and dataclasses become others
    except (TypeError, ValueError, RecursionError):
        return False


def _patchbay_client(http_client: Any, options: TextOptions, capabilities: Capabilities) -> Any:
    """Return a client over ``http_client``, of the same library (httpx or httpx2), and blocking or asynchronous as that is."""
    if isinstance(http_client, _PatchbayClient):  # wrapping again replaces the options
        http_client = http_client.inner
    library = library_of(type(http_client))
    sync = isinstance(http_client, library.Client)
    bases = (_SyncClient, library.Client) if sync else (_AsyncClient, library.AsyncClient)
    transport = library.BaseTransport() if sync else library.AsyncBaseTransport()  # (never used)
    made = type(bases[0].__name__, bases, {})(
        transport=transport,
        timeout=http_client.timeout,
        cookies=http_client.cookies.jar,
        event_hooks=http_client.event_hooks,
    )
    made.inner, made.library, made.text_options, made.capabilities = http_client, library, options, capabilities
    return made


class _PatchbayClient:
    """HTTP client of a wrapped SDK client: builds and sends requests with ``inner``, chat completions with tools by an exchange.

    It is not a transport below a client of its own: the SDK's providers give ``send`` the authentication and the following of
    redirects of each request, which a transport does not see.
    """

    is_async = False
    inner: Any
    library: Any
    text_options: TextOptions
    capabilities: Capabilities

    @property
    def is_closed(self) -> bool:
        """Whether ``inner`` is closed."""
        return bool(self.inner.is_closed)

    def build_request(self, *args: Any, **given: Any) -> Any:
        """Build a request with the headers, cookies and parameters of ``inner``."""
        return self.inner.build_request(*args, **given)

    def _transport_for_url(self, url: Any) -> Any:
        """Return the transport of ``inner``: the SDK's X.509 workload identity sends by it."""
        return self.inner._transport_for_url(url)  # noqa: SLF001

    def _exchange(self, request: Any) -> Exchange[bytes] | Any | None:
        """Return the exchange for a request, an error response, or None if the request is sent unchanged."""
        if request.method != "POST" or not request.url.path.rstrip("/").endswith("/chat/completions"):
            return None
        try:
            body = request.content
        except self.library.RequestNotRead:
            return None
        try:
            exchange: Exchange[bytes] = Exchange(body, self.text_options, self.capabilities)
        except PatchbayError as error:
            return self._failure(request, error)
        return None if exchange.transparent and exchange.request is body else exchange

    def _description_request(self, request: Any, path: str, *, at_root: bool) -> Any:
        """Return a GET request with the headers of one of chat completions; ``at_root``: beside the ``/v1`` of its path."""
        base = request.url.path.rstrip("/").removesuffix("/chat/completions")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _CHANGED_HEADERS}
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), DESCRIBING)
        url = request.url.copy_with(path=(base.removesuffix("/v1") if at_root else base) + path)
        return self.library.Request("GET", url, headers=headers, extensions={"timeout": timeouts})

    def _request(self, request: Any, exchange: Exchange[bytes]) -> Any:
        """Return the request of the next attempt: the client's own, or a copy with another body."""
        if exchange.request is request.content:
            return request
        library = self.library
        headers = request.headers.copy()
        headers["content-length"] = str(len(exchange.request))
        # As a stream: from content the HTTP client would work out the headers again.
        body = library.ByteStream(exchange.request)
        changed = library.Request(request.method, request.url, headers=headers, stream=body, extensions=request.extensions)
        changed.read()  # hooks of the HTTP client may look at its content
        return changed

    def _failure(self, request: Any, error: PatchbayError) -> Any:
        """Make an error response, with the header that keeps the SDK from retrying what would fail again."""
        if isinstance(error, _ErrorStatusError):
            return error.response
        retry = {} if error.retryable else {"x-should-retry": "false"}
        return self.library.Response(
            error.status,
            headers={"content-type": "application/json", **retry},
            content=json.dumps(error_body(error)).encode(),
            request=request,
            extensions={OURS: error},
        )

    async def _send(self, request: Any, forward: Callable[..., Any], *, stream: bool) -> Any:
        """Return the response that the SDK reads; ``forward`` is the inner client's ``send``."""
        is_async = self.is_async
        exchange = self._exchange(request)
        if exchange is None or (isinstance(exchange, Exchange) and exchange.transparent):
            plain = forward(request if exchange is None else self._request(request, exchange), stream=stream)
            return await plain if is_async else plain
        if not isinstance(exchange, Exchange):
            return exchange
        send = lambda: forward(self._request(request, exchange), stream=exchange.upstream_streams)  # noqa: E731
        get = lambda path, at_root: forward(self._description_request(request, path, at_root=at_root), stream=True)  # noqa: E731
        upstream = _InnerUpstream(send, get, exchange, is_async=is_async)
        library = self.library
        chunks = drive_async(exchange, upstream, (PatchbayError, library.TransportError))
        try:
            first = await anext(chunks, b"")
        except PatchbayError as error:
            return self._failure(request, error)
        if not (exchange.client_streams or stream):
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

    def _answer(self, request: Any, upstream: _InnerUpstream, first: bytes) -> Any:
        """Return a whole answer: the upstream's own response if nothing in it was changed."""
        response = upstream.response
        exchange = upstream.exchange
        unchanged = response is not None and not (exchange.fell_back or exchange.upstream_streams) and first is response.content
        return response if unchanged else self._response(request, upstream, content=first)

    def _response(self, request: Any, upstream: _InnerUpstream, **body: Any) -> Any:
        exchange, response = upstream.exchange, upstream.response
        headers, status, extensions = {}, 200, {}
        if not exchange.fell_back:
            headers = {name: value for name, value in response.headers.items() if name.lower() not in _CHANGED_HEADERS}
            status, extensions = response.status_code, response.extensions
        headers["content-type"] = "text/event-stream; charset=utf-8" if exchange.client_streams else "application/json"
        upstream.transformed = self.library.Response(status, headers=headers, request=request, extensions=extensions, **body)
        return upstream.transformed


class _ErrorStatusError(UpstreamError):
    """The upstream's error response, which is returned to the SDK unchanged."""

    def __init__(self, response: Any) -> None:
        message = error_message(response.content)
        super().__init__(f"The upstream answered {response.status_code}: {message}", upstream_status=response.status_code)
        self.response = response


class _InnerUpstream(AsyncUpstream):
    """The server behind the inner client. ``response`` is the one being read, ``transformed`` the one that the SDK reads.

    With a blocking client these methods block and never await.
    """

    def __init__(
        self, send: Callable[[], Any], get: Callable[[str, bool], Any], exchange: Exchange[bytes], *, is_async: bool
    ) -> None:
        self._send = send
        self._get = get
        self._is_async = is_async
        self.exchange = exchange
        self.response: Any = None
        self.transformed: Any = None
        self._next: Callable[[], Any]

    async def describe(self) -> Any:
        ends = time.monotonic() + DESCRIBING
        try:
            listed = await self._document("/models", ends)
            if backend_of(listed) is not Backend.LLAMA_CPP:
                return listed
            properties = await self._document("/props", ends, at_root=True)
            return listed if backend_of(properties) is None else properties
        except Exception:  # noqa: BLE001  (whatever an HTTP client and its hooks raise, the request itself may succeed)
            return None

    async def _document(self, path: str, ends: float, *, at_root: bool = False) -> Any:
        """Return the JSON document of a path, {} without one. Raises an error where it is slow, or may come later."""
        response = await self._get(path, at_root) if self._is_async else self._get(path, at_root)
        try:
            if response.status_code in DESCRIBES_LATER:
                raise UpstreamError(f"The upstream answered {response.status_code}.", upstream_status=response.status_code)
            if response.status_code != 200:
                return {}
            self._read_from(response)
            body = b""
            while piece := await self.read():
                body += piece
                if len(body) > _MOST_DESCRIPTION_BYTES or time.monotonic() > ends:
                    raise TimeoutError
            return _read_json(body)
        except (ValueError, RecursionError):
            return {}
        finally:
            await response.aclose() if self._is_async else response.close()

    def _read_from(self, response: Any) -> None:
        """Let ``read`` return the pieces of a response."""
        pieces = response.aiter_bytes() if self._is_async else response.iter_bytes()
        self._next = functools.partial(anext if self._is_async else next, pieces, b"")

    async def send(self, _body: bytes) -> UpstreamRejection | bytes | None:
        self.response = response = await self._send() if self._is_async else self._send()
        if self.transformed is not None:  # its extensions name the connection in use
            self.transformed.extensions = response.extensions
        is_stream = str(response.headers.get("content-type", "")).startswith("text/event-stream")
        if response.is_success and self.exchange.upstream_streams and is_stream:
            self._read_from(response)
            return None
        content: bytes = await response.aread() if self._is_async else response.read()
        if response.is_success:
            return content
        return UpstreamRejection(response.status_code, response.text[:_MOST_ERROR_BYTES], _ErrorStatusError(response))

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
    """Run an awaitable over a blocking client to its end: it never suspends, so it needs no event loop."""
    try:
        next(work.__await__())
    except StopIteration as end:
        return end.value
    raise RuntimeError("A blocking client was awaited.")


class _SyncClient(_PatchbayClient):
    """Over a blocking HTTP client."""

    def send(self, request: Any, *, stream: bool = False, **rest: Any) -> Any:
        """Send a request; chat completions with tools go through an exchange."""
        return _completed(self._send(request, functools.partial(self.inner.send, **rest), stream=stream))

    def close(self) -> None:
        """Close ``inner``."""
        self.inner.close()


class _AsyncClient(_PatchbayClient):
    """Over an asynchronous HTTP client."""

    is_async = True

    async def send(self, request: Any, *, stream: bool = False, **rest: Any) -> Any:
        """Send a request; chat completions with tools go through an exchange."""
        return await self._send(request, functools.partial(self.inner.send, **rest), stream=stream)

    async def aclose(self) -> None:
        """Close ``inner``."""
        await self.inner.aclose()
