"""What is said on one connection, both ways: the response that is under way, and what the model is asked for next.

What lives here: news of the server turned into events, when the model is asked to answer, limits of time. What does not: the
user's speech (``hearing``), the calls of a response (``collecting``) and what becomes of them (``answers``), what a frame looks
like (``dialects``), and other connections (``keeper``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from patchbay.errors import PatchbayError, UpstreamError, UpstreamTimeoutError
from patchbay.loop import TextEvent
from patchbay.realtime.call_assembly import CallAssembler
from patchbay.realtime.config import RealtimeLimits
from patchbay.realtime.connection import ProviderConnection
from patchbay.realtime.events import AudioEvent, ErrorEvent, InterruptedEvent, ResponseEndEvent, TranscriptEvent
from patchbay.realtime.listener import Listener
from patchbay.realtime.providers.base import CallResult, Frame, Line, WireTool
from patchbay.realtime.response_state import ResponseScheduler, TextBuffers, Timer, UserSpeech
from patchbay.realtime.server_events import (
    AudioDelta,
    CallDelta,
    CallsCancelled,
    FinalCall,
    GoAway,
    InputTranscript,
    ResponseDone,
    ResponseStarted,
    ServerError,
    ServerEvent,
    SessionOpened,
    SessionResumption,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    Status,
    TextDelta,
)

_GIVEN_UP_KEPT: Final = 8


class CallCollector:
    """The response that is under way, or was the last. After its end more of its calls are heard for ``grace`` seconds.

    ``grace_over`` is called when they are not any more.
    """

    def __init__(self, grace: float, listener: Listener, grace_over: Callable[[], None]) -> None:
        self.is_under_way = False
        """Whether there is a response of which something was heard, and not its end. What was asked for may be another one."""
        self.interrupted = False
        """Whether nothing is to come of it."""
        self.is_collected = True
        """Whether its calls were handed on."""
        self.is_answering = False
        """Whether they were handed on to be carried out: nothing is asked for in front of their results."""
        self._grace = grace
        self._listener = listener
        self._grace_over = grace_over
        self._late = Timer(self._grace_ends)
        self._book = CallAssembler()
        self._given_up: dict[str, set[str]] = {}  # responses that were not waited for any longer, and the calls that they had

    @property
    def response_id(self) -> str:
        """The id of the response that is under way; "" where there is none, or that is not known."""
        return (self._book.response_id or "") if self.is_under_way else ""

    @property
    def is_awaited(self) -> bool:
        """Whether something is still to come of a response, and is wanted: its end, or the rest of its calls."""
        return not self.interrupted if self.is_under_way else not self.is_collected

    def is_known(self, response_id: str) -> bool:
        """Whether this response is the one that is under way, or is over."""
        is_mine = self.is_under_way and self._book.response_id == response_id
        return is_mine or (bool(response_id) and self._book.is_over(response_id))

    def is_stale(self, response_id: str) -> bool:
        """Whether something of this response is not to be heard: it is over, or another one is under way.

        Calls that come behind the end are to be looked for before (``is_late``).
        """
        if response_id and not self.is_under_way and response_id == self._book.response_id:
            return True  # it has just ended
        return self._book.is_stale(response_id, under_way=self.is_under_way)

    def is_late(self, response_id: str) -> bool:
        """Whether it is of the response that was completed just now."""
        return self._late.is_set and not self.is_under_way and response_id in ("", self._book.response_id)

    def begin(self, response_id: str) -> None:
        """The next response begins."""
        self._hand_on()
        self._book.begin(response_id)
        self.is_under_way = True
        self.interrupted = False

    def interrupt(self) -> None:
        """Let nothing come of the response that is under way, nor of calls of the last one that are still being collected."""
        if self.is_under_way:
            self.interrupted = True
        elif self._late.is_set:
            self._hand_on(run=False)
            self._book.end()

    def take(self, piece: CallDelta) -> None:
        """Take a part of a call of the response that is under way."""
        call = self._book.take(piece)
        if call is not None and not self.interrupted and not call.begun:
            self._listener.call_is_whole(call)

    def take_late(self, piece: CallDelta) -> None:
        """Take a part of a call of the response that was completed just now."""
        call = self._book.take(piece)
        if call is None or call.begun:
            return
        if self.is_collected:
            self._book.collected()
            self._listener.call_came_late(call)
        elif all(each.done for each in self._book.calls):
            self._hand_on(late=True)

    def end(self, told: Sequence[FinalCall]) -> int:
        """The response is over; return how many calls it has made. They are handed on by ``hand_on``."""
        self.is_under_way = self.is_collected = False
        self._book.close(told)
        return len(self._book.calls)

    def hand_on(self, *, completed: bool) -> None:
        """Hand the calls of the response on that has ended, at once or when they are whole."""
        if not completed:
            self._hand_on(run=False)
            return
        self._late.set(self._grace)
        if all(call.done for call in self._book.calls):
            self._hand_on(late=True)

    def give_up(self) -> None:
        """Wait for the end of the response no longer."""
        self._given_up[self.response_id] = {call.key for call in self._book.calls}
        if len(self._given_up) > _GIVEN_UP_KEPT:
            self._given_up.pop(next(iter(self._given_up)))

    def ended_after_all(self, news: ResponseDone) -> bool:
        """Answer the calls of a response that was waited for no longer: its server waits for their results.

        Returns whether it is one of these.
        """
        known = self._given_up.pop(news.response_id, None)
        if known is None:
            return False
        book = CallAssembler()
        book.begin(news.response_id)
        book.close(call for call in news.calls if call.key not in known)
        if calls := book.collected():
            self._listener.calls_are_told(calls, run=False)
        return True

    def stop(self) -> None:
        """Wait for nothing any more."""
        self.is_under_way = False
        self._late.cancel()

    def _grace_ends(self) -> None:
        self._hand_on()
        self._book.end()
        self._grace_over()

    def _hand_on(self, *, run: bool = True, late: bool = False) -> None:
        """Hand the calls of the response on, once; with ``late`` more of them may come."""
        if not late:
            self._late.cancel()
        if self.is_collected:
            return
        self.is_collected = True
        if calls := self._book.collected():
            self.is_answering = run
            self._listener.calls_are_told(calls, run=run)
        if not run:
            self._book.end()


_NEXT_ANSWER: Final = 5.0
"""Seconds in which another answer may come, behind one that may have been to one of several texts."""

_logger = logging.getLogger(__name__)


class ResponseController:
    """One configured connection in use. It is over when ``listen`` has returned; what is said then is lost."""

    def __init__(self, wire: ProviderConnection, limits: RealtimeLimits, listener: Listener, *, resumed: bool) -> None:
        self.wire = wire
        self.resumed = resumed
        self.over = False
        self.owed = False
        """When it is over: whether an answer was to come, of which nothing has come."""
        dialect = wire.dialect
        self.goes_on_by_itself = dialect.goes_on_by_itself
        # Where nothing is sent to ask for an answer, its beginning is the first that is said.
        self._created = limits.done if dialect.goes_on_by_itself else limits.created
        self._arbiter = ResponseScheduler(created=self._created, done=limits.done, cancel=limits.cancel)
        self._limits = limits
        self._listener = listener
        self._calls = CallCollector(limits.grace, listener, self._go_on)
        self._utterances = TextBuffers()
        self._hearing = UserSpeech(
            limits, listener, self._utterances, self._user_is_silent, tells_ends=not self.goes_on_by_itself
        )
        self._is_told = False  # something that it answers by itself, since it last began to
        self._has_complained = False  # in the log, of what could not be taken
        self._has_typed = False  # the user, into an answer: a server that goes on by itself says of this that the user interrupts
        self._texts = 0  # that are to be answered, since the model last began to
        self._is_one_of_several = False  # the last answer, perhaps
        self._loop = asyncio.get_running_loop()
        self._deadline = Timer(self._rings)
        self._next_answer = Timer(self._go_on)
        self._take: dict[type[Any], Callable[[Any], None]] = {
            SessionOpened: lambda _news: None,
            SessionUpdated: listener.change_settled,
            ServerError: self._refused,
            ResponseStarted: self._response_began,
            TextDelta: self._said,
            AudioDelta: self._sounded,
            InputTranscript: lambda news: self._hearing.heard(news, is_answering=self._calls.is_under_way),
            SpeechStarted: self._user_speaks,
            SpeechStopped: lambda _news: self._hearing.ends(),
            CallDelta: self._call_piece,
            ResponseDone: self._response_ended,
            CallsCancelled: self._calls_cancelled,
            GoAway: lambda news: listener.leaving(news.seconds),
            SessionResumption: lambda news: listener.resumable(news.handle),
        }

    async def listen(self) -> None:
        """Hear all that the server says, until the connection is over."""
        wire, take = self.wire, self.take
        try:
            while not self.over:
                take(await wire.next())
        except EOFError:
            pass
        finally:
            self.end()

    def take(self, news: ServerEvent) -> None:
        """Take one piece of news. What goes wrong with one is told, and the next is taken all the same."""
        try:
            self._take[type(news)](news)
        except Exception as error:
            if not self._has_complained:
                self._has_complained = True
                _logger.exception("A %s could not be taken", type(news).__name__)
            self._listener.emit(ErrorEvent(PatchbayError(f"Something went wrong here with a {type(news).__name__}: {error!r}")))

    def end(self) -> None:
        """Be over: nothing is waited for any more."""
        if self.over:
            return
        self.over = True
        calls = self._calls
        begun = calls.is_under_way
        self._hearing.flush()
        is_cut_off = calls.is_awaited and not self._utterances.has_said
        self.owed = self._arbiter.is_owed or is_cut_off or self._hearing.has_words
        calls.stop()
        if begun:
            self._tell_end("failed")
        self._deadline.cancel()
        self._hearing.over()
        self._next_answer.cancel()

    # What is said to the server

    @property
    def is_quiet(self) -> bool:
        """Whether no response is under way or asked for."""
        return self._arbiter.state == "free"

    @property
    def user_speaks(self) -> bool:
        """Whether the user is speaking, as far as the server tells."""
        return self._hearing.user_speaks

    @property
    def is_free(self) -> bool:
        """Whether none is wanted either, and the user does not speak."""
        return self.is_quiet and not self._arbiter.wanted and not self.user_speaks and self._calls.is_collected

    @property
    def may_say_more(self) -> bool:
        """Whether another answer may come by itself: the last may have been to one of several texts, or to all of them."""
        return self._next_answer.is_set

    def say(self, line: Line, *, answer: bool) -> None:
        """Say a line; ``answer`` as ``Dialect.speaking`` has it."""
        self._is_told = self._is_told or answer
        self._texts += answer
        self._has_typed = self.goes_on_by_itself and answer and line.role == "user" and not self.is_quiet
        self.wire.connection.send(self.wire.dialect.speaking(line, answer=answer))

    def sound(self, audio: bytes) -> None:
        """Send a piece of the user's audio."""
        self._hearing.goes_on()
        self.wire.connection.send(self.wire.dialect.sounding(audio))

    def end_audio(self) -> None:
        """Say that the user has ended."""
        self._hearing.over()
        frames = self.wire.dialect.ending_audio()
        self._is_told = self._is_told or bool(frames)
        self.wire.connection.send(frames)

    def answer(self, results: Sequence[CallResult]) -> None:
        """Tell results, of calls of this connection."""
        self._is_told = True
        self.wire.connection.send(self.wire.dialect.answering(results))

    def change_tools(self, tools: Sequence[WireTool]) -> Sequence[Frame]:
        """Tell other tools; return how."""
        self.wire.connection.send(frames := self.wire.dialect.changing_tools(tools))
        return frames

    def want(self) -> None:
        """Have the model answer, as soon as it may."""
        self._calls.is_answering = False
        self._arbiter.want(any_will_do=self.goes_on_by_itself)
        self._go_on()

    def release(self, *, mutes: bool) -> None:
        """Ask for an answer only where one was wanted before the calls that are now answered.

        ``mutes``: what a server that goes on by itself says of their results is not wanted either.
        """
        self._calls.is_answering = False
        if mutes and self.goes_on_by_itself:
            self._arbiter.mute(self._loop.time())
        self._go_on()

    def cancel(self) -> bool:
        """End the response that is under way, or that was asked for; return whether there was one."""
        self._calls.is_answering = self._hearing.has_words = False
        was_quiet = self.is_quiet
        self._calls.interrupt()
        if self._arbiter.cancel(self._loop.time()):
            self._send_cancel()
        self._watch()
        return not was_quiet

    # What the server says

    def _refused(self, news: ServerError) -> None:
        arbiter = self._arbiter
        if news.about == "session":
            self._listener.change_settled(news)
            return
        if news.busy:
            arbiter.busy(self._loop.time())
            self._go_on()
            return
        code = f" ({news.code})" if news.code else ""
        error = UpstreamError(f"The model's server says: {news.message}{code}")
        if news.about == "response":
            if arbiter.state == "cancelling":
                return  # it was over already: its end has been told, or is on its way
            if arbiter.refused():
                self._listener.answer_failed(error)
                self._go_on()
                return
        self._listener.emit(ErrorEvent(error))

    def _response_began(self, news: ResponseStarted) -> None:
        if not self._calls.is_known(news.response_id):  # told twice, or late
            self._begin(news.response_id)

    def _begin(self, response_id: str) -> None:
        calls = self._calls
        if calls.is_under_way:  # its end was lost
            self._over("incomplete", ())
        elif self._arbiter.state in ("under_way", "cancelling"):  # of somebody else's, whose end was lost
            self._arbiter.ended()
        calls.begin(response_id)
        self._next_answer.cancel()
        self._is_one_of_several, self._texts = self.goes_on_by_itself and self._texts > 1, 0
        self._is_told = self._utterances.has_said = False
        self._hearing.flush()
        self._hearing.over()
        if self._arbiter.began(self._loop.time()):
            calls.interrupted = True
            self._send_cancel()
        self._watch()
        self._listener.response_began(wanted=not calls.interrupted)

    def _of_response(self, response_id: str) -> bool:
        """Whether something is of the response that is under way; the first of one whose beginning was not told begins it."""
        if self._calls.is_stale(response_id):
            return False
        if not self._calls.is_under_way:
            if not response_id:
                return False
            self._begin(response_id)
        self._arbiter.heard(self._loop.time())
        return not self._calls.interrupted

    def _said(self, news: TextDelta) -> None:
        if not self._of_response(news.response_id) or not news.text:
            return
        self._utterances.said(news.text, spoken=news.spoken)
        if news.spoken:
            self._listener.emit(TranscriptEvent("assistant", news.text, whole=False))
        else:
            self._listener.emit(TextEvent(news.text))

    def _sounded(self, news: AudioDelta) -> None:
        if self._of_response(news.response_id):
            self._utterances.has_said = True
            self._listener.emit(AudioEvent(news.audio, news.rate))

    def _user_speaks(self, _news: SpeechStarted) -> None:
        self._hearing.begins()
        self._calls.is_answering = False
        self._calls.interrupt()
        if not self._has_typed:  # else what was typed is still to be answered
            self._arbiter.leave_it()  # the server will have it answered, when it has heard the end
        self._listener.emit(InterruptedEvent())
        self._listener.user_began(typed=self._has_typed)
        self._has_typed = False

    def _user_is_silent(self) -> None:
        """What the user began to say was nothing that is answered: what was left to that answer is asked for."""
        self._arbiter.take_it_back()
        self._go_on()

    def _call_piece(self, news: CallDelta) -> None:
        if self._calls.is_late(news.response_id):
            self._calls.take_late(news)
            return
        self._of_response(news.response_id)
        if self._calls.is_under_way and not self._calls.is_stale(news.response_id):
            self._calls.take(news)

    def _calls_cancelled(self, news: CallsCancelled) -> None:
        if self._listener.calls_taken_back(news.call_ids):
            self._hearing.begins()  # the user, who is answered next

    def _response_ended(self, news: ResponseDone) -> None:
        calls = self._calls
        if calls.is_stale(news.response_id):
            if calls.ended_after_all(news) and self._arbiter.state == "under_way" and not calls.is_under_way:
                self._arbiter.ended()  # this was the one that the server was busy with
                self._go_on()
            return
        if not calls.is_under_way:
            if calls.is_late(news.response_id):
                return  # told twice
            self._begin(news.response_id)  # all of it was lost but its end
        self._over("cancelled" if calls.interrupted and news.status == "completed" else news.status, news.calls, news)

    def _over(self, status: Status, told: Sequence[FinalCall], news: ResponseDone | None = None) -> None:
        """The response is over."""
        calls = self._calls.end(told)
        self._arbiter.ended()
        self._has_typed = self._has_typed and status != "completed"
        if self._is_one_of_several and status == "completed":
            self._next_answer.set(min(self._limits.done, _NEXT_ANSWER))
        self._tell_end(status, news, calls=calls)
        if status == "failed" and news is not None and news.reason:
            self._listener.answer_failed(UpstreamError(f"The model's answer failed: {news.reason}"))
        self._calls.hand_on(completed=status == "completed")
        self._go_on()

    def _tell_end(self, status: Status, news: ResponseDone | None = None, *, calls: int = 0) -> None:
        text, spoken = self._utterances.take_said()
        if text:
            self._listener.heard_line(Line("assistant", text))
            if spoken:
                self._listener.emit(TranscriptEvent("assistant", text, whole=True))
        self._listener.emit(ResponseEndEvent(status, news.usage if news is not None else None))
        self._listener.response_ended(status, chars=len(text), calls=calls)

    # Time

    def _go_on(self) -> None:
        """Ask for what is wanted, if it may be asked for now."""
        calls = self._calls
        # What was wanted before calls were made is asked for with their results, and not in front of them.
        if not calls.is_answering and calls.is_collected and self._arbiter.next(self._loop.time()):
            frames = self.wire.dialect.responding()
            self.wire.connection.send(frames)
            if self.goes_on_by_itself and not frames and not self._is_told:
                self._arbiter.ended()  # nothing will come
        self._watch()
        if self.is_quiet and not self.over:
            self._listener.now_free()

    def _send_cancel(self) -> None:
        self.wire.connection.send(self.wire.dialect.cancelling(self._calls.response_id))

    def _watch(self) -> None:
        """See to it that the arbiter's deadline is looked at. A timer that rings too early is set again, then."""
        if (deadline := self._arbiter.deadline) is not None and not self.over:
            self._deadline.set_by(deadline)

    def _rings(self) -> None:
        overdue = self._arbiter.overdue(self._loop.time())
        if overdue is None:
            self._watch()
            return
        if overdue == "created":
            self._too_late(f"The model did not begin to answer within {self._created} s.")
        elif overdue == "done":
            self._too_late(f"Nothing came of the model's answer for {self._limits.done} s.")
            self._calls.interrupted = True
            self._send_cancel()
        elif self._calls.is_under_way:
            self._calls.give_up()
            self._over("failed", ())
        self._go_on()

    def _too_late(self, text: str) -> None:
        self._listener.answer_failed(UpstreamTimeoutError(text))
