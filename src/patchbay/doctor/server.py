"""The examined server: requests as the proxy sends them, each bounded in time, and what became of one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn

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
class Asked:
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
        response, body = await self._exchange_bytes("GET", path, None, at_root=at_root)
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

    async def send(self, **body: Any) -> Asked:
        """Send a chat request as it stands. An error is returned, but no answer in time is raised."""
        started = time.monotonic()
        response, answer = await self._exchange_bytes("POST", CHAT, self._encode(body))
        error: PatchbayError | None = None
        documents: tuple[Mapping[str, Any], ...] = ()
        if response.status >= 300:
            error = _status_error(response.status, answer)
        else:
            try:
                documents = (read_completion(answer),)
            except UpstreamError as failure:
                error = failure
        return Asked(documents, error, seconds=time.monotonic() - started)

    async def ask(self, options: TextOptions, **body: Any) -> Asked:
        """Send a chat request through an exchange that knows nothing of the model yet. Errors as ``send``."""
        capabilities, encoder, upstream = Capabilities(), EventEncoder(), _RecordedUpstream(self)
        exchange = Exchange(self._encode(body), options, capabilities, encoder)
        started, first = time.monotonic(), 0.0
        error: PatchbayError | None = None
        try:
            async with asyncio.timeout(self.timeout):
                async for events in drive_async(exchange, upstream):
                    if events and not first:
                        first = time.monotonic() - started
        except PatchbayError as failure:
            error = failure
        except TimeoutError:
            self._raise_slow()
        answer = encoder.answer
        return Asked(
            tuple(upstream.documents),
            error,
            answer.first.reply() if error is None else Reply(None),
            NO_USAGE if answer.usage is None else Usage.from_openai(answer.usage),
            capabilities.of(self.model).accepts,
            exchange,
            first,
            time.monotonic() - started,
        )

    def _encode(self, body: Mapping[str, Any]) -> bytes:
        return encode(provider_at(self.url).prepare({"model": self.model, **self.sampling, **body}))

    async def _exchange_bytes(
        self, method: str, path: str, body: bytes | None, *, at_root: bool = False
    ) -> tuple[Response, bytes]:
        """Return a response and its body. Raises UpstreamError."""
        try:
            async with asyncio.timeout(self.timeout):
                response = await self.open(method, path, body, at_root=at_root)
                try:
                    return response, await response.read_up_to(_MOST)
                except ClientError as error:
                    raise self._upstream.failure(error) from error
                finally:
                    response.close()
        except TimeoutError as error:
            if isinstance(error, UpstreamTimeoutError):  # no connection
                raise
            self._raise_slow()

    def _raise_slow(self) -> NoReturn:
        raise UpstreamTimeoutError(f"There was no answer within {self.timeout:g} s.") from None

    async def open(self, method: str, path: str, body: bytes | None, *, at_root: bool = False) -> Response:
        """Send a request; return its response. Raises UpstreamError."""
        headers = [*_HEADERS, *self._upstream.own.values()]
        return await self._upstream.open(method, path, b"", headers, body, at_root=at_root)

    def failure(self, error: ClientError) -> PatchbayError:
        """Return the error of a broken response."""
        return self._upstream.failure(error)


class _RecordedUpstream(AsyncUpstream):
    """The examined server under an exchange; ``documents`` are its whole answers."""

    def __init__(self, server: ExaminedServer) -> None:
        self.documents: list[Mapping[str, Any]] = []
        self._server = server
        self._response: Response | None = None

    async def describe(self) -> Any:
        return self._server.facts.description

    async def send(self, body: bytes) -> UpstreamRejection | Mapping[str, Any] | None:
        response = self._response = await self._server.open("POST", CHAT, body)
        if response.status < 300 and is_event_stream(response):
            return None
        try:
            answer = await response.read_up_to(_MOST)
        except ClientError as error:
            raise self._server.failure(error) from error
        if response.status >= 300:
            text = answer.decode("utf-8", "replace")
            return UpstreamRejection(response.status, text, _status_error(response.status, answer))
        document = read_completion(answer)
        self.documents.append(document)
        return document

    async def read(self) -> bytes:
        assert self._response is not None
        try:
            return await self._response.read()
        except ClientError as error:
            raise self._server.failure(error) from error

    async def close(self) -> None:
        if self._response is not None:
            self._response.close()


def _status_error(status: int, body: bytes) -> UpstreamError:
    return UpstreamError(
        f"HTTP {status}: {error_message(body)}", upstream_status=status, body=body[:4096].decode("utf-8", "replace")
    )
