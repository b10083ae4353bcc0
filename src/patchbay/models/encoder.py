"""Encoders of answers: one per protocol, called with each part of the answer in order.

An encoder turns parts (text, reasoning, the begin and the arguments of a call, the end) into the bytes that the client reads.
``ChatEncoder`` writes chunks of chat completions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from patchbay.errors import PatchbayError
from patchbay.models.error_bodies import error_body
from patchbay.models.wire import DONE, encode, sse_event

_NULL: Final = b"null"


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The upstream's fields of an answer as a whole; None if absent."""

    id: str | None = None
    created: Any = None
    model: str | None = None
    fingerprint: str | None = None


NO_HEAD: Final = AnswerHead()


class AnswerEncoder(Protocol):
    """Writes one answer: ``choice`` numbers its choices, ``place`` the calls of a choice, both from 0.

    ``logprobs`` are JSON. The results are to be sent at once; they may be empty.
    """

    passes_text: bool
    """The client reads the upstream's own chunks: those that need no change may be sent as they are, with a call of
    ``passed``."""
    passes_calls: bool
    """The same for chunks with native calls."""

    def begin(self, head: AnswerHead) -> None:
        """Set the fields of the answer as a whole; no effect after the first part."""

    def passed(self, choice: int) -> None:
        """Note that a chunk of this choice was sent unchanged."""

    def text(self, choice: int, text: str, logprobs: bytes = _NULL) -> bytes:
        """Write a piece of the content."""

    def reasoning(self, choice: int, text: str, logprobs: bytes = _NULL) -> bytes:
        """Write a piece of the reasoning."""

    def call(
        self,
        choice: int,
        place: int,
        call_id: str,
        name: str,
        arguments: str = "",
        extra: Mapping[str, Any] | None = None,
        logprobs: bytes = _NULL,
    ) -> bytes:
        """Begin a call, with the first piece of its arguments. ``extra`` are further fields of the upstream."""

    def arguments(self, choice: int, place: int, text: str) -> bytes:
        """Write a further piece of a call's arguments."""

    def fields(self, choice: int, delta: Mapping[str, Any], logprobs: bytes = _NULL) -> bytes:
        """Write other fields of a delta as the upstream sent them: a refusal, say, or content in parts."""

    def finish(self, choice: int, reason: str, **more: Any) -> bytes:
        """End a choice. ``more`` are fields of the last chunk: ``usage``, say."""

    def usage(self, usage: Any) -> bytes:
        """Write the usage by itself, after the last choice."""

    def end(self) -> bytes:
        """End the answer."""

    def error(self, error: PatchbayError | str) -> bytes:
        """Write an error, which ends the answer."""

    def whole(self, completion: Mapping[str, Any]) -> bytes:
        """Write an answer that is not streamed: ``completion`` is a chat completion."""


