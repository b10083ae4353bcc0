"""What every front-end is made of: the protocol, and readers for the JSON of requests."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from patchbay._text import one_line, printable
from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.models.encoder import AnswerEncoder, AnswerHead
from patchbay.models.providers import turn_start
from patchbay.models.request import read_json
from patchbay.models.wire import encode
from patchbay.transcript import text_of
from patchbay.types import Message

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment, which clients pass over."""

_logger = logging.getLogger(__name__)
_MOST_REPORTED = 256


@dataclass(frozen=True)
class DecodedRequest:
    """A request as the core takes it: ``body`` is one of chat completions, ``encoder`` writes the answer for the client.

    ``is_empty``: no answer of a model is wanted, but an empty one to go on with.
    """

    body: dict[str, Any]
    encoder: AnswerEncoder
    is_empty: bool = False


class Frontend(Protocol):
    """One vendor's chat protocol."""

    name: str
    """For messages and logs."""
    heartbeat: bytes
    """What is written between two events while the upstream is silent."""

    def decode(self, body: bytes, path: str) -> DecodedRequest:
        """Read a request to ``path``. Raises InvalidRequestError."""

    def encode_count(self, tokens: int) -> bytes:
        """The body of the answer to a request for the size of a prompt."""

    def error_body(self, error: PatchbayError) -> bytes:
        """The body of an error response."""


class FrontendEncoder(ABC):
    """What the encoders of all front-ends share: their clients read none of the upstream's own chunks."""

    passes_text = False
    passes_calls = False

    def begin(self, head: AnswerHead) -> None:  # noqa: B027  (not all write it)
        """See AnswerEncoder."""

    def passed(self, choice: int) -> None:  # noqa: B027
        """See AnswerEncoder: nothing is passed on."""

    @abstractmethod
    def text(self, choice: int, text: str, logprobs: bytes = b"null") -> bytes:
        """See AnswerEncoder."""

    @abstractmethod
    def reasoning(self, choice: int, text: str, logprobs: bytes = b"null") -> bytes:
        """See AnswerEncoder."""

    def fields(self, choice: int, delta: Mapping[str, Any], logprobs: bytes = b"null") -> bytes:  # noqa: ARG002
        """See AnswerEncoder: of other fields a refusal, content in parts and the upstream's own reasoning are written."""
        out = b""
        if reasoning := reasoning_of(delta):
            out += self.reasoning(choice, reasoning)
        for name in ("content", "refusal"):
            if text := text_of(delta.get(name)):
                out += self.text(choice, text)
        return out


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The upstream's own reasoning in a message or a delta."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return reasoning if isinstance(reasoning, str) else ""


_MEDIA_BYTES: Final = 4000
"""An image or a file counts as so many bytes, whatever its size."""


def is_text_only(chat: Mapping[str, Any]) -> bool:
    """Whether the messages hold neither images nor files."""
    contents = (message.get("content") for message in chat["messages"])
    return all(content is None or isinstance(content, str) for content in contents)


def estimate_tokens(chat: Mapping[str, Any]) -> int:
    """How many tokens a prompt has, about: one for four bytes of the messages and tools as JSON, 1,000 for an image or file."""
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
    """The JSON object of a request. Raises InvalidRequestError."""
    value = read_json(body)
    if not isinstance(value, dict):
        raise InvalidRequestError("The request body must be a JSON object.")
    return value


def checked(value: Any, kind: type | tuple[type, ...], path: str, words: str) -> Any:
    """Return ``value``, of one of these types. Raises InvalidRequestError, which says ``words`` of the member at ``path``."""
    if not isinstance(value, kind):
        raise InvalidRequestError(f"'{path}' must be {words}.", param=path)
    return value


def member(holder: Mapping[str, Any], name: str, kind: type | tuple[type, ...], path: str, words: str) -> Any:
    """Return a member that must be there. Raises InvalidRequestError."""
    value = holder.get(name)
    return value if isinstance(value, kind) else checked(value, kind, f"{path}.{name}" if path else name, words)


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in an optional array; empty for anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def drop_old_reasoning(messages: list[Message]) -> list[Message]:
    """The messages with the reasoning of the running turn only: servers that want it want it there, others count its tokens."""
    begin = turn_start(messages)
    return [
        {key: value for key, value in message.items() if key != "reasoning_content"}
        if index < begin and "reasoning_content" in message
        else message
        for index, message in enumerate(messages)
    ]


class OmissionLog:
    """Logs what a front-end leaves out of requests: each kind once, since clients send it with every request."""

    def __init__(self, frontend: str) -> None:
        self._frontend = frontend
        self._reported: set[str] = set()

    def __call__(self, what: str) -> None:
        """Log that ``what`` is left out."""
        if what not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(what)
            _logger.info("%s: left out of requests: %s", self._frontend, printable(one_line(what, 200)))
