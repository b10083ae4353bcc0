"""State machines of a connection: which response is pending, its tool calls, and whether the user is speaking."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Literal, TypeAlias

from patchbay.realtime.call_assembly import MAX_CALLS, MAX_RESPONSE_CHARS, PartialCall
from patchbay.realtime.config import RealtimeLimits
from patchbay.realtime.events import TranscriptEvent
from patchbay.realtime.host import SessionHost
from patchbay.realtime.providers.base import Line
from patchbay.realtime.server_events import CallDelta, FinalCall, InputTranscript


class Timer:
    """A restartable timer that calls ``then`` once."""

    __slots__ = ("_handle", "_then")

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        """True while the timer runs."""
        return self._handle is not None

    def set(self, seconds: float) -> None:
        """Restart the timer."""
        self.cancel()
        self._handle = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def set_by(self, when: float) -> None:
        """Fire at loop time ``when`` at the latest."""
        if self._handle is None or self._handle.when() > when:
            self.cancel()
            self._handle = asyncio.get_running_loop().call_at(when, self._on_timer)

    def cancel(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _on_timer(self) -> None:
        self._handle = None
        self._then()


State: TypeAlias = Literal["free", "requested", "discarding", "in_progress", "cancelling"]
Overdue: TypeAlias = Literal["created", "done", "cancel"]


class ResponseScheduler:
    """Serializes responses: at most one is requested or in progress.

    Pure: times are arguments, limits are in seconds. At ``deadline`` (None: never) call ``expire``.
    """

    def __init__(self, *, created: float, done: float, cancel: float) -> None:
        self._created = created
        self._done = done
        self._cancel = cancel
        self.state: State = "free"
        self.wanted = False
        """True if a response must be requested after the current one."""
        self.deadline: float | None = None
        self._unwanted = False  # cancel the requested response when it starts
        self._deferred = False  # requests left to a response that the server starts by itself

    @property
    def is_response_owed(self) -> bool:
        """True if a response is to come that has not started."""
        return self.wanted or self._deferred or (self.state == "requested" and not self._unwanted)

    def request(self, *, accept_pending: bool = False) -> None:
        """Request a response. One that is requested and has not started suffices, unless it is to be cancelled.

        ``accept_pending``: even then, since the server has all input that it will answer.
        """
        if accept_pending:
            self._unwanted = False
        self.wanted = self.wanted or self.state != "requested" or self._unwanted

    def discard_next(self, now: float) -> None:
        """Cancel the response that the server will start by itself."""
        if self.state == "free" and not self.wanted:
            self.state = "discarding"
            self.deadline = now + self._cancel

    def defer_to_server(self) -> None:
        """Leave the request to the response that the server starts by itself."""
        self._deferred = self._deferred or self.wanted
        self.wanted = self._unwanted = False
        if self.state == "discarding":
            self.ended()

    def reclaim(self) -> None:
        """Restore requests left to the server, which starts no response."""
        self.wanted, self._deferred = self.wanted or self._deferred, False

    def start_next(self, now: float) -> bool:
        """Return True if a response must be requested now, and record that it was."""
        if self.state != "free" or not self.wanted:
            return False
        self.wanted = False
        self.state = "requested"
        self.deadline = now + self._created
        return True

    def began(self, now: float) -> bool:
        """Record the start of a response; return True if it must be cancelled at once."""
        unwanted, self._unwanted = self._unwanted or self.state == "discarding", False
        self._deferred = False
        self.state = "in_progress"
        self.deadline = now + self._done
        return unwanted and self._start_cancel(now)

    def touch(self, now: float) -> None:
        """Record progress of the response."""
        if self.state == "in_progress":
            self.deadline = now + self._done

    def ended(self) -> None:
        """Record the end of the response."""
        self.state = "free"
        self.deadline = None
        self._unwanted = False

    def busy(self, now: float) -> None:
        """Record a refusal because another response is in progress: the request waits for its end."""
        self.wanted = self.wanted or not self._unwanted
        self._unwanted = False
        if self.state == "requested":
            self.state = "in_progress"
            self.deadline = now + self._done

    def rejected(self) -> bool:
        """Record a refused request; return True if one was pending."""
        if self.state != "requested":
            return False
        self.ended()
        return True

    def cancel(self, now: float) -> bool:
        """Drop requests and cancel the response; return True if a cancel frame must be sent now."""
        self.wanted = self._deferred = False
        if self.state == "requested":
            self._unwanted = True
        elif self.state == "discarding":
            self.ended()  # the next response may be to newer input
        return self.state == "in_progress" and self._start_cancel(now)

    def expire(self, now: float) -> Overdue | None:
        """Return which deadline has passed, if any. A response past "done" must be cancelled; the others are given up."""
        if self.deadline is None or now < self.deadline:
            return None
        if self.state == "in_progress":
            self._start_cancel(now)
            return "done"
        late: Overdue = "created" if self.state == "requested" else "cancel"
        self.ended()
        return late

    def _start_cancel(self, now: float) -> bool:
        self.state = "cancelling"
        self.deadline = now + self._cancel
        return True


_ENDED_KEPT: Final = 64
"""Number of finished response ids that are remembered to recognize late events."""


class CallAssembler:
    """The calls of a connection's current response, which are handed over to the host once, all together.

    After the end of the response late calls are accepted for ``grace`` seconds; then ``grace_over`` is called.
    """

    def __init__(self, grace: float, host: SessionHost, grace_over: Callable[[], None]) -> None:
        self.calls: list[PartialCall] = []
        """The response's calls, in the order of their first event."""
        self.in_progress = False
        """True between the first event of a response and its end."""
        self.interrupted = False
        """True if the response is discarded."""
        self.handed_over = True
        """True once its calls were handed over."""
        self.awaits_results = False
        """True while its calls run: no response is requested ahead of their results."""
        self._response_id: str | None = None  # None: there is none; "": not known yet
        self._by_key: dict[str, PartialCall] = {}
        self._budget = MAX_RESPONSE_CHARS
        self._ended: deque[str] = deque(maxlen=_ENDED_KEPT)
        self._grace = grace
        self._host = host
        self._grace_over = grace_over
        self._late = Timer(self._on_grace_over)

    @property
    def response_id(self) -> str:
        """The id of the response in progress, "" if there is none or it is unknown."""
        return (self._response_id or "") if self.in_progress else ""

    @property
    def expects_more(self) -> bool:
        """True if a wanted response has not ended, or its calls are not complete."""
        return not self.interrupted if self.in_progress else not self.handed_over

    def is_known(self, response_id: str) -> bool:
        """True if this response is in progress or over."""
        return (self.in_progress and self._response_id == response_id) or response_id in self._ended

    def is_stale(self, response_id: str) -> bool:
        """True if events of this response must be ignored. Check ``accepts_late`` first for calls."""
        if not response_id:
            return False
        if response_id == self._response_id:
            return not self.in_progress
        return bool(self.in_progress and self._response_id) or response_id in self._ended

    def accepts_late(self, response_id: str) -> bool:
        """True if it is the response that was completed just now."""
        return self._late.is_set and not self.in_progress and response_id in ("", self._response_id)

    # Lifetime

    def begin_response(self, response_id: str) -> None:
        """Start the next response."""
        self._hand_over()
        self.discard(response_id)
        self.in_progress = True
        self.interrupted = False

    def discard(self, next_id: str | None = None) -> None:
        """Drop the response: later events of it are stale."""
        if self._response_id:
            self._ended.append(self._response_id)
        self._response_id = next_id
        self.calls = []
        self._by_key = {}
        self._budget = MAX_RESPONSE_CHARS

    def interrupt(self) -> None:
        """Discard the response in progress, or calls of the last one that are still incomplete."""
        if self.in_progress:
            self.interrupted = True
        elif self._late.is_set:
            self._hand_over(run=False)
            self.discard()

    def hand_over(self, *, completed: bool) -> None:
        """Hand over the calls of the ended response, at once or when they are complete."""
        if not completed:
            self._hand_over(run=False)
            return
        self._late.set(self._grace)
        if all(call.done for call in self.calls):
            self._hand_over(late=True)

    def stop(self) -> None:
        """Stop collecting."""
        self.in_progress = False
        self._late.cancel()

    def _on_grace_over(self) -> None:
        self._hand_over()
        self.discard()
        self._grace_over()

    def _hand_over(self, *, run: bool = True, late: bool = False) -> None:
        """Hand over the calls once; with ``late`` more may follow."""
        if not late:
            self._late.cancel()
        if self.handed_over:
            return
        self.handed_over = True
        if calls := self.all_calls():
            self.awaits_results = run
            self._host.on_calls(calls, run=run)
        if not run:
            self.discard()

    # Calls

    def add_delta(self, piece: CallDelta) -> None:
        """Apply a delta of the response, which may be late."""
        if (call := self._find_or_create(piece)) is None:
            return
        was_complete = call.is_complete
        self._budget -= call.merge(piece, self._budget)
        self._budget -= call.append(piece.delta, self._budget)
        call.done = call.done or piece.done
        if was_complete or not call.is_complete or self.in_progress:
            return
        if self.handed_over:
            self.all_calls()
            self._host.on_calls([call], run=True)
        elif all(each.done for each in self.calls):
            self._hand_over(late=True)

    def finish(self, update: Iterable[FinalCall]) -> int:
        """End the response, and apply the calls listed in its final event, whose order wins; return the number of all calls."""
        self.in_progress = self.handed_over = False
        listed: list[PartialCall] = []
        for whole in update:
            if (call := self._find_or_create(whole)) is None:
                break
            self._budget -= call.merge(whole, self._budget)
            call.done = True
            if call not in listed:
                listed.append(call)
        if listed:  # the server's order: lost or late deltas may differ from it
            self.calls = listed + [call for call in self.calls if call not in listed]
        return len(self.calls)

    def all_calls(self) -> list[PartialCall]:
        """Return all calls in order, each with an id."""
        for call in self.calls:
            call.call_id = call.call_id or f"call_{uuid.uuid4().hex[:24]}"
        return list(self.calls)

    def _find_or_create(self, update: CallDelta | FinalCall) -> PartialCall | None:
        """Return the call of an update; None beyond the maximum number of calls."""
        call = self._by_key.get(update.key)
        if call is None and len(self.calls) < MAX_CALLS:
            call = self._by_key[update.key] = PartialCall(update.key)
            self.calls.append(call)
        return call


