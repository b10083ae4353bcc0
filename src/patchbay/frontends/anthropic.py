"""Anthropic Messages as a front-end: ``POST /v1/messages`` and ``/v1/messages/count_tokens``.

The same conversation always gives the same bytes. Left out, for want of a counterpart: hosted tools, unknown blocks, betas,
prompt-cache marks, ``thinking``, ``context_management``, ``top_k``.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.frontends.base import (
    DecodedRequest,
    FrontendEncoder,
    OmissionLog,
    checked,
    drop_old_reasoning,
    member,
    object_schema,
    objects,
    read_body,
)
from patchbay.models.error_bodies import as_patchbay_error, error_text
from patchbay.models.parts import NO_HEAD, Answer, AnswerHead
from patchbay.models.wire import encode
from patchbay.types import Message, ToolCall

_omit = OmissionLog("Anthropic Messages")
_COPIED: Final = ("temperature", "top_p", "model")
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_ENCODED: Final = "toolu_b64_"
"""Prefix of a call's id whose characters Anthropic does not allow: the rest is its base64."""
_REFERENCED: Final = "This tool can be called from now on: "
_IMAGES: Final = "Images that the tools returned:"


class ThreadsUnsupportedError(InvalidRequestError):
    """A request that continues a thread, which the server would have to store; the client then sends all messages."""

    code = "thread_unsupported_request"

    def __init__(self) -> None:
        super().__init__("Threads are not kept here: send all messages, without 'thread'.", param="thread")


