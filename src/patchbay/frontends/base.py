"""Shared parts of all front-ends: the protocol, the builder of conversations, the encoders' base class, readers of JSON."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from patchbay._text import one_line, printable
from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.formats.events import CallArguments, CallEnd, CallStart, ReasoningDelta, TextDelta
from patchbay.models.encoder import AnswerEncoder, ByteEncoder
from patchbay.models.parts import NO_HEAD, NO_LOGPROBS, Answer, AnswerChoice, AnswerHead, OtherFields, Part, reasoning_of, text_in
from patchbay.models.providers import turn_start
from patchbay.models.request import read_json
from patchbay.models.wire import encode
from patchbay.types import Message, ToolCall

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment, which clients ignore."""

_logger = logging.getLogger(__name__)
_MOST_REPORTED = 256


@dataclass(frozen=True)
class DecodedRequest:
    """A decoded request: ``body`` is one of chat completions, ``encoder`` writes the answer for the client.

    ``is_empty``: the client wants an empty answer to continue from, without a request to the model. ``hosted``: the vendor's web
    search (or fetch) that the request is for; a model without it would invent the results.
    """

    body: dict[str, Any]
    encoder: AnswerEncoder[bytes]
    is_empty: bool = False
    hosted: str = ""


class Frontend(Protocol):
    """One vendor's chat protocol."""

    name: str
    """For messages and logs."""
    protocol: str
    """Its short name, for records."""
    heartbeat: bytes
    """Bytes to write between two events while the upstream is silent."""

    def decode(self, body: bytes, path: str) -> DecodedRequest:
        """Read a request to ``path``. Raises InvalidRequestError."""

    def encode_count(self, tokens: int) -> bytes:
        """Encode the answer to a request to count the tokens of a prompt."""

    def encode_error(self, error: PatchbayError) -> tuple[int, bytes]:
        """Return the status and the body of an error response."""


# answers


class FrontendEncoder(ByteEncoder, ABC):
    """Base class of the front-ends' encoders: a method for each kind of part, of the first choice."""

    def __init__(self) -> None:
        self._head = NO_HEAD
        self._finish = "stop"
        self._usage: Mapping[str, Any] | None = None

    def begin_answer(self, head: AnswerHead) -> None:
        self._head = head

    def part(self, choice: int, part: Part, logprobs: bytes = NO_LOGPROBS) -> bytes:  # noqa: ARG002
        if isinstance(part, TextDelta):
            return self.text(part.text)
        if isinstance(part, CallArguments):
            return self.arguments(part)
        if isinstance(part, ReasoningDelta):
            return self.reasoning(part.text)
        if isinstance(part, OtherFields):
            reasoning, text = reasoning_of(part.fields), text_in(part.fields)
            return (self.reasoning(reasoning) if reasoning else b"") + (self.text(text) if text else b"")
        if isinstance(part, CallStart):
            return self.begin_call(part)
        return self.end_call(part.index, part.call) if isinstance(part, CallEnd) else b""

    def finish(self, choice: int, reason: str, **more: Any) -> bytes:  # noqa: ARG002
        self._finish = reason
        self.usage(more.get("usage"))
        return b""

    def usage(self, usage: Any) -> bytes:
        # Written with the end.
        self._usage = usage if isinstance(usage, dict) else None
        return b""

    def whole(self, answer: Answer) -> bytes:
        first = answer.first
        self.begin_answer(answer.head)
        self.usage(answer.usage)
        self._finish = first.finish or "stop"
        return encode(self.document(first))

    @abstractmethod
    def text(self, text: str) -> bytes:
        """Write a piece of the text."""

    @abstractmethod
    def reasoning(self, text: str) -> bytes:
        """Write a piece of the reasoning."""

    def begin_call(self, part: CallStart) -> bytes:  # noqa: ARG002
        """Begin a call; by default a call is written as a whole, with its end."""
        return b""

    def arguments(self, part: CallArguments) -> bytes:  # noqa: ARG002
        """Write a piece of a call's arguments."""
        return b""

    @abstractmethod
    def end_call(self, index: int, call: ToolCall) -> bytes:
        """Write a complete call, or its end."""

    @abstractmethod
    def document(self, choice: AnswerChoice) -> dict[str, Any]:
        """Return a whole answer."""


class Tokens(NamedTuple):
    """The counts of a usage; 0 if the upstream sent none."""

    prompt: int
    completion: int
    total: int
    cached: int
    reasoning: int


def tokens_of(usage: Mapping[str, Any] | None) -> Tokens:
    """Return the counts of a usage of chat completions."""
    usage = usage or {}
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    return Tokens(
        prompt,
        completion,
        _count(usage, "total_tokens") or prompt + completion,
        _count(usage.get("prompt_tokens_details"), "cached_tokens"),
        _count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(holder: Any, name: str) -> int:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, int) else 0


# requests

MCP_ADVICE: Final = "mount MCP servers with patchbay serve, whose tools every request has."
_BUDGETS: Final = ((0, "none"), (1024, "low"), (8192, "medium"))
_SHOWN: Final = {"type": "text", "text": "What the tools returned:"}


