"""One turn of a chat as it is written down while it happens, so that what was said and done stays when it is broken off. Pure.

What lives here: messages in order, each call with its one result. What does not: the turn (``patchbay.loop``), which hands out
the whole conversation when it comes to its end.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Container, Sequence
from typing import Any, Final, Literal

from patchbay.loop import ReplyEvent
from patchbay.loop.conversation import files_message, reply_message
from patchbay.loop.settled import NOT_SHOWN
from patchbay.realtime.config import RealtimeLimits
from patchbay.realtime.providers.base import Line
from patchbay.tools import well_formed
from patchbay.tools.excerpt import excerpt
from patchbay.types import Message, ToolCall, ToolResult

_SHORTEST: Final = 1000
"""Below this many characters the middle of a text cannot be left out (``patchbay.tools.excerpt``): its end is."""


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
        """How many lines there are."""
        return len(self._lines)

    def add(self, role: Literal["user", "assistant"], text: str, *, before: int = 0) -> None:
        """Take a line, ``before`` so many of the last; the oldest go."""
        if not text or not self._items:
            return
        text = shortened(text, self._chars)
        self._lines.insert(max(0, len(self._lines) - before), Line(role, text))
        self._size += len(text)
        while len(self._lines) > self._items or self._size > self._chars:
            self._size -= len(self._lines.popleft().text)

    def clear(self) -> None:
        """Forget all of it."""
        self._lines.clear()
        self._size = 0

    def lines(self) -> tuple[Line, ...]:
        """What there is, the oldest first."""
        return tuple(self._lines)

    def messages(self) -> list[Message]:
        """The same as messages, for tools that look at the conversation."""
        return [{"role": line.role, "content": line.text} for line in self._lines]


class UnansweredInput:
    """No wire tells what its server has heard. So a line is taken for answered when an answer that began behind it is whole."""

    def __init__(self, limits: RealtimeLimits) -> None:
        self.is_awaited = False
        """The server has given up what it had begun, for something newer: what it answers to that has not begun."""
        self._is_wanted = False  # an answer to any of it
        items, chars = limits.kept_items, limits.kept_chars
        self._told = Transcript(items, chars)
        self._begun = Transcript(items, chars)  # by an answer
        self._resumed = Transcript(items, chars)  # with that, should the connection be lost

    def lines(self) -> tuple[Line, ...]:
        """What a resumed server may not know, the oldest first."""
        return self._begun.lines() + self._told.lines()

    def add(self, line: Line, *, wanted: bool = True) -> None:
        """Take what was told, and whether it is to be answered."""
        self._is_wanted = self._is_wanted or wanted
        self._told.add(line.role, line.text)

    def began(self) -> None:
        """The model answers, as far as anybody can tell to all of it."""
        self.is_awaited = False
        _move(self._told, self._begun)

    def can_be_resumed(self) -> None:
        """The server has told with what its side is resumed: that stands for what it has begun to answer."""
        _move(self._begun, self._resumed)

    def gave_up(self) -> None:
        """The server has ended its answer, or taken its calls back: it has heard something newer, and answers to that."""
        for lines in (self._begun, self._told):
            _move(lines, self._resumed)
        _move(self._resumed, self._told)
        self.is_awaited = self._is_wanted

    def answered(self) -> None:
        """An answer is whole."""
        self._begun.clear()
        self._resumed.clear()
        self._is_wanted = self._is_wanted and bool(len(self._told))

    def hush(self) -> None:
        """Nobody wants an answer to what was told by now."""
        self.is_awaited = self._is_wanted = False

    def wait_no_longer(self) -> None:
        """Nothing is to come: nobody wants it any more, or nothing has come for long."""
        self.is_awaited = False


def _move(lines: Transcript, behind: Transcript) -> None:
    """Put lines behind others."""
    for line in lines.lines():
        behind.add(line.role, line.text)
    lines.clear()


_LEFT: Final = 0.75
"""How much of the limits is left in use where something has to go: what a model was sent stays the beginning of what it is sent
until that happens again, and its server's prompt cache holds."""


def kept(messages: Sequence[Message], *, items: int, chars: int, last_whole: bool = False) -> list[Message]:
    """Return the last exchanges of together at most ``items`` messages and ``chars`` characters; some fewer, where any must go.

    An exchange is kept whole or not at all, so no call is without its result. Of the last one, where it alone is too much, what
    the user said and what was answered are left, shortened; with ``last_whole`` it is left as it is.
    """
    exchanges = _exchanges(messages)
    sizes = [(len(each), sum(map(_size, each))) for each in exchanges]

    def fit(share: float) -> bool:
        return sum(count for count, _ in sizes) <= items * share and sum(size for _, size in sizes) <= chars * share

    if fit(1):
        return list(messages)
    while len(exchanges) > 1 and not fit(_LEFT):
        del exchanges[0], sizes[0]
    if len(exchanges) > 1 or fit(1) or last_whole:
        return [message for each in exchanges for message in each]
    return _essence(exchanges[0], chars) if items else []


def _exchanges(messages: Sequence[Message]) -> list[list[Message]]:
    """Cut where a user says something: a text. What shows the files of results is a user's message too, and has parts."""
    found: list[list[Message]] = []
    for message in messages:
        if not found or (message.get("role") == "user" and isinstance(message.get("content"), str)):
            found.append([])
        found[-1].append(message)
    return found


def _size(message: Message) -> int:
    """How many characters a message has; what is no text counts as it is on the wire."""
    content = message.get("content")
    calls = message.get("tool_calls")
    size = len(content) if isinstance(content, str) else 0 if content is None else len(json.dumps(content, default=str))
    return size + (len(json.dumps(calls, default=str)) if calls else 0)


def _essence(exchange: Sequence[Message], chars: int) -> list[Message]:
    said = next((message for message in exchange if message.get("role") == "user"), None)
    last = exchange[-1]
    answer = last if last.get("role") == "assistant" and not last.get("tool_calls") else None
    left: list[Message] = [message for message in (said, answer) if message is not None]
    return [{"role": message["role"], "content": shortened(_text(message.get("content")), chars // 2)} for message in left]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else ""


class TurnRecorder:
    """A turn that began with ``messages``. ``text``, ``reply`` and ``result`` are told what happens."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages: list[Message] = list(messages)
        self._calls: Sequence[ToolCall] = ()  # of the last reply
        self._results: dict[str, ToolResult] = {}  # of these
        self._said: list[str] = []
        self.rounds = 0
        """How many replies there were."""

    def text(self, piece: str) -> None:
        """The model says something."""
        self._said.append(piece)

    @property
    def is_answering(self) -> bool:
        """Whether the model has begun to say something that is not whole."""
        return bool(self._said)

    def reply(self, event: ReplyEvent, tools: Container[str]) -> None:
        """The model's reply is whole; ``tools`` are those that it may call."""
        self._messages = [*self._done(), reply_message(event.reply, event.calls, tools)]
        self._calls = event.calls
        self._results.clear()
        self._said.clear()
        self.rounds += 1

    def result(self, result: ToolResult) -> None:
        """A call has settled."""
        self._results[result.call_id] = result

    def messages(self) -> list[Message]:
        """What there is by now, each call with its result."""
        said = "".join(self._said)
        return [*self._done(), {"role": "assistant", "content": well_formed(said)}] if said else self._done()

    def _done(self) -> list[Message]:
        results = [self._results.get(call.id) or ToolResult(call.id, call.name, NOT_SHOWN) for call in self._calls]
        messages = [*self._messages, *(result.to_message() for result in results)]
        return [*messages, files_message(results)] if any(result.attachments for result in results) else messages
