"""Encoders of answers: one per protocol, called with each part of the answer in order.

``ChatEncoder`` writes chat completions, ``WholeEncoder`` makes of any encoder one of whole answers, and ``EventEncoder`` yields
the events of a ChatModel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from patchbay.errors import PatchbayError
from patchbay.formats.events import CallArguments, CallStart, ReasoningDelta, TextDelta
from patchbay.models.chat_model import ModelEvent, ModelReply
from patchbay.models.error_bodies import as_patchbay_error, error_body
from patchbay.models.parts import (
    NO_LOGPROBS,
    Answer,
    AnswerChoice,
    AnswerHead,
    CallExtra,
    OtherFields,
    Part,
    reasoning_of,
    text_in,
)
from patchbay.models.wire import DONE, encode, sse_event
from patchbay.types import NO_USAGE, Usage

Out = TypeVar("Out")
"""What an encoder writes: bytes for a client, or events for a caller in the same process."""

Events: TypeAlias = list[tuple[ModelEvent, bytes]]
"""Events of a ChatModel, each with the logprobs of its chunk as JSON."""


class AnswerEncoder(Protocol[Out]):
    """Writes one answer: ``choice`` numbers its choices, from 0.

    ``passes_text``: the client reads the upstream's own chunks, so those that need no change may be sent as they are
    (``pass_on``). ``passes_calls``: also those with native calls. ``keeps_invalid``: invalid calls are written too, for an
    executor that answers them. The results are to be sent at once; they may be empty.
    """

    passes_text: bool
    passes_calls: bool
    keeps_invalid: bool

    def join(self, pieces: Iterable[Out], /) -> Out:
        """Join what was written."""

    def begin_answer(self, head: AnswerHead) -> None:
        """Set the fields of the answer as a whole; no effect after the first part."""

    def pass_on(self, choice: int, data: bytes) -> Out:
        """Return a chunk that needs no change, and note that its choice has begun."""

    def part(self, choice: int, part: Part, logprobs: bytes = NO_LOGPROBS) -> Out:
        """Write a part. ``logprobs`` is JSON."""

    def finish(self, choice: int, reason: str, **more: Any) -> Out:
        """End a choice. ``more`` are fields of the last chunk: ``usage``, say."""

    def usage(self, usage: Any) -> Out:
        """Write the usage by itself, after the last choice."""

    def end_answer(self) -> Out:
        """End the answer."""

    def error(self, error: PatchbayError | str) -> Out:
        """Write an error, which ends the answer."""

    def whole(self, answer: Answer) -> Out:
        """Write an answer that is not streamed."""


class ByteEncoder:
    """Base class of the encoders for clients."""

    passes_text = passes_calls = keeps_invalid = False
    join = staticmethod(b"".join)

    def begin_answer(self, head: AnswerHead) -> None:
        pass

    def pass_on(self, choice: int, data: bytes) -> bytes:  # noqa: ARG002
        return data


class _Collector(Generic[Out]):
    """Base class of the encoders that collect an answer, and write it with its end."""

    passes_text = passes_calls = False
    join: Callable[[Iterable[Out]], Out]
    whole: Callable[[Answer], Out]

    def __init__(self) -> None:
        self.answer = Answer()

    def begin_answer(self, head: AnswerHead) -> None:
        self.answer.head = head

    def pass_on(self, choice: int, data: bytes) -> Out:  # noqa: ARG002  (never called)
        return self.join(())

    def part(self, choice: int, part: Part, logprobs: bytes = NO_LOGPROBS) -> Out:
        self.answer.choice(choice).add(part, logprobs)
        return self.join(())

    def finish(self, choice: int, reason: str, **more: Any) -> Out:
        self.answer.choice(choice).finish = reason
        self.answer.usage = more.pop("usage", self.answer.usage)
        self.answer.extra = more
        return self.join(())

    def usage(self, usage: Any) -> Out:
        self.answer.usage = usage
        return self.join(())

    def end_answer(self) -> Out:
        return self.whole(self.answer)


class WholeEncoder(_Collector[Out]):
    """Collects an answer, and writes it with its end by the ``encoder`` of its protocol."""

    def __init__(self, encoder: AnswerEncoder[Out]) -> None:
        super().__init__()
        self.keeps_invalid = encoder.keeps_invalid
        self.join = encoder.join
        self.error = encoder.error
        self.whole = encoder.whole


class EventEncoder(_Collector[Events]):
    """Yields the events of an answer, the last of them the reply. Only the first choice is read."""

    keeps_invalid = True

    def join(self, pieces: Iterable[Events]) -> Events:
        return [event for piece in pieces for event in piece]

    def part(self, choice: int, part: Part, logprobs: bytes = NO_LOGPROBS) -> Events:
        super().part(choice, part, logprobs)
        if choice:
            return []
        if isinstance(part, TextDelta | ReasoningDelta):
            return [(part, logprobs)]
        if not isinstance(part, OtherFields):
            return []
        deltas = (ReasoningDelta(reasoning_of(part.fields)), TextDelta(text_in(part.fields)))
        return [(delta, logprobs) for delta in deltas if delta.text]

    def error(self, error: PatchbayError | str) -> Events:
        raise as_patchbay_error(error)

    def whole(self, answer: Answer) -> Events:
        self.answer = answer
        first = answer.first
        usage = NO_USAGE if answer.usage is None else Usage.from_openai(answer.usage)
        return [(ModelReply(first.reply(), first.finish, usage), NO_LOGPROBS)]


class ChatEncoder(ByteEncoder):
    """Writes chat completions: chunks, the first of each choice with the role, or one document."""

    passes_text = passes_calls = True

    def __init__(self) -> None:
        self._opened: set[int] = set()
        self._head = b""

    def begin_answer(self, head: AnswerHead) -> None:
        if not self._opened:
            self._head = b"data: " + encode(_head_fields(head, "chat.completion.chunk"))[:-1] + b',"choices":['

    def pass_on(self, choice: int, data: bytes) -> bytes:
        self._opened.add(choice)
        return data

    def part(self, choice: int, part: Part, logprobs: bytes = NO_LOGPROBS) -> bytes:
        if isinstance(part, CallArguments):
            return (
                b'%s{"index":%d,"delta":{"tool_calls":[{"index":%d,"function":{"arguments":%s}}]},'
                b'"logprobs":null,"finish_reason":null}]}\n\n' % (self._head, choice, part.index, encode(part.text))
            )
        delta = _delta_of(part)
        return b"" if delta is None else self._delta(choice, delta, logprobs)

    def finish(self, choice: int, reason: str, **more: Any) -> bytes:
        chunk = self._chunk(choice, b"{}", NO_LOGPROBS, encode(reason))
        return b"%s,%s\n\n" % (chunk[:-3], encode(more)[1:]) if more else chunk

    def usage(self, usage: Any) -> bytes:
        return b'%s],"usage":%s}\n\n' % (self._head, encode(usage))

    def end_answer(self) -> bytes:
        return DONE

    def error(self, error: PatchbayError | str) -> bytes:
        # (no ``[DONE]`` follows an error)
        return sse_event(encode(error_body(error)))

    def whole(self, answer: Answer) -> bytes:
        # The server's own bytes if nothing in them changes.
        head = answer.head
        document = dict(head.completion or _head_fields(head, "chat.completion"))
        originals = document.get("choices") or {}
        document["choices"] = [
            self._choice(index, choice, originals[index] if originals else {}) for index, choice in sorted(answer.choices.items())
        ]
        if answer.usage is not None:
            document["usage"] = answer.usage
        document |= answer.extra
        return head.body if head.body is not None and document == head.completion else encode(document)

    def _choice(self, index: int, choice: AnswerChoice, original: Mapping[str, Any]) -> dict[str, Any]:
        """Return a choice: the server's ``original`` with what was read from it, or one of its own."""
        if "message" not in original:
            original = {"index": index, "logprobs": choice.logprobs, **original}
        message = {**(original.get("message") or {"role": "assistant", "content": None, **choice.fields})}
        content, given = message.get("content"), message.get("tool_calls")
        calls = [call.to_openai() for call in choice.all_calls]
        if not isinstance(content, list) and choice.content != (content or ""):
            message["content"] = choice.content or (None if calls else "")
        if choice.written_reasoning:
            message.pop("reasoning", None)
            message["reasoning_content"] = choice.reasoning
        if not _are_same(given, calls):
            message.pop("tool_calls", None)
            if calls:
                message["tool_calls"] = calls
        return {**original, "message": message, "finish_reason": choice.finish}

    def _delta(self, choice: int, delta: Mapping[str, Any], logprobs: bytes) -> bytes:
        if choice not in self._opened:
            self._opened.add(choice)
            delta = {"role": "assistant", **delta}
        return self._chunk(choice, encode(delta), logprobs, b"null")

    def _chunk(self, choice: int, delta: bytes, logprobs: bytes, reason: bytes) -> bytes:
        return b'%s{"index":%d,"delta":%s,"logprobs":%s,"finish_reason":%s}]}\n\n' % (self._head, choice, delta, logprobs, reason)


