"""Anthropic Messages as a front-end: ``POST /v1/messages`` and ``/v1/messages/count_tokens``.

The same conversation always gives the same bytes. Left out, for want of a counterpart: tools that Anthropic runs, unknown blocks,
betas, prompt-cache marks, ``context_management``, ``top_k``.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.frontends.base import (
    MCP_ADVICE,
    Conversation,
    DecodedRequest,
    FrontendEncoder,
    OmissionLog,
    call_of,
    chat_body,
    checked,
    chosen_function,
    each_object,
    effort_of,
    function_of,
    json_format,
    member,
    read_object,
    refuse,
    text_part,
    tokens_of,
)
from patchbay.frontends.client_tools import anthropic_tool
from patchbay.models.error_bodies import as_patchbay_error, error_text
from patchbay.models.parts import AnswerChoice
from patchbay.models.upstream_errors import QUOTA, context_tokens, status_of, subject_of
from patchbay.models.wire import encode, objects
from patchbay.types import ToolCall

_omit = OmissionLog("Anthropic Messages")
_COPIED: Final = ("temperature", "top_p", "model", "max_tokens")
_REFUSED: Final = {"mcp_servers": MCP_ADVICE}
_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_ENCODED: Final = "toolu_b64_"
"""Prefix of a call's id whose characters Anthropic does not allow: the rest is its base64."""
_REFERENCED: Final = "This tool can be called from now on: "


class ThreadsUnsupportedError(InvalidRequestError):
    """A request that continues a thread, which the server would have to store; the client then sends all messages."""

    code = "thread_unsupported_request"

    def __init__(self) -> None:
        super().__init__("Threads are not kept here: send all messages, without 'thread'.", param="thread")