class Conversation:
    """Builds the messages of chat completions.

    A tool message has only text, and those of a round are consecutive: pictures and files of results follow in a message of the
    user, together with what the user says then.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._shown: list[dict[str, Any]] = []

    def add(self, role: str, content: Any) -> None:
        """Add a message that is neither a call nor a result."""
        self.user([])
        self.messages.append({"role": role, "content": content})

    def user(self, parts: list[dict[str, Any]]) -> None:
        """Add a message of the user after the pictures and files of the results before it; none if there is neither."""
        if self._shown:
            parts, self._shown = [_SHOWN, *self._shown, *parts], []
        if parts:
            self.messages.append({"role": "user", "content": joined(parts)})

    def assistant(self, texts: Iterable[str], calls: list[dict[str, Any]], thoughts: Iterable[str] = ()) -> None:
        """Add a message of the assistant."""
        self.add("assistant", "".join(texts) or (None if calls else ""))
        if reasoning := "\n\n".join(filter(None, thoughts)):
            self.messages[-1]["reasoning_content"] = reasoning
        if calls:
            self.messages[-1]["tool_calls"] = calls

    def result(self, call_id: str, parts: Sequence[dict[str, Any]], *, failed: bool = False) -> None:
        """Add the result of a call."""
        text = "\n\n".join(part["text"] for part in parts if part["type"] == "text")
        shown = [part for part in parts if part["type"] != "text"]
        if failed:
            text = f"The tool failed: {text}" if text else "The tool failed."
        self.messages.append(
            {"role": "tool", "tool_call_id": call_id, "content": text or ("See the next message." if shown else "")}
        )
        self._shown += shown

    def finish(self) -> list[Message]:
        """Return the messages, without reasoning of earlier turns: servers want it within a turn only, and count its tokens."""
        self.user([])
        begin = turn_start(self.messages)
        for message in self.messages[: max(begin, 0)]:
            message.pop("reasoning_content", None)
        return self.messages


def joined(parts: list[dict[str, Any]]) -> Any:
    """Return parts as a content: one text if all of them are texts."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return "\n\n".join(part["text"] for part in parts) if all(part["type"] == "text" for part in parts) else parts


def text_part(text: str) -> dict[str, Any]:
    """Return a part with text."""
    return {"type": "text", "text": text}


def call_of(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """Return a call; ``arguments`` are JSON, or an object."""
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def function_of(tool: Mapping[str, Any], name: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a tool as a function: OpenAI requires an object with properties, which others let clients leave out."""
    function: dict[str, Any] = {"name": name, "parameters": {"type": "object", "properties": {}, **(parameters or {})}}
    function |= {key: tool[key] for key, kind in (("description", str), ("strict", bool)) if isinstance(tool.get(key), kind)}
    return {"type": "function", "function": function}


def chosen_function(name: str) -> dict[str, Any]:
    """Return the ``tool_choice`` of one function."""
    return {"type": "function", "function": {"name": name}}


def allowed_functions(mode: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the ``tool_choice`` of some functions."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [chosen_function(name) for name in names]}}


def json_format(schema: Any, **more: Any) -> dict[str, Any] | None:
    """Return the ``response_format`` for a schema; None without one."""
    if not isinstance(schema, Mapping):
        return None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def chat_body(fields: dict[str, Any], *, stream: Any, **more: Any) -> dict[str, Any]:
    """Return a body of chat completions; of ``more``, what is missing or empty is left out."""
    fields |= {name: value for name, value in more.items() if value not in (None, [])}
    return fields | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})


def effort_of(budget: Any) -> str | None:
    """Return the reasoning effort for a number of tokens to think with; None if there is none, or no limit."""
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 0:
        return None
    return next((effort for most, effort in _BUDGETS if budget <= most), "high")


def read_object(body: bytes) -> dict[str, Any]:
    """Decode the JSON object of a request. Raises InvalidRequestError."""
    value = read_json(body)
    if not isinstance(value, dict):
        raise InvalidRequestError("The request body must be a JSON object.")
    return value


def refuse(given: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    """Raise InvalidRequestError for members that cannot be served; ``reasons`` has the sentences."""
    for name, reason in reasons.items():
        if given.get(name):
            raise InvalidRequestError(f"'{name}' is not supported: {reason}", param=name)


def checked(value: Any, kind: type | tuple[type, ...], path: str, words: str) -> Any:
    """Return ``value`` if it has this type. Raises InvalidRequestError: the member at ``path`` must be ``words``."""
    if not isinstance(value, kind):
        raise InvalidRequestError(f"'{path}' must be {words}.", param=path)
    return value


def member(holder: Mapping[str, Any], name: str, kind: type | tuple[type, ...], path: str, words: str) -> Any:
    """Return a required member. Raises InvalidRequestError."""
    value = holder.get(name)
    return value if isinstance(value, kind) else checked(value, kind, f"{path}.{name}" if path else name, words)


def each_object(values: Any, path: str, words: str = "an array") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of an array with their paths. Raises InvalidRequestError for anything else."""
    for index, value in enumerate(checked(values, list, path, words)):
        where = f"{path}[{index}]"
        yield where, checked(value, dict, where, "an object")


class OmissionLog:
    """Logs what a front-end leaves out of requests, each kind once: clients repeat it with every request."""

    def __init__(self, frontend: str) -> None:
        self._frontend = frontend
        self._reported: set[str] = set()

    def __call__(self, what: str) -> None:
        """Log that ``what`` is left out."""
        if what not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(what)
            _logger.info(
                "%s: left out of requests: %s", self._frontend, printable(one_line(what, 200)), extra={"is_bounded": True}
            )
