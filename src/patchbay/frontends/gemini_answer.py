"""Gemini's generateContent: answers as its events, or as one response."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from patchbay.errors import PatchbayError, UpstreamError
from patchbay.frontends.base import FrontendEncoder, reasoning_of
from patchbay.models.encoder import NO_HEAD, AnswerHead
from patchbay.models.wire import encode, sse_event
from patchbay.transcript import text_of

_FINISH: Final = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
_TEXT: Final = b'data: {"candidates":[{"content":{"role":"model","parts":[{"text":%s}]},"index":0}]'
_STATUSES: Final = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip


class GenerateContentEncoder(FrontendEncoder):
    """Writes the events of ``streamGenerateContent``, or the response of ``generateContent``.

    A call is one part, so it is written with the end of the answer.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._head = NO_HEAD
        self._tail = b""
        """The end of each event with text, encoded once."""
        self._calls: dict[int, tuple[str, str, list[str]]] = {}
        """Id, name and pieces of the arguments, by place."""
        self._finish = "STOP"
        self._usage: Mapping[str, Any] = {}

    def begin(self, head: AnswerHead) -> None:
        """See AnswerEncoder."""
        self._head = head

    def text(self, choice: int, text: str, logprobs: bytes = b"null") -> bytes:  # noqa: ARG002
        """See AnswerEncoder."""
        if self._tail == b"":
            self._tail = b',"modelVersion":%s,"responseId":%s}\n\n' % (encode(self._model), encode(self._head.id or "patchbay"))
        return _TEXT % encode(text) + self._tail

    def reasoning(self, choice: int, text: str, logprobs: bytes = b"null") -> bytes:  # noqa: ARG002
        """See AnswerEncoder."""
        return self._event([{"text": text, "thought": True}])

    def call(
        self,
        choice: int,  # noqa: ARG002
        place: int,
        call_id: str,
        name: str,
        arguments: str = "",
        extra: Mapping[str, Any] | None = None,  # noqa: ARG002
        logprobs: bytes = b"null",  # noqa: ARG002
    ) -> bytes:
        """See AnswerEncoder."""
        self._calls[place] = (call_id, name, [arguments])
        return b""

    def arguments(self, choice: int, place: int, text: str) -> bytes:  # noqa: ARG002
        """See AnswerEncoder."""
        self._calls[place][2].append(text)
        return b""

    def finish(self, choice: int, reason: str, **more: Any) -> bytes:  # noqa: ARG002
        """See AnswerEncoder."""
        self._finish = _FINISH.get(reason, "STOP")
        self._usage = more.get("usage") or {}
        calls = [_call_part(call_id, name, "".join(pieces)) for call_id, name, pieces in self._calls.values()]
        return self._event(calls) if calls else b""

    def usage(self, usage: Any) -> bytes:
        """See AnswerEncoder: it is written with the end."""
        self._usage = usage if isinstance(usage, Mapping) else {}
        return b""

    def end(self) -> bytes:
        """See AnswerEncoder."""
        return sse_event(encode(self._response([], self._finish)))

    def error(self, error: PatchbayError | str) -> bytes:
        """See AnswerEncoder."""
        return sse_event(error_body(error))

    def whole(self, completion: Mapping[str, Any]) -> bytes:
        """See AnswerEncoder."""
        choice = completion["choices"][0]
        message = choice["message"]
        self._head = AnswerHead(completion.get("id"))
        self._usage = completion.get("usage") or {}
        functions = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
        calls = [_call_part(call_id, function["name"], function["arguments"]) for call_id, function in functions]
        return encode(self._response(_parts(message) + calls, _FINISH.get(choice.get("finish_reason"), "STOP")))

    def _event(self, parts: list[dict[str, Any]]) -> bytes:
        return sse_event(encode(self._response(parts, None)))

    def _response(self, parts: list[dict[str, Any]], finish: str | None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        response: dict[str, Any] = {
            "candidates": [candidate],
            "modelVersion": self._model,
            "responseId": self._head.id or "patchbay",
        }
        if finish is not None:
            candidate["finishReason"] = finish
            response["usageMetadata"] = _usage(self._usage)
        return response


def error_body(error: PatchbayError | str) -> bytes:
    """Return Google's error body for an error."""
    if isinstance(error, str):
        error = UpstreamError(error)
    status = _STATUSES.get(error.status, "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT")
    message = str(error).encode("utf-8", "replace").decode()
    return encode({"error": {"code": error.status, "message": message, "status": status}})


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if reasoning := reasoning_of(message):
        parts.append({"text": reasoning, "thought": True})
    if text := text_of(message.get("content")) or text_of(message.get("refusal")):
        parts.append({"text": text})
    return parts


def _call_part(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = {}
    return {"functionCall": {"id": call_id, "name": name, "args": value if isinstance(value, dict) else {}}}


def _usage(usage: Mapping[str, Any]) -> dict[str, int]:
    """Return usage in Gemini's fields; 0 if the upstream sent none."""
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    prompt, completion, total = (count if isinstance(count, int) else 0 for count in counts)
    return {"promptTokenCount": prompt, "candidatesTokenCount": completion, "totalTokenCount": total or prompt + completion}
