"""What holds a session together: one part of it tells, and others do something about it.

What lives here: the threads between a connection (``keeper``, ``talk``), turns and their calls (``turns``, ``answers``), tools
(``syncing``), and the session's beginning and end. What does not: what a program does with a session (``session``). No part of it
knows a provider.

Everything happens in one event loop, and everything but connecting happens at once: state is changed between two awaits, so there
are no locks. What runs beside are the tools, and one task that listens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from patchbay.errors import PatchbayError, UpstreamError
from patchbay.realtime.call_assembly import PartialCall
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.event_queue import EventQueue
from patchbay.realtime.events import ConnectionEvent, ErrorEvent, IdleEvent, InterruptedEvent, RealtimeEvent
from patchbay.realtime.history import Transcript, UnansweredInput
from patchbay.realtime.providers.base import ConnectionSetup, Dialect, Line
from patchbay.realtime.reconnect import Reconnector
from patchbay.realtime.responses import ResponseController
from patchbay.realtime.server_events import ServerError, SessionUpdated, Status
from patchbay.realtime.session_tools import SessionTools
from patchbay.realtime.tool_rounds import ToolCallRounds
from patchbay.realtime.tool_sync import ToolSync
from patchbay.realtime.turns import SessionContext, Turns
from patchbay.tools import Tool
from patchbay.tools.registry import Snapshot

_logger = logging.getLogger(__name__)


class SessionEngine:
    """The parts of one session.

    It is what a talk tells (``listener.Listener``), who a connection is kept for (``keeper.Holder``), and who calls are carried
    out for (``answers.Host``). What happens goes into ``feed``. ``end_soon`` is told why there is no connection to be had, and is
    to have ``end`` called.
    """

    def __init__(
        self,
        settings: RealtimeSettings,
        dialect: type[Dialect],
        tools: Iterable[Any],
        around: SessionContext,
        *,
        queue: EventQueue,
        end_soon: Callable[[str], object],
    ) -> None:
        limits = settings.limits
        self.offered = SessionTools(dialect, tools)
        self.keeper = Reconnector(settings, dialect, self)
        self._remembered = Transcript(limits.kept_items, limits.kept_chars)
        self._unanswered = UnansweredInput(limits)
        self._syncing = ToolSync(self.offered, limits.update, updates=dialect.updates_tools, renew=self.keeper.renew)
        self._turns = Turns(around, self.offered, self._remembered, max_calls=limits.max_calls)
        self.answers = ToolCallRounds(limits, self.offered, self._remembered, self._turns, self)
        self.feed = queue
        self._end_soon = end_soon
        self._behind = 0  # lines of the user's since the model last began to answer: its own stands in front of them
        self._owed = False  # an answer that the next connection is to ask for
        self.is_hushed = False
        """By the program, until the user goes on."""
        self._was_busy = False  # since it was told that nothing is under way
        self._is_between_turns = False  # the last is given up, the next is about to begin: this is no idle moment
        self._life: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._beside: set[asyncio.Task[Any]] = set()

    # Its beginning and its end

    @property
    def has_begun(self) -> bool:
        """Whether a connection was asked for."""
        return self._life is not None

    @property
    def was_open(self) -> bool:
        """Whether the first connection was opened, or could not be."""
        return self._opened is not None and self._opened.done()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self.keeper.talk is not None and self.keeper.talk.is_free and self.answers.is_idle

    @property
    def is_told(self) -> bool:
        """Whether the model knows the tools of the last ``use_tools``."""
        return self._syncing.is_told

    async def open(self) -> None:
        """Open the first connection. Raises what it cannot be opened for."""
        loop = asyncio.get_running_loop()
        self._opened = loop.create_future()
        self._life = loop.create_task(self.keeper.run())
        await asyncio.shield(self._opened)

    async def end(self, reason: str) -> None:
        """End all there is, in the order in which one needs the other."""
        self._turns.make_way()
        try:
            if self._life is not None:
                self._life.cancel()
                await asyncio.wait([self._life])
            await self.answers.stop()
            while self._beside:
                await asyncio.wait(self._beside)
        finally:
            self._turns.tell_ends(lambda _turn: False)
            if self._opened is not None and not self._opened.done():
                self._opened.set_exception(UpstreamError("The session was closed before it was open."))
                self._opened.exception()  # looked at: nobody may be waiting any more
            self._syncing.give_up("the session is closed")
            self.feed.end(ConnectionEvent("closed", reason))

    # What the program says

    def say(self, text: str) -> None:
        """Say something as the user, and have it answered; to the next connection where there is none."""
        talk = self._next_turn(text)
        line = Line("user", text)
        self.said(line)
        if talk is None:
            self._owed = True
        else:
            talk.say(line, answer=True)
            talk.want()

    def respond(self) -> None:
        """Have the model answer to what the user has spoken."""
        talk = self._next_turn()
        if talk is None:
            self._owed = True
        else:
            talk.end_audio()
            talk.want()

    def interrupt(self) -> None:
        """End what is said and what runs; nothing is asked until the user goes on."""
        self._owed = False
        self._unanswered.hush()
        self.is_hushed = self._was_busy = True
        self._turns.make_way()
        if self.keeper.talk is not None:
            self.keeper.talk.cancel()
        self.emit(InterruptedEvent())
        self.answers.give_up()
        self.look()

    async def use_tools(self, snapshot: Snapshot) -> None:
        """Offer the model these tools from now on, and wait until it has been told."""
        self.offered.use(snapshot)
        self._turns.tools_changed()
        if self._life is None:
            return
        told = self._syncing.changed()
        if self.keeper.talk is not None:
            self._syncing.push(self.keeper.talk)
        await told

    def _next_turn(self, said: str | None = None) -> ResponseController | None:
        """End what is going on for the user's last turn, and begin the next; return the connection. None was spoken."""
        self._turns.make_way(is_spoken=said is None)
        talk = self.keeper.talk
        had_answer = talk is not None and talk.cancel()
        if self.answers.is_waiting or had_answer:
            self.emit(InterruptedEvent())
        with self._between_turns():
            self.answers.give_up()
        self._begin_turn(said)
        return talk

    @contextmanager
    def _between_turns(self) -> Iterator[None]:
        """Something is ended here, and something else is about to begin: ``look`` does nothing meanwhile."""
        self._is_between_turns = True
        try:
            yield
        finally:
            self._is_between_turns = False

    def _begin_turn(self, said: str | None = None) -> None:
        self.is_hushed = False
        self._was_busy = True
        self._turns.tell_ends(self.answers.has_running)  # of the one before
        self._turns.begin(said or "", is_spoken=said is None)

    # What a talk tells (``listener.Listener``)

    def emit(self, event: RealtimeEvent) -> None:
        """Tell the reader of the events."""
        talk = self.keeper.talk
        self._was_busy = self._was_busy or (talk is not None and talk.user_speaks)
        self.feed.put(event)

    def heard_line(self, line: Line, *, is_answered: bool = True) -> None:
        """Remember what was said, and whether a connection that goes on with this one has to be told of it."""
        self._remembered.add(line.role, line.text, before=self._behind if line.role == "assistant" else 0)
        if not is_answered:
            self._behind += 1
            self._unanswered.add(line)
        self._turns.heard(line)

    def response_began(self, *, wanted: bool) -> None:
        """Let the turn know."""
        self._unanswered.began()
        self._behind = 0
        self._was_busy = True
        self.is_hushed = self.is_hushed and not wanted
        self._turns.response_began(wanted=wanted)

    def response_ended(self, status: Status, *, chars: int, calls: int) -> None:
        """Let the turn know; and that the connection is of use, where it was a whole one."""
        if status == "completed":
            self.keeper.served()
            if not calls:
                self._unanswered.answered()
        self._turns.response_ended(status, chars=chars, calls=calls)

    def answer_failed(self, error: PatchbayError) -> None:
        """Let the turn know, and the reader of the events."""
        self._turns.failed(error)
        self.emit(ErrorEvent(error))

    def user_began(self, *, typed: bool) -> None:
        """Give up what was going on for the turn before; where the server takes calls back itself, leave that to it."""
        talk = self.keeper.talk
        spare = talk if talk is not None and talk.goes_on_by_itself else None
        if spare is not None:
            self._unanswered.gave_up()
        if typed:
            return  # then that was done already
        self._turns.make_way(is_spoken=True)
        self.answers.give_up(spare=spare)
        self._begin_turn()

    def call_is_whole(self, call: PartialCall) -> None:
        """See whether the call may begin already."""
        if self.keeper.talk is not None:
            self.answers.start_early(self.keeper.talk, call)

    def calls_are_told(self, calls: Sequence[PartialCall], *, run: bool) -> None:
        """Carry the calls out, or say that they are not."""
        self.keeper.handle = ""  # it leads back to before them, where no result is wanted; the server may tell another
        if self.keeper.talk is not None:
            (self.answers.start if run else self.answers.refuse)(self.keeper.talk, calls)

    def call_came_late(self, call: PartialCall) -> None:
        """Carry it out too."""
        if self.keeper.talk is not None:
            self.answers.start_late(self.keeper.talk, call)

    def calls_taken_back(self, call_ids: Sequence[str]) -> bool:
        """End these calls."""
        was_waiting, talk = self.answers.take_back(call_ids), self.keeper.talk
        goes_on = was_waiting and talk is not None and talk.is_quiet  # not with what it says beside its calls
        if goes_on:
            self._unanswered.gave_up()
        return goes_on

    def change_settled(self, news: SessionUpdated | ServerError) -> None:
        """Tell those who wait for the tools to be told."""
        if self.keeper.talk is None or self._syncing.settled(news, self.keeper.talk) or isinstance(news, SessionUpdated):
            return
        self.emit(ErrorEvent(UpstreamError(f"The model's server refused a change of the session: {news.message}")))

    def now_free(self) -> None:
        """Do what has waited for the model to be silent."""
        self.look()

    def leaving(self, seconds: float) -> None:
        """Have another connection in time."""
        self.keeper.leave(seconds)

    def resumable(self, handle: str) -> None:
        """Remember with what another connection can go on."""
        self.keeper.handle = handle
        if handle and self.keeper.talk is not None and self.keeper.talk.is_quiet:
            self._unanswered.can_be_resumed()

    # What the keeper asks and tells (``keeper.Holder``)

    def opening(self, handle: str) -> ConnectionSetup:
        """The tools of now."""
        return ConnectionSetup(self._syncing.opening(), resume=handle)

    def lines(self) -> Sequence[Line]:
        """What was said."""
        return self._remembered.lines()

    def refuse(self, refused: ServerError) -> bool:
        """Leave out a tool that the server does not take."""
        return self._syncing.refused_at_opening(refused)

    def refuse_all(self, why: str) -> bool:
        """Leave out the tools that have changed since a server took them."""
        return self._syncing.not_opened(why)

    def opened(self, talk: ResponseController) -> None:
        """Go on with what the last connection has left."""
        assert self._opened is not None
        self._syncing.opened()
        if not self._opened.done():
            self._opened.set_result(None)
        self.emit(ConnectionEvent("open"))
        lines = self._unanswered.lines() if talk.resumed else ()
        with self._between_turns():
            self.answers.connected(talk, resumed=talk.resumed)
        asks = self._owed and not self.answers.is_waiting and not self.answers.asks
        self._owed = False
        for number, line in enumerate(lines, 1):
            talk.say(line, answer=asks and number == len(lines))
        if asks:
            talk.want()
        self.look()

    def lost(self, talk: ResponseController) -> None:
        """Keep what the next connection needs."""
        self._owed = self._owed or talk.owed or self._unanswered.is_awaited
        self._syncing.lost()
        self.answers.lost(talk)
        self.look()

    def failed(self, error: PatchbayError) -> None:
        """End the session: there is no connection to be had."""
        assert self._opened is not None
        self._turns.failed(error)
        if not self._opened.done():
            self._opened.set_exception(error)
        else:
            self.emit(ErrorEvent(error))
        self._end_soon(str(error))

    def nothing_is_going_on(self) -> bool:
        """Whether no response and no call is under way, or may still come; calls that were told as running do not count."""
        talk = self.keeper.talk
        return talk is not None and talk.is_free and not talk.may_say_more and not self.answers.is_waiting

    # What calls need (``answers.Host``)

    def said(self, line: Line, *, wanted: bool = True) -> None:
        """Remember what the model was told, that it may not have heard it, and whether it is ``wanted`` to answer."""
        self._remembered.add(line.role, line.text)
        self._behind += 1
        self._unanswered.add(line, wanted=wanted)

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside all else; the session does not end before."""
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._is_done)

    def offer(self, tool: Tool) -> None:
        """Have the model told of a tool more."""
        self.offered.tell_reader(tool)
        if self.keeper.talk is not None:
            self._syncing.push(self.keeper.talk)

    def look(self) -> None:
        """Do what may be done now that something has ended: tell tools and outcomes, renew the connection, end the turn.

        And tell that nothing is under way any more; but whoever has called this may not be done, and about to begin something.
        """
        if self._is_between_turns:
            return
        talk = self.keeper.talk
        if talk is not None:
            self._syncing.push(talk)
            if self.answers.has_outcomes and self.nothing_is_going_on():
                self.answers.tell_outcomes(talk, may_ask=not self.is_hushed)
            self.keeper.renew_when_idle()
            talk = self.keeper.talk  # it may have been hung up
        turn = self._turns.current
        is_free = not self._owed if talk is None else talk.is_free
        if turn is not None and is_free and not self.answers.is_busy_with(turn):
            self._turns.over()
        self._turns.tell_ends(self.answers.has_running)
        if self._was_busy and self.is_idle:
            asyncio.get_running_loop().call_soon(self._tell_idle)

    def _tell_idle(self) -> None:
        if self._was_busy and self.is_idle:
            self._was_busy = False
            self._unanswered.wait_no_longer()
            self.emit(IdleEvent())

    def _is_done(self, task: asyncio.Task[Any]) -> None:
        self._beside.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("Something went wrong in a realtime session", exc_info=error)
