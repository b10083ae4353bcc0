"""Messages of a conversation that its client does not see, stored between two requests.

A client is handed the calls of its own tools only. The rounds before, and the registry's calls with their results, are stored
under the random ids of the calls that were handed out. The next request quotes these ids; the message that holds them is replaced
by what was stored, so the model sees what really happened, each call with one result. What is gone (a restart, a limit) is no
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
"""Maximum characters of long results per conversation."""


@dataclass
class _HiddenTurn:
    """Messages as JSON, the ids that were handed out, and the long results behind them."""

    body: bytes
    handed_out: frozenset[str]
    results: MemoryResultStore
    size: int
    used: float


@dataclass(frozen=True)
class RestoredHistory:
    """A client's conversation as the model sees it, and its long results."""

    messages: list[Message]
    results: MemoryResultStore
    found: bool


class HiddenTurnStore:
    """Bounded storage of hidden turns; the least recently used go first. For one event loop.

    ``most`` limits their number, ``most_bytes`` their size, ``seconds`` their idle time.
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
        """Store the end of a conversation; return the calls to hand out, under random ids.

        ``pending`` are the calls of its last message with calls that the client is to answer.
        """
        fresh = {call.id: f"call_{secrets.token_hex(16)}" for call in pending}
        body = encode([_renamed(message, fresh) for message in messages])
        # The texts of long results are shared by all hidden turns of a conversation; each pays for them, so the limit holds.
        hidden = _HiddenTurn(body, frozenset(fresh.values()), results, len(body) + 4 * results.size, self._clock())
        if hidden.size <= self._most_bytes:  # one that is larger would only push out all others
            first = next(iter(fresh.values()))
            self._kept[first] = hidden
            self._first.update(dict.fromkeys(hidden.handed_out, first))
            self._size += hidden.size
            self._make_room()
        return tuple(replace(call, id=fresh[call.id]) for call in pending)

    def restored(self, messages: list[Message]) -> RestoredHistory:
        """Return a conversation with the hidden turns that it quotes restored."""
        self._make_room()
        if not self._kept:
            return RestoredHistory(messages, MemoryResultStore(max_chars=RESULT_CHARS), found=False)
        view: list[Message] = []
        results: MemoryResultStore | None = None
        index = 0
        while index < len(messages):
            message = messages[index]
            index += 1
            hidden = self._of(message)
            if hidden is None:
                view.append(message)
                continue
            given: list[Message] = []
            while index < len(messages) and messages[index].get("role") == "tool":
                given.append(messages[index])
                index += 1
            quoted = {call["id"] for call in message["tool_calls"]}
            view += insert_results(_without(decode(hidden.body), hidden.handed_out - quoted), given)
            results = hidden.results.copy()  # the stored ones keep their counted size, and each branch has its own
        return RestoredHistory(
            view, results if results is not None else MemoryResultStore(max_chars=RESULT_CHARS), found=results is not None
        )

    def _of(self, message: Message) -> _HiddenTurn | None:
        """Return the hidden turn that a message quotes: all of its calls were handed out together."""
        calls = message.get("tool_calls")
        if message.get("role") != "assistant" or not isinstance(calls, list) or not calls:
            return None
        ids = [call.get("id") if isinstance(call, Mapping) else None for call in calls]
        first = self._first.get(ids[0]) if isinstance(ids[0], str) else None
        if first is None or not all(isinstance(each, str) and self._first.get(each) == first for each in ids):
            return None
        hidden = self._kept[first]
        hidden.used = self._clock()
        self._kept.move_to_end(first)
        return hidden

    def _make_room(self) -> None:
        oldest = self._clock() - self._seconds
        while self._kept:
            first, hidden = next(iter(self._kept.items()))
            if len(self._kept) <= self._most and self._size <= self._most_bytes and hidden.used > oldest:
                return
            del self._kept[first]
            self._size -= hidden.size
            for each in hidden.handed_out:
                del self._first[each]


def _renamed(message: Message, ids: Mapping[str, str]) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not any(call["id"] in ids for call in calls):
        return message
    return {**message, "tool_calls": [{**call, "id": ids.get(call["id"], call["id"])} for call in calls]}


def _without(messages: list[Message], ids: frozenset[str]) -> list[Message]:
    """Remove calls that the client has removed from its history: they get no result."""
    if not ids:
        return messages
    return [
        {**message, "tool_calls": [call for call in message["tool_calls"] if call["id"] not in ids]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def hides(messages: Sequence[Message], visible: frozenset[str]) -> bool:
    """Return whether the end of a conversation has more than a client sees: several messages, or fields beside ``visible``."""
    return len(messages) > 1 or any(not message.keys() <= visible for message in messages)
