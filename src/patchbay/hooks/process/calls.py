"""The calls that wait for a process's replies, by their ids.

What lives here: ids, and which reply is whose. The first reply to a call is its answer; what comes late, twice, or for nobody is
dropped. A reply that cannot be read, but whose id can, fails that call alone. What does not: how lines come and go (``child``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from patchbay.hooks.process.errors import HookProcessError, HookReplyError, UnreadableReplyError
from patchbay.hooks.process.lines import Overlong
from patchbay.hooks.process.wire import UndecodableError, id_in_head, read_reply
from patchbay.legible import legible

_SHOWN: Final = 200
NO_REPLY: Final = "a line that is no reply"
"""How what is said of a line begins that nobody waits for and that cannot be read."""

_TOO_LONG: Final = "a line that is too long (max_line_bytes)"


class Calls:
    """``stray`` is told, in words, of what is no reply."""

    def __init__(self, stray: Callable[[str], object]) -> None:
        self._stray = stray
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0

    def next_id(self) -> int:
        """Return the id of the next request: 1, 2, 3, ..."""
        self._last_id += 1
        return self._last_id

    async def answer(self, request_id: int) -> Any:
        """Wait for the ``result`` of a request. Raises HookReplyError, and what ``fail_all`` is told."""
        waiting = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        try:
            return await waiting
        finally:
            del self._waiting[request_id]

    def fail_all(self, why: str) -> None:
        """Tell all that wait that there will be no reply."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(HookProcessError(why))

    def take(self, line: bytes | Overlong) -> bool:
        """Give a line to whom it answers; return whether there was somebody."""
        if isinstance(line, Overlong):
            error = HookReplyError(f"it answered with {_TOO_LONG}")
            return self._refuse(id_in_head(line.head.lstrip()), error, f"{_TOO_LONG}: {_shown(line.head)}")
        line = line.strip()
        if line[:1] != b"{":  # not worth the decoder's time
            if line:
                self._stray(_shown(line))
            return False
        try:
            reply = read_reply(line)
        except UndecodableError as error:
            unreadable = UnreadableReplyError(str(error), _shown(line))
            return self._refuse(error.reply_id, unreadable, f"{NO_REPLY}: {error}: {_shown(line)}")
        waiting = self._waiting.get(reply.id)
        if waiting is None or waiting.done():
            return False
        if reply.error is None:
            waiting.set_result(reply.result)
        else:
            waiting.set_exception(HookReplyError(f"it answered with an error: {legible(reply.error):.500}"))
        return True

    def _refuse(self, request_id: int | None, error: HookReplyError, words: str) -> bool:
        """Fail the call that a line seems to answer."""
        waiting = self._waiting.get(request_id) if request_id is not None else None
        if waiting is None or waiting.done():
            self._stray(words)
            return False
        waiting.set_exception(error)
        return True


def _shown(text: bytes) -> str:
    shown = text[:_SHOWN].decode("utf-8", "replace")
    return f"{shown}..." if len(text) > _SHOWN else shown
