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
from patchbay.realtime.providers.base import WireTool, tool_names
from patchbay.realtime.response_state import Timer
from patchbay.realtime.responses import ResponseController
from patchbay.realtime.server_events import ServerError, SessionUpdated
from patchbay.realtime.session_tools import SessionTools

_MOST_UNANSWERED: Final = 32


@dataclass(eq=False)
class _Change:
    """A change that was sent. ``timer`` is not set where it was answered, or nobody waits for that any more.

    ``before`` are the tools that were told until it was confirmed; ``crossed``: those were confirmed once more behind it.
    """

    version: int
    tools: Sequence[WireTool]
    timer: Timer
    event_id: str = ""
    before: Sequence[WireTool] = ()
    crossed: bool = False


class ToolSync:
    """``changed`` says that there are other tools, ``push`` tells the model where it may be told now.

    What could not be told once is not told again by itself: whoever wants that says ``changed`` again.
    """

    def __init__(self, offered: SessionTools, seconds: float, *, updates: bool, renew: Callable[[], None]) -> None:
        self._offered = offered
        self._seconds = seconds
        self._updates = updates
        self._renew = renew
        self._version = 0
        self._told: Sequence[WireTool] | None = None  # what a server has confirmed last
        self._not_taken: Sequence[WireTool] | None = None  # what was refused last
        self._no_answer: Sequence[WireTool] | None = None  # what this connection was told last without an answer in time
        self._opening: tuple[int, Sequence[WireTool]] = 0, ()
        self._unanswered: deque[_Change] = deque(maxlen=_MOST_UNANSWERED)  # a server answers them in their order
        self._answered: deque[_Change] = deque(maxlen=_MOST_UNANSWERED)
        self._confirmed: _Change | None = None  # the last of them that was, on this connection
        self._names_tools = True  # the server, in what it confirms, and the right ones, as far as is known
        self._taken_back = -1  # the version of the change that was last refused behind its confirmation
        self._known = 0  # the version of the tools that the model knows
        self._patience = Timer(self._waited_too_long)  # of those who wait for another connection
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def is_told(self) -> bool:
        """Whether the model has been told since ``changed`` was said last."""
        return self._known == self._version

    def changed(self) -> asyncio.Future[None]:
        """Take note of other tools; the future ends when the model has been told, or cannot be (ToolSyncError)."""
        self._version += 1
        self._not_taken = self._no_answer = None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._version, future))
        if not self._updates and not self._patience.is_set:
            self._patience.set(self._seconds)
        return future

    def opening(self) -> Sequence[WireTool]:
        """Return what a connection that is being opened is to be told: the tools of now, or else what was taken before."""
        version, tools = self._version, self._offered.told()
        if self._told is not None and tools == self._not_taken:
            version, tools = self._known, self._told
        self._opening = version, tools
        return tools

    def refused_at_opening(self, refused: ServerError) -> bool:
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

    def push(self, talk: ResponseController) -> None:
        """Tell the model, unless it is answering, has been told, was told in vain, or a change is on its way."""
        if self._is_on_its_way or not talk.is_quiet or talk.over:
            return
        tools = self._offered.told()
        was_in_vain = tools in (self._not_taken, self._no_answer)
        if tools == self._told:
            if self._unanswered and not was_in_vain:
                self._send(tools, talk)  # the server may have others: what it has not confirmed it may have taken
            self._done(self._version)
        elif was_in_vain:
            return
        elif self._updates:
            self._send(tools, talk)
        else:
            self._renew()

    def settled(self, news: SessionUpdated | ServerError, talk: ResponseController) -> bool:
        """The server has taken a change, or refused it. Returns whether it was one of these that had not been taken before."""
        is_news = self._was_refused(news) if isinstance(news, ServerError) else self._was_taken(news)
        self.push(talk)
        return is_news

    def lost(self) -> None:
        """The connection is gone; the next one is opened with the tools of now, also such as this one has not confirmed."""
        for change in self._unanswered:
            change.timer.cancel()
        self._unanswered.clear()
        self._answered.clear()
        self._confirmed = self._no_answer = None

    def give_up(self, why: str) -> None:
        """Tell all who wait that it will not be."""
        self.lost()
        self._fail(self._version, why)

    def _was_taken(self, news: SessionUpdated) -> bool:
        if not self._unanswered:
            return False
        change = self._meant(news.tools if self._names_tools else None)
        if change is None:
            self._unanswered[-1].crossed = True
            return False
        self._take(change)
        return True

    def _meant(self, names: frozenset[str] | None) -> _Change | None:
        """The change that is confirmed, by the names of its tools. The first where they do not tell which: some have the same.

        None where they are those of the tools that were told before: then these are confirmed once more.
        """
        fitting = [each for each in self._unanswered if tool_names(each.tools) == names]
        if fitting:
            return [each for each in fitting if each.tools == fitting[0].tools][-1]
        return None if self._told is not None and tool_names(self._told) == names else self._unanswered[0]

    def _take(self, change: _Change) -> None:
        """A change is confirmed; those before it are answered with it, or never will be."""
        while change in self._unanswered:
            self._unanswered[0].timer.cancel()
            self._answered.append(self._unanswered.popleft())
        change.before, self._told, self._confirmed = self._told or (), change.tools, change
        self._done(self._version if self._told == self._offered.told() else change.version)

    def _was_refused(self, news: ServerError) -> bool:
        """A change is refused: the one that is named, or else the first."""
        sent = (*self._unanswered, *self._answered)
        change = next((each for each in sent if each.event_id and each.event_id == news.event_id), None)
        if change is None and self._unanswered:
            change = self._unanswered[0]
        if change is None:
            return False
        if change is self._confirmed:
            self._take_back(change, news)
            return False
        if change in self._unanswered:
            change.timer.cancel()
            self._unanswered.remove(change)
            self._answered.append(change)
            if not self._offered.refuse(news, change.tools):
                self._not_taken = change.tools
                self._fail(change.version, f"the model's server refused the tools: {news.message}")
        return True

    def _take_back(self, change: _Change, news: ServerError) -> None:
        """What was taken for the confirmation of a change was none. It is sent once more: who waited for it has gone."""
        self._told, self._confirmed, self._known = change.before, None, -1
        if not self._offered.refuse(news, change.tools) and change.version == self._taken_back:
            self._not_taken = change.tools
        self._taken_back = change.version

    @property
    def _is_on_its_way(self) -> bool:
        return bool(self._unanswered) and self._unanswered[-1].timer.is_set

    def _send(self, tools: Sequence[WireTool], talk: ResponseController) -> None:
        frames = talk.change_tools(tools)
        event_id = "".join(str(frame.get("event_id", "")) for frame in frames)
        change = _Change(self._version, tools, Timer(lambda: self._too_late(change, talk)), event_id)
        change.timer.set(self._seconds)
        self._unanswered.append(change)

    def _too_late(self, change: _Change, talk: ResponseController) -> None:
        """Wait for the answer no longer. It may come all the same, and must not be taken for that to another change."""
        if change.crossed:  # what came was the answer, of a server that names other tools than it was told
            self._names_tools = False
            self._take(change)
        else:
            self._no_answer = change.tools
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
        if not complaint:
            self._known = max(self._known, version)
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
