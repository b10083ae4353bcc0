"""The examined server: requests as the proxy sends them, each bounded in time, and what became of one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from patchbay.constraints.backends import Backend
from patchbay.errors import PatchbayError, UpstreamError, UpstreamTimeoutError
from patchbay.models.answer_reader import read_completion
from patchbay.models.capabilities import Accepted, Capabilities
from patchbay.models.encoder import EventEncoder
from patchbay.models.error_bodies import error_message
from patchbay.models.exchange import Exchange, UpstreamRejection
from patchbay.models.exchange_driver import AsyncUpstream, drive_async
from patchbay.models.options import TextOptions
from patchbay.models.providers import provider_at
from patchbay.models.wire import decode, encode
from patchbay.server.http import CHAT
from patchbay.server.http_client import Response
from patchbay.server.origin import ClientError
from patchbay.server.settings import ProxySettings
from patchbay.server.upstream import Upstream, is_event_stream
from patchbay.types import NO_USAGE, Reply, Usage

_MOST: Final = 16 * 1024 * 1024
_HEADERS: Final = [(b"Content-Type", b"application/json"), (b"Accept-Encoding", b"identity")]


T = TypeVar("T")


class SlowServerError(UpstreamTimeoutError):
    """The server did not answer a request within the time for one."""


@dataclass
class Facts:
    """What the probes have learnt of the server and the model, for the probes after them."""

    unusable: bool = False
    """No further request makes sense."""
    kind: str = ""
    backend: Backend | None = None
    description: Any = None
    """llama.cpp's ``/props``, else the list of models."""
    models: list[Mapping[str, Any]] = field(default_factory=list)
    tools: Literal["", "native", "refused", "ignored", "unclear"] = ""
    format: str = ""
    """In which the model writes calls if its tools are in the prompt."""
    schema: Literal["", "honoured", "ignored", "refused"] = ""
    grammar: Literal["", "honoured", "ignored", "refused"] = ""
    line_tokens: float = 0.0
    """Tokens of a line of filler, 0 where the server does not count."""
    lines_per_second: float = 0.0
    """Lines of filler that the model reads, 0 where it is not known."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options of the recommended command line that are not the default."""
    works: bool = False
    """A call came with these options."""


@dataclass(frozen=True)
class Document:
    """The answer to a GET: its status, its JSON (None for anything else), and its ``Date``."""

    status: int
    value: Any
    date: str
    text: str


@dataclass(frozen=True)
class ChatResult:
    """What became of one request to the model.

    ``documents`` are the whole answers, several where it was asked again; ``reply`` is what Patchbay has read, empty for a
    request without an exchange. ``seconds``: until the first part, and until the end.
    """

    documents: tuple[Mapping[str, Any], ...] = ()
    error: PatchbayError | None = None
    reply: Reply = Reply(None)  # noqa: RUF009  (frozen)
    usage: Usage = NO_USAGE
    accepts: Accepted = Accepted()  # noqa: RUF009  (frozen)
    exchange: Exchange[Any] | None = None
    first: float = 0.0
    seconds: float = 0.0

    @property
    def message(self) -> Mapping[str, Any]:
        """The message of the first answer."""
        return self.documents[0]["choices"][0]["message"] if self.documents else {}

    @property
    def text(self) -> str:
        """The text of the first answer."""
        content = self.message.get("content")
        return content if isinstance(content, str) else ""

    @property
    def native_calls(self) -> list[Any]:
        """The calls that the server itself has read, in the first answer."""
        calls = self.message.get("tool_calls")
        return calls if isinstance(calls, list) else []

    @property
    def is_cut(self) -> bool:
        """Whether the first answer ended at the limit of tokens without a text, as long reasoning does."""
        return bool(self.documents) and self.documents[0]["choices"][0].get("finish_reason") == "length" and not self.text

    def count(self, *path: str) -> int | None:
        """Return a number in the first answer's document, None where it has none."""
        value: Any = self.documents[0] if self.documents else None
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if isinstance(value, int) else None

    @property
    def prompt_tokens(self) -> int | None:
        """The tokens of the first answer's prompt, by the server's count."""
        return self.count("usage", "prompt_tokens")