def decode_request(given: Mapping[str, Any]) -> dict[str, Any]:
    """Decode a request of ``POST /v1/messages`` into a body of chat completions. Raises InvalidRequestError."""
    member(given, "model", str, "", "a string")
    if given.get("thread") is not None:
        raise ThreadsUnsupportedError
    limit = given.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise InvalidRequestError("'max_tokens' must be a whole number above 0.", param="max_tokens")
    messages = member(given, "messages", list, "", "an array of messages")
    decoder = _Messages(messages)
    chat: dict[str, Any] = {name: given[name] for name in _COPIED if given.get(name) is not None}
    chat["messages"] = [*_system(given.get("system")), *decoder.messages]
    if limit is not None:
        chat["max_tokens"] = limit
    if stop := given.get("stop_sequences"):
        chat["stop"] = checked(stop, list, "stop_sequences", "an array of strings")
    metadata = given.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(metadata.get("user_id"), str):
        chat["user"] = metadata["user_id"]
    if tools := _tools(given.get("tools"), decoder.referenced):
        chat["tools"] = tools
        chat |= _tool_choice(given.get("tool_choice"))
    if (schema := _output_schema(given)) is not None:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    if given.get("stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _system(system: Any) -> list[Message]:
    if not system:
        return []
    if isinstance(system, str):
        return [{"role": "system", "content": system}]
    blocks = checked(system, list, "system", "a string or an array of text blocks")
    text = "\n\n".join(_text(block, f"system[{index}]") for index, block in enumerate(blocks))
    return [{"role": "system", "content": text}]


def _text(block: Any, path: str) -> str:
    block = checked(block, dict, path, "an object")
    return str(member(block, "text", str, path, "a string"))


def _output_schema(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    config = given.get("output_config")
    wanted = config.get("format") if isinstance(config, Mapping) else None
    if not isinstance(wanted, Mapping):
        wanted = given.get("output_format")
    if not isinstance(wanted, Mapping) or wanted.get("type") != "json_schema":
        return None
    schema = wanted.get("schema")
    return schema if isinstance(schema, Mapping) else None


class _Messages:
    """The messages of a conversation. ``referenced`` are the deferred tools that a search has found, in order."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.messages: list[Message] = []
        self.referenced: dict[str, None] = {}
        for index, message in enumerate(given):
            path = f"messages[{index}]"
            checked(message, dict, path, "an object")
            role, content = message.get("role"), message.get("content")
            blocks = content if isinstance(content, str) else checked(content, list, f"{path}.content", "a string or an array")
            if role == "assistant":
                self._assistant(blocks, path)
            elif role == "system":
                self.messages += _system(blocks)
            elif role == "user":
                self._user(blocks, path)
            else:
                raise InvalidRequestError(f"'{path}.role' must be 'user', 'assistant' or 'system'.", param=f"{path}.role")
        self.messages = drop_old_reasoning(self.messages)

    def _assistant(self, blocks: str | list[Any], path: str) -> None:
        if isinstance(blocks, str):
            self.messages.append({"role": "assistant", "content": blocks})
            return
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        for block, kind, where in _typed(blocks, f"{path}.content"):
            if kind == "text":
                texts.append(_text(block, where))
            elif kind == "thinking":
                thoughts.append(str(block.get("thinking") or ""))
            elif kind == "tool_use":
                calls.append(_call(block, where))
            elif kind != "redacted_thinking":
                _omit(f"a block of the type {kind!r} in a message of the assistant")
        message: Message = {"role": "assistant", "content": "".join(texts) or None}
        if any(thoughts):
            message["reasoning_content"] = "\n\n".join(filter(None, thoughts))
        if calls:
            message["tool_calls"] = calls
        if message["content"] is None and not calls:
            message["content"] = ""
        self.messages.append(message)

    def _user(self, blocks: str | list[Any], path: str) -> None:
        if isinstance(blocks, str):
            self.messages.append({"role": "user", "content": blocks})
            return
        parts: list[dict[str, Any]] = []
        images: list[dict[str, Any]] = []
        for block, kind, where in _typed(blocks, f"{path}.content"):
            if kind == "tool_result":
                # A tool message has only text, and those of a round are consecutive.
                text, shown = self._result(block, where)
                call_id = _decode_id(member(block, "tool_use_id", str, where, "a string"))
                self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
                images += shown
            elif (part := _part(block, kind, where)) is not None:
                parts.append(part)
            else:
                _omit(f"a block of the type {kind!r} in a message of the user")
        if images:
            parts = [{"type": "text", "text": _IMAGES}, *images, *parts]
        if parts:
            only_text = all(part["type"] == "text" for part in parts)
            content: Any = "\n\n".join(part["text"] for part in parts) if only_text else parts
            self.messages.append({"role": "user", "content": content})

    def _result(self, block: Mapping[str, Any], path: str) -> tuple[str, list[dict[str, Any]]]:
        """Return the text of a tool's result, and its images."""
        content = block.get("content")
        images: list[dict[str, Any]] = []
        if content is None or isinstance(content, str):
            text = content or ""
        else:
            texts: list[str] = []
            for inner, kind, where in _typed(
                checked(content, list, f"{path}.content", "a string or an array"), f"{path}.content"
            ):
                if kind == "tool_reference":
                    name = str(member(inner, "tool_name", str, where, "a string"))
                    self.referenced[name] = None
                    texts.append(_REFERENCED + name)
                elif (part := _part(inner, kind, where)) is None:
                    _omit(f"a block of the type {kind!r} in a tool's result")
                elif part["type"] == "text":
                    texts.append(part["text"])
                else:
                    images.append(part)
            text = "\n\n".join(texts)
        if block.get("is_error") is True and not text:
            text = "The tool failed."
        return text, images


def _typed(blocks: Sequence[Any], path: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield each block with its type and its path."""
    for index, block in enumerate(blocks):
        where = f"{path}[{index}]"
        checked(block, dict, where, "an object")
        yield block, member(block, "type", str, where, "a string"), where


def _call(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    call_id = _decode_id(member(block, "id", str, path, "a string"))
    name = member(block, "name", str, path, "a string")
    arguments = json.dumps(member(block, "input", dict, path, "an object"), ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _part(block: Mapping[str, Any], kind: str, path: str) -> dict[str, Any] | None:
    """Convert a part of a user's content; None for an unknown kind."""
    if kind == "text":
        return {"type": "text", "text": _text(block, path)}
    if kind == "search_result":
        texts = [str(each.get("text") or "") for each in objects(block.get("content"))]
        return {"type": "text", "text": "\n".join([f"{block.get('title') or ''} ({block.get('source') or ''})", *texts])}
    if kind not in ("image", "document"):
        return None
    source = member(block, "source", dict, path, "an object")
    where = f"{path}.source"
    form = source.get("type")
    if form == "text":
        return {"type": "text", "text": member(source, "data", str, where, "a string")}
    if form == "content":
        inner = source.get("content")
        texts = [inner] if isinstance(inner, str) else [str(each.get("text") or "") for each in objects(inner)]
        return {"type": "text", "text": "\n\n".join(texts)}
    if form == "url":
        url = member(source, "url", str, where, "a string")
    elif form == "base64":
        media_type = member(source, "media_type", str, where, "a string")
        url = f"data:{media_type};base64,{member(source, 'data', str, where, 'a string')}"
    else:
        return None
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    name = block.get("title")
    return {"type": "file", "file": {"filename": name if isinstance(name, str) and name else "document.pdf", "file_data": url}}


def _tools(tools: Any, referenced: Mapping[str, None]) -> list[dict[str, Any]]:
    """Return the callable tools: deferred ones last, in the order in which they were found."""
    plain: list[dict[str, Any]] = []
    deferred: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(checked(tools or [], list, "tools", "an array")):
        path = f"tools[{index}]"
        checked(tool, dict, path, "an object")
        if tool.get("type") not in (None, "custom"):
            _omit(f"the hosted tool {tool['type']!r}")
            continue
        name = member(tool, "name", str, path, "a string")
        function = {"name": name, "parameters": object_schema(member(tool, "input_schema", dict, path, "an object"))}
        if isinstance(tool.get("description"), str):
            function["description"] = tool["description"]
        if isinstance(tool.get("strict"), bool):
            function["strict"] = tool["strict"]
        encoded = {"type": "function", "function": function}
        if tool.get("defer_loading") is True:
            deferred[name] = encoded
        else:
            plain.append(encoded)
    return plain + [deferred[name] for name in referenced if name in deferred]


def _tool_choice(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    choice = checked(choice, dict, "tool_choice", "an object")
    kind = choice.get("type")
    fields: dict[str, Any] = {}
    if kind == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": member(choice, "name", str, "tool_choice", "a string")}}
    elif kind in ("auto", "any", "none"):
        fields["tool_choice"] = {"any": "required"}.get(kind, kind)
    else:
        raise InvalidRequestError("'tool_choice.type' must be 'auto', 'any', 'tool' or 'none'.", param="tool_choice.type")
    if choice.get("disable_parallel_tool_use") is True:
        fields["parallel_tool_calls"] = False
    return fields


# answers

_STOP_REASONS: Final = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_DELTA: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":'
_TEXT: Final = _DELTA + b'"text_delta","text":%s}}\n\n'
_THINKING: Final = _DELTA + b'"thinking_delta","thinking":%s}}\n\n'
_ARGUMENTS: Final = _DELTA + b'"input_json_delta","partial_json":%s}}\n\n'
_ERROR_TYPES: Final = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip


class MessagesEncoder(FrontendEncoder):
    """Writes the events of a streamed message, or a whole message.

    ``model`` is the request's: the client expects the name that it sent. ``thinking``: it asked for reasoning. A call is written
    once its arguments are complete: clients run a block without asking how the message ended.
    """

    def __init__(self, model: str, *, thinking: bool) -> None:
        self._model = model
        self._thinking = thinking
        self._head = NO_HEAD
        self._started = False
        self._blocks = 0
        self._open = ""
        """The type of the open block, "" without one."""
        self._stop_reason: str | None = None
        self._usage: Mapping[str, Any] = {}

    def begin(self, head: AnswerHead) -> None:
        """See AnswerEncoder."""
        if not self._started:
            self._head = head

    def text(self, text: str) -> bytes:
        """See FrontendEncoder."""
        opened = self._block("text", {"type": "text", "text": ""})
        return opened + _TEXT % (self._blocks, encode(text))

    def reasoning(self, text: str) -> bytes:
        """See FrontendEncoder."""
        if not self._thinking:
            return b""
        opened = self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        return opened + _THINKING % (self._blocks, encode(text))

    def end_call(self, index: int, call: ToolCall) -> bytes:  # noqa: ARG002
        """See FrontendEncoder."""
        opened = self._close_block() + self._block("tool_use", {**_tool_use(call), "input": {}})
        return opened + _ARGUMENTS % (self._blocks, encode(call.raw_arguments)) + self._close_block()

    def finish(self, choice: int, reason: str, **more: Any) -> bytes:  # noqa: ARG002
        """See AnswerEncoder."""
        self._stop_reason = _STOP_REASONS.get(reason, "end_turn")
        self._usage = more.get("usage") or {}
        return self._close_block()

    def usage(self, usage: Any) -> bytes:
        """See AnswerEncoder: it is written with the end."""
        self._usage = usage if isinstance(usage, Mapping) else {}
        return b""

    def end(self) -> bytes:
        """See AnswerEncoder."""
        started = self._start()
        delta = {"stop_reason": self._stop_reason or "end_turn", "stop_sequence": None}
        event = {"type": "message_delta", "delta": delta, "usage": _usage(self._usage)}
        return started + _event(event) + _event({"type": "message_stop"})

    def error(self, error: PatchbayError | str) -> bytes:
        """See AnswerEncoder."""
        return b"event: error\ndata: " + error_body(error) + b"\n\n"

    def whole(self, answer: Answer) -> bytes:
        """See AnswerEncoder."""
        first = answer.first
        content: list[dict[str, Any]] = []
        if self._thinking and (reasoning := first.reasoning):
            content.append({"type": "thinking", "thinking": reasoning, "signature": ""})
        if text := first.text:
            content.append({"type": "text", "text": text})
        content += [_tool_use(call) for call in first.calls]
        reason = _STOP_REASONS.get(first.finish or "", "end_turn")
        return encode(self._message(answer.head, content, reason, answer.usage or {}))

    # the parts of a stream

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return _event({"type": "message_start", "message": self._message(self._head, [], None, {})})

    def _message(
        self, head: AnswerHead, content: list[dict[str, Any]], reason: str | None, usage: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": _message_id(head.id), "type": "message", "role": "assistant", "model": self._model, "content": content,
            "stop_reason": reason, "stop_sequence": None, "usage": _usage(usage),
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


def error_body(error: PatchbayError | str) -> bytes:
    """Return Anthropic's error body for an error."""
    error = as_patchbay_error(error)
    kind = _ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    described: dict[str, Any] = {"type": kind, "message": error_text(error)}
    if isinstance(error, ThreadsUnsupportedError):  # (with this, Anthropic's packages send whole conversations)
        described["details"] = {"error_code": error.code, "unsupported": ["thread"]}
    return encode({"type": "error", "error": described})


def _event(event: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), encode(event))


def _message_id(upstream: str | None) -> str:
    return upstream if upstream and upstream.startswith("msg_") else f"msg_{upstream or 'patchbay'}"


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return usage in Anthropic's fields; 0 if the upstream sent none."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    cached = cached if isinstance(cached, int) else 0
    prompt = usage.get("prompt_tokens")
    completion = usage.get("completion_tokens")
    return {
        "input_tokens": max(0, prompt - cached) if isinstance(prompt, int) else 0,
        "output_tokens": completion if isinstance(completion, int) else 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


class AnthropicMessages:
    """See Frontend."""

    name, protocol = "Anthropic Messages", "messages"
    heartbeat = b'event: ping\ndata: {"type":"ping"}\n\n'

    def decode(self, body: bytes, _path: str) -> DecodedRequest:
        """See Frontend."""
        given = read_body(body)
        chat = decode_request(given)
        thinking = given.get("thinking")
        asked = isinstance(thinking, Mapping) and thinking.get("type") in ("enabled", "adaptive")
        return DecodedRequest(chat, MessagesEncoder(chat["model"], thinking=asked))

    def encode_count(self, tokens: int) -> bytes:
        """See Frontend."""
        return encode({"input_tokens": tokens})

    def encode_models(self, models: Sequence[Mapping[str, Any]]) -> bytes:
        """Encode an OpenAI-compatible server's list of models in Anthropic's form."""
        data = [_model(each) for each in models]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return encode({"data": data, "has_more": False, **ends})

    def encode_model(self, model: Mapping[str, Any]) -> bytes:
        """Encode one of these models."""
        return encode(_model(model))

    def error_body(self, error: PatchbayError) -> bytes:
        """See Frontend."""
        return error_body(error)


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "model", "id": model["id"], "display_name": model["id"], "created_at": _date(model)}


def _date(model: Mapping[str, Any]) -> str:
    """Return a model's creation time; the epoch if its server does not send one."""
    created = model.get("created")
    seconds = created if type(created) is int and 0 <= created < 2**32 else 0
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
