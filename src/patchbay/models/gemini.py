"""A ChatModel over google-genai's client: Gemini's own API.

A request goes through an ``Exchange`` as with every other server, over ``generate_content`` instead of HTTP: a model of this API
that takes no tools (Gemma) gets them in its prompt. Requests are dicts with google-genai's snake_case fields, answers are read by
their attributes; only ``connect_gemini`` imports the SDK.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from typing_extensions import override

from patchbay._text import json_object
from patchbay.errors import ConfigurationError, InvalidRequestError, UpstreamError
from patchbay.formats import parse
from patchbay.models.attempt import ATTEMPT_LOG
from patchbay.models.capabilities import Capabilities
from patchbay.models.chat_model import ChatRequest, ModelEvent
from patchbay.models.encoder import EventEncoder
from patchbay.models.error_bodies import client_errors
from patchbay.models.exchange import Exchange, UpstreamRejection
from patchbay.models.exchange_driver import AsyncUpstream, drive_async, read_events
from patchbay.models.options import TextOptions
from patchbay.models.policy import sum_usage
from patchbay.models.providers import GEMINI
from patchbay.models.tool_encoder import ToolEncoder
from patchbay.models.wire import Choice, Chunk, decode, encode
from patchbay.transcript import text_of
from patchbay.types import Message

SIGNATURE: Final = "thought_signature"

_COPIED: Final = ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty")
_GEMINI_PARAMETERS: Final = frozenset(
    {
        "safety_settings", "thinking_config", "cached_content", "labels", "media_resolution", "response_modalities",
        "response_mime_type", "response_schema", "response_json_schema", "max_output_tokens", "stop_sequences",
        "speech_config", "image_config", "service_tier", "http_options",
    }
)  # fmt: skip
"""Gemini's own parameters, which may be given by their names."""
_IGNORED: Final = frozenset(
    {
        "model", "messages", "tools", "tool_choice", "stream", "stream_options", "parallel_tool_calls", "user", "metadata",
        "store", "max_tokens", "max_completion_tokens", "stop", "n", "response_format", "reasoning_effort", "extra_body",
        "logprobs", "top_logprobs",
    }
)  # fmt: skip
"""OpenAI's parameters that are read below, or have no meaning here."""
_BUDGETS: Final = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24576}
"""Tokens of thought for a ``reasoning_effort``, for the models that count them; newer ones know levels."""
_COUNTS_THOUGHT: Final = re.compile(r"(?:^|/)gemini-(?:1|2)\b")
_DEMANDS_SIGNATURES: Final = re.compile(r"(?:^|/)gemini-(?!1\b|2\b|1\.|2\.)")
_FOREIGN_SIGNATURE: Final = b"skip_thought_signature_validator"
"""Google's documented placeholder for the signature of a call that this model did not make."""
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)


def gemini_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments ``model``, ``contents`` and ``config`` of ``generate_content`` for a chat-completions body.

    Raises InvalidRequestError for what Gemini's API cannot express.
    """
    model = str(body.get("model") or "")
    instructions = [text_of(m.get("content")) for m in body["messages"] if m.get("role") in ("system", "developer")]
    instruction = "\n\n".join(text for text in instructions if text)
    contents = _contents(body["messages"], signed=_DEMANDS_SIGNATURES.search(model) is not None)
    config = _config(body, model)
    if instruction and contents:
        config["system_instruction"] = instruction
    elif instruction:
        _append(contents, "user", [{"text": instruction}])
    return {"model": model, "contents": contents, "config": config}


# the conversation


def _contents(messages: Sequence[Message], *, signed: bool) -> list[dict[str, Any]]:
    names: dict[Any, str] = {}
    contents: list[dict[str, Any]] = []
    for message in messages:
        role = message.get("role")
        if role in ("system", "developer"):
            continue
        if role == "assistant":
            parts = _model_parts(message, signed=signed)
            for call in message.get("tool_calls") or ():
                names[call.get("id")] = call["function"]["name"]
            _append(contents, "model", parts)
        elif role == "tool":
            part = _response(message, names)
            # All results of a round go into one content of their own.
            if contents and "function_response" in contents[-1]["parts"][0]:
                contents[-1]["parts"].append(part)
            else:
                contents.append({"role": "user", "parts": [part]})
        else:
            _append(contents, "user", list(_parts(message.get("content"))))
    return contents


def _append(contents: list[dict[str, Any]], role: str, parts: list[dict[str, Any]]) -> None:
    """Add a turn, unless it has no parts: Gemini refuses those."""
    if parts:
        contents.append({"role": role, "parts": parts})


def _model_parts(message: Message, *, signed: bool) -> list[dict[str, Any]]:
    """The parts of the model's message: its text, then its calls, each with the signature it came with."""
    parts = list(_parts(message.get("content")))
    signature = _signature(message)
    if signature is not None:
        # It may have been in a part without text; its place is not known any more, and the end of the text is valid.
        parts = [*parts[:-1], {**parts[-1], SIGNATURE: signature}] if parts else [{"text": "", SIGNATURE: signature}]
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    if signed and calls and not any(SIGNATURE in call for call in calls):
        calls[0][SIGNATURE] = _FOREIGN_SIGNATURE
    return parts + calls


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    encoded: dict[str, Any] = {"name": function["name"], "args": json_object(function.get("arguments") or "{}") or {}}
    if call.get("id"):
        encoded["id"] = call["id"]
    signature = _signature(call)
    return {"function_call": encoded} if signature is None else {"function_call": encoded, SIGNATURE: signature}


