"""State machines of a connection: which response is pending, and whether the user is speaking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from patchbay.realtime.config import RealtimeLimits
from patchbay.realtime.events import TranscriptEvent
from patchbay.realtime.listener import Listener
from patchbay.realtime.providers.base import Line
from patchbay.realtime.server_events import InputTranscript


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


State: TypeAlias = Literal["free", "asked", "muted", "under_way", "cancelling"]
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
        return self.wanted or self._deferred or (self.state == "asked" and not self._unwanted)

    def request(self, *, accept_pending: bool = False) -> None:
        """Request a response. One that is requested and has not started suffices, unless it is to be cancelled.

        ``accept_pending``: even then, since the server has all input that it will answer.
        """
        if accept_pending:
            self._unwanted = False
        self.wanted = self.wanted or self.state != "asked" or self._unwanted

    def discard_next(self, now: float) -> None:
        """Cancel the response that the server will start by itself."""
        if self.state == "free" and not self.wanted:
            self.state = "muted"
            self.deadline = now + self._cancel

    def defer_to_server(self) -> None:
        """Leave the request to the response that the server starts by itself."""
        self._deferred = self._deferred or self.wanted
        self.wanted = self._unwanted = False
        if self.state == "muted":
            self.ended()

    def reclaim(self) -> None:
        """Restore requests left to the server, which starts no response."""
        self.wanted, self._deferred = self.wanted or self._deferred, False

    def start_next(self, now: float) -> bool:
        """Return True if a response must be requested now, and record that it was."""
        if self.state != "free" or not self.wanted:
            return False
        self.wanted = False
        self.state = "asked"
        self.deadline = now + self._created
        return True

    def began(self, now: float) -> bool:
        """Record the start of a response; return True if it must be cancelled at once."""
        unwanted, self._unwanted = self._unwanted or self.state == "muted", False
        self._deferred = False
        self.state = "under_way"
        self.deadline = now + self._done
        return unwanted and self._start_cancel(now)

    def touch(self, now: float) -> None:
        """Record progress of the response."""
        if self.state == "under_way":
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
        if self.state == "asked":
            self.state = "under_way"
            self.deadline = now + self._done

    def rejected(self) -> bool:
        """Record a refused request; return True if one was pending."""
        if self.state != "asked":
            return False
        self.ended()
        return True

    def cancel(self, now: float) -> bool:
        """Drop requests and cancel the response; return True if a cancel frame must be sent now."""
        self.wanted = self._deferred = False
        if self.state == "asked":
            self._unwanted = True
        elif self.state == "muted":
            self.ended()  # the next response may be to newer input
        return self.state == "under_way" and self._start_cancel(now)

    def expire(self, now: float) -> Overdue | None:
        """Return which deadline has passed, if any. A response past "done" must be cancelled; the others are given up."""
        if self.deadline is None or now < self.deadline:
            return None
        if self.state == "under_way":
            self._start_cancel(now)
            return "done"
        late: Overdue = "created" if self.state == "asked" else "cancel"
        self.ended()
        return late

    def _start_cancel(self, now: float) -> bool:
        self.state = "cancelling"
        self.deadline = now + self._cancel
        return True


MAX_BUFFERED_CHARS: Final = 256 * 1024
"""Characters of one utterance that are collected; its pieces are emitted all the same."""


class _TextBuffer:
    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0

    def add(self, text: str) -> None:
        """Append within the limit."""
        if self._length < MAX_BUFFERED_CHARS:
            self._pieces.append(text)
            self._length += len(text)

    def take(self) -> str:
        """Return the text and clear it."""
        text = "".join(self._pieces)
        self._pieces.clear()
        self._length = 0
        return text


class TextBuffers:
    """Collects the utterances of the model and of the user."""

    def __init__(self) -> None:
        self.has_output = False
        """True if the current response has produced text or audio; reset by the caller."""
        self._assistant = _TextBuffer()
        self._spoken = False
        self._user = _TextBuffer()

    def add_assistant(self, text: str, *, spoken: bool) -> None:
        """Append a piece of the response; ``spoken``: transcript of audio."""
        self.has_output = True
        self._spoken = self._spoken or spoken
        self._assistant.add(text)

    def drain_assistant(self) -> tuple[str, bool]:
        """Return the response's text and whether it was spoken, and clear it."""
        spoken, self._spoken = self._spoken, False
        return self._assistant.take(), spoken

    def add_user(self, text: str) -> None:
        """Append a piece of the user's transcript."""
        self._user.add(text)

    def drain_user(self) -> str:
        """Return the user's text and clear it."""
        return self._user.take()


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
        listener: Listener,
        utterances: TextBuffers,
        on_silence: Callable[[], None],
        *,
        signals_end: bool,
    ) -> None:
        self.user_speaks = False
        """True while the user speaks, or has ended and a response is expected."""
        self.heard_words = False
        """True if a transcript of the current speech has arrived."""
        self._limits = limits
        self._listener = listener
        self._buffers = utterances
        self._on_silence = on_silence
        self._tells_ends = signals_end
        self._speech_deadline: float | None = None  # for an end event
        self._silence = Timer(self._on_timeout)
        self._loop = asyncio.get_running_loop()

    # Speech

    def start(self) -> None:
        """Handle the start of speech."""
        self._expect_speech(_MAX_SILENCE)
        self._speech_deadline = self._loop.time() + _MAX_SPEECH if self._tells_ends else None

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
        if not self._tells_ends and not awaits_results:
            self._expect_speech(_MAX_TRANSCRIPT_GAP)
        self.heard_words = self.user_speaks
        if event.whole:
            self._buffers.drain_user()
            self._line(event.text)
        else:
            self._buffers.add_user(event.text)
        self._listener.emit(TranscriptEvent("user", event.text, whole=event.whole))

    def flush(self) -> None:
        """Complete an utterance that was sent in pieces."""
        if text := self._buffers.drain_user():
            self._line(text)

    def _line(self, text: str) -> None:
        self._listener.on_line(Line("user", text), is_answered=not self.user_speaks)
