"""Controls the responses of one connection: requests and cancels them, and turns server events into session events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from patchbay.errors import PatchbayError, UpstreamError, UpstreamTimeoutError
from patchbay.loop import TextEvent
from patchbay.realtime.config import RealtimeLimits
from patchbay.realtime.connection import ProviderConnection
from patchbay.realtime.events import AudioEvent, ErrorEvent, InterruptedEvent, ResponseEndEvent, TranscriptEvent
from patchbay.realtime.host import SessionHost
from patchbay.realtime.providers.base import CallResult, Frame, Line, WireTool
from patchbay.realtime.response_state import CallAssembler, ResponseScheduler, TextBuffer, Timer, UserSpeech
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
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    Status,
    TextDelta,
)

_logger = logging.getLogger(__name__)


class ResponseController:
    """One configured connection in use, until ``listen`` returns."""

    def __init__(self, wire: ProviderConnection, limits: RealtimeLimits, host: SessionHost) -> None:
        self.wire = wire
        self.closed = False
        self.response_owed = False
        """Once closed: True if a response was expected that has produced nothing."""
        dialect = wire.dialect
        self.continues_unprompted = dialect.continues_unprompted
        # Without a request frame, the first output marks the start of the response.
        self._created = limits.done if dialect.continues_unprompted else limits.created
        self._scheduler = ResponseScheduler(created=self._created, done=limits.done, cancel=limits.cancel)
        self._limits = limits
        self._host = host
        self._calls = CallAssembler(limits.grace, host, self._advance)
        self._text = TextBuffer()
        self._is_spoken = False  # the text is a transcript of audio
        self._has_output = False  # the current response has produced text or audio
        self._speech = UserSpeech(limits, host, self._on_user_silent, signals_end=not self.continues_unprompted)
        self._has_input = False  # input that is answered unprompted, since the last response started
        self._warned = False  # logged one failed event
        self._typed_over_response = False  # such a server reports typed input as an interruption
        self._loop = asyncio.get_running_loop()
        self._deadline = Timer(self._on_timer)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            SessionOpened: lambda _event: None,
            SessionUpdated: host.on_session_change,
            ServerError: self._on_error,
            ResponseStarted: self._on_response_started,
            TextDelta: self._on_text,
            AudioDelta: self._on_audio,
            InputTranscript: lambda event: self._speech.on_transcript(event, awaits_results=self._calls.in_progress),
            SpeechStarted: self._on_speech_started,
            SpeechStopped: lambda _event: self._speech.on_end(),
            CallDelta: self._on_call_delta,
            ResponseDone: self._on_response_done,
            CallsCancelled: self._on_calls_cancelled,
            GoAway: lambda event: host.on_go_away(event.seconds),
        }

    async def listen(self) -> None:
        """Handle events until the connection ends."""
        wire, handle = self.wire, self.handle
        try:
            while not self.closed:
                handle(await wire.next_event())
        except EOFError:
            pass
        finally:
            self.close()

    def handle(self, event: ServerEvent) -> None:
        """Handle one event. An exception becomes an ErrorEvent, and the session continues."""
        try:
            self._handlers[type(event)](event)
        except Exception as error:
            if not self._warned:
                self._warned = True
                _logger.exception("Handling a %s failed", type(event).__name__)
            self._host.emit(ErrorEvent(PatchbayError(f"Handling a {type(event).__name__} failed: {error!r}")))

    def close(self) -> None:
        """Stop all timers and report an unfinished response."""
        if self.closed:
            return
        self.closed = True
        calls = self._calls
        was_in_progress = calls.in_progress
        self._speech.flush()
        is_cut_off = calls.expects_more and not self._has_output
        self.response_owed = self._scheduler.is_response_owed or is_cut_off or self._speech.heard_words
        calls.stop()
        if was_in_progress:
            self._emit_end("failed")
        self._deadline.cancel()
        self._speech.stop()

    # Sending

    @property
    def is_quiet(self) -> bool:
        """True if no response is requested or in progress."""
        return self._scheduler.state == "free"

    @property
    def user_speaks(self) -> bool:
        """True while the user speaks, as far as the server tells."""
        return self._speech.user_speaks

    @property
    def is_free(self) -> bool:
        """True if it is quiet, no response is wanted, and the user does not speak."""
        return self.is_quiet and not self._scheduler.wanted and not self.user_speaks and self._calls.handed_over

    def send_text(self, line: Line, *, answer: bool) -> None:
        """Send a line; ``answer`` as in ``Dialect.text_frames``."""
        self._has_input = self._has_input or answer
        self._typed_over_response = self.continues_unprompted and answer and line.role == "user" and not self.is_quiet
        self.wire.connection.send(self.wire.dialect.text_frames(line, answer=answer))

    def send_audio(self, audio: bytes) -> None:
        """Send a chunk of the user's audio."""
        self._speech.on_audio()
        self.wire.connection.send(self.wire.dialect.audio_frames(audio))

    def end_audio(self) -> None:
        """End the user's audio."""
        self._speech.stop()
        frames = self.wire.dialect.audio_end_frames()
        self._has_input = self._has_input or bool(frames)
        self.wire.connection.send(frames)

    def send_results(self, results: Sequence[CallResult]) -> None:
        """Send results of calls of this connection."""
        self._has_input = True
        self.wire.connection.send(self.wire.dialect.result_frames(results))

    def update_tools(self, tools: Sequence[WireTool]) -> Sequence[Frame]:
        """Send other tools; return the frames."""
        self.wire.connection.send(frames := self.wire.dialect.tools_frames(tools))
        return frames

    def request_response(self) -> None:
        """Request a response as soon as possible."""
        self._calls.awaits_results = False
        self._scheduler.request(accept_pending=self.continues_unprompted)
        self._advance()

    def resume(self, *, mutes: bool) -> None:
        """Continue after results without a request of their own.

        ``mutes``: a response that the server starts by itself is cancelled too.
        """
        self._calls.awaits_results = False
        if mutes and self.continues_unprompted:
            self._scheduler.discard_next(self._loop.time())
        self._advance()

    def cancel(self) -> bool:
        """Cancel the response in progress or requested; return whether there was one."""
        self._calls.awaits_results = self._speech.heard_words = False
        was_quiet = self.is_quiet
        self._calls.interrupt()
        if self._scheduler.cancel(self._loop.time()):
            self._send_cancel()
        self._watch()
        return not was_quiet

    # Server events

    def _on_error(self, event: ServerError) -> None:
        scheduler = self._scheduler
        if event.about == "session":
            self._host.on_session_change(event)
            return
        if event.busy:
            scheduler.busy(self._loop.time())
            self._advance()
            return
        if event.about == "cancel":  # its response had ended already
            return
        code = f" ({event.code})" if event.code else ""
        error = UpstreamError(f"The model's server says: {event.message}{code}")
        if event.about == "response":
            if scheduler.state == "cancelling":
                return  # it had ended already
            if scheduler.rejected():
                self._host.on_response_failed(error)
                self._advance()
                return
        self._host.emit(ErrorEvent(error))

    def _on_response_started(self, event: ResponseStarted) -> None:
        if not self._calls.is_known(event.response_id):  # repeated or late
            self._begin(event.response_id)

    def _begin(self, response_id: str) -> None:
        calls = self._calls
        if calls.in_progress:  # its end was lost
            self._finish("incomplete", ())
        elif self._scheduler.state in ("in_progress", "cancelling"):  # of another client, its end was lost
            self._scheduler.ended()
        calls.begin_response(response_id)
        self._has_input = self._has_output = False
        self._speech.flush()
        self._speech.stop()
        if self._scheduler.began(self._loop.time()):
            calls.interrupted = True
            self._send_cancel()
        self._watch()
        self._host.on_response_started(wanted=not calls.interrupted)

    def _accepts(self, response_id: str) -> bool:
        """True if an event belongs to the response in progress. The first event of an unannounced response starts it."""
        if self._calls.is_stale(response_id):
            return False
        if not self._calls.in_progress:
            if not response_id:
                return False
            self._begin(response_id)
        self._scheduler.touch(self._loop.time())
        return not self._calls.interrupted

    def _on_text(self, event: TextDelta) -> None:
        if not self._accepts(event.response_id) or not event.text:
            return
        self._has_output = True
        self._text.add(event.text)
        if event.spoken:
            self._is_spoken = True
            self._host.emit(TranscriptEvent("assistant", event.text, whole=False))
        else:
            self._host.emit(TextEvent(event.text))

    def _on_audio(self, event: AudioDelta) -> None:
        if self._accepts(event.response_id):
            self._has_output = True
            self._host.emit(AudioEvent(event.audio, event.rate))

    def _on_speech_started(self, _event: SpeechStarted) -> None:
        self._speech.start_speech()
        self._calls.awaits_results = False
        self._calls.interrupt()
        if not self._typed_over_response:  # else the typed text is still to be answered
            self._scheduler.defer_to_server()  # the server responds at the end of the speech
        self._host.emit(InterruptedEvent())
        self._host.on_user_turn(typed=self._typed_over_response)
        self._typed_over_response = False

    def _on_user_silent(self) -> None:
        """Request what was left to the response to speech that led to none."""
        self._scheduler.reclaim()
        self._advance()

    def _on_call_delta(self, event: CallDelta) -> None:
        calls, response_id = self._calls, event.response_id
        if not calls.accepts_late(response_id):
            self._accepts(response_id)
            if not calls.in_progress or calls.is_stale(response_id):
                return
        calls.add_delta(event)

    def _on_calls_cancelled(self, event: CallsCancelled) -> None:
        if self._host.on_calls_cancelled(event.call_ids):
            self._speech.start_speech()  # newer input, which is answered next

    def _on_response_done(self, event: ResponseDone) -> None:
        calls = self._calls
        if calls.is_stale(event.response_id):
            if self._scheduler.state == "in_progress" and not calls.in_progress:
                self._scheduler.ended()  # the server was busy with this one, which had been given up
                self._advance()
            return
        if not calls.in_progress:
            if calls.accepts_late(event.response_id):
                return  # repeated
            self._begin(event.response_id)  # only its end has arrived
        self._finish("cancelled" if calls.interrupted and event.status == "completed" else event.status, event.calls, event)

    def _finish(self, status: Status, listed: Sequence[FinalCall], event: ResponseDone | None = None) -> None:
        calls = self._calls.finish(listed)
        self._scheduler.ended()
        self._typed_over_response = self._typed_over_response and status != "completed"
        self._emit_end(status, event, calls=calls)
        if status == "failed" and event is not None and event.reason:
            self._host.on_response_failed(UpstreamError(f"The model's answer failed: {event.reason}"))
        self._calls.hand_over(completed=status == "completed")
        self._advance()

    def _emit_end(self, status: Status, event: ResponseDone | None = None, *, calls: int = 0) -> None:
        text = self._text.drain()
        if text:
            self._host.on_line(Line("assistant", text))
            if self._is_spoken:
                self._host.emit(TranscriptEvent("assistant", text, whole=True))
        self._is_spoken = False
        self._host.emit(ResponseEndEvent(status, event.usage if event is not None else None))
        self._host.on_response_done(status, chars=len(text), calls=calls)

    # Deadlines

    def _advance(self) -> None:
        """Request the next response if possible."""
        calls = self._calls
        # A response wanted before the calls is requested with their results, not ahead of them.
        if not calls.awaits_results and calls.handed_over and self._scheduler.start_next(self._loop.time()):
            frames = self.wire.dialect.response_frames()
            self.wire.connection.send(frames)
            if self.continues_unprompted and not frames and not self._has_input:
                self._scheduler.ended()  # no response will come
        self._watch()
        if self.is_quiet and not self.closed:
            self._host.advance()

    def _send_cancel(self) -> None:
        self.wire.connection.send(self.wire.dialect.cancel_frames(self._calls.response_id))

    def _watch(self) -> None:
        """Arm the timer for the scheduler's deadline."""
        if (deadline := self._scheduler.deadline) is not None and not self.closed:
            self._deadline.set_by(deadline)

    def _on_timer(self) -> None:
        expire = self._scheduler.expire(self._loop.time())
        if expire is None:
            self._watch()
            return
        if expire == "created":
            self._too_late(f"The model did not begin to answer within {self._created} s.")
        elif expire == "done":
            self._too_late(f"Nothing came of the model's answer for {self._limits.done} s.")
            self._calls.interrupted = True
            self._send_cancel()
        elif self._calls.in_progress:
            self._finish("failed", ())
        self._advance()

    def _too_late(self, text: str) -> None:
        self._host.on_response_failed(UpstreamTimeoutError(text))
