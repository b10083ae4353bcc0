"""The typed parts of an answer, and an answer as its collected parts.

Every answer becomes these parts, whole or streamed, with calls of the server's own or calls in text. ``index`` numbers the calls
of a choice as the client gets them, from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import msgspec

from patchbay.formats.events import CallArguments, CallCut, CallEnd, CallStart, ReasoningDelta, TextDelta, TextWasReasoning
from patchbay.models.providers import SENT_BACK
from patchbay.models.wire import decode
from patchbay.types import IncompleteCall, Reply, ToolCall


@dataclass(slots=True)
class CallExtra:
    """Other fields of a call that its server needs again with it (``ToolCall.extra``)."""

    index: int
    extra: Mapping[str, Any]


@dataclass(slots=True)
class InvalidCall:
    """A call ended whose arguments are no JSON object, and cannot be repaired to one."""

    index: int
    call: ToolCall


@dataclass(slots=True)
class OtherFields:
    """Other fields of a message or a delta, as the server sent them: its reasoning, a refusal, content in parts."""

    fields: Mapping[str, Any]


Part: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | TextWasReasoning
    | CallStart
    | CallArguments
    | CallExtra
    | CallEnd
    | InvalidCall
    | CallCut
    | OtherFields
)


class AnswerHead(msgspec.Struct, frozen=True):
    """The server's fields of an answer as a whole; None if absent.

    ``completion`` is its own document, and ``body`` the JSON of that, if it answered with one; for a stream that is collected the
    fields that are not read, with those of its ``choices`` by index. ``left_out`` are parameters of the client that its server
    refused.
    """

    id: Any = None
    created: Any = None
    model: Any = None
    fingerprint: Any = None
    service_tier: Any = None
    completion: Mapping[str, Any] | None = None
    body: bytes | None = None
    left_out: frozenset[str] = frozenset()


NO_HEAD: Final = AnswerHead()
NO_LOGPROBS: Final = b"null"


class AnswerChoice:
    """One choice, collected. ``fields`` are the message's other fields; ``finish`` is the client's finish reason."""

    def __init__(self) -> None:
        self.finish: str | None = None
        self.fields: dict[str, Any] = {}
        self.logprobs: Any = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, ToolCall | IncompleteCall] = {}
        self._extra: dict[int, Mapping[str, Any]] = {}

    def add(self, part: Part, logprobs: bytes = NO_LOGPROBS) -> None:
        """Add a part, with the logprobs of its chunk as JSON."""
        if logprobs != NO_LOGPROBS:
            self.logprobs = merged_fields(self.logprobs, decode(logprobs))
        if isinstance(part, TextDelta):
            self._text.append(part.text)
        elif isinstance(part, CallEnd | InvalidCall | CallCut):
            self._calls[part.index or 0] = part.call  # (a call without an index is never sent on)
        elif isinstance(part, ReasoningDelta):
            self._reasoning.append(part.text)
        elif isinstance(part, CallExtra):
            self._extra[part.index] = {**self._extra.get(part.index, {}), **part.extra}
        elif isinstance(part, OtherFields):
            self.fields = merged_fields(self.fields, part.fields)
        elif isinstance(part, TextWasReasoning):
            self._reasoning.append("".join(self._text).strip())
            self._text.clear()

    @property
    def content(self) -> str:
        """The text, without content in parts."""
        return "".join(self._text)

    @property
    def text(self) -> str:
        """The whole text: also of content in parts, and a refusal."""
        return self.content + text_in(self.fields)

    @property
    def written_reasoning(self) -> str:
        """The reasoning that stood in the model's text."""
        return "".join(self._reasoning)

    @property
    def reasoning(self) -> str:
        """The whole reasoning: the server's own, and what stood in the text."""
        return "\n\n".join(filter(None, (reasoning_of(self.fields), self.written_reasoning)))

    @property
    def all_calls(self) -> list[ToolCall | IncompleteCall]:
        """The calls in order, also those that the end of the answer cut off."""
        calls: list[ToolCall | IncompleteCall] = []
        for index in sorted(self._calls):
            call, extra = self._calls[index], self._extra.get(index)
            calls.append(replace(call, extra=extra) if isinstance(call, ToolCall) and extra is not None else call)
        return calls

    @property
    def calls(self) -> list[ToolCall]:
        """The complete calls, in order."""
        return [call for call in self.all_calls if isinstance(call, ToolCall)]

    def reply(self) -> Reply:
        """Return the choice as a reply."""
        extra = {name: value for name, value in self.fields.items() if name in SENT_BACK and value}
        if self._reasoning:
            extra["reasoning_content"] = "\n\n".join(filter(None, (extra.get("reasoning_content"), self.written_reasoning)))
        cut = tuple(call for call in self.all_calls if isinstance(call, IncompleteCall))
        return Reply(self.text or None, self.reasoning or None, tuple(self.calls), cut, extra=extra or None)


@dataclass
class Answer:
    """An answer, collected. ``usage`` is the sum over all attempts; ``extra`` are further fields of the client's document."""

    head: AnswerHead = NO_HEAD
    choices: dict[int, AnswerChoice] = field(default_factory=dict)
    usage: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def choice(self, index: int) -> AnswerChoice:
        """Return a choice, made when it begins."""
        found = self.choices.get(index)
        if found is None:
            found = self.choices[index] = AnswerChoice()
        return found

    @property
    def first(self) -> AnswerChoice:
        """The first choice."""
        return self.choices[min(self.choices)] if self.choices else AnswerChoice()


def reasoning_of(fields: Mapping[str, Any]) -> str:
    """Return the server's own reasoning in a message or a delta."""
    reasoning = fields.get("reasoning_content") or fields.get("reasoning")
    return reasoning if isinstance(reasoning, str) else ""


def text_in(fields: Mapping[str, Any]) -> str:
    """Return the text in other fields of a message or a delta: content in parts, and a refusal."""
    parts, refusal = fields.get("content"), fields.get("refusal")
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    return "".join(text for text in (*texts, refusal) if isinstance(text, str))


def merged_fields(before: Any, fields: Any) -> Any:
    """Add a further delta to fields: texts and lists are appended, objects merged, other values replaced."""
    if not isinstance(before, Mapping) or not isinstance(fields, Mapping):
        return fields
    return {**before, **{name: _merged(before.get(name), value) for name, value in fields.items()}}


def _merged(before: Any, value: Any) -> Any:
    if isinstance(before, str) and isinstance(value, str):
        return before + value
    if isinstance(before, list) and isinstance(value, list):
        return [*before, *value]
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        return {**before, **value}
    return value
