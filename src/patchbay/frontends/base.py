"""Shared parts of all front-ends: the protocol, the encoders' base class, and readers for the JSON of requests."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from patchbay._text import one_line, printable
from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.formats.events import CallArguments, CallEnd, CallStart, ReasoningDelta, TextDelta
from patchbay.models.encoder import NULL, AnswerEncoder, ByteEncoder
from patchbay.models.parts import OtherFields, Part, reasoning_of, text_in
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

    ``is_empty``: the client wants an empty answer to continue from, without a request to the model.
    """

    body: dict[str, Any]
    encoder: AnswerEncoder[bytes]
    is_empty: bool = False


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

    def error_body(self, error: PatchbayError) -> bytes:
        """Encode an error response."""


class FrontendEncoder(ByteEncoder, ABC):
    """Base class of the front-ends' encoders: a method for each kind of part, of the first choice."""

    def part(self, choice: int, part: Part, logprobs: bytes = NULL) -> bytes:  # noqa: ARG002
        """See AnswerEncoder."""
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


_MEDIA_BYTES: Final = 4000
"""Bytes that an image or a file counts as, whatever its size."""


def is_text_only(chat: Mapping[str, Any]) -> bool:
    """Whether the messages have neither images nor files."""
    contents = (message.get("content") for message in chat["messages"])
    return all(content is None or isinstance(content, str) for content in contents)


def estimate_tokens(chat: Mapping[str, Any]) -> int:
    """Estimate a prompt's tokens: one per four bytes of its messages and tools as JSON, 1,000 for an image or file."""
    messages: list[Any] = chat["messages"]
    media = 0
    if not is_text_only(chat):
        parts = [part for message in messages if isinstance(message.get("content"), list) for part in message["content"]]
        media = sum(part["type"] != "text" for part in parts)
        contents = {"content": [part for part in parts if part["type"] == "text"]}
        messages = [
            contents,
            *({**each, "content": None} if isinstance(each.get("content"), list) else each for each in messages),
        ]
    return (len(encode(messages)) + len(encode(chat.get("tools") or [])) + media * _MEDIA_BYTES) // 4 + 1


def read_body(body: bytes) -> dict[str, Any]:
    """Decode the JSON object of a request. Raises InvalidRequestError."""
    value = read_json(body)
    if not isinstance(value, dict):
        raise InvalidRequestError("The request body must be a JSON object.")
    return value


def checked(value: Any, kind: type | tuple[type, ...], path: str, words: str) -> Any:
    """Return ``value`` if it has this type. Raises InvalidRequestError: the member at ``path`` must be ``words``."""
    if not isinstance(value, kind):
        raise InvalidRequestError(f"'{path}' must be {words}.", param=path)
    return value


def member(holder: Mapping[str, Any], name: str, kind: type | tuple[type, ...], path: str, words: str) -> Any:
    """Return a required member. Raises InvalidRequestError."""
    value = holder.get(name)
    return value if isinstance(value, kind) else checked(value, kind, f"{path}.{name}" if path else name, words)


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in an optional array; empty for anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def object_schema(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a tool's parameters as OpenAI requires them: an object with properties, which others let clients leave out."""
    return {"type": "object", "properties": {}, **(parameters or {})}


def drop_old_reasoning(messages: list[Message]) -> list[Message]:
    """Drop reasoning of earlier turns: servers want it within a turn only, and count its tokens."""
    begin = turn_start(messages)
    return [
        {key: value for key, value in message.items() if key != "reasoning_content"}
        if index < begin and "reasoning_content" in message
        else message
        for index, message in enumerate(messages)
    ]


class OmissionLog:
    """Logs what a front-end leaves out of requests, each kind once: clients repeat it with every request."""

    def __init__(self, frontend: str) -> None:
        self._frontend = frontend
        self._reported: set[str] = set()

    def __call__(self, what: str) -> None:
        """Log that ``what`` is left out."""
        if what not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(what)
            _logger.info("%s: left out of requests: %s", self._frontend, printable(one_line(what, 200)))