class ChatEncoder:
    """Writes chunks of chat completions; the first of each choice has the role."""

    passes_text = True
    passes_calls = True

    def __init__(self) -> None:
        self._opened: set[int] = set()
        self._head = b""

    def begin(self, head: AnswerHead) -> None:
        """See AnswerEncoder."""
        if self._opened:
            return
        fields: dict[str, Any] = {
            "id": head.id or "chatcmpl-patchbay",
            "object": "chat.completion.chunk",
            "created": head.created if isinstance(head.created, int) else 0,
            "model": head.model or "",
        }
        if head.fingerprint:
            fields["system_fingerprint"] = head.fingerprint
        self._head = b"data: " + encode(fields)[:-1] + b',"choices":['

    def passed(self, choice: int) -> None:
        """See AnswerEncoder."""
        self._opened.add(choice)

    def text(self, choice: int, text: str, logprobs: bytes = _NULL) -> bytes:
        """See AnswerEncoder."""
        return self.fields(choice, {"content": text}, logprobs)

    def reasoning(self, choice: int, text: str, logprobs: bytes = _NULL) -> bytes:
        """See AnswerEncoder."""
        return self.fields(choice, {"reasoning_content": text}, logprobs)

    def call(
        self,
        choice: int,
        place: int,
        call_id: str,
        name: str,
        arguments: str = "",
        extra: Mapping[str, Any] | None = None,
        logprobs: bytes = _NULL,
    ) -> bytes:
        """See AnswerEncoder."""
        function = {"name": name, "arguments": arguments}
        call = {"index": place, "id": call_id, "type": "function", **(extra or {}), "function": function}
        return self.fields(choice, {"tool_calls": [call]}, logprobs)

    def arguments(self, choice: int, place: int, text: str) -> bytes:
        """See AnswerEncoder."""
        return (
            b'%s{"index":%d,"delta":{"tool_calls":[{"index":%d,"function":{"arguments":%s}}]},'
            b'"logprobs":null,"finish_reason":null}]}\n\n' % (self._head, choice, place, encode(text))
        )

    def fields(self, choice: int, delta: Mapping[str, Any], logprobs: bytes = _NULL) -> bytes:
        """See AnswerEncoder."""
        if choice not in self._opened:
            self._opened.add(choice)
            delta = {"role": "assistant", **delta}
        return self._chunk(choice, encode(delta), logprobs, _NULL)

    def finish(self, choice: int, reason: str, **more: Any) -> bytes:
        """See AnswerEncoder."""
        chunk = self._chunk(choice, b"{}", _NULL, encode(reason))
        return b"%s,%s\n\n" % (chunk[:-3], encode(more)[1:]) if more else chunk

    def usage(self, usage: Any) -> bytes:
        """See AnswerEncoder."""
        return b'%s],"usage":%s}\n\n' % (self._head, encode(usage))

    def end(self) -> bytes:
        """See AnswerEncoder."""
        return DONE

    def error(self, error: PatchbayError | str) -> bytes:
        """See AnswerEncoder; no ``[DONE]`` follows an error."""
        return sse_event(encode(error_body(error)))

    def whole(self, completion: Mapping[str, Any]) -> bytes:
        """See AnswerEncoder."""
        return encode(completion)

    def _chunk(self, choice: int, delta: bytes, logprobs: bytes, reason: bytes) -> bytes:
        return b'%s{"index":%d,"delta":%s,"logprobs":%s,"finish_reason":%s}]}\n\n' % (self._head, choice, delta, logprobs, reason)


class LegacyChatEncoder(ChatEncoder):
    """Writes chunks with ``function_call``, which is for one call."""

    passes_calls = False

    def arguments(self, choice: int, place: int, text: str) -> bytes:
        """See AnswerEncoder."""
        return self.fields(choice, {"tool_calls": [{"index": place, "function": {"arguments": text}}]})

    def fields(self, choice: int, delta: Mapping[str, Any], logprobs: bytes = _NULL) -> bytes:
        """See AnswerEncoder."""
        calls = delta.get("tool_calls")
        return super().fields(choice, {"function_call": calls[0]["function"]} if calls else delta, logprobs)

    def finish(self, choice: int, reason: str, **more: Any) -> bytes:
        """See AnswerEncoder."""
        return super().finish(choice, _legacy_reason(reason), **more)

    def whole(self, completion: Mapping[str, Any]) -> bytes:
        """See AnswerEncoder."""
        return super().whole({**completion, "choices": [_legacy_choice(choice) for choice in completion["choices"]]})


def _legacy_reason(reason: Any) -> Any:
    return "function_call" if reason == "tool_calls" else reason


def _legacy_choice(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = choice["message"].get("tool_calls")
    if not calls:
        return choice
    message = {key: value for key, value in choice["message"].items() if key != "tool_calls"}
    message["function_call"] = calls[0]["function"]
    return {**choice, "message": message, "finish_reason": _legacy_reason(choice.get("finish_reason"))}
