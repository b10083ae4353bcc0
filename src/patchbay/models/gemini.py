"""A ChatModel over google-genai's client: Gemini's own API.

A request goes through the same ``Exchange`` as with every other server, which here stands on ``generate_content`` in the place of
HTTP: so a model that is offered through this API and takes no tools (Gemma) is taught them in text, and leaked calls are read.
The wire is translated by ``geminirequest`` and ``geminianswer``.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from patchbay.errors import ConfigurationError, UpstreamError
from patchbay.models.asking import add_usage
from patchbay.models.assemble import Assembly
from patchbay.models.chat import ChatRequest, ModelEvent, ModelReply
from patchbay.models.clienterrors import client_errors
from patchbay.models.exchange import Exchange, Rejection
from patchbay.models.exchange_driver import drive_async
from patchbay.models.geminianswer import UNREADABLE, GeminiAnswer
from patchbay.models.geminirequest import gemini_request
from patchbay.models.learnt import Learnt
from patchbay.models.modes import ModeMemory
from patchbay.models.offer import Offer
from patchbay.models.options import TextOptions
from patchbay.models.providers.gemini import GEMINI
from patchbay.models.sse import SseDecoder
from patchbay.models.wire import decode, encode
from patchbay.models.wire import event as sse_event

_MILLISECONDS: Final = 1000
_MOST_UNREADABLE: Final = 3
"""So many answers in a row that Gemini could not read: the next would be no better."""
_NO_SYSTEM_ROLE: Final = re.compile(r"(?:developer|system) instruction\w* (?:is|are) not (?:enabled|supported)", re.IGNORECASE)


def connect_gemini(
    key: str, url: str, *, timeout: float | None, max_retries: int | None, headers: Mapping[str, str] | None
) -> Any:
    """A ``google.genai.Client``; ``timeout`` is in seconds. Raises ConfigurationError where google-genai is not installed."""
    try:
        import google.genai as genai
    except ImportError:
        raise ConfigurationError("Gemini needs google-genai: pip install 'patchbay[gemini]'.") from None
    options: Any = {"base_url": url, "headers": dict(headers or {})}
    # A redirect would be followed with the key in a header of Google's own, to whatever host it names. The two HTTP clients that
    # the SDK may use have a word each for it, and take no notice of the other's.
    options["async_client_args"] = {"allow_redirects": False, "follow_redirects": False}
    if timeout is not None:
        options["timeout"] = max(1, round(timeout * _MILLISECONDS))
    # As many as the openai client tries by itself.
    options["retry_options"] = {"attempts": 1 + (2 if max_retries is None else max_retries)}
    # Said, or variables of the environment might choose another service of Google's.
    return genai.Client(vertexai=False, api_key=key, http_options=options)


class GeminiChatModel:
    """A ChatModel over a ``google.genai.Client``.

    Errors of the client are raised as UpstreamError, with the client's own as ``__cause__``. ``request.parameters`` are in
    OpenAI's words; Gemini's own (``thinking_config``, ``safety_settings``, ...) may stand beside them. ``model`` is the name of
    the model where they hold none. Thoughts are asked for by ``reasoning_effort``, or by ``thinking_config``.
    """

    def __init__(
        self,
        client: Any,
        *,
        model: str | None = None,
        options: TextOptions | None = None,
        memory: ModeMemory | None = None,
        learnt: Learnt | None = None,
    ) -> None:
        self._named = {} if model is None else {"model": model}
        self._models = client.aio.models
        self._client = client
        # Names that are not tools must reach the executor: its answer tells the model which names there are.
        self._options = TextOptions(unknown_tools="keep") if options is None else options
        self._memory = ModeMemory(doubts=False) if memory is None else memory
        self._learnt = Learnt() if learnt is None else learnt
        self._offer = Offer(GEMINI)

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``. Raises UpstreamError, UpstreamTimeoutError, ToolChoiceError, InvalidRequestError."""
        told = self._offer.of(request.tools)
        body = {**self._named, **told.body(request), "stream": True, "stream_options": {"include_usage": True}}
        exchange = Exchange(encode(body), self._options, self._memory)
        answer = Assembly()
        stream = request.stream
        decoder = SseDecoder()
        upstream = _Upstream(lambda body: self._chunks(body, stream=stream))
        async with aclosing(drive_async(exchange, upstream)) as pieces:
            async for piece in pieces:
                for data in decoder.feed(piece):
                    for event in answer.add(decode(data)) if data != b"[DONE]" else ():
                        if stream:
                            yield event
        end = answer.end()
        yield ModelReply(told.own(end.reply), end.finish_reason, end.usage)

    async def _chunks(self, body: Mapping[str, Any], *, stream: bool) -> AsyncGenerator[dict[str, Any], None]:
        """The answer to a chat-completions body, as chunks; one that Gemini itself could not read is asked for again."""
        spent: list[Mapping[str, Any]] = []
        for _ in range(_MOST_UNREADABLE):
            answer = GeminiAnswer(str(body.get("model")), body.get("tools"))
            usage, wrote = None, False
            async with aclosing(self._pieces(body, stream=stream)) as pieces:
                async for piece in pieces:
                    chunk = answer.chunk(piece)
                    if answer.failed:
                        raise UpstreamError(answer.failed)
                    usage = chunk.get("usage", usage)
                    if any(choice["finish_reason"] == UNREADABLE for choice in chunk["choices"]):
                        break
                    wrote = wrote or any(choice["delta"].keys() - {"reasoning_content"} for choice in chunk["choices"])
                    yield {**chunk, "usage": add_usage(usage, spent)} if spent and "usage" in chunk else chunk
                else:
                    return
            if wrote:
                break
            spent.append(usage or {})
        raise UpstreamError("Gemini could not read the call that its model wrote (MALFORMED_FUNCTION_CALL).")

    async def _pieces(self, body: Mapping[str, Any], *, stream: bool) -> AsyncGenerator[Any, None]:
        model = str(body.get("model"))
        known = self._learnt.of(model)
        try:
            async with aclosing(self._asked(body, model, stream=stream)) as pieces:
                async for piece in pieces:
                    yield piece
        except UpstreamError as error:
            if known.no_system_role or not _NO_SYSTEM_ROLE.search(f"{error} {error.body}"):
                raise
        else:
            return
        known.no_system_role = True
        async with aclosing(self._asked(body, model, stream=stream)) as pieces:
            async for piece in pieces:
                yield piece

    async def _asked(self, body: Mapping[str, Any], model: str, *, stream: bool) -> AsyncGenerator[Any, None]:
        arguments = gemini_request(body, system_role=not self._learnt.of(model).no_system_role)
        if not stream:
            with client_errors(self._keys):
                answer = await self._models.generate_content(**arguments)
            yield answer
            return
        with client_errors(self._keys):
            pieces: AsyncIterator[Any] = await self._models.generate_content_stream(**arguments)
        try:
            while True:
                with client_errors(self._keys):
                    piece = await anext(pieces, None)
                if piece is None:
                    return
                yield piece
        finally:
            if (close := getattr(pieces, "aclose", None)) is not None:
                await close()

    def _keys(self) -> tuple[Any, ...]:
        """What no error may say; the client has no public name for it."""
        return (getattr(getattr(self._client, "_api_client", None), "api_key", None),)


class _Upstream:
    """``generate_content`` as the server behind an exchange; ``ask`` makes the chunks of an answer."""

    def __init__(self, ask: Callable[[Any], AsyncGenerator[dict[str, Any], None]]) -> None:
        self._ask = ask
        self._chunks: AsyncGenerator[dict[str, Any], None] | None = None
        self._first: bytes | None = None

    async def send(self, body: bytes) -> Rejection | None:
        """Ask, and read the first chunk: an error of the server comes with it."""
        self._chunks = self._ask(decode(body))
        try:
            self._first = await self._next()
        except UpstreamError as error:
            if error.upstream_status is None:
                raise
            return Rejection(error.upstream_status, f"{error} {error.body}", error)
        return None

    async def read(self) -> bytes:
        """The next chunk, as an event."""
        first, self._first = self._first, None
        return await self._next() if first is None else first

    async def close(self) -> None:
        """Stop the answer."""
        if self._chunks is not None:
            await self._chunks.aclose()

    async def _next(self) -> bytes:
        assert self._chunks is not None
        chunk = await anext(self._chunks, None)
        return b"" if chunk is None else sse_event(encode(chunk))
