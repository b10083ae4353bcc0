"""Assembles the tool calls of a response from deltas that may be split, repeated, late or only in the final event. Pure."""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from patchbay.realtime.server_events import CallDelta, FinalCall

_ENDED_KEPT: Final = 64
"""Number of finished response ids that are remembered to recognize late events."""

MAX_CALLS: Final = 128
"""Maximum number of calls in one response; further ones are ignored."""

MAX_ARGUMENT_CHARS: Final = 4 * 1024 * 1024
"""Maximum length of one call's arguments; a longer call is truncated and not run."""

MAX_RESPONSE_CHARS: Final = 2 * MAX_ARGUMENT_CHARS
"""The same for all calls of a response. Arguments that arrive in deltas and then whole count twice."""


@dataclass(slots=True, eq=False)
class PartialCall:
    """A tool call as far as it is known."""

    key: str
    call_id: str = ""
    """The server's id, or a generated one once the response is complete."""
    name: str = ""
    arguments: str = ""
    """The complete arguments, if the server has sent them in one piece."""
    done: bool = False
    claimed: bool = False
    """True once the call was run or answered."""
    truncated: bool = False
    """True if arguments were dropped because of their length."""
    _pieces: list[str] = field(default_factory=list)
    _length: int = 0

    @property
    def is_complete(self) -> bool:
        """True if the call can run: all of it has arrived, and its tool is known."""
        return self.done and bool(self.name)

    @property
    def text(self) -> str:
        """The arguments so far. If deltas and the complete text differ, the one that is valid JSON."""
        pieces = "".join(self._pieces)
        if not self.arguments.strip() or (pieces and self.arguments != pieces and not _is_json(self.arguments)):
            return pieces or self.arguments
        return self.arguments

    def append(self, delta: str, budget: int) -> int:
        """Append to the arguments within ``budget`` characters; return the number of characters added."""
        if self.done:
            return 0
        accepted = self._truncate(delta, min(budget, MAX_ARGUMENT_CHARS - self._length))
        if accepted:
            self._pieces.append(accepted)
            self._length += len(accepted)
        return len(accepted)

    def merge(self, update: CallDelta | FinalCall, budget: int) -> int:
        """Fill in fields that are not known yet, within ``budget`` like ``append``; earlier values stay."""
        self.call_id = self.call_id or update.call_id
        self.name = self.name or update.name
        if self.arguments or not update.arguments:
            return 0
        self.arguments = self._truncate(update.arguments, min(budget, MAX_ARGUMENT_CHARS))
        return len(self.arguments)

    def _truncate(self, text: str, budget: int) -> str:
        self.truncated = self.truncated or len(text) > budget
        return text[:budget]


class CallAssembler:
    """The calls of a connection's current response, and of the previous one while late deltas may come."""

    def __init__(self) -> None:
        self.response_id: str | None = None
        """The current response's id; None if there is none, "" if it is not known yet."""
        self.calls: list[PartialCall] = []
        """The current response's calls, in the order of their first event."""
        self._by_key: dict[str, PartialCall] = {}
        self._budget = MAX_RESPONSE_CHARS
        self._ended: deque[str] = deque(maxlen=_ENDED_KEPT)

    def begin(self, response_id: str) -> None:
        """Start the next response."""
        if self.response_id:
            self._ended.append(self.response_id)
        self.response_id = response_id
        self.calls = []
        self._by_key = {}
        self._budget = MAX_RESPONSE_CHARS

    def discard(self) -> None:
        """Drop the response: later events of it are stale."""
        self.begin("")
        self.response_id = None

    def is_over(self, response_id: str) -> bool:
        """True if this response has ended."""
        return response_id in self._ended

    def is_stale(self, response_id: str, *, under_way: bool) -> bool:
        """True if events of this response must be ignored: it has ended, or another one is in progress."""
        if not response_id or (under_way and response_id == self.response_id):
            return False
        return bool(under_way and self.response_id) or response_id in self._ended

    def add_delta(self, piece: CallDelta) -> PartialCall | None:
        """Apply a delta of the current response; return the call if that completed it."""
        call = self._find(piece.key, piece.call_id)
        if call is None and len(self.calls) >= MAX_CALLS:
            return None
        if call is None:
            call = self._new(piece.key or piece.call_id)
        was_whole = call.is_complete
        self._budget -= call.merge(piece, self._budget)
        self._index(call, piece.key)
        self._budget -= call.append(piece.delta, self._budget)
        if piece.done:
            call.done = True
        return call if call.is_complete and not was_whole else None

    def finish(self, update: Iterable[FinalCall]) -> None:
        """Apply the calls listed in the response's final event; its order wins."""
        listed: list[PartialCall] = []
        for whole in update:
            call = self._find(whole.key, whole.call_id)
            if call is None and len(self.calls) >= MAX_CALLS:
                break
            if call is None:
                call = self._new(whole.key or whole.call_id)
            self._budget -= call.merge(whole, self._budget)
            self._index(call, whole.key)
            call.done = True
            if call not in listed:
                listed.append(call)
        if listed:  # the server's order: lost or late deltas may differ from it
            self.calls = listed + [call for call in self.calls if call not in listed]

    def all_calls(self) -> list[PartialCall]:
        """Return all calls in order, each with an id."""
        for call in self.calls:
            self._with_id(call)
        return list(self.calls)

    def _find(self, key: str, call_id: str) -> PartialCall | None:
        if key and (found := self._by_key.get(key)) is not None:
            return found
        if call_id and (found := self._by_key.get(call_id)) is not None and (not key or found.key in ("", call_id, key)):
            return found
        if not key and not call_id:  # no reference: the one that is still incomplete
            return next((call for call in self.calls if not call.done), None)
        return None

    def _new(self, key: str) -> PartialCall:
        call = PartialCall(key)
        self.calls.append(call)
        return call

    def _index(self, call: PartialCall, key: str) -> None:
        for each in (key, call.call_id):
            if each:
                self._by_key.setdefault(each, call)

    def _with_id(self, call: PartialCall) -> None:
        if not call.call_id:
            call.call_id = f"call_{uuid.uuid4().hex[:24]}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
