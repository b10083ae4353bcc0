"""Requests of other protocols: their front-ends, their form as chat completions, and stored responses.

Front-ends also ask the upstream for its models, and for the number of tokens of a prompt.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import parse_qs, unquote, unquote_to_bytes

from patchbay.errors import InvalidRequestError, PatchbayError, RequestTooLargeError, UpstreamError
from patchbay.frontends import AnthropicMessages, DecodedRequest, Frontend, GenerateContent, OpenAIResponses, StoredResponse
from patchbay.frontends.gemini import MODELS_PATH
from patchbay.frontends.gemini import PATH as GEMINI_PATH
from patchbay.frontends.responses import key_of, list_items, response_of, with_ids
from patchbay.frontends.responses_answer import ResponsesEncoder
from patchbay.frontends.responses_request import ItemNotFoundError
from patchbay.models.encoder import AnswerEncoder
from patchbay.models.wire import decode, encode
from patchbay.server.chat.completion import OWN_HEADERS
from patchbay.server.errors import NotFoundError, NoUpstreamError, NoWebSocketError
from patchbay.server.http import GEMINI_BASE, KEY_HEADERS, VENDOR_KEYS, Headers, Send, find_tail
from patchbay.server.response_events import EventLogs, EventTail
from patchbay.server.settings import ProxySettings
from patchbay.server.stored_responses import (
    BackgroundResponses,
    ConnectionResponses,
    MemoryResponses,
    ResponseRuns,
    ResponseStore,
)
from patchbay.server.upstream import ProxyRequest, check_is_plain, read_document

CONNECTION: Final = "patchbay.connection"
"""The scope's key for the ConnectionResponses of a request that came over a WebSocket."""

SENT: Final = "patchbay.sent"
"""The scope's key for the scope as the client sent it, where headers were removed from this one."""

_ROLE_HEADER: Final = b"x-patchbay-role"
_SCHEME: Final = re.compile(rb"^bearer[. ] *", re.IGNORECASE)
_VENDOR_PREFIXES: Final = (b"anthropic-", b"x-stainless-", b"x-goog-", b"openai-beta")
_DAY: Final = 86400.0
_COUNTING: Final = 5.0
"""Seconds for the upstream to count: an estimate is better than a long wait."""

