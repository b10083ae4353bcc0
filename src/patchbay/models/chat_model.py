"""The interface between the loop and any model, and how an OpenAI answer becomes a ``ModelReply``.

One request in, events out, the last of them the whole reply. The fake for this interface is ``patchbay.testing.ScriptedModel``.
``ReplyAssembler`` and ``whole_reply`` do no I/O and read the SDK's objects and plain dicts alike.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from patchbay.errors import UpstreamError
from patchbay.formats.events import ReasoningDelta, TextDelta
from patchbay.models.tool_call_deltas import ToolCallAccumulator
from patchbay.types import NO_USAGE, IncompleteCall, Message, Reply, ToolCall, ToolSpec, Usage

__all__ = ["ChatModel", "ChatRequest", "ModelEvent", "ModelReply", "ReasoningDelta", "TextDelta"]


@dataclass(frozen=True)
class ChatRequest:
    """A request to a model.

    ``parameters`` holds the model's name and all that the caller passes on (temperature, max_tokens, ...), named as in OpenAI's
    API. So is ``tool_choice``. With ``stream`` the model should yield its text as it is written.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    tool_choice: Any = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False


@dataclass(frozen=True)
class ModelReply:
    """The last event of every answer, with all of it. ``finish_reason`` is the server's, None without one."""

    reply: Reply
    finish_reason: str | None = None
    usage: Usage = NO_USAGE


ModelEvent: TypeAlias = TextDelta | ReasoningDelta | ModelReply


@runtime_checkable
class ChatModel(Protocol):
    """A model that can be asked for one answer."""

    def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
        """Answer ``request``: any number of deltas, then exactly one ModelReply.

        Deltas are optional; if there are any, they add up to the reply's content and reasoning. A failing server is an
        UpstreamError. Closing the iterator stops the request; no timeout or cancel scope may be held across its yields.
        """
        ...


# With these the model ended its calls itself; with any other the last call may be cut off.
_ENDED_BY_MODEL = {"stop", "tool_calls", "function_call"}
_SHOWN = 500
# The names that servers use for reasoning, and under which they expect it back.
_REASONING_FIELDS = ("reasoning_content", "reasoning")
# Other fields of a message that are sent back unchanged: OpenRouter's reasoning, Gemini's signature of a thought.
_LIST_FIELD, _OBJECT_FIELD = "reasoning_details", "extra_content"
_EXTRA_FIELDS = frozenset({*_REASONING_FIELDS, _LIST_FIELD, _OBJECT_FIELD})


