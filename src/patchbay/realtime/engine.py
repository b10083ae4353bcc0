"""Wires the parts of a session: connection, turns, tool calls and tool sync. Provider-independent.

Everything runs in one event loop, and state changes only between awaits, so there are no locks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from patchbay.errors import PatchbayError, UpstreamError
from patchbay.realtime.call_assembly import PartialCall
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.event_queue import EventQueue
from patchbay.realtime.events import ConnectionEvent, ErrorEvent, IdleEvent, InterruptedEvent, RealtimeEvent
from patchbay.realtime.history import Transcript
from patchbay.realtime.providers.base import Dialect, Line
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
    """The parts of one session: host of its connections and tool calls, owner of its reconnector.

    Events go into ``queue``. ``close_soon`` is called with the reason when no connection can be had, and must have ``end``
    called.
    """

    def __init__(
        self,
        settings: RealtimeSettings,
        dialect: type[Dialect],
        tools: SessionTools,
        context: SessionContext,
        *,
        queue: EventQueue,
        close_soon: Callable[[str], object],
    ) -> None:
        limits = settings.limits
        self.tools = tools
        self.transcript = Transcript(limits.kept_items, limits.kept_chars)
        self.tool_sync = ToolSync(tools, limits.update, updates=dialect.updates_tools, renew=self._renew_connection)
        self.reconnector = Reconnector(settings, dialect, self, tools=self.tool_sync, transcript=self.transcript)
        self._turns = Turns(context, self.tools, self.transcript, max_calls=limits.max_calls)
        self.calls = ToolCallRounds(limits, self.tools, self.transcript, self._turns, self)
        self.queue = queue
        self._close_soon = close_soon
        self._unanswered_lines = 0  # user lines since the last response started, which precedes them
        self._response_owed = False  # a response that the next connection must request
        self._answer_dropped = False  # by the server for newer input, the answer to which has not started
        self.is_muted = False
        """True after ``interrupt``, until the user continues."""
        self._was_busy = False  # since the last IdleEvent
        self._is_between_turns = False  # suspends ``advance``
        self._run_task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()

    # Lifetime

    @property
    def has_begun(self) -> bool:
        """True once a connection was requested."""
        return self._run_task is not None

    @property
    def was_open(self) -> bool:
        """True once the first connection was opened or has failed."""
        return self._opened is not None and self._opened.done()

    @property
    def controller(self) -> ResponseController | None:
        """The connection in use, None while there is none."""
        return self.reconnector.controller

    @property
    def is_idle(self) -> bool:
        """True if no response, call or late result is pending."""
        return self.controller is not None and self.controller.is_free and self.calls.is_idle

    async def open(self) -> None:
        """Open the first connection. Raises the error if that fails."""
        loop = asyncio.get_running_loop()
        self._opened = loop.create_future()
        self._run_task = loop.create_task(self.reconnector.keep_connected())
        await asyncio.shield(self._opened)

    async def stop_all(self, reason: str) -> None:
        """Stop all parts in order of dependency."""
        self._turns.end_current()
        try:
            if self._run_task is not None:
                self._run_task.cancel()
                await asyncio.wait([self._run_task])
            await self.calls.stop()
            while self._background:
                await asyncio.wait(self._background)
        finally:
            self._turns.report_finished(lambda _turn: False)
            if self._opened is not None and not self._opened.done():
                self._opened.set_exception(UpstreamError("The session was closed before it was open."))
                self._opened.exception()  # retrieved: nothing may be waiting for it
            self.tool_sync.close("the session is closed")
            self.queue.close(ConnectionEvent("closed", reason))

    # Called by the program

    def send_text(self, text: str) -> None:
        """Send a user text and request a response; without a connection, on the next one."""
        controller = self._start_turn(text)
        line = Line("user", text)
        self.add_input(line)
        if controller is None:
            self._response_owed = True
        else:
            controller.send_text(line, answer=True)
            controller.request_response()

    def respond(self) -> None:
        """Request a response to the user's audio."""
        controller = self._start_turn()
        if controller is None:
            self._response_owed = True
        else:
            controller.end_audio()
            controller.request_response()

    def interrupt(self) -> None:
        """Cancel the response and the running calls; request nothing until the user continues."""
        self._response_owed = self._answer_dropped = False
        self.is_muted = self._was_busy = True
        self._turns.end_current()
        if self.controller is not None:
            self.controller.cancel()
        self.emit(InterruptedEvent())
        self.calls.abandon()
        self.advance()

    async def use_tools(self, snapshot: Snapshot) -> None:
        """Offer these tools from now on, and wait until the server has confirmed them."""
        self.tools.use(snapshot)
        self._turns.update_tools()
        if self._run_task is None:
            return
        confirmed = self.tool_sync.changed()
        if self.controller is not None:
            self.tool_sync.push(self.controller)
        await confirmed

    def _start_turn(self, text: str | None = None) -> ResponseController | None:
        """End the current turn and start the next; return the connection in use. ``text`` is None for speech."""
        self._turns.end_current(is_spoken=text is None)
        controller = self.controller
        had_answer = controller is not None and controller.cancel()
        if self.calls.has_open_rounds or had_answer:
            self.emit(InterruptedEvent())
        with self._between_turns():
            self.calls.abandon()
        self._begin_turn(text)
        return controller

    @contextmanager
    def _between_turns(self) -> Iterator[None]:
        """Suspend ``advance`` between the end of one thing and the start of the next."""
        self._is_between_turns = True
        try:
            yield
        finally:
            self._is_between_turns = False

    def _begin_turn(self, text: str | None = None) -> None:
        self.is_muted = False
        self._was_busy = True
        self._turns.report_finished(self.calls.has_running)  # of the previous turn
        self._turns.begin_turn(text or "", is_spoken=text is None)

    # ``host.SessionHost``

    def emit(self, event: RealtimeEvent) -> None:
        """Queue an event for the reader."""
        controller = self.controller
        self._was_busy = self._was_busy or (controller is not None and controller.user_speaks)
        self.queue.put(event)

    def on_line(self, line: Line, *, is_answered: bool = True) -> None:
        """Add a line to the transcript."""
        self.transcript.add(line.role, line.text, before=self._unanswered_lines if line.role == "assistant" else 0)
        if not is_answered:
            self._unanswered_lines += 1
        self._turns.on_line(line)

    def on_response_started(self, *, wanted: bool) -> None:
        """Record the start of a response."""
        self._answer_dropped = False
        self._unanswered_lines = 0
        self._was_busy = True
        self.is_muted = self.is_muted and not wanted
        self._turns.on_response_started(wanted=wanted)

    def on_response_done(self, status: Status, *, chars: int, calls: int) -> None:
        """Record the end of a response; a completed one proves the connection useful."""
        if status == "completed":
            self.reconnector.mark_useful()
        self._turns.on_response_done(status, chars=chars, calls=calls)

    def on_response_failed(self, error: PatchbayError) -> None:
        """Record and emit an error."""
        self._turns.record_error(error)
        self.emit(ErrorEvent(error))

    def on_user_turn(self, *, typed: bool) -> None:
        """Abandon the previous turn's calls, unless the server cancels calls itself."""
        controller = self.controller
        keep = controller if controller is not None and controller.continues_unprompted else None
        self._answer_dropped = self._answer_dropped or (keep is not None and not self.is_muted)
        if typed:
            return  # done by ``send_text`` already
        self._turns.end_current(is_spoken=True)
        self.calls.abandon(keep=keep)
        self._begin_turn()

    def on_calls(self, calls: Sequence[PartialCall], *, run: bool) -> None:
        """Run or reject the calls of a finished response."""
        if self.controller is not None:
            (self.calls.start_round if run else self.calls.reject)(self.controller, calls)

    def on_calls_cancelled(self, call_ids: Sequence[str]) -> bool:
        """Cancel calls."""
        controller = self.controller
        with self._between_turns():  # else the connection might be renewed before it is known that an answer is owed
            was_waiting = self.calls.cancel_calls(call_ids)
        goes_on = was_waiting and controller is not None and controller.is_quiet  # not while it responds beside its calls
        self._answer_dropped = self._answer_dropped or (goes_on and not self.is_muted)
        asyncio.get_running_loop().call_soon(self.advance)
        return goes_on

    def on_session_change(self, event: SessionUpdated | ServerError) -> None:
        """Pass a confirmation or refusal on to the tool sync; other refusals are errors."""
        if (
            self.controller is None
            or self.tool_sync.on_session_change(event, self.controller)
            or isinstance(event, SessionUpdated)
        ):
            return
        self.emit(ErrorEvent(UpstreamError(f"The model's server refused a change of the session: {event.message}")))

    def on_go_away(self, seconds: float) -> None:
        """Renew the connection in time."""
        self.reconnector.schedule_renewal(seconds)

    def _renew_connection(self) -> None:
        self.reconnector.request_renewal()

    # ``reconnect.ConnectionOwner``

    def on_connected(self, controller: ResponseController) -> None:
        """Continue on a new connection."""
        assert self._opened is not None
        self.tool_sync.on_connected()
        if not self._opened.done():
            self._opened.set_result(None)
        self.emit(ConnectionEvent("open"))
        self.calls.on_connected()
        has_results = self.calls.send_late_results(controller)
        if self._response_owed or (has_results and not self.is_muted):
            controller.request_response()
        self._response_owed = False
        self.advance()

    def on_disconnected(self, controller: ResponseController) -> None:
        """Keep what the next connection needs."""
        self._response_owed = self._response_owed or controller.response_owed or self._answer_dropped
        self.tool_sync.on_disconnected()
        self.advance()

    def on_connection_failed(self, error: PatchbayError) -> None:
        """End the session: no connection can be had."""
        assert self._opened is not None
        self._turns.record_error(error)
        if not self._opened.done():
            self._opened.set_exception(error)
        else:
            self.emit(ErrorEvent(error))
        self._close_soon(str(error))

    def is_quiescent(self) -> bool:
        """True if no response and no call is pending or may still come; calls reported as running do not count."""
        controller = self.controller
        return controller is not None and controller.is_free and not self.calls.has_open_rounds

    def add_input(self, line: Line) -> None:
        """Record a line sent to the model."""
        self.transcript.add(line.role, line.text)
        self._unanswered_lines += 1

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task that ends before the session does."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._on_task_done)

    def offer_tool(self, tool: Tool) -> None:
        """Offer one more tool."""
        self.tools.add_reader(tool)
        self.sync_tools()

    def sync_tools(self) -> None:
        """Send the tools, where they have changed."""
        if self.controller is not None:
            self.tool_sync.push(self.controller)

    def advance(self) -> None:
        """Do what may be done now: send tools and late results, renew the connection, end the turn, report idleness."""
        if self._is_between_turns:
            return
        controller = self.controller
        if controller is not None:
            self.tool_sync.push(controller)
            if self.calls.has_late_results and self.is_quiescent():
                has_results = self.calls.send_late_results(controller)
                if has_results and not self.is_muted:
                    controller.request_response()
            self.reconnector.renew_if_idle()
            controller = self.controller  # it may have been closed
        turn = self._turns.current
        is_free = not self._response_owed if controller is None else controller.is_free
        if turn is not None and is_free and not self.calls.is_busy_with(turn):
            self._turns.finish()
        self._turns.report_finished(self.calls.has_running)
        if self._was_busy and self.is_idle:
            asyncio.get_running_loop().call_soon(self._emit_idle)

    def _emit_idle(self) -> None:
        if self._was_busy and self.is_idle:
            self._was_busy = False
            self._answer_dropped = False
            self.emit(IdleEvent())

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("A background task of a realtime session failed", exc_info=error)