_MOST_ITEM_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of a conversation that a request continues by its last response."""


class PreviousResponseNotFoundError(InvalidRequestError):
    """The previous response of a request is not stored."""

    code = "previous_response_not_found"


@dataclass(frozen=True)
class FrontendRoute:
    """A front-end and what is requested of it: an answer, the size of a prompt, a compacted conversation, or models."""

    frontend: Frontend
    path: str = ""
    wants: Literal["answer", "count", "compaction", "models"] = "answer"
    model: str | None = None
    """The id of the one model that is requested."""


class Frontends:
    """The front-ends of one proxy, and the responses that it stores. ``own_models`` are listed before the upstream's."""

    def __init__(
        self,
        settings: ProxySettings,
        redact: Callable[[str], str],
        own_models: Sequence[Mapping[str, Any]] = (),
        runs: ResponseRuns | None = None,
    ) -> None:
        self._own_models = own_models
        self._base = base = settings.base_path
        self._responses = OpenAIResponses()
        self._gemini = GenerateContent()
        self._messages = messages = AnthropicMessages()
        self._routes: dict[str, FrontendRoute] = {
            f"{base}/messages": FrontendRoute(messages),
            f"{base}/messages/count_tokens": FrontendRoute(messages, wants="count"),
            f"{base}/responses": FrontendRoute(self._responses),
            f"{base}/responses/input_tokens": FrontendRoute(self._responses, wants="count"),
            f"{base}/responses/compact": FrontendRoute(self._responses, wants="compaction"),
        }
        self._store = _store(settings)
        self._counter = _TokenCounter()
        self._background = BackgroundResponses(self._store, redact, runs)
        self._logs = EventLogs()
        self._redact = redact

    @property
    def tails(self) -> Iterable[str]:
        """The paths of the routes below the base, without Gemini's."""
        return (path.removeprefix(self._base) for path in self._routes)

    def route(self, scope: Mapping[str, Any], path: str) -> FrontendRoute | None:
        """Return the route of a request, None if no front-end serves it. Raises InvalidRequestError."""
        path = path.rstrip("/")
        if scope["method"] == "GET":
            return self._models_route(scope["headers"], path)
        if scope["method"] != "POST":
            return None
        if (route := self._routes.get(path)) is not None or ":" not in path:
            return route
        if (found := GEMINI_PATH.fullmatch(path)) is None:
            return None
        if found["method"] == "streamGenerateContent" and _query(scope).get("alt") != ["sse"]:
            raise InvalidRequestError("Streams are served as events only: add ?alt=sse.")
        return FrontendRoute(self._gemini, path, "count" if found["method"] == "countTokens" else "answer")

    def _models_route(self, headers: Headers, path: str) -> FrontendRoute | None:
        """Return the route of a request for models in a front-end's format, None for any other request."""
        if (found := MODELS_PATH.fullmatch(path)) is not None:
            return FrontendRoute(self._gemini, wants="models", model=found["model"] and unquote(found["model"]))
        tail = find_tail(path, f"{self._base}/models")
        if tail is None:
            return None
        model = unquote(tail[1:]) or None
        if any(name.startswith(b"x-goog-") for name, _ in headers):
            return FrontendRoute(self._gemini, wants="models", model=model)
        if any(name == b"anthropic-version" for name, _ in headers):
            return FrontendRoute(self._messages, wants="models", model=model)
        return None

    def owner(self, path: str) -> Frontend | None:
        """Return the front-end in whose format a request without a route gets its errors."""
        is_gemini = find_tail(path, GEMINI_BASE) is not None or GEMINI_PATH.fullmatch(path) is not None
        return self._gemini if is_gemini else None

    async def decode(self, route: FrontendRoute, body: bytes, scope: Mapping[str, Any]) -> DecodedRequest:
        """Decode a request, which may continue a response that is stored or of its connection. Raises InvalidRequestError."""
        responses = self._responses
        if route.frontend is not responses:
            return route.frontend.decode(body, route.path)
        given = responses.read(body)
        if isinstance(items := given.get("input"), list):
            given["input"] = await self._resolved(items, scope)
        before: list[dict[str, Any]] = []
        if (previous := given.get("previous_response_id")) is not None:
            before = await self._conversation(previous, scope)
            if len(encode(before)) + len(body) > _MOST_ITEM_BYTES:
                raise _conversation_too_large("previous_response_id")
        if route.wants == "compaction":
            return responses.decode_compaction(given, before)
        return responses.decode_fields(given, before)

    async def count(self, route: FrontendRoute, chat: Mapping[str, Any], body: bytes, request: ProxyRequest) -> bytes:
        """Answer a request for the size of a prompt; ``body`` is the upstream's request for ``chat``."""
        tokens = await self._counter.count(request, body) if is_text_only(chat) else None
        return route.frontend.encode_count(estimate_tokens(chat) if tokens is None else tokens)

    async def list_models(self, route: FrontendRoute, request: ProxyRequest) -> bytes:
        """Answer a request for the models, or for one of them. Raises NotFoundError, UpstreamError."""
        frontend = self._messages if route.frontend is self._messages else self._gemini
        models = await self._models(request)
        if route.model is None:
            return frontend.encode_models(models)
        for model in models:
            if model["id"] == route.model:
                return frontend.encode_model(model)
        raise NotFoundError(f"The upstream has no model {route.model[:200]!r}.")

    def own_list(self, method: str, tail: str) -> Callable[[ProxyRequest], Awaitable[bytes]] | None:
        """Return what answers OpenAI's request for the models, or for one of this server's own; None for any other request."""
        if method != "GET" or not self._own_models or not (f"{tail}/").startswith("/models/"):
            return None
        name = unquote(tail.removeprefix("/models").strip("/"))
        found = next((each for each in self._own_models if each["id"] == name), None)

        async def answer(request: ProxyRequest) -> bytes:
            return encode(found or {"object": "list", "data": await self._models(request)})

        return answer if found is not None or not name else None

    async def _models(self, request: ProxyRequest) -> list[Mapping[str, Any]]:
        """Return this server's own models and the upstream's, each with its ``id``. Raises PatchbayError."""
        try:
            listed = await _fetch_json(request, "GET", "/models")
        except NoUpstreamError:
            listed = None
        except (ValueError, RecursionError):
            raise UpstreamError("The upstream's list of models is not JSON.") from None
        models = listed.get("data") if isinstance(listed, dict) else None
        return [*self._own_models, *(each for each in models or () if isinstance(each, dict) and isinstance(each.get("id"), str))]

    async def _conversation(self, response_id: str, scope: Mapping[str, Any]) -> list[dict[str, Any]]:
        of_connection: ConnectionResponses | None = scope.get(CONNECTION)
        kept = of_connection.get(response_id) if of_connection is not None else None
        stored = kept or await self._background.get(key_of(response_id, _owner(scope)))
        if stored is None:
            raise PreviousResponseNotFoundError(
                f"Previous response with id {response_id!r} not found.", param="previous_response_id"
            )
        if stored.lease is not None:
            raise InvalidRequestError(f"Previous response with id {response_id!r} is not complete.", param="previous_response_id")
        return stored.conversation

    async def _resolved(self, items: list[Any], scope: Mapping[str, Any]) -> list[Any]:
        """Replace references to items of stored responses by these. Raises ItemNotFoundError, RequestTooLargeError."""
        resolved: list[Any] = []
        known: dict[str | None, dict[Any, Any]] = {None: {}}
        size = 0
        for item in items:
            if not isinstance(item, dict) or item.get("type") != "item_reference":
                resolved.append(item)
                continue
            item_id = item.get("id")
            response_id = response_of(item_id)
            if response_id not in known:
                try:
                    conversation = await self._conversation(str(response_id), scope)
                except PreviousResponseNotFoundError:
                    conversation = []
                known[response_id] = {each.get("id"): each for each in conversation}
            if (found := known[response_id].get(item_id)) is None:
                raise ItemNotFoundError(item_id)
            size += len(encode(found))
            if size > _MOST_ITEM_BYTES:
                raise _conversation_too_large("input")
            resolved.append(found)
        return resolved

    def storer(self, encoder: AnswerEncoder[bytes], scope: Mapping[str, Any]) -> Callable[[], Awaitable[None]] | None:
        """Return a function that stores the response before its end is sent; None if it is not to be stored."""
        of_connection: ConnectionResponses | None = scope.get(CONNECTION)
        if not isinstance(encoder, ResponsesEncoder) or (encoder.response["store"] is False and of_connection is None):
            return None
        return partial(self._put, encoder, of_connection, _owner(scope))

    async def _put(self, encoder: ResponsesEncoder, of_connection: ConnectionResponses | None, owner: str) -> None:
        if not encoder.complete:
            return
        stored = StoredResponse(encoder.response, with_ids(encoder.items), size=encoder.size, owner=owner)
        if encoder.response["store"] is not False:
            await self._store.put(stored)
        if of_connection is not None:
            of_connection.put(stored)

    async def begin_response(
        self, decoded: DecodedRequest, run: Callable[[Send], Awaitable[None]], scope: Mapping[str, Any]
    ) -> bytes | EventTail | None:
        """Begin a response in the background and return the answer for its client; None if the request is not for one.

        ``run`` writes the response to a ``send``. Raises TooManyResponsesError.
        """
        encoder = decoded.encoder
        if not isinstance(encoder, ResponsesEncoder) or encoder.response["background"] is not True:
            return None
        new = StoredResponse(encoder.response, with_ids(encoder.items), owner=_owner(scope))
        log = self._logs.add(new.key) if decoded.body.get("stream") else None

        async def make() -> StoredResponse:
            try:
                if log is not None:  # the client learns the id
                    log.write(encoder.write_first_events())
                await run(_drop if log is None else log.send)
            except Exception as error:
                if log is not None:
                    known = error if isinstance(error, PatchbayError) else UpstreamError("The server failed on this response.")
                    log.fail(self._redact(encoder.error(known).decode()).encode())
                raise
            return replace(new, response=encoder.response, size=encoder.size)

        try:
            queued = await self._background.begin_response(new, make, self._logs.end_log)
        except BaseException:
            self._logs.end_log(new.key)
            raise
        return encode(queued) if log is None else EventTail(log)

    async def answer_stored(self, scope: Mapping[str, Any], path: str) -> bytes | EventTail | None:
        """Answer a request about a stored response; None for any other path. Raises PatchbayError."""
        prefix, method = f"{self._base}/responses/", scope["method"]
        if method == "GET" and path.rstrip("/") == prefix[:-1] and any(name == b"upgrade" for name, _ in scope["headers"]):
            raise NoWebSocketError
        if not path.startswith(prefix):
            return None
        response_id, _, part = path[len(prefix) :].rstrip("/").partition("/")
        if (method, part) not in (("GET", ""), ("DELETE", ""), ("GET", "input_items"), ("POST", "cancel")):
            return None
        stored = await self._background.get(key_of(response_id, _owner(scope)))
        if stored is None:
            raise NotFoundError(f"Response with id {response_id!r} not found.")
        if method == "DELETE":
            await self._background.delete(stored)
            return encode({"id": response_id, "object": "response", "deleted": True})
        if part == "cancel":
            if stored.response["background"] is not True:
                raise InvalidRequestError("Only responses with 'background' can be cancelled.")
            stored = await self._background.cancel(stored) or stored
        elif part:
            return list_items(stored, _query(scope))
        elif (query := _query(scope)).get("stream", ["false"]) == ["true"]:
            return self._logs.tail(stored.key, query.get("starting_after", [None])[-1])
        return encode(stored.response)

    async def open(self) -> None:
        """Open the store of responses. Raises ConfigurationError."""
        await self._store.open()

    async def close(self) -> None:
        """Stop the responses in the background, and close their store."""
        await self._background.close()


