"""The server's upstream as the ChatModel of one turn: its own connections, with the client's headers and parameters.

Each round is an Exchange, so models that only write text can call tools too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from patchbay.models.capabilities import Capabilities
from patchbay.models.chat_model import ChatModel, ChatRequest, ModelEvent, ModelReply
from patchbay.models.encoder import EventEncoder, Events
from patchbay.models.exchange import Exchange
from patchbay.models.exchange_driver import ask_without_refused_fields, open_answer, read_events
from patchbay.models.parts import NO_LOGPROBS, Answer
from patchbay.models.providers import Provider
from patchbay.models.tool_encoder import ToolEncoder
from patchbay.models.wire import encode
from patchbay.server.chat.completion import OWN_HEADERS, ChatUpstream
from patchbay.server.http import Headers, chat_headers_for_client

if TYPE_CHECKING:
    from patchbay.server.upstream import ProxyRequest

_ONE_REQUEST = frozenset({b"idempotency-key"})
"""Headers about a single request: a turn makes several."""


@dataclass(frozen=True)
class ModelBackend:
    """The upstream's provider and capabilities, and its exchanges; shared by all turns."""

    make_exchange: Callable[..., Exchange[Any]]
    make_searching_exchange: Callable[..., Exchange[Any]]
    """Make the exchange of a round with tool search, which keeps calls of tools that were not offered."""
    provider: Provider
    capabilities: Capabilities


class TurnModel(ChatModel, Protocol):
    """The model of a turn, and what its answers had: see UpstreamModel."""

    first: Answer | None
    last: Answer
    headers: Headers
    logprobs: bytes
    usages: list[Mapping[str, Any]]


class UpstreamModel:
    """A ChatModel for one client request; ``written`` are the client's tools as it wrote them, by name.

    ``searching``: not all tools are offered, and the others may be called too.

    ``first`` is the answer of the first round so far, ``last`` that of the last one, ``headers`` those of its response that are
    true of a rewritten one. ``logprobs`` are those of the last event, as JSON, and ``usages`` the usage of each round.
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
        headers = request.headers_for_upstream(OWN_HEADERS[False, stream])
        self._request_headers = [pair for pair in headers if pair[0] not in _ONE_REQUEST]
        self.first: Answer | None = None
        self.last = Answer()
        self.headers: Headers = []
        self.logprobs = NO_LOGPROBS
        self.usages: list[Mapping[str, Any]] = []

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``. Raises PatchbayError: UpstreamStatusError with the upstream's own error response."""
        provider, capabilities = self._backend.provider, self._backend.capabilities
        encoded = self._encoder.of(request.tools, as_sent=self._written)
        body = provider.prepare({**encoded.body(request), "stream": True} if request.stream else encoded.body(request))
        if body.get("tools") is encoded.tools:
            body["tools"] = encoded.encoded
        answer = await ask_without_refused_fields(self._open, body, capabilities.of(body.get("model")), provider.sent_back)
        async with aclosing(read_events(answer, encoded, provider, stream=request.stream)) as events:
            async for event, self.logprobs in events:
                if isinstance(event, ModelReply):
                    if isinstance(usage := self.last.usage, Mapping):
                        self.usages.append(usage)
                    self._request.watch.wait_elsewhere()
                yield event

    async def _open(self, body: dict[str, Any]) -> AsyncGenerator[Events, None]:
        """Send the request of a round; return the events of its response once it has begun."""
        encoder = EventEncoder()
        exchange = self._make_exchange(encode(body), encoder)
        exchange.attempt_log = self._request.turn
        upstream = ChatUpstream(self._request, self._request_headers, exchange)
        answer = await open_answer(exchange, upstream)
        self.headers = [] if exchange.fell_back else chat_headers_for_client(upstream.response.headers)
        self.last = encoder.answer
        self.first = self.first or encoder.answer
        return answer
