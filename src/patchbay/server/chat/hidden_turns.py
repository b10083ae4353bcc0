"""What clients do not see of their own conversations, kept between the request that hands calls out and the one that answers.

A client is handed the calls of its own tools alone. The rounds before, and the registry's calls beside them with their results,
are one stretch of the conversation, which stands here under the ids of the calls that were handed out. The next request quotes
these ids; the message that holds them is replaced by the stretch, so the model sees what really happened, each call with one
result.

The ids are random and the only way to a stretch, so nobody comes upon another one's. What is gone (a restart, a limit) is no
error: the conversation goes on with what the client has.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from patchbay.models.wire import decode, encode
from patchbay.tools.result_store import MemoryResultStore
from patchbay.transcript import insert_results
from patchbay.types import Message, ToolCall

RESULT_CHARS: Final = 4_000_000
"""How many characters of long results are kept for one conversation."""


@dataclass
class _HiddenTurn:
    """Messages as JSON, the ids of the calls in the last of the assistant's that were handed out, and the long results behind."""

    body: bytes
    handed_out: frozenset[str]
    results: MemoryResultStore
    size: int
    used: float


@dataclass(frozen=True)
class RestoredHistory:
    """A client's conversation as the model is to see it, and the long results that it can still read."""

    messages: list[Message]
    results: MemoryResultStore
    found: bool


class HiddenTurnStore:
    """Keeps stretches within limits; those that were not asked about for longest go first. For one event loop.

    ``most`` is their number, ``most_bytes`` their size, ``seconds`` how long one is kept since it was last asked about.
    """

    def __init__(self, *, most: int, most_bytes: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._clock = clock
        self._kept: OrderedDict[str, _HiddenTurn] = OrderedDict()  # by the first of the ids
        self._first: dict[str, str] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, messages: Sequence[Message], pending: Sequence[ToolCall], results: MemoryResultStore) -> tuple[ToolCall, ...]:
        """Keep the end of a conversation; return the calls to hand out, under ids that nobody can guess.

        ``pending`` are the calls of its last message with calls that are the client's to answer.
        """
        fresh = {call.id: f"call_{secrets.token_hex(16)}" for call in pending}
        body = encode([_renamed(message, fresh) for message in messages])
        # The texts of long results are shared by all stretches of a conversation; each pays for them, so the limit holds.
        stretch = _HiddenTurn(body, frozenset(fresh.values()), results, len(body) + 4 * results.size, self._clock())
        if stretch.size <= self._most_bytes:  # one that is larger would only push out all others
            first = next(iter(fresh.values()))
            self._kept[first] = stretch
            self._first.update(dict.fromkeys(stretch.handed_out, first))
            self._size += stretch.size
            self._make_room()
        return tuple(replace(call, id=fresh[call.id]) for call in pending)

    def restored(self, messages: list[Message]) -> RestoredHistory:
        """Return a conversation with the stretches that it quotes in their places."""
        self._make_room()
        if not self._kept:
            return RestoredHistory(messages, MemoryResultStore(max_chars=RESULT_CHARS), found=False)
        view: list[Message] = []
        results: MemoryResultStore | None = None
        index = 0
        while index < len(messages):
            message = messages[index]
            index += 1
            stretch = self._of(message)
            if stretch is None:
                view.append(message)
                continue
            given: list[Message] = []
            while index < len(messages) and messages[index].get("role") == "tool":
                given.append(messages[index])
                index += 1
            asked = {call["id"] for call in message["tool_calls"]}
            view += insert_results(_without(decode(stretch.body), stretch.handed_out - asked), given)
            results = stretch.results.copy()  # what is kept stays as large as it was counted, and each branch has its own
        return RestoredHistory(
            view, results if results is not None else MemoryResultStore(max_chars=RESULT_CHARS), found=results is not None
        )

    def _of(self, message: Message) -> _HiddenTurn | None:
        """The stretch that a message quotes: all of its calls are of those that were handed out."""
        calls = message.get("tool_calls")
        if message.get("role") != "assistant" or not isinstance(calls, list) or not calls:
            return None
        ids = [call.get("id") if isinstance(call, Mapping) else None for call in calls]
        first = self._first.get(ids[0]) if isinstance(ids[0], str) else None
        if first is None or not all(isinstance(each, str) and self._first.get(each) == first for each in ids):
            return None
        stretch = self._kept[first]
        stretch.used = self._clock()
        self._kept.move_to_end(first)
        return stretch

    def _make_room(self) -> None:
        oldest = self._clock() - self._seconds
        while self._kept:
            first, stretch = next(iter(self._kept.items()))
            if len(self._kept) <= self._most and self._size <= self._most_bytes and stretch.used > oldest:
                return
            del self._kept[first]
            self._size -= stretch.size
            for each in stretch.handed_out:
                del self._first[each]


def _renamed(message: Message, ids: Mapping[str, str]) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not any(call["id"] in ids for call in calls):
        return message
    return {**message, "tool_calls": [{**call, "id": ids.get(call["id"], call["id"])} for call in calls]}


def _without(messages: list[Message], ids: frozenset[str]) -> list[Message]:
    """Leave out the calls that the client has taken out of its history: nobody answers them."""
    if not ids:
        return messages
    return [
        {**message, "tool_calls": [call for call in message["tool_calls"] if call["id"] not in ids]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def hides(messages: Sequence[Message], shown: frozenset[str]) -> bool:
    """Whether the end of a conversation holds more than a client is told: more than one message, or fields beside ``shown``."""
    return len(messages) > 1 or any(not message.keys() <= shown for message in messages)