MAX_BUFFERED_CHARS: Final = 256 * 1024
"""Characters of one utterance that are collected. Pieces beyond are emitted, too."""


class TextBuffer:
    """Collects the pieces of an utterance."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0

    def add(self, text: str) -> None:
        """Append within the limit."""
        if self._length < MAX_BUFFERED_CHARS:
            self._pieces.append(text)
            self._length += len(text)

    def drain(self) -> str:
        """Return the text and clear it."""
        text = "".join(self._pieces)
        self._pieces.clear()
        self._length = 0
        return text


_MAX_SPEECH: Final = 300.0
"""Seconds after which continuous speech without an end event counts as over."""

_MAX_SILENCE: Final = 20.0
"""The same without audio, and after an end event: the server responds within that, if at all."""

_MAX_TRANSCRIPT_GAP: Final = 5.0
"""The same for servers that only send transcripts."""


class UserSpeech:
    """Tracks whether the user speaks. ``on_silence`` is called if the user falls silent and no response starts.

    ``signals_end``: the server sends start and end of speech; else it sends the start of interruptions only, and transcripts.
    """

    def __init__(
        self,
        limits: RealtimeLimits,
        host: SessionHost,
        on_silence: Callable[[], None],
        *,
        signals_end: bool,
    ) -> None:
        self.user_speaks = False
        """True while the user speaks, or has ended and a response is expected."""
        self.heard_words = False
        """True if a transcript of the current speech has arrived."""
        self._limits = limits
        self._host = host
        self._text = TextBuffer()
        self._on_silence = on_silence
        self._signals_end = signals_end
        self._speech_deadline: float | None = None  # for an end event
        self._silence = Timer(self._on_timeout)
        self._loop = asyncio.get_running_loop()

    # Speech

    def start_speech(self) -> None:
        """Handle the start of speech."""
        self._expect_speech(_MAX_SILENCE)
        self._speech_deadline = self._loop.time() + _MAX_SPEECH if self._signals_end else None

    def on_audio(self) -> None:
        """Handle sent audio: speech that has started may continue."""
        if self._speech_deadline is not None and (left := self._speech_deadline - self._loop.time()) > 0:
            self._expect_speech(min(_MAX_SILENCE, left))

    def on_end(self) -> None:
        """Handle the end of speech, after which a response should start."""
        if self.user_speaks:
            self._speech_deadline = None
            self._expect_speech(_MAX_SILENCE)

    def stop(self) -> None:
        """Handle the start or request of a response."""
        self._silence.cancel()
        self.user_speaks = self.heard_words = False
        self._speech_deadline = None

    def _expect_speech(self, seconds: float) -> None:
        """Assume speech until nothing more is known for so long."""
        self.user_speaks = True
        self._silence.set(min(self._limits.done, seconds))

    def _on_timeout(self) -> None:
        self.stop()
        self._on_silence()

    # Transcripts

    def on_transcript(self, event: InputTranscript, *, awaits_results: bool) -> None:
        """Handle a transcript; ``awaits_results``: the model is responding."""
        if not self._signals_end and not awaits_results:
            self._expect_speech(_MAX_TRANSCRIPT_GAP)
        self.heard_words = self.user_speaks
        if event.whole:
            self._text.drain()
            self._line(event.text)
        else:
            self._text.add(event.text)
        self._host.emit(TranscriptEvent("user", event.text, whole=event.whole))

    def flush(self) -> None:
        """Complete an utterance that was sent in pieces."""
        if text := self._text.drain():
            self._line(text)

    def _line(self, text: str) -> None:
        self._host.on_line(Line("user", text), is_answered=not self.user_speaks)
