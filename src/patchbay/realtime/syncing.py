"""Keeps the tools that a model has been told of the same as those that there are: who waits for it, and what is on its way.

What lives here: versions, confirmations, deadlines. What does not: which tools there are (``offered``), and opening another
connection for a provider that takes tools only at its beginning (``keeper``, by ``renew``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from patchbay.errors import ToolSyncError
from patchbay.realtime.dialect import WireTool
from patchbay.realtime.news import Refused
from patchbay.realtime.offered import Offered
from patchbay.realtime.talk import Talk
from patchbay.realtime.timer import Timer

_MOST_UNANSWERED: Final = 32


@dataclass(eq=False)
class _Change:
    """A change that the server has not answered. ``timer`` is not set where nobody waits for the answer any more."""

    version: int
    tools: Sequence[WireTool]
    timer: Timer


class Syncing:
    """``changed`` says that there are other tools, ``push`` tells the model where it may be told now.

    What could not be told once is not told again by itself: whoever wants that says ``changed`` again.
    """

    def __init__(self, offered: Offered, seconds: float, *, updates: bool, renew: Callable[[], None]) -> None:
        self._offered = offered
        self._seconds = seconds
        self._updates = updates
        self._renew = renew
        self._version = 0
        self._told: Sequence[WireTool] | None = None  # what a server has confirmed last
        self._not_taken: Sequence[WireTool] | None = None  # what was tried last, in vain
        self._opening: tuple[int, Sequence[WireTool]] = 0, ()
        self._unanswered: deque[_Change] = deque(maxlen=_MOST_UNANSWERED)  # a server answers them in their order
        self._patience = Timer(self._waited_too_long)  # of those who wait for another connection
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def changed(self) -> asyncio.Future[None]:
        """Take note of other tools; the future ends when the model has been told, or cannot be (ToolSyncError)."""
        self._version += 1
        self._not_taken = None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._version, future))
        if not self._updates and not self._patience.is_set:
            self._patience.set(self._seconds)
        return future

    def opening(self) -> Sequence[WireTool]:
        """Return what a connection that is being opened is to be told: the tools of now, or else what was taken before."""
        tools = self._offered.told()
        if self._told is not None and tools == self._not_taken:
            tools = self._told
        self._opening = self._version, tools
        return tools

    def refused_at_opening(self, refused: Refused) -> bool:
        """Leave out the tool that a connection that is being opened does not take; False where that is not known."""
        tools = self._opening[1]
        return self._offered.refuse(refused, tools) or self._offered.told() not in (tools, self._not_taken)

    def not_opened(self, why: str) -> bool:
        """A server has not taken what ``opening`` returned last. Returns whether the next one is to be told something else."""
        version, tools = self._opening
        if self._told is None or tools == self._told:
            return False
        self._not_taken = tools
        self._fail(version, why)
        return True

    def opened(self) -> None:
        """The connection was opened with what ``opening`` returned last."""
        version, self._told = self._opening
        self._done(version)

    def push(self, talk: Talk) -> None:
        """Tell the model, unless it is answering, has been told, was told in vain, or a change is on its way."""
        if self._is_on_its_way or not talk.is_quiet or talk.over:
            return
        tools = self._offered.told()
        if tools == self._told:
            self._done(self._version)
        elif tools == self._not_taken:
            return
        elif self._updates:
            self._send(tools, talk)
        else:
            self._renew()

    def settled(self, refused: Refused | None, talk: Talk) -> bool:
        """The server has taken a change, or refused it. Returns whether it was one of these."""
        if not self._unanswered:
            return False
        change = self._unanswered.popleft()
        change.timer.cancel()
        if refused is None:
            self._told = change.tools
            self._done(self._version if self._told == self._offered.told() else change.version)
        elif not self._offered.refuse(refused, change.tools):
            self._not_taken = change.tools
            self._fail(change.version, f"the model's server refused the tools: {refused.message}")
        self.push(talk)
        return True

    def lost(self) -> None:
        """The connection is gone; the next one is opened with the tools of now."""
        for change in self._unanswered:
            change.timer.cancel()
        self._unanswered.clear()

    def give_up(self, why: str) -> None:
        """Tell all who wait that it will not be."""
        self.lost()
        self._fail(self._version, why)

    @property
    def _is_on_its_way(self) -> bool:
        return bool(self._unanswered) and self._unanswered[-1].timer.is_set

    def _send(self, tools: Sequence[WireTool], talk: Talk) -> None:
        talk.change_tools(tools)
        change = _Change(self._version, tools, Timer(lambda: self._too_late(change, talk)))
        change.timer.set(self._seconds)
        self._unanswered.append(change)

    def _too_late(self, change: _Change, talk: Talk) -> None:
        """Wait for the answer no longer. It may come all the same, and must not be taken for that to another change."""
        self._not_taken = change.tools
        self._fail(change.version, f"the model's server did not confirm the tools within {self._seconds} s")
        self.push(talk)

    def _waited_too_long(self) -> None:
        """Let nobody wait for the end of what is going on: it may be a call that waits for this."""
        self._fail(
            self._version,
            "the model's server takes tools only when a connection begins, and none could begin within"
            f" {self._seconds} s, because something is going on or the server is away; they are told with the next one",
        )

    def _done(self, version: int) -> None:
        complaint = self._offered.complaint()
        for future in self._up_to(version):
            if complaint:
                future.set_exception(ToolSyncError(f"the model's server does not take {complaint}"))
            else:
                future.set_result(None)

    def _fail(self, version: int, why: str) -> None:
        for future in self._up_to(version):
            future.set_exception(ToolSyncError(why))

    def _up_to(self, version: int) -> list[asyncio.Future[None]]:
        due = [future for number, future in self._waiting if number <= version and not future.done()]
        self._waiting = [(number, future) for number, future in self._waiting if number > version]
        if not self._waiting:
            self._patience.cancel()
        return due
