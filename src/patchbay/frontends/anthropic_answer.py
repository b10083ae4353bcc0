"""Anthropic Messages: answers as its events, or as one message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from patchbay.errors import PatchbayError, UpstreamError
from patchbay.frontends.anthropic_request import ThreadsUnsupportedError
from patchbay.frontends.base import FrontendEncoder, reasoning_of
from patchbay.models.encoder import NO_HEAD, AnswerHead
from patchbay.models.wire import encode
from patchbay.transcript import text_of

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

    ``model`` is the request's: the client expects the name that it sent.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._head = NO_HEAD
        self._started = False
        self._blocks = 0
        self._open = ""
        """The type of the open block, for a call with its place; "" without one."""
        self._call_blocks: dict[int, int] = {}
        """The block of each call, by its place: servers may interleave the arguments of several calls."""
        self._stop_reason: str | None = None
        self._usage: Mapping[str, Any] = {}

    def begin(self, head: AnswerHead) -> None:
        """See AnswerEncoder."""
        if not self._started:
            self._head = head

    def text(self, choice: int, text: str, logprobs: bytes = b"null") -> bytes:  # noqa: ARG002
        """See AnswerEncoder."""
        opened = self._block("text", {"type": "text", "text": ""})
        return opened + _TEXT % (self._blocks, encode(text))

    def reasoning(self, choice: int, text: str, logprobs: bytes = b"null") -> bytes:  # noqa: ARG002
        """See AnswerEncoder."""
        opened = self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        return opened + _THINKING % (self._blocks, encode(text))

    def call(
        self,
        choice: int,
        place: int,
        call_id: str,
        name: str,
        arguments: str = "",
        extra: Mapping[str, Any] | None = None,  # noqa: ARG002
        logprobs: bytes = b"null",  # noqa: ARG002
    ) -> bytes:
        """See AnswerEncoder."""
        opened = self._block(f"call {place}", {"type": "tool_use", "id": call_id, "name": name, "input": {}})
        self._call_blocks[place] = self._blocks
        return opened + self.arguments(choice, place, arguments) if arguments else opened

    def arguments(self, choice: int, place: int, text: str) -> bytes:  # noqa: ARG002
        """See AnswerEncoder."""
        return _ARGUMENTS % (self._call_blocks[place], encode(text))

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

    def whole(self, completion: Mapping[str, Any]) -> bytes:
        """See AnswerEncoder."""
        choice = completion["choices"][0]
        message = choice["message"]
        content: list[dict[str, Any]] = []
        if reasoning := reasoning_of(message):
            content.append({"type": "thinking", "thinking": reasoning, "signature": ""})
        if text := text_of(message.get("content")) or text_of(message.get("refusal")):
            content.append({"type": "text", "text": text})
        for call in message.get("tool_calls") or ():
            function = call["function"]
            block = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": _arguments(function["arguments"])}
            content.append(block)
        head = AnswerHead(completion.get("id"))
        reason = _STOP_REASONS.get(choice.get("finish_reason"), "end_turn")
        return encode(self._message(head, content, reason, completion.get("usage") or {}))

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


def error_body(error: PatchbayError | str) -> bytes:
    """Return Anthropic's error body for an error."""
    if isinstance(error, str):
        error = UpstreamError(error)
    kind = _ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    message = str(error).encode("utf-8", "replace").decode()
    described: dict[str, Any] = {"type": kind, "message": message}
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


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