class _Extra:
    """Accumulates the fields of a message that are sent back to its server."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._details: list[Any] = []
        self._object: dict[str, Any] = {}

    def add(self, message: Any) -> str:
        """Add a message or a delta; return the reasoning in it."""
        if type(message) is dict and _EXTRA_FIELDS.isdisjoint(message):
            return ""
        reasoning = ""
        for name in _REASONING_FIELDS:
            if text := _string(_get(message, name)):
                self._texts.setdefault(name, []).append(text)
                reasoning = reasoning or text
        self._details += _list(_get(message, _LIST_FIELD))
        if isinstance(written := _get(message, _OBJECT_FIELD), Mapping):
            self._object = {**self._object, **written}
        return reasoning

    def fields(self) -> dict[str, Any] | None:
        """Return the fields, or None without any."""
        found: dict[str, Any] = {name: "".join(pieces) for name, pieces in self._texts.items()}
        if self._details:
            found[_LIST_FIELD] = self._details
        if self._object:
            found[_OBJECT_FIELD] = self._object
        return found or None


def whole_reply(answer: Any) -> ModelReply:
    """Read an answer that was not streamed. Raises UpstreamError if it has no choice."""
    assembler = ReplyAssembler()
    assembler.add(answer)
    if not assembler.has_choice:
        raise UpstreamError(f"The upstream answered without choices: {str(answer)[:_SHOWN]}")
    return assembler.reply()


class ReplyAssembler:
    """Assembles a streamed answer: ``add`` each chunk, then ``end``. Only the first choice is read."""

    def __init__(self) -> None:
        self.has_choice = False
        """An answer has begun."""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls = ToolCallAccumulator()
        self._reason: str | None = None
        self._usage = NO_USAGE
        self._extra = _Extra()

    def add(self, chunk: Any) -> list[ModelEvent]:
        """Add a chunk; return its events."""
        if (usage := _get(chunk, "usage")) is not None:
            self._usage = _usage(usage) if usage else self._usage
        choice = _first_choice(chunk)
        if choice is None:
            if (message := _error_of(chunk)) is not None:
                raise UpstreamError(message)
            return []
        self.has_choice = True
        # Servers that only pretend to stream send the whole message at once; its calls need no index.
        delta = _get(choice, "delta")
        whole = None if delta else _get(choice, "message")
        delta = delta or whole
        events: list[ModelEvent] = []
        if reasoning := self._extra.add(delta):
            self._reasoning.append(reasoning)
            events.append(ReasoningDelta(reasoning))
        if content := _text(_get(delta, "content")) or _string(_get(delta, "refusal")):
            self._content.append(content)
            events.append(TextDelta(content))
        for position, call in enumerate(_list(_get(delta, "tool_calls"))):
            _add_call(self._calls, call, position if whole is not None else _get(call, "index"))
        self._reason = _string(_get(choice, "finish_reason")) or self._reason
        return events

    def end(self) -> ModelReply:
        """Return the whole reply. Raises UpstreamError if the stream ended before the answer did."""
        if self._reason is None:
            raise UpstreamError("The upstream's stream ended before the answer was complete (no finish_reason came).")
        return self.reply()

    def reply(self) -> ModelReply:
        """Return the reply so far."""
        reason = self._reason
        complete: list[ToolCall] = []
        cut: list[IncompleteCall] = []
        for call in self._calls.calls:
            arguments = call.arguments
            if reason in _ENDED_BY_MODEL or _is_json(arguments):
                complete.append(ToolCall(call.id, call.name, arguments, call.extra))
            else:
                cut.append(IncompleteCall(call.id, call.name, arguments, arguments))
        content, reasoning = "".join(self._content) or None, "".join(self._reasoning) or None
        reply = Reply(content, reasoning, tuple(complete), tuple(cut), extra=self._extra.fields())
        return ModelReply(reply, reason, self._usage)


def _add_call(calls: ToolCallAccumulator, delta: Any, index: Any) -> None:
    function = _get(delta, "function")
    arguments = _get(function, "arguments")
    if arguments is not None and not isinstance(arguments, str):  # some servers send an object where OpenAI sends its JSON
        arguments = json.dumps(arguments, ensure_ascii=False)
    extra = _get(delta, _OBJECT_FIELD)
    calls.add(
        index if isinstance(index, int) else None,
        _string(_get(delta, "id")) or "",
        _string(_get(function, "name")) or "",
        arguments or "",
        None if extra is None else {_OBJECT_FIELD: extra},
    )


def _first_choice(answer: Any) -> Any:
    for choice in _list(_get(answer, "choices")):
        if _get(choice, "index") in (0, None):
            return choice
    return None


def _error_of(answer: Any) -> str | None:
    """Return the message of an error that came under a status of success."""
    error = _get(answer, "error")
    if not error:
        return None
    return f"The upstream answered with an error: {_string(_get(error, 'message')) or str(error)[:_SHOWN]}"


def _text(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    parts = [_string(_get(part, "text")) for part in _list(content)]
    return "".join(part for part in parts if part) or None


def _usage(usage: Any) -> Usage:
    if type(usage) is dict:
        return Usage.from_openai(usage)
    return Usage.from_openai({key: _get(usage, key) for key in ("prompt_tokens", "completion_tokens", "total_tokens")})


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _get(holder: Any, name: str) -> Any:
    if type(holder) is dict or isinstance(holder, Mapping):
        return holder.get(name)
    return getattr(holder, name, None)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
