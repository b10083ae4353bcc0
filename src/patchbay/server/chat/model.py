"""The server's upstream as the ChatModel of one turn: its own connections, with the client's headers and parameters.

Each round is an Exchange, so models that only write text can call tools too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patchbay.errors import UpstreamError
from patchbay.models.capabilities import Capabilities, request_with_retries
from patchbay.models.chat_model import ChatRequest, ModelEvent, ModelReply, ReplyAssembler, whole_reply
from patchbay.models.encoder import AnswerHead
from patchbay.models.exchange import Exchange
from patchbay.models.exchange_driver import drive_async
from patchbay.models.providers import Provider
from patchbay.models.tool_encoder import ToolEncoder
from patchbay.models.wire import SseDecoder, decode, encode
from patchbay.server.chat.completion import OWN_HEADERS, ChatUpstream, is_json
from patchbay.server.http import Headers, chat_downward

if TYPE_CHECKING:
    from patchbay.server.upstream import ProxyRequest

_ONE_REQUEST = frozenset({b"idempotency-key"})
"""Headers about a single request: a turn makes several."""


@dataclass(frozen=True)
class ModelBackend:
    """The upstream's provider and capabilities, and its exchanges; shared by all turns."""

    make_exchange: Callable[..., Exchange]
    make_searching_exchange: Callable[[bytes], Exchange]
    """Make the exchange of a round with tool search, which keeps calls of tools that were not offered."""
    provider: Provider
    capabilities: Capabilities


class UpstreamModel:
    """A ChatModel for one client request; ``written`` are the client's tools as it wrote them, by name.

    ``searching``: not all tools are offered, and the others may be called too.

    ``head`` is that of the first chunk, ``headers`` those of the last response that are true of a rewritten one. ``document``
    is the last chunk or completion, ``usages`` the usage of each round.
    """

    def __init__(
        self,
        request: ProxyRequest,
        backend: ModelBackend,
        encoder: ToolEncoder,
        written: Mapping[str, Mapping[str, Any]],
        *,
        stream: bool,
        searching: bool = False,
    ) -> None:
        self._request = request
        self._backend = backend
        self._encoder = encoder
        self._written = written
        self._make_exchange = backend.make_searching_exchange if searching else backend.make_exchange
        self._sent = [pair for pair in request.upward(OWN_HEADERS[False, stream]) if pair[0] not in _ONE_REQUEST]
        self.head: AnswerHead | None = None
        self.headers: Headers = []
        self.document: dict[str, Any] = {}
        self.usages: list[Mapping[str, Any]] = []

    @property
    def logprobs(self) -> Any:
        """The logprobs of the last piece of text."""
        choices = self.document.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        return first.get("logprobs") if isinstance(first, Mapping) else None

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``. Raises PatchbayError: UpstreamStatusError with the upstream's own error response."""
        provider, capabilities = self._backend.provider, self._backend.capabilities
        encoded = self._encoder.of(request.tools, as_sent=self._written)
        body = provider.prepare({**encoded.body(request), "stream": True} if request.stream else encoded.body(request))
        if body.get("tools") is encoded.tools:
            body["tools"] = encoded.encoded
        answer = await request_with_retries(self._open, body, capabilities.of(body.get("model")), provider.sent_back)
        assembly = ReplyAssembler()
        end: ModelReply | None = None
        usage: Any = None
        async with aclosing(answer) as documents:
            async for document in documents:
                self._note(document)
                usage = document.get("usage") or usage
                if not request.stream:
                    end = whole_reply(document)
                    continue
                for event in assembly.add(document):
                    yield event
        if isinstance(usage, Mapping):
            self.usages.append(usage)
        end = end if end is not None else assembly.end()
        reason = provider.finish_reasons.get(end.finish_reason or "", end.finish_reason)
        if reason == "error":
            raise UpstreamError(f"The model's server failed in mid-answer: {end.finish_reason}.")
        self._request.watch.wait_elsewhere()
        yield ModelReply(encoded.own(end.reply), reason, end.usage)

    def _note(self, document: dict[str, Any]) -> None:
        self.document = document
        if self.head is None and (document.get("id") or document.get("choices")):
            self.head = AnswerHead(*map(document.get, ("id", "created", "model", "system_fingerprint")))

    async def _open(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Send the request of a round; return the documents of its response once it has begun."""
        exchange = self._make_exchange(encode(body))
        upstream = ChatUpstream(self._request, self._sent, streaming=exchange.streaming)
        pieces = drive_async(exchange, upstream)
        first = await anext(pieces, b"")
        self.headers = [] if exchange.fell_back else chat_downward(upstream.answer.headers)
        return _documents(pieces, first, whole=not exchange.streaming or (exchange.transparent and is_json(upstream.answer)))


async def _documents(pieces: AsyncGenerator[bytes, None], piece: bytes, *, whole: bool) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the chunks of a stream from ``piece`` on, or with ``whole`` the one completion."""
    decoder = SseDecoder()
    async with aclosing(pieces):
        while piece:
            for data in (piece,) if whole else decoder.feed(piece):
                if data != b"[DONE]":
                    yield _document(data)
            piece = await anext(pieces, b"")
    for data in decoder.close():
        if data != b"[DONE]":
            yield _document(data)


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = decode(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise UpstreamError(f"Upstream returned invalid JSON: {data[:200].decode('utf-8', 'replace')}")
    return document
