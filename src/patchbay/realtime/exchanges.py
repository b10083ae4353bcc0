"""How much of a chat a session keeps: whole exchanges, from what a user said to the answer, the oldest going first. Pure.

What lives here: what is left out. What does not: the chat itself (``offline``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from patchbay.realtime.remembered import shortened
from patchbay.types import Message

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
