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

from patchbay.realtime.server_events import CallDelta, FinalCall

_ENDED_KEPT: Final = 64
"""How many ids of responses that are over are remembered, to know what comes late."""

MOST_CALLS: Final = 128
"""How many calls of one response are taken; a server that tells of more is not heard any further."""

MOST_CHARS: Final = 4 * 1024 * 1024
"""How long the arguments of one call may be, in characters; what comes then is left out, and the call is not carried out."""

MOST_CHARS_TOGETHER: Final = 2 * MOST_CHARS
"""The same for all calls of one response. Arguments that are told in pieces, and then whole, count twice: both are kept."""


@dataclass(slots=True, eq=False)
class PartialCall:
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
    is_cut: bool = False
    """Whether something of its arguments was left out, for their length."""
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

    def add(self, delta: str, room: int) -> int:
        """Add to the arguments, where there is ``room`` for so many characters; return how many were added."""
        if self.done:
            return 0
        taken = self._within(delta, min(room, MOST_CHARS - self._length))
        if taken:
            self._pieces.append(taken)
            self._length += len(taken)
        return len(taken)

    def say(self, told: CallDelta | FinalCall, room: int) -> int:
        """Take what is known now and was not before, as ``add`` does; what was said first stays."""
        self.call_id = self.call_id or told.call_id
        self.name = self.name or told.name
        if self.arguments or not told.arguments:
            return 0
        self.arguments = self._within(told.arguments, min(room, MOST_CHARS))
        return len(self.arguments)

    def _within(self, text: str, room: int) -> str:
        self.is_cut = self.is_cut or len(text) > room
        return text[:room]


class CallAssembler:
    """The calls of one connection's current response, and of the one before it while late pieces may come.

    Pieces of any other response are stale, and are not heard.
    """

    def __init__(self) -> None:
        self.response_id: str | None = None
        """The current response's id; None where there is none, "" where its id is not known (yet)."""
        self.calls: list[PartialCall] = []
        """Those of the current response, in the order in which the server began to tell of them."""
        self._by_key: dict[str, PartialCall] = {}
        self._room = MOST_CHARS_TOGETHER
        self._ended: deque[str] = deque(maxlen=_ENDED_KEPT)

    def begin(self, response_id: str) -> None:
        """Begin the next response."""
        if self.response_id:
            self._ended.append(self.response_id)
        self.response_id = response_id
        self.calls = []
        self._by_key = {}
        self._room = MOST_CHARS_TOGETHER

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

    def take(self, piece: CallDelta) -> PartialCall | None:
        """Take a part of a call; return the call if it has become whole by it. The response must be the current one."""
        call = self._find(piece.key, piece.call_id)
        if call is None and len(self.calls) >= MOST_CALLS:
            return None
        if call is None:
            call = self._new(piece.key or piece.call_id)
        was_whole = call.is_whole
        self._room -= call.say(piece, self._room)
        self._index(call, piece.key)
        self._room -= call.add(piece.delta, self._room)
        if piece.done:
            call.done = True
        return call if call.is_whole and not was_whole else None

    def close(self, told: Iterable[FinalCall]) -> None:
        """Take what the response's end says of its calls."""
        listed: list[PartialCall] = []
        for whole in told:
            call = self._find(whole.key, whole.call_id)
            if call is None and len(self.calls) >= MOST_CALLS:
                break
            if call is None:
                call = self._new(whole.key or whole.call_id)
            self._room -= call.say(whole, self._room)
            self._index(call, whole.key)
            call.done = True
            if call not in listed:
                listed.append(call)
        if listed:  # the server's own order, which pieces that were lost or came late may not have had
            self.calls = listed + [call for call in self.calls if call not in listed]

    def collected(self) -> list[PartialCall]:
        """Return all calls in order, each with an id by now."""
        for call in self.calls:
            self._with_id(call)
        return list(self.calls)

    def _find(self, key: str, call_id: str) -> PartialCall | None:
        if key and (found := self._by_key.get(key)) is not None:
            return found
        if call_id and (found := self._by_key.get(call_id)) is not None and (not key or found.key in ("", call_id, key)):
            return found
        if not key and not call_id:  # nothing says which: the one that is still being told
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
