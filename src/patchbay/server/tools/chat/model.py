"""The server's upstream as the model of one turn: over its own connections, with the client's headers and parameters.

What a round's request and answer mean is ``models.exchange``'s, so models that only write text can call tools too; how an answer
is put together is ``models.assemble``'s. Here are only the wire, its order and its failures, as in ``server.chat``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patchbay.errors import PatchbayError, UpstreamError
from patchbay.models.assemble import Assembly, whole_reply
from patchbay.models.chat import ChatRequest, ModelEvent, ModelReply
from patchbay.models.exchange import Exchange
from patchbay.models.learnt import Learnt, asked
from patchbay.models.offer import Offer
from patchbay.models.providers import Provider
from patchbay.models.sse import SseDecoder
from patchbay.models.wire import Envelope, decode, encode
from patchbay.server.chat import (
    OWN_HEADERS,
    check_is_plain,
    check_is_stream,
    is_json,
    is_refusal,
    read_whole,
    refused,
)
from patchbay.server.client import ClientError
from patchbay.server.headers import Headers, chat_downward
from patchbay.server.relay import is_event_stream

if TYPE_CHECKING:
    from patchbay.server.client import Answer
    from patchbay.server.request import Request

_ONE_REQUEST = frozenset({b"idempotency-key"})
"""Headers that speak of one request: a turn makes several."""


@dataclass(frozen=True)
class Way:
    """How the upstream's models are asked: what is the same for all turns."""

    make_exchange: Callable[[bytes], Exchange]
    provider: Provider
    learnt: Learnt


class UpstreamModel:
    """A ChatModel for one client's request; ``written`` are the client's own tools, as it wrote them, by name.

    ``envelope`` is what the first answer was put into, ``headers`` are those of the last that are true of an answer written anew.
    ``document`` is what was read last: a chunk, or a whole completion. ``usages`` are what each round said that it cost.
    """

    def __init__(
        self, request: Request, way: Way, offer: Offer, written: Mapping[str, Mapping[str, Any]], *, stream: bool
    ) -> None:
        self._request = request
        self._way = way
        self._offer = offer
        self._written = written
        self._sent = [pair for pair in request.upward(OWN_HEADERS[False, stream]) if pair[0] not in _ONE_REQUEST]
        self.envelope: Envelope | None = None
        self.headers: Headers = []
        self.document: dict[str, Any] = {}
        self.usages: list[Mapping[str, Any]] = []

    @property
    def logprobs(self) -> Any:
        """Those of the piece of text that was read last, if it came with any."""
        choices = self.document.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        return first.get("logprobs") if isinstance(first, Mapping) else None

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``. Raises PatchbayError: UpstreamStatusError with the upstream's own answer where it refused."""
        provider, learnt = self._way.provider, self._way.learnt
        told = self._offer.of(request.tools, written=self._written)
        body = provider.prepare({**told.body(request), "stream": True} if request.stream else told.body(request))
        if body.get("tools") is told.tools:
            body["tools"] = told.encoded
        exchange, answer = await asked(self._open, body, learnt.of(body.get("model")), provider.sent_back)
        assembly = Assembly()
        end: ModelReply | None = None
        usage: Any = None
        async with aclosing(self._documents(exchange, answer)) as documents:
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
        yield ModelReply(told.own(end.reply), reason, end.usage)

    def _note(self, document: dict[str, Any]) -> None:
        self.document = document
        if self.envelope is None and (document.get("id") or document.get("choices")):
            self.envelope = Envelope(
                id=document.get("id"),
                created=document.get("created"),
                model=document.get("model"),
                fingerprint=document.get("system_fingerprint"),
            )

    async def _open(self, body: dict[str, Any]) -> tuple[Exchange, Answer]:
        """Begin a round: what the upstream answers has not been read."""
        exchange = self._way.make_exchange(encode(body))
        return exchange, await self._ask(exchange)

    async def _ask(self, exchange: Exchange) -> Answer:
        """Ask until the upstream takes it. Raises PatchbayError."""
        request = self._request
        while True:
            if request.journal is not None:
                request.journal.record("upstream_request", request.id, stream=exchange.streaming, body=exchange.request)
            request.watch.wait()
            answer = await request.upstream.post_chat(exchange.request, self._sent, request.scope.get("query_string", b""))
            taken = False
            try:
                if not is_refusal(answer):
                    check_is_plain(answer)
                    taken = True
                    self.headers = chat_downward(answer.headers)
                    return answer
                await refused(request, exchange, answer)
            finally:
                if not taken:
                    answer.close()

    async def _documents(self, exchange: Exchange, answer: Answer) -> AsyncGenerator[dict[str, Any], None]:
        """What the exchange makes of the answer: chunks of a stream, or one completion."""
        if not exchange.streaming or (exchange.transparent and is_json(answer)):
            async with aclosing(self._pieces(exchange, answer)) as pieces:
                async for piece in pieces:
                    yield _document(piece)
            return
        reader = SseDecoder()
        async with aclosing(self._pieces(exchange, answer)) as pieces:
            async for piece in pieces:
                for data in reader.feed(piece):
                    if data != b"[DONE]":
                        yield _document(data)
        for data in reader.close():
            if data != b"[DONE]":
                yield _document(data)

    async def _pieces(self, exchange: Exchange, first: Answer) -> AsyncGenerator[bytes, None]:
        """The exchange's bytes, over as many attempts as it takes."""
        answer: Answer | None = first
        again = True
        while again:
            try:
                if answer is None:
                    answer = await self._ask(exchange)
                if exchange.streaming and not is_json(answer):
                    declared = is_event_stream(answer)
                    while not exchange.finished and (piece := await self._read(answer, declared=declared)):
                        declared = True
                        if out := exchange.feed(piece):
                            yield out
                    out, again = exchange.end()
                else:
                    out, again = exchange.answer(await read_whole(self._request, answer))
            except PatchbayError:
                saved = exchange.rescue()
                if saved is None:
                    raise
                out, again = saved, False
            finally:
                if answer is not None:
                    answer.close()
                answer = None
            if out:
                yield out

    async def _read(self, answer: Answer, *, declared: bool) -> bytes:
        self._request.watch.wait()
        try:
            piece = await answer.read()
        except ClientError as error:
            raise self._request.upstream.failure(error) from error
        if piece and not declared:
            check_is_stream(answer, self._request.redact(piece))
        return piece


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = decode(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise UpstreamError(f"The upstream sent what is no JSON object: {data[:200].decode('utf-8', 'replace')}")
    return document