_MEDIA_BYTES: Final = 4000
"""Bytes that an image or a file counts as, whatever its size."""


def is_text_only(chat: Mapping[str, Any]) -> bool:
    """Whether the messages have neither images nor files."""
    contents = (message.get("content") for message in chat["messages"])
    return all(content is None or isinstance(content, str) for content in contents)


def estimate_tokens(chat: Mapping[str, Any]) -> int:
    """Estimate a prompt's tokens: one per four bytes of its messages and tools as JSON, 1,000 for an image or file."""
    messages: list[Any] = chat["messages"]
    media = 0
    if not is_text_only(chat):
        parts = [part for message in messages if isinstance(message.get("content"), list) for part in message["content"]]
        media = sum(part["type"] != "text" for part in parts)
        contents = {"content": [part for part in parts if part["type"] == "text"]}
        messages = [
            contents,
            *({**each, "content": None} if isinstance(each.get("content"), list) else each for each in messages),
        ]
    return (len(encode(messages)) + len(encode(chat.get("tools") or [])) + media * _MEDIA_BYTES) // 4 + 1


def _conversation_too_large(param: str) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"The conversation is larger than {_MOST_ITEM_BYTES} bytes: compact it, or begin another one.", param=param
    )


async def _drop(_message: Any) -> None:
    pass


