"""The calls of a response, put together from what a server says of them in pieces, twice, late, or only at the end.

What lives here: joining, and which response is the current one. What does not: what becomes of a call (``rounds``). Pure.
"""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from patchbay.realtime.news import CallPiece, WholeCall

_ENDED_KEPT: Final = 64
"""How many ids of responses that are over are remembered, to know what comes late."""

MOST_CALLS: Final = 128
"""How many calls of one response are taken; a server that tells of more is not heard any further."""

MOST_CHARS: Final = 4 * 1024 * 1024
"""How long the arguments of one call may be, in characters; what comes then is left out, so that they cannot be read."""


@dataclass(slots=True, eq=False)
class HeardCall:
    """One call as it is known so far."""

    key: str
    call_id: str = ""
    """The server's, or one that is made when it can no longer be told."""
    name: str = ""
    arguments: str = ""
    """All of them, where the server has told them whole."""
    done: bool = False
    begun: bool = False
    """Whether it is somebody's already: carried out, or answered."""
    _pieces: list[str] = field(default_factory=list)
    _length: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it can be carried out: it is known to be complete, and whose it is."""
        return self.done and bool(self.name)

    @property
    def text(self) -> str:
        """The arguments as far as they are known. Of two that differ, those that can be read."""
        pieces = "".join(self._pieces)
        if not self.arguments.strip() or (pieces and self.arguments != pieces and not _is_json(self.arguments)):
            return pieces or self.arguments
        return self.arguments

    def add(self, delta: str) -> None:
        """Add to the arguments."""
        if delta and not self.done and self._length <= MOST_CHARS:
            self._pieces.append(delta)
            self._length += len(delta)

    def say(self, *, call_id: str, name: str, arguments: str | None) -> None:
        """Take what is known now and was not before; what was said first stays."""
        if call_id and not self.call_id:
            self.call_id = call_id
        if name and not self.name:
            self.name = name
        if arguments and not self.arguments:
            self.arguments = arguments[: MOST_CHARS + 1]


class CallBook:
    """The calls of one connection's current response, and of the one before it while late pieces may come.

    Pieces of any other response are stale, and are not heard.
    """

    def __init__(self) -> None:
        self.response_id: str | None = None
        """The current response's id; None where there is none, "" where its id is not known (yet)."""
        self.calls: list[HeardCall] = []
        """Those of the current response, in the order in which the server began to tell of them."""
        self._by_key: dict[str, HeardCall] = {}
        self._ended: deque[str] = deque(maxlen=_ENDED_KEPT)

    def begin(self, response_id: str) -> None:
        """Begin the next response."""
        if self.response_id:
            self._ended.append(self.response_id)
        self.response_id = response_id
        self.calls = []
        self._by_key = {}

    def end(self) -> None:
        """Forget the response: what still comes of it is stale."""
        self.begin("")
        self.response_id = None

    def is_over(self, response_id: str) -> bool:
        """Whether this response has ended."""
        return response_id in self._ended

    def is_stale(self, response_id: str, *, under_way: bool) -> bool:
        """Whether something of this response is not to be heard: it is over, or another one is under way."""
        if not response_id or (under_way and response_id == self.response_id):
            return False
        return bool(under_way and self.response_id) or response_id in self._ended

    def take(self, piece: CallPiece) -> HeardCall | None:
        """Take a part of a call; return the call if it has become whole by it. The response must be the current one."""
        call = self._find(piece.key, piece.call_id)
        if call is None and len(self.calls) >= MOST_CALLS:
            return None
        if call is None:
            call = self._new(piece.key or piece.call_id)
        was_whole = call.is_whole
        call.say(call_id=piece.call_id, name=piece.name, arguments=piece.arguments)
        self._index(call, piece.key)
        call.add(piece.delta)
        if piece.done:
            call.done = True
        return call if call.is_whole and not was_whole else None

    def close(self, told: Iterable[WholeCall]) -> None:
        """Take what the response's end says of its calls."""
        listed: list[HeardCall] = []
        for whole in told:
            call = self._find(whole.key, whole.call_id)
            if call is None and len(self.calls) >= MOST_CALLS:
                break
            if call is None:
                call = self._new(whole.key or whole.call_id)
            call.say(call_id=whole.call_id, name=whole.name, arguments=whole.arguments)
            self._index(call, whole.key)
            call.done = True
            if call not in listed:
                listed.append(call)
        if listed:  # the server's own order, which pieces that were lost or came late may not have had
            self.calls = listed + [call for call in self.calls if call not in listed]

    def collected(self) -> list[HeardCall]:
        """Return all calls in order, each with an id by now."""
        for call in self.calls:
            self._with_id(call)
        return list(self.calls)

    def _find(self, key: str, call_id: str) -> HeardCall | None:
        if key and (found := self._by_key.get(key)) is not None:
            return found
        if call_id and (found := self._by_key.get(call_id)) is not None and (not key or found.key in ("", call_id, key)):
            return found
        if not key and not call_id:  # nothing says which: the one that is still being told
            return next((call for call in self.calls if not call.done), None)
        return None

    def _new(self, key: str) -> HeardCall:
        call = HeardCall(key)
        self.calls.append(call)
        return call

    def _index(self, call: HeardCall, key: str) -> None:
        for each in (key, call.call_id):
            if each:
                self._by_key.setdefault(each, call)

    def _with_id(self, call: HeardCall) -> None:
        if not call.call_id:
            call.call_id = f"call_{uuid.uuid4().hex[:24]}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