class ExaminedServer:
    """A model server and what is known of it.

    ``timeout``: seconds for each request; ``deep``: the long prompt may be very long.
    """

    def __init__(self, settings: ProxySettings, model: str, *, timeout: float, deep: bool) -> None:
        self.url = settings.upstream
        self.settings = settings
        self.model = model
        self.timeout = timeout
        self.deep = deep
        self.facts = Facts()
        self.sampling: dict[str, Any] = {"temperature": 0}
        """Fields of each request."""
        self.models = Document(0, None, "", "")
        """The answer to the first request, for the list of models."""
        self._upstream = Upstream(settings)

    async def close(self) -> None:
        """Close the connections."""
        await self._upstream.close()

    async def fetch(self, path: str, *, at_root: bool = False) -> Document:
        """Return the answer to a GET. Raises UpstreamError where there is none, also in time."""

        async def get() -> tuple[Response, bytes]:
            response = await self.open("GET", path, None, at_root=at_root)
            return response, await self.read(response)

        response, body = await self.in_time(get())
        try:
            value = decode(body)
        except (ValueError, RecursionError):
            value = None
        return Document(response.status, value, response.header(b"date"), error_message(body))

    async def member(self, path: str, name: str) -> Any:
        """Return a member of a JSON object beside the API, None where there is none."""
        try:
            found = await self.fetch(path, at_root=True)
        except UpstreamError:
            return None
        return found.value.get(name) if found.status == 200 and isinstance(found.value, Mapping) else None

    async def send(self, **body: Any) -> ChatResult:
        """Send a chat request as it stands. An error is returned, but no answer in time is raised."""
        return await self._send(None, body)

    async def ask(self, options: TextOptions, **body: Any) -> ChatResult:
        """Send a chat request through an exchange that knows nothing of the model yet. Errors as ``send``."""
        return await self._send(options, body)

    async def _send(self, options: TextOptions | None, body: Mapping[str, Any]) -> ChatResult:
        capabilities, encoder, upstream = Capabilities(), EventEncoder(), _RecordedUpstream(self, streams=options is not None)
        encoded = encode(provider_at(self.url).prepare({"model": self.model, **self.sampling, **body}))
        exchange = None if options is None else Exchange(encoded, options, capabilities, encoder)
        error: PatchbayError | None = None
        started, first = time.monotonic(), 0.0

        async def drive() -> None:
            nonlocal first
            if exchange is None:
                await upstream.send_once(encoded)
                return
            async for events in drive_async(exchange, upstream):
                first = first or (time.monotonic() - started if events else 0.0)

        try:
            await self.in_time(drive())
        except SlowServerError:
            raise
        except PatchbayError as failure:
            error = failure
        answer = encoder.answer
        return ChatResult(
            tuple(upstream.documents),
            error,
            answer.first.reply(),
            NO_USAGE if answer.usage is None else Usage.from_openai(answer.usage),
            capabilities.of(self.model).accepts,
            exchange,
            first,
            time.monotonic() - started,
        )

    async def in_time(self, work: Awaitable[T]) -> T:
        """Wait for one exchange with the server. Raises SlowServerError."""
        try:
            async with asyncio.timeout(self.timeout):
                return await work
        except PatchbayError:
            raise
        except TimeoutError:
            raise SlowServerError(f"No answer came in {self.timeout:g} s.") from None

    async def open(self, method: str, path: str, body: bytes | None, *, at_root: bool = False) -> Response:
        """Send a request; return its response. Raises UpstreamError."""
        headers = [*_HEADERS, *self._upstream.own.values()]
        return await self._upstream.open(method, path, b"", headers, body, at_root=at_root)

    async def read(self, response: Response, *, whole: bool = True) -> bytes:
        """Return the body of a response and close it, or the next piece of a stream. Raises UpstreamError."""
        try:
            return await (response.read_up_to(_MOST) if whole else response.read())
        except ClientError as error:
            raise self._upstream.failure(error) from error
        finally:
            if whole:
                response.close()


class _RecordedUpstream(AsyncUpstream):
    """The examined server under an exchange; ``documents`` are its whole answers. Without ``streams`` all are read whole."""

    def __init__(self, server: ExaminedServer, *, streams: bool) -> None:
        self._streams = streams
        self.documents: list[Mapping[str, Any]] = []
        self._server = server
        self._response: Response | None = None

    async def describe(self) -> Any:
        return self._server.facts.description

    async def send(self, body: bytes) -> UpstreamRejection | Mapping[str, Any] | None:
        response = self._response = await self._server.open("POST", CHAT, body)
        if self._streams and response.status < 300 and is_event_stream(response):
            return None
        answer = await self._server.read(response)
        if response.status >= 300:
            text = answer.decode("utf-8", "replace")
            said = f"HTTP {response.status}: {error_message(answer)}"
            return UpstreamRejection(
                response.status, text, UpstreamError(said, upstream_status=response.status, body=text[:4096])
            )
        document = read_completion(answer)
        self.documents.append(document)
        return document

    async def send_once(self, body: bytes) -> None:
        """Send a request that is not a stream. Raises UpstreamError, also for an error status."""
        try:
            if isinstance(answer := await self.send(body), UpstreamRejection):
                raise answer.error
        finally:
            await self.close()

    async def read(self) -> bytes:
        assert self._response is not None
        return await self._server.read(self._response, whole=False)

    async def close(self) -> None:
        if self._response is not None:
            self._response.close()