def _store(settings: ProxySettings) -> ResponseStore:
    keep = settings.response_days * _DAY or None
    if settings.response_store is None:
        return MemoryResponses(keep)
    from patchbay.server.response_database import DatabaseResponses  # imports SQLAlchemy

    return DatabaseResponses(settings.response_store, keep)


def chat_scope(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scope of a front-end's request as one of chat completions.

    The key becomes a bearer token; the vendor's own headers and the query are dropped.
    """
    headers: Headers = []
    key: bytes | None = None
    has_bearer = False
    for name, value in scope["headers"]:
        if name in VENDOR_KEYS:
            key = value
        elif not name.startswith(_VENDOR_PREFIXES):
            has_bearer = has_bearer or name == b"authorization"
            headers.append((name, value))
    if key is None and scope.get("query_string") and (keys := _query(scope).get("key")):
        key = keys[0].encode("latin-1")
    if key is not None and not has_bearer:
        headers.append((b"authorization", b"Bearer " + key))
    return {**scope, "headers": headers, "query_string": b""}


def _owner(scope: Mapping[str, Any]) -> str:
    """Return a digest of the caller's key, or of the server's token, and of its role. Callers without a key are one caller."""
    sent = chat_scope(scope.get(SENT, scope))
    keys = [value for name, value in sent["headers"] if name in KEY_HEADERS]
    if not keys:  # a web page's WebSocket can have no header
        keys = [each.encode("utf-8", "replace") for each in sent.get("subprotocols") or () if _SCHEME.match(each.encode())]
    role = next((unquote_to_bytes(value) for name, value in sent["headers"] if name == _ROLE_HEADER), b"")
    return hashlib.sha256(b"\0".join([role, *(_SCHEME.sub(b"", key).strip() for key in keys)])).hexdigest()


def _query(scope: Mapping[str, Any]) -> dict[str, list[str]]:
    return parse_qs(scope.get("query_string", b"").decode("latin-1"))


async def _fetch_json(request: ProxyRequest, method: str, tail: str, body: bytes | None = None, *, at_root: bool = False) -> Any:
    """Send a request to the upstream and return the JSON of its response. Raises PatchbayError, ValueError."""
    request.watch.wait()
    response = await request.upstream.open(
        method, tail, b"", request.headers_for_upstream(OWN_HEADERS[False, False]), body, at_root=at_root
    )
    try:
        if response.status >= 400:
            raise (await request.read_rejection(response, chat=False))[1]
        check_is_plain(response)
        return decode(await read_document(request, response))
    finally:
        response.close()


class _TokenCounter:
    """Counts with the upstream's own tokenizer if it has one, as llama.cpp does; an upstream without one is asked only once."""

    def __init__(self) -> None:
        self._has_tokenizer = True

    async def count(self, request: ProxyRequest, body: bytes) -> int | None:
        """Return the tokens of the prompt that ``body``, one of chat completions, becomes; None where that is not known."""
        if not self._has_tokenizer:
            return None
        try:
            async with asyncio.timeout(_COUNTING):
                prompt = await _fetch_json(request, "POST", "/apply-template", body, at_root=True)
                content = encode({"content": prompt["prompt"], "add_special": True, "parse_special": True})
                answer = await _fetch_json(request, "POST", "/tokenize", content, at_root=True)
            return len(answer["tokens"])
        except (ValueError, KeyError, TypeError):
            self._has_tokenizer = False  # it answers something else there
        except PatchbayError as error:
            self._has_tokenizer = error.status not in (404, 405, 501)
        except TimeoutError:
            pass
        return None