def decode_request(given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Decode a request of ``POST /v1/messages``; return a body of chat completions, and the hosted web search that it is for.

    Raises InvalidRequestError.
    """
    member(given, "model", str, "", "a string")
    if given.get("thread") is not None:
        raise ThreadsUnsupportedError
    refuse(given, _REFUSED)
    limit = given.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise InvalidRequestError("'max_tokens' must be a whole number above 0.", param="max_tokens")
    conversation = _Messages()
    if system := given.get("system"):
        conversation.add("system", _system(system, "system"))
    for path, message in each_object(given.get("messages"), "messages", "an array of messages"):
        conversation.add_message(message, path)
    tools, hosted = _tools(given.get("tools"), conversation.referenced, given.get("tool_choice"))
    names = "output_config", "thinking", "metadata"
    config, thinking, metadata = (value if isinstance(value, dict) else {} for value in map(given.get, names))
    wanted = config.get("format") or given.get("output_format")
    schema = wanted.get("schema") if isinstance(wanted, dict) and wanted.get("type") == "json_schema" else None
    budget = {"enabled": thinking.get("budget_tokens"), "disabled": 0}.get(str(thinking.get("type")))
    chat = chat_body(
        {name: given[name] for name in _COPIED if given.get(name) is not None} | {"messages": conversation.finish()},
        stream=given.get("stream"),
        stop=checked(given.get("stop_sequences") or [], list, "stop_sequences", "an array of strings"),
        user=user if isinstance(user := metadata.get("user_id"), str) else None,
        tools=tools,
        response_format=json_format(schema, strict=True),
        reasoning_effort=_EFFORTS.get(str(config.get("effort"))) or effort_of(budget),
        patchbay=given.get("patchbay"),
        **_tool_choice(given.get("tool_choice")),
    )
    return chat, hosted


def _system(system: str | list[Any], path: str) -> str:
    if isinstance(system, str):
        return system
    return "\n\n".join(_text(block, where) for where, block in each_object(system, path, "a string or an array of text blocks"))


def _text(block: Mapping[str, Any], path: str) -> str:
    return str(member(block, "text", str, path, "a string"))


class _Messages(Conversation):
    """The messages of a conversation. ``referenced`` are the deferred tools that a search has found, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.referenced: dict[str, None] = {}

    def add_message(self, message: Mapping[str, Any], path: str) -> None:
        """Add a message. Raises InvalidRequestError."""
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            raise InvalidRequestError(f"'{path}.role' must be 'user', 'assistant' or 'system'.", param=f"{path}.role")
        path = f"{path}.content"
        if role == "system" and (content := checked(content, (str, list), path, "a string or an array")):
            self.add(role, _system(content, path))
        elif isinstance(content, str):
            self.add(role, content)
        elif role == "assistant":
            self._add_answer(_typed(content, path))
        elif role == "user":
            self._add_question(_typed(content, path))

    def _add_answer(self, blocks: Iterable[tuple[str, dict[str, Any], str]]) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        for path, block, kind in blocks:
            if kind == "text":
                texts.append(_text(block, path))
            elif kind == "thinking":
                thoughts.append(str(block.get("thinking") or ""))
            elif kind == "tool_use":
                call_id, name = (member(block, key, str, path, "a string") for key in ("id", "name"))
                calls.append(call_of(_decode_id(call_id), name, member(block, "input", dict, path, "an object")))
            elif kind != "redacted_thinking":
                _omit(f"a block of the type {kind!r} in a message of the assistant")
        self.assistant(texts, calls, thoughts)

    def _add_question(self, blocks: Iterable[tuple[str, dict[str, Any], str]]) -> None:
        parts: list[dict[str, Any]] = []
        for path, block, kind in blocks:
            if kind == "tool_result":
                content = block.get("content") or []
                shown = [text_part(content)] if isinstance(content, str) else self._parts(_typed(content, f"{path}.content"))
                call_id = _decode_id(member(block, "tool_use_id", str, path, "a string"))
                self.result(call_id, shown, failed=block.get("is_error") is True)
            else:
                parts += self._parts([(path, block, kind)])
        self.user(parts)

    def _parts(self, blocks: Iterable[tuple[str, dict[str, Any], str]]) -> list[dict[str, Any]]:
        """Convert what a user or a tool has sent."""
        parts: list[dict[str, Any]] = []
        for path, block, kind in blocks:
            if kind == "text":
                parts.append(text_part(_text(block, path)))
            elif kind == "tool_reference":
                name = str(member(block, "tool_name", str, path, "a string"))
                self.referenced[name] = None
                parts.append(text_part(_REFERENCED + name))
            elif kind == "search_result":
                texts = [str(each.get("text") or "") for each in objects(block.get("content"))]
                parts.append(text_part("\n".join([f"{block.get('title') or ''} ({block.get('source') or ''})", *texts])))
            elif kind in ("image", "document"):
                parts += _media(block, kind, path)
            else:
                _omit(f"a block of the type {kind!r} in a message of the user")
        return parts


def _typed(blocks: Any, path: str) -> Iterable[tuple[str, dict[str, Any], str]]:
    """Yield each block with its path and its type."""
    for where, block in each_object(blocks, path, "a string or an array"):
        yield where, block, member(block, "type", str, where, "a string")


def _media(block: Mapping[str, Any], kind: str, path: str) -> list[dict[str, Any]]:
    """Convert an image or a document, with what its client says about it."""
    source, path = member(block, "source", dict, path, "an object"), f"{path}.source"
    form = source.get("type")
    title, about = (value if isinstance(value := block.get(name), str) else "" for name in ("title", "context"))
    if form in ("text", "content"):
        text = member(source, "data", str, path, "a string") if form == "text" else source.get("content")
        texts = [text] if isinstance(text, str) else [str(each.get("text") or "") for each in objects(text)]
        return [text_part("\n\n".join(filter(None, [title and f"Document: {title}", about, *texts])))]
    if form == "url":
        url = member(source, "url", str, path, "a string")
    elif form == "base64":
        media_type = member(source, "media_type", str, path, "a string")
        url = f"data:{media_type};base64,{member(source, 'data', str, path, 'a string')}"
    else:
        raise InvalidRequestError(
            f"'{path}.type' is {form!r}, and files are not kept here: send 'base64' or a 'url'.", param=path
        )
    if kind == "image":
        return [{"type": "image_url", "image_url": {"url": url}}]
    file = {"type": "file", "file": {"filename": title or "document.pdf", "file_data": url}}
    return [text_part(about), file] if about else [file]


def _tools(tools: Any, referenced: Mapping[str, None], choice: Any) -> tuple[list[dict[str, Any]], str]:
    """Return the callable tools, deferred ones last in the order in which they were found, and a hosted web search.

    It is "" where there are other tools, unless ``choice`` names it.
    """
    plain: list[dict[str, Any]] = []
    deferred: dict[str, dict[str, Any]] = {}
    web: list[dict[str, Any]] = []
    for path, tool in each_object(tools or [], "tools"):
        kind = tool.get("type") or "custom"
        published = anthropic_tool(kind)
        if kind != "custom" and published is None:
            if str(kind).startswith(("web_search", "web_fetch")):
                web.append(tool)
            else:
                _omit(f"the hosted tool {kind!r}")
            continue
        name = member(tool, "name", str, path, "a string")
        schema = published["parameters"] if published else member(tool, "input_schema", dict, path, "an object")
        function = function_of({**tool, **(published or {})}, name, schema)
        if examples := objects(tool.get("input_examples")):
            described = [
                function["function"].get("description"),
                "Examples of its input:",
                *(encode(each).decode() for each in examples),
            ]
            function["function"]["description"] = "\n".join(filter(None, described))
        if tool.get("defer_loading") is True:
            deferred[name] = function
        else:
            plain.append(function)
    chosen = choice.get("name") if isinstance(choice, dict) else None
    hosted = next((tool["type"] for tool in web if chosen and tool.get("name") == chosen), "")
    if plain or deferred:
        for tool in web:
            if tool["type"] != hosted:
                _omit(f"the hosted tool {tool['type']!r}")
    elif web and not hosted:
        hosted = web[-1]["type"]
    return plain + [deferred[name] for name in referenced if name in deferred], hosted


def _tool_choice(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    kind = checked(choice, dict, "tool_choice", "an object").get("type")
    if kind not in ("auto", "any", "none", "tool"):
        raise InvalidRequestError("'tool_choice.type' must be 'auto', 'any', 'tool' or 'none'.", param="tool_choice.type")
    chosen = chosen_function(member(choice, "name", str, "tool_choice", "a string")) if kind == "tool" else kind
    fields = {"tool_choice": "required" if kind == "any" else chosen}
    return fields | ({"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") is True else {})


# answers

_STOP_REASONS: Final = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_DELTA: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":'
_TEXT: Final = _DELTA + b'"text_delta","text":%s}}\n\n'
_THINKING: Final = _DELTA + b'"thinking_delta","thinking":%s}}\n\n'
_ARGUMENTS: Final = _DELTA + b'"input_json_delta","partial_json":%s}}\n\n'
_ERROR_TYPES: Final = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip


class MessagesEncoder(FrontendEncoder):
    """Writes the events of a streamed message, or a whole message.

    ``model`` is the request's: the client expects the name that it sent. ``thinking``: it asked for reasoning. A call is written
    once its arguments are complete: clients run a block without asking how the message ended.
    """

    def __init__(self, model: str, *, thinking: bool) -> None:
        super().__init__()
        self._model = model
        self._thinking = thinking
        self._started = False
        self._blocks = 0
        self._open = ""
        """The type of the open block, "" without one."""

    def text(self, text: str) -> bytes:
        opened = self._block("text", {"type": "text", "text": ""})
        return opened + _TEXT % (self._blocks, encode(text))

    def reasoning(self, text: str) -> bytes:
        if not self._thinking:
            return b""
        opened = self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        return opened + _THINKING % (self._blocks, encode(text))

    def end_call(self, index: int, call: ToolCall) -> bytes:  # noqa: ARG002
        opened = self._close_block() + self._block("tool_use", {**_tool_use(call), "input": {}})
        return opened + _ARGUMENTS % (self._blocks, encode(call.raw_arguments)) + self._close_block()

    def finish(self, choice: int, reason: str, **more: Any) -> bytes:
        return super().finish(choice, reason, **more) + self._close_block()

    def end_answer(self) -> bytes:
        delta = {"stop_reason": self._stop_reason, "stop_sequence": None}
        event = {"type": "message_delta", "delta": delta, "usage": _usage(self._usage)}
        return self._start() + _event(event) + _event({"type": "message_stop"})

    def error(self, error: PatchbayError | str) -> bytes:
        return b"event: error\ndata: " + encode_error(error)[1] + b"\n\n"

    def document(self, choice: AnswerChoice) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if self._thinking and (reasoning := choice.reasoning):
            content.append({"type": "thinking", "thinking": reasoning, "signature": ""})
        if text := choice.text:
            content.append({"type": "text", "text": text})
        content += map(_tool_use, choice.calls)
        return self._message(content, self._stop_reason, self._usage)

    @property
    def _stop_reason(self) -> str:
        return _STOP_REASONS.get(self._finish, "end_turn")

    # the parts of a stream

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return _event({"type": "message_start", "message": self._message([], None, None)})

    def _message(self, content: list[dict[str, Any]], reason: str | None, usage: Mapping[str, Any] | None) -> dict[str, Any]:
        # Not the upstream's id, which servers repeat: Claude Code joins messages of one id, and calls with them.
        return {
            "id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": self._model,
            "content": content, "stop_reason": reason, "stop_sequence": None, "usage": _usage(usage),
        }  # fmt: skip

    def _block(self, kind: str, block: dict[str, Any]) -> bytes:
        """Open a block, unless one of its kind is open."""
        if self._open == kind:
            return b""
        closed = self._start() + self._close_block()
        self._open = kind
        return closed + _event({"type": "content_block_start", "index": self._blocks, "content_block": block})

    def _close_block(self) -> bytes:
        if not self._open:
            return b""
        self._open = ""
        self._blocks += 1
        return _event({"type": "content_block_stop", "index": self._blocks - 1})


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": _encode_id(call.id), "name": call.name, "input": call.arguments}


def _encode_id(call_id: str) -> str:
    """Return the id of a call for a client: Anthropic allows letters, digits, "_" and "-"."""
    if _ID.fullmatch(call_id) and not call_id.startswith(_ENCODED):
        return call_id
    return _ENCODED + base64.urlsafe_b64encode(call_id.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def _decode_id(call_id: str) -> str:
    """Return the id of a call as its server wrote it."""
    if not call_id.startswith(_ENCODED):
        return call_id
    encoded = call_id.removeprefix(_ENCODED)
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode("utf-8", "surrogatepass")
    except ValueError:
        return call_id


def encode_error(error: PatchbayError | str) -> tuple[int, bytes]:
    """Return Anthropic's status and body for an error, in its own words where clients look for them."""
    error = as_patchbay_error(error)
    status, message = 402 if subject_of(error) is QUOTA else status_of(error), error_text(error)
    if (tokens := context_tokens(error)) is not None:
        prompt, output, limit = tokens
        if prompt and output and limit and prompt < limit:
            message = f"input length and `max_tokens` exceed context limit: {prompt} + {output} > {limit}"
        elif prompt and limit:
            message = f"prompt is too long: {prompt} tokens > {limit} maximum"
        else:
            message = f"prompt is too long: {message}"
    kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    described: dict[str, Any] = {"type": kind, "message": message}
    if isinstance(error, ThreadsUnsupportedError):  # (with this, Anthropic's packages send whole conversations)
        described["details"] = {"error_code": error.code, "unsupported": ["thread"]}
    return status, encode({"type": "error", "error": described})


def _event(event: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), encode(event))


def _usage(usage: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return usage in Anthropic's fields."""
    tokens = tokens_of(usage)
    return {
        "input_tokens": max(0, tokens.prompt - tokens.cached), "output_tokens": tokens.completion,
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": tokens.cached,
    }  # fmt: skip


class AnthropicMessages:
    """Anthropic's Messages API."""

    name, protocol = "Anthropic Messages", "messages"
    heartbeat = b'event: ping\ndata: {"type":"ping"}\n\n'
    encode_error = staticmethod(encode_error)

    def decode(self, body: bytes, _path: str) -> DecodedRequest:
        given = read_object(body)
        chat, hosted = decode_request(given)
        thinking = given.get("thinking")
        asked = isinstance(thinking, Mapping) and thinking.get("type") in ("enabled", "adaptive")
        return DecodedRequest(chat, MessagesEncoder(chat["model"], thinking=asked), hosted=hosted)

    def encode_count(self, tokens: int) -> bytes:
        return encode({"input_tokens": tokens})

    def encode_models(self, models: Sequence[Mapping[str, Any]]) -> bytes:
        """Encode an OpenAI-compatible server's list of models in Anthropic's form."""
        data = [_model(each) for each in models]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return encode({"data": data, "has_more": False, **ends})

    def encode_model(self, model: Mapping[str, Any]) -> bytes:
        """Encode one of these models."""
        return encode(_model(model))


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model with its creation time; the epoch if its server does not send one."""
    created = model.get("created")
    seconds = created if type(created) is int and 0 <= created < 2**32 else 0
    date = datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": model["id"], "display_name": model["id"], "created_at": date}
