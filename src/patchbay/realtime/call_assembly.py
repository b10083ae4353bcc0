"""A tool call of a response, from deltas that may be split, repeated, late or only in the final event. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from patchbay.realtime.server_events import CallDelta, FinalCall

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


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
