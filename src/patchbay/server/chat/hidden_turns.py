"""Messages of a conversation that its client does not see, stored between two requests.

A client gets the calls of its own tools only. The earlier rounds, and the registry's calls with their results, are stored
under a random id that is part of the ids of those calls. The client's next request quotes these ids; the message that holds them
is replaced by the stored ones, so the model sees the whole turn, each call with one result. A turn that is no longer stored (its
time is over, a limit) is not an error: the conversation continues with the client's own messages.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from patchbay.cache import SizedCache
from patchbay.models.wire import decode, encode
from patchbay.tools.result_store import MemoryResultStore
from patchbay.transcript import insert_results
from patchbay.types import Message, ToolCall

RESULT_CHARS: Final = 4_000_000
"""Maximum characters of long results per conversation."""


@dataclass
class HiddenTurn:
    """Messages as JSON, the ids that were handed out, and the long results behind them. ``used``: when, by the store's clock."""

    id: str
    body: bytes
    handed_out: frozenset[str]
    results: MemoryResultStore
    used: float
    stored_until: float = 0.0
    """When a database drops it."""

    @property
    def size(self) -> int:
        """Its size in bytes.

        The texts of long results are shared by all hidden turns of a conversation; each pays for them, so the limit holds.
        """
        return len(self.body) + 4 * self.results.size


def call_ids(turn_id: str, count: int) -> list[str]:
    """Return the ids of the calls that are handed out for a turn."""
    return [f"call_{turn_id}{place:04x}" for place in range(count)]


@dataclass(frozen=True)
class RestoredHistory:
    """A client's conversation as the model sees it, and its long results. ``found``: a stored turn was restored."""

    messages: list[Message]
    results: MemoryResultStore
    found: bool


_ID: Final = slice(len("call_"), len("call_") + 28)
"""The position of a hidden turn's id within the ids of its calls."""


class HiddenTurnStore:
    """Bounded storage of hidden turns in memory; the least recently used go first.

    ``most`` limits their number, ``most_bytes`` their size, ``seconds`` their idle time.
    """

    def __init__(self, *, most: int, most_bytes: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._kept: SizedCache[str, HiddenTurn] = SizedCache(most=most, most_bytes=most_bytes)

    def __len__(self) -> int:
        return len(self._kept)

    async def keep(
        self, messages: Sequence[Message], pending: Sequence[ToolCall], results: MemoryResultStore
    ) -> tuple[ToolCall, ...]:
        """Store the end of a conversation; return the calls to hand out, under random ids.

        ``pending`` are the calls of its last message with calls that the client is to answer.
        """
        turn_id = secrets.token_hex(14)
        handed_out = call_ids(turn_id, len(pending))
        fresh = {call.id: call_id for call, call_id in zip(pending, handed_out, strict=True)}
        body = encode([_renamed(message, fresh) for message in messages])
        await self._put(HiddenTurn(turn_id, body, frozenset(handed_out), results, self._clock()))
        return tuple(replace(call, id=fresh[call.id]) for call in pending)

    async def load(self, body: bytes) -> None:
        """Load what the ``body`` of a request quotes from where it is stored, before ``restored``. In memory: nothing."""

    async def close(self) -> None:
        """Close what it is stored in."""

    async def _put(self, turn: HiddenTurn) -> None:
        self._kept.put(turn.id, turn, turn.size)

    def restored(self, messages: list[Message]) -> RestoredHistory:
        """Return a conversation with the hidden turns that it quotes restored."""
        view: list[Message] = []
        results: MemoryResultStore | None = None
        index = 0
        while index < len(messages):
            message = messages[index]
            index += 1
            hidden = self._find(message)
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

    def _find(self, message: Message) -> HiddenTurn | None:
        """Return the stored turn whose call ids a message contains; all of them were handed out together."""
        calls = message.get("tool_calls")
        if message.get("role") != "assistant" or not isinstance(calls, list) or not calls:
            return None
        ids = [call.get("id") if isinstance(call, Mapping) else None for call in calls]
        turn_id = ids[0][_ID] if isinstance(ids[0], str) else ""
        hidden = self._kept.get(turn_id)
        if hidden is None or not all(isinstance(each, str) and each in hidden.handed_out for each in ids):
            return None
        now = self._clock()
        if now - hidden.used >= self._seconds:
            self._kept.pop(turn_id)
            return None
        hidden.used = now
        return hidden


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