def _head_fields(head: AnswerHead, kind: str) -> dict[str, Any]:
    fields = {
        "id": head.id or "chatcmpl-patchbay",
        "object": kind,
        "created": head.created if isinstance(head.created, int) else 0,
        "model": head.model or "",
    }
    return {**fields, "system_fingerprint": head.fingerprint} if head.fingerprint else fields


def _delta_of(part: Part) -> Mapping[str, Any] | None:
    """Return the delta of a part; None if nothing is written for it."""
    if isinstance(part, TextDelta):
        return {"content": part.text}
    if isinstance(part, ReasoningDelta):
        return {"reasoning_content": part.text}
    if isinstance(part, CallStart):
        function = {"name": part.name, "arguments": ""}
        return {"tool_calls": [{"index": part.index, "id": part.id, "type": "function", "function": function}]}
    if isinstance(part, CallArguments):
        return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}
    if isinstance(part, CallExtra):
        return {"tool_calls": [{"index": part.index, **part.extra, "function": {}}]}
    return part.fields if isinstance(part, OtherFields) else None


def _are_same(given: Any, calls: list[dict[str, Any]]) -> bool:
    """Whether the calls of a message in any form say what ``calls`` do, in OpenAI's."""
    if not isinstance(given, list):
        return not given and not calls
    if len(given) != len(calls):
        return False
    return all(
        isinstance(one, Mapping) and one.get("id") == call["id"] and one.get("function") == call["function"]
        for one, call in zip(given, calls, strict=True)
    )


class LegacyChatEncoder(ChatEncoder):
    """Writes chat completions with ``function_call``, which is for one call."""

    passes_calls = False

    def part(self, choice: int, part: Part, logprobs: bytes = NO_LOGPROBS) -> bytes:
        delta = _delta_of(part)
        if delta is None:
            return b""
        calls = delta.get("tool_calls")
        return self._delta(choice, {"function_call": calls[0]["function"]} if calls else delta, logprobs)

    def finish(self, choice: int, reason: str, **more: Any) -> bytes:
        return super().finish(choice, _legacy_reason(reason), **more)

    def _choice(self, index: int, choice: AnswerChoice, original: Mapping[str, Any]) -> dict[str, Any]:
        document = super()._choice(index, choice, original)
        if calls := document["message"].pop("tool_calls", None):
            document["message"]["function_call"] = calls[0]["function"]
            document["finish_reason"] = _legacy_reason(document["finish_reason"])
        return document


def _legacy_reason(reason: Any) -> Any:
    return "function_call" if reason == "tool_calls" else reason
