"""Bounded records of a conversation: transcript, chat history, and the turn in progress. Pure."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Container, Sequence
from typing import Any, Final, Literal

from patchbay.loop import ReplyEvent
from patchbay.loop.conversation import files_message, reply_message
from patchbay.realtime.providers.base import Line
from patchbay.tools import well_formed
from patchbay.tools.results import excerpt
from patchbay.transcript import NOT_SHOWN
from patchbay.types import Message, ToolCall, ToolResult

_SHORTEST: Final = 1000
"""Below this length a text loses its end instead of its middle (``patchbay.tools.results``)."""


def shortened(text: str, chars: int) -> str:
    """Return at most ``chars`` characters of a text."""
    if len(text) <= chars:
        return text
    return excerpt(text, chars) if chars >= _SHORTEST else text[:chars]


class Transcript:
    """The last ``items`` lines of together at most ``chars`` characters."""

    def __init__(self, items: int, chars: int) -> None:
        self._items = items
        self._chars = chars
        self._size = 0
        self._lines: deque[Line] = deque()

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self._lines)

    def add(self, role: Literal["user", "assistant"], text: str, *, before: int = 0) -> None:
        """Insert a line ``before`` so many of the last; the oldest are dropped."""
        if not text or not self._items:
            return
        text = shortened(text, self._chars)
        self._lines.insert(max(0, len(self._lines) - before), Line(role, text))
        self._size += len(text)
        while len(self._lines) > self._items or self._size > self._chars:
            self._size -= len(self._lines.popleft().text)

    def lines(self) -> tuple[Line, ...]:
        """Return the lines, oldest first."""
        return tuple(self._lines)

    def messages(self) -> list[Message]:
        """Return the lines as chat messages."""
        return [{"role": line.role, "content": line.text} for line in self._lines]


_TRIM_TO: Final = 0.75
"""Share of the limits to which history is trimmed: trimming is rare then, so the prefix stays the same for prompt caches."""


def trim_history(messages: Sequence[Message], *, items: int, chars: int, last_whole: bool = False) -> list[Message]:
    """Return the last exchanges within ``items`` messages and ``chars`` characters.

    An exchange is kept whole or not at all, so that each call has its result. If the last one alone is too long, its question
    and answer are kept, shortened; with ``last_whole`` it is kept as it is.
    """
    exchanges = _exchanges(messages)
    sizes = [(len(each), sum(map(_size, each))) for each in exchanges]

    def fit(share: float) -> bool:
        return sum(count for count, _ in sizes) <= items * share and sum(size for _, size in sizes) <= chars * share

    if fit(1):
        return list(messages)
    while len(exchanges) > 1 and not fit(_TRIM_TO):
        del exchanges[0], sizes[0]
    if len(exchanges) > 1 or fit(1) or last_whole:
        return [message for each in exchanges for message in each]
    return _shorten_exchange(exchanges[0], chars) if items else []


def _exchanges(messages: Sequence[Message]) -> list[list[Message]]:
    """Split at user texts. Messages with files of results are from the user too, but have parts."""
    found: list[list[Message]] = []
    for message in messages:
        if not found or (message.get("role") == "user" and isinstance(message.get("content"), str)):
            found.append([])
        found[-1].append(message)
    return found


def _size(message: Message) -> int:
    content = message.get("content")
    calls = message.get("tool_calls")
    size = len(content) if isinstance(content, str) else 0 if content is None else len(json.dumps(content, default=str))
    return size + (len(json.dumps(calls, default=str)) if calls else 0)


def _shorten_exchange(exchange: Sequence[Message], chars: int) -> list[Message]:
    question = next((message for message in exchange if message.get("role") == "user"), None)
    last = exchange[-1]
    answer = last if last.get("role") == "assistant" and not last.get("tool_calls") else None
    left: list[Message] = [message for message in (question, answer) if message is not None]
    return [{"role": message["role"], "content": shortened(_text(message.get("content")), chars // 2)} for message in left]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else ""


class TurnRecorder:
    """Records a chat turn while it runs, so that an interrupted one keeps its text and results."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages: list[Message] = list(messages)
        self._calls: Sequence[ToolCall] = ()  # of the last reply
        self._results: dict[str, ToolResult] = {}  # by call id
        self._pieces: list[str] = []
        self.rounds = 0
        """The number of replies."""

    def add_text(self, piece: str) -> None:
        """Add a piece of the model's text."""
        self._pieces.append(piece)

    @property
    def is_answering(self) -> bool:
        """True if the model's last reply is incomplete."""
        return bool(self._pieces)

    def reply(self, event: ReplyEvent, tools: Container[str]) -> None:
        """Record a complete reply; ``tools`` are those that it may call."""
        self._messages = [*self._done(), reply_message(event.reply, event.calls, tools)]
        self._calls = event.calls
        self._results.clear()
        self._pieces.clear()
        self.rounds += 1

    def result(self, result: ToolResult) -> None:
        """Record a call's result."""
        self._results[result.call_id] = result

    def messages(self) -> list[Message]:
        """Return the messages so far, each call with its result."""
        text = "".join(self._pieces)
        return [*self._done(), {"role": "assistant", "content": well_formed(text)}] if text else self._done()

    def _done(self) -> list[Message]:
        results = [self._results.get(call.id) or ToolResult(call.id, call.name, NOT_SHOWN) for call in self._calls]
        messages = [*self._messages, *(result.to_message() for result in results)]
        return [*messages, files_message(results)] if any(result.attachments for result in results) else messages