def _signature(holder: Mapping[str, Any]) -> bytes | None:
    extra = holder.get("extra_content")
    google = extra.get("google") if isinstance(extra, Mapping) else None
    signature = google.get(SIGNATURE) if isinstance(google, Mapping) else None
    if not isinstance(signature, str):
        return None
    try:
        return base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        return signature.encode()


def _response(message: Message, names: Mapping[Any, str]) -> dict[str, Any]:
    call_id = message.get("tool_call_id")
    text = text_of(message.get("content"))
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        value = text
    response: dict[str, Any] = {
        "name": names.get(call_id) or message.get("name") or "unknown",
        "response": value if isinstance(value, dict) else {"result": value},
    }
    if call_id:
        response["id"] = call_id
    return {"function_response": response}


def _reject_constant(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are not JSON


def _parts(content: Any) -> Iterator[dict[str, Any]]:
    """Convert the parts of a content. Raises InvalidRequestError for an unknown type."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for part in content or ():
        kind = part.get("type")
        if kind in ("text", "refusal"):
            if text := part.get("text") or part.get("refusal"):
                yield {"text": text}
        elif kind == "image_url":
            url = part["image_url"]
            yield _media(url["url"] if isinstance(url, Mapping) else url, "image/jpeg")
        elif kind == "input_audio":
            audio = part["input_audio"]
            yield {"inline_data": {"data": _bytes(audio["data"]), "mime_type": f"audio/{audio.get('format', 'wav')}"}}
        elif kind == "file" and isinstance(part["file"].get("file_data"), str):
            yield _media(part["file"]["file_data"], "application/pdf")
        else:
            raise InvalidRequestError(f"A message's part of the type {kind!r} cannot be sent to Gemini.", param="messages")


def _media(url: str, kind: str) -> dict[str, Any]:
    match = _DATA_URL.match(url)
    if match is None:
        return {"file_data": {"file_uri": url}}
    return {"inline_data": {"data": _bytes(url[match.end() :]), "mime_type": match.group(1) or kind}}


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        raise InvalidRequestError("A message's data is not base64.", param="messages") from None


# the parameters


def _config(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    if body.get("n") not in (None, 1):
        raise InvalidRequestError("'n' must be 1 for Gemini.", param="n")
    extra = body.get("extra_body")
    given = {**body, **extra} if isinstance(extra, Mapping) else dict(body)
    unknown = sorted(given.keys() - _GEMINI_PARAMETERS - _IGNORED - set(_COPIED))
    if unknown:
        raise InvalidRequestError(f"Gemini has no parameter {unknown[0]!r}.", param=unknown[0])
    config: dict[str, Any] = {name: given[name] for name in (*_COPIED, *_GEMINI_PARAMETERS) if given.get(name) is not None}
    limit = given.get("max_completion_tokens") or given.get("max_tokens")
    if limit is not None:
        config.setdefault("max_output_tokens", limit)
    if (stop := given.get("stop")) is not None:
        config.setdefault("stop_sequences", [stop] if isinstance(stop, str) else list(stop))
    if (effort := given.get("reasoning_effort")) is not None:
        config.setdefault("thinking_config", _thinking(str(effort), model))
    if given.get("logprobs"):
        config |= {"response_logprobs": True, "logprobs": given.get("top_logprobs")}
    config |= _response_format(given.get("response_format"))
    if body.get("tools"):
        config["tools"] = [{"function_declarations": [_declaration(tool["function"]) for tool in body["tools"]]}]
        config["tool_config"] = {"function_calling_config": _calling(body.get("tool_choice"))}
    # The SDK must not run Python functions: the executor runs tools.
    config["automatic_function_calling"] = {"disable": True}
    return config


def _thinking(effort: str, model: str) -> dict[str, Any]:
    if _COUNTS_THOUGHT.search(model):
        if effort == "none":
            return {"thinking_budget": 0}  # (include_thoughts is refused without a budget)
        return {"thinking_budget": _BUDGETS.get(effort, -1), "include_thoughts": True}
    return {"thinking_level": "minimal" if effort == "none" else effort, "include_thoughts": True}


def _response_format(wanted: Any) -> dict[str, Any]:
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind == "json_object":
        return {"response_mime_type": "application/json"}
    if kind == "json_schema":
        return {"response_mime_type": "application/json", "response_json_schema": wanted["json_schema"]["schema"]}
    return {}


def _declaration(function: Mapping[str, Any]) -> dict[str, Any]:
    declaration = {"name": function["name"], "description": function.get("description") or function["name"]}
    parameters = function.get("parameters") or {}
    # Gemini refuses an object without properties; no schema means the same.
    return {**declaration, "parameters": parameters} if parameters.get("properties") else declaration


def _calling(choice: Any) -> dict[str, Any]:
    if isinstance(choice, Mapping):
        allowed = choice.get("allowed_tools")
        if not isinstance(allowed, Mapping):
            return {"mode": "ANY", "allowed_function_names": [choice["function"]["name"]]}
        names = [tool["function"]["name"] for tool in allowed["tools"]]
        # Names require a mode that enforces them; with "VALIDATED" the model may also answer.
        return {"mode": "ANY" if allowed.get("mode") == "required" else "VALIDATED", "allowed_function_names": names}
    return {"mode": {"none": "NONE", "required": "ANY"}.get(str(choice), "AUTO")}


_FINISH: Final = {"STOP": "stop", "MAX_TOKENS": "length", "CONTINUATION": "length", "FINISH_REASON_UNSPECIFIED": "stop"}
UNREADABLE: Final = "unreadable"
"""The finish_reason of an answer that Gemini could not parse and does not quote."""
_UNREADABLE: Final = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"})
"""The model wrote something that Gemini could not parse as a call; its text is in the message, if there is one."""
_FAILED: Final = frozenset({"OTHER", "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE", "ESCALATION"})
_CALLED: Final = re.compile(r"([A-Za-z_]\w*)\s*\(")
_PREFIX: Final = re.compile(r"^Malformed function call:\s*", re.IGNORECASE)


class GeminiAnswer:
    """Turns the pieces of one answer into chunks. ``tools`` are the request's, in OpenAI's form."""

    def __init__(self, model: str, tools: Any) -> None:
        self._id = f"chatcmpl-{uuid.uuid4().hex[:24]}"
        self._model = model
        self._tools = tools
        self._calls = 0
        self.failed = ""
        """Why Gemini gave up the answer."""

    def chunk(self, piece: Any) -> Chunk:
        """Convert a ``GenerateContentResponse``."""
        chunk = Chunk(self._id, 0, self._model, usage=_usage(piece.usage_metadata))
        candidate = (piece.candidates or [None])[0]
        if candidate is not None:
            delta = self._delta(candidate.content)
            chunk.choices = [Choice(0, delta, self._finish(candidate, delta))]
        elif (feedback := piece.prompt_feedback) is not None and feedback.block_reason is not None:
            refusal = feedback.block_reason_message or f"The prompt was blocked: {_enum_value(feedback.block_reason)}."
            chunk.choices = [Choice(0, {"refusal": refusal}, "content_filter")]
        return chunk

    def _delta(self, content: Any) -> dict[str, Any]:
        text: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        delta: dict[str, Any] = {}
        for part in (content.parts if content is not None else None) or ():
            extra = _extra(part.thought_signature)
            if part.function_call is not None:
                calls.append({**self._call(part.function_call), **extra})
                continue
            if part.text:
                (thoughts if part.thought else text).append(part.text)
            delta |= extra
        if thoughts:
            delta["reasoning_content"] = "".join(thoughts)
        if text:
            delta["content"] = "".join(text)
        if calls:
            delta["tool_calls"] = calls
        return delta

    def _call(self, call: Any) -> dict[str, Any]:
        return self._call_delta(call.name or "", json.dumps(call.args or {}, ensure_ascii=False), call.id)

    def _call_delta(self, name: str, arguments: str, call_id: str | None = None) -> dict[str, Any]:
        index = self._calls
        self._calls += 1
        # Older models send no ids; each call of a conversation needs a unique one.
        call_id = call_id or f"call_{uuid.uuid4().hex[:24]}"
        return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _finish(self, candidate: Any, delta: dict[str, Any]) -> str | None:
        if candidate.finish_reason is None:
            return None
        word = _enum_value(candidate.finish_reason)
        if word in _UNREADABLE:
            message = candidate.finish_message
            if not message:
                return UNREADABLE
            self._unreadable(message, delta)
            return "stop"
        if word in _FAILED:
            self.failed = f"Gemini gave up its answer ({word})" + (
                f": {candidate.finish_message}" if candidate.finish_message else "."
            )
            return "error"
        return _FINISH.get(word, "content_filter")

    def _unreadable(self, message: str, delta: dict[str, Any]) -> None:
        """Add the calls that the message quotes; one that cannot be parsed gets its text as arguments.

        The executor then reports the error to the model, as for any invalid arguments, and the model may retry.
        """
        text = _PREFIX.sub("", message).strip()
        calls: list[dict[str, Any]] = []
        if self._tools:
            found = parse(f"```tool_code\n{text}\n```", self._tools).tool_calls
            calls = [self._call_delta(call.name, call.raw_arguments) for call in found]
            if not calls and (named := _CALLED.search(text.removeprefix("print(").replace("default_api.", ""))):
                calls = [self._call_delta(named.group(1), text)]
        if calls:
            delta["tool_calls"] = [*delta.get("tool_calls", ()), *calls]
        elif text:
            delta["content"] = delta.get("content", "") + text


def _enum_value(value: Any) -> str:
    """Return the value of an enumeration; the SDK returns unknown values as strings."""
    return str(getattr(value, "value", value)).upper()


def _extra(signature: Any) -> dict[str, Any]:
    if not signature:
        return {}
    text = base64.b64encode(signature).decode() if isinstance(signature, bytes) else str(signature)
    return {"extra_content": {"google": {SIGNATURE: text}}}


def _usage(counts: Any) -> dict[str, int] | None:
    if counts is None:
        return None
    prompt = (counts.prompt_token_count or 0) + (counts.tool_use_prompt_token_count or 0)
    completion = (counts.candidates_token_count or 0) + (counts.thoughts_token_count or 0)
    total = counts.total_token_count or prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


_MILLISECONDS: Final = 1000
_MOST_UNREADABLE: Final = 3
"""Maximum of answers in a row that Gemini could not parse."""


def connect_gemini(
    key: str, url: str, *, timeout: float | None, max_retries: int | None, headers: Mapping[str, str] | None
) -> Any:
    """Make a ``google.genai.Client``; ``timeout`` is in seconds. Raises ConfigurationError if google-genai is not installed."""
    try:
        import google.genai as genai
    except ImportError:
        raise ConfigurationError("Gemini needs google-genai: pip install 'patchbay-tools[gemini]'.") from None
    options: Any = {"base_url": url, "headers": dict(headers or {})}
    # A redirect would be followed to any host with the key in a header of Google's own. The SDK uses one of two HTTP clients, and
    # each has its own argument for this.
    options["async_client_args"] = {"allow_redirects": False, "follow_redirects": False}
    if timeout is not None:
        options["timeout"] = max(1, round(timeout * _MILLISECONDS))
    # The openai client's default.
    options["retry_options"] = {"attempts": 1 + (2 if max_retries is None else max_retries)}
    # vertexai is explicit, because environment variables could choose another service of Google's.
    return genai.Client(vertexai=False, api_key=key, http_options=options)


class GeminiChatModel:
    """A ChatModel over a ``google.genai.Client``.

    Errors of the client are raised as UpstreamError, with the client's own as ``__cause__``. ``request.parameters`` are
    OpenAI's; Gemini's own (``thinking_config``, ``safety_settings``, ...) are allowed too. ``model`` is the default for requests
    without one. ``reasoning_effort`` or ``thinking_config`` asks for thoughts.
    """

    def __init__(
        self,
        client: Any,
        *,
        model: str | None = None,
        options: TextOptions | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        self._named = {} if model is None else {"model": model}
        self._models = client.aio.models
        self._client = client
        # Unknown tools must reach the executor: its error tells the model which there are.
        self._options = TextOptions(unknown_tools="keep") if options is None else options
        self._capabilities = Capabilities(doubts=False) if capabilities is None else capabilities
        self._encoder = ToolEncoder(GEMINI)

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``. Raises UpstreamError, UpstreamTimeoutError, ToolChoiceError, InvalidRequestError."""
        tools = self._encoder.of(request.tools)
        body = {**self._named, **tools.body(request), "stream": True, "stream_options": {"include_usage": True}}
        exchange = Exchange(encode(body), self._options, self._capabilities, EventEncoder())
        exchange.attempt_log = ATTEMPT_LOG.get()
        stream = request.stream
        answer = drive_async(exchange, _GeminiUpstream(lambda body: self._chunks(body, stream=stream)))
        async with aclosing(read_events(answer, tools, GEMINI, stream=stream)) as events:
            async for event, _ in events:
                yield event

    async def _chunks(self, body: Mapping[str, Any], *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """Yield the answer to a chat-completions body as chunks; retry one that Gemini could not parse."""
        spent: list[Mapping[str, Any]] = []
        for _ in range(_MOST_UNREADABLE):
            answer = GeminiAnswer(str(body.get("model")), body.get("tools"))
            usage, wrote = None, False
            async with aclosing(self._generate(gemini_request(body), stream=stream)) as pieces:
                async for piece in pieces:
                    chunk = answer.chunk(piece)
                    if answer.failed:
                        raise UpstreamError(answer.failed)
                    usage, choices = chunk.usage or usage, chunk.choices or ()
                    if any(choice.finish_reason == UNREADABLE for choice in choices):
                        break
                    wrote = wrote or any((choice.delta or {}).keys() - {"reasoning_content"} for choice in choices)
                    if spent and chunk.usage is not None:
                        chunk.usage = sum_usage([*spent, chunk.usage])
                    yield chunk
                else:
                    return
            if wrote:
                break
            spent.append(usage or {})
        raise UpstreamError("Gemini could not read the call that its model wrote (MALFORMED_FUNCTION_CALL).")

    async def _generate(self, arguments: dict[str, Any], *, stream: bool) -> AsyncGenerator[Any, None]:
        """Yield the SDK's pieces of an answer."""
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
        """Return the secrets to redact from errors; the client has no public name for its key."""
        return (getattr(getattr(self._client, "_api_client", None), "api_key", None),)


class _GeminiUpstream(AsyncUpstream):
    """``generate_content`` as the server behind an exchange; ``ask`` yields the chunks of an answer."""

    def __init__(self, ask: Callable[[Any], AsyncGenerator[Chunk, None]]) -> None:
        self._ask = ask
        self._chunks: AsyncGenerator[Chunk, None] | None = None
        self._first: Chunk | None = None

    async def send(self, body: bytes) -> UpstreamRejection | None:
        """Send a request, and read the first chunk, which raises the server's error."""
        self._chunks = self._ask(decode(body))
        try:
            self._first = await anext(self._chunks, None)
        except UpstreamError as error:
            if error.upstream_status is None:
                raise
            return UpstreamRejection(error.upstream_status, f"{error} {error.body}", error)
        return None

    @override
    async def read(self) -> Chunk | None:
        first, self._first = self._first, None
        assert self._chunks is not None
        return await anext(self._chunks, None) if first is None else first

    @override
    async def close(self) -> None:
        if self._chunks is not None:
            await self._chunks.aclose()
