"""What is heard of the user on one connection: whether the user speaks, and what was said.

What lives here: how long a user who began to speak is taken to do so. What does not: what the session does about it (``talk``).
"""

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
    """Calls ``then`` once when its time has come."""

    __slots__ = ("_handle", "_then")

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        """Whether it is waited for."""
        return self._handle is not None

    def set(self, seconds: float) -> None:
        """Wait so many seconds from now, and no longer for what was waited for before."""
        self.cancel()
        self._handle = asyncio.get_running_loop().call_later(seconds, self._rings)

    def set_by(self, when: float) -> None:
        """Wait until ``when``, by the loop's clock, unless it rings before that anyway."""
        if self._handle is None or self._handle.when() > when:
            self.cancel()
            self._handle = asyncio.get_running_loop().call_at(when, self._rings)

    def cancel(self) -> None:
        """Wait for nothing."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _rings(self) -> None:
        self._handle = None
        self._then()


State: TypeAlias = Literal["free", "asked", "muted", "under_way", "cancelling"]
Overdue: TypeAlias = Literal["created", "done", "cancel"]


class ResponseScheduler:
    """Whether a response is wanted, was asked for, or is under way.

    ``want`` makes a wish and ``next`` grants it: where that says so, the model is to be asked now. Limits are in seconds;
    ``deadline`` is when ``overdue`` is to be asked, None for never.
    """

    def __init__(self, *, created: float, done: float, cancel: float) -> None:
        self._created = created
        self._done = done
        self._cancel = cancel
        self.state: State = "free"
        self.wanted = False
        """A response is wanted as soon as the one that is under way is over."""
        self.deadline: float | None = None
        self._unwanted = False  # what was asked for is to be cancelled as soon as it begins
        self._left = False  # a wish, to what the server begins by itself

    @property
    def is_owed(self) -> bool:
        """Whether a response is to come that has not begun."""
        return self.wanted or self._left or (self.state == "asked" and not self._unwanted)

    def want(self, *, any_will_do: bool = False) -> None:
        """Wish for a response. One that was asked for and has not begun will do, unless it is to be cancelled.

        ``any_will_do``: also then, for whoever begins it has been told all that it is to answer.
        """
        if any_will_do:
            self._unwanted = False
        self.wanted = self.wanted or self.state != "asked" or self._unwanted

    def mute(self, now: float) -> None:
        """A response will begin by itself that nobody wants: it is to be cancelled then."""
        if self.state == "free" and not self.wanted:
            self.state = "muted"
            self.deadline = now + self._cancel

    def leave_it(self) -> None:
        """Wish for nothing: the server has ended what there was, and the next response that begins is one of its own."""
        self._left = self._left or self.wanted
        self.wanted = self._unwanted = False
        if self.state == "muted":
            self.ended()

    def take_it_back(self) -> None:
        """The server begins none of its own after all: what was wished for before is wished for again."""
        self.wanted, self._left = self.wanted or self._left, False

    def next(self, now: float) -> bool:
        """Return whether a response is to be asked for now; then it has been."""
        if self.state != "free" or not self.wanted:
            return False
        self.wanted = False
        self.state = "asked"
        self.deadline = now + self._created
        return True

    def began(self, now: float) -> bool:
        """A response has begun, ours or the server's own. Returns whether it is to be cancelled at once."""
        unwanted, self._unwanted = self._unwanted or self.state == "muted", False
        self._left = False
        self.state = "under_way"
        self.deadline = now + self._done
        return unwanted and self._end_it(now)

    def heard(self, now: float) -> None:
        """Something of the response has come."""
        if self.state == "under_way":
            self.deadline = now + self._done

    def ended(self) -> None:
        """The response is over."""
        self.state = "free"
        self.deadline = None
        self._unwanted = False

    def busy(self, now: float) -> None:
        """What was asked for is refused, because a response is under way: the wish waits for its end."""
        self.wanted = self.wanted or not self._unwanted
        self._unwanted = False
        if self.state == "asked":
            self.state = "under_way"
            self.deadline = now + self._done

    def refused(self) -> bool:
        """What was asked for is refused for good. Returns whether something was."""
        if self.state != "asked":
            return False
        self.ended()
        return True

    def cancel(self, now: float) -> bool:
        """Drop the wish, and end what is under way. Returns whether that is to be said now."""
        self.wanted = self._left = False
        if self.state == "asked":
            self._unwanted = True
        elif self.state == "muted":
            self.ended()  # what begins now may be to what is said next
        return self.state == "under_way" and self._end_it(now)

    def overdue(self, now: float) -> Overdue | None:
        """Return what has taken too long, if anything has. "done" is to be cancelled; the others are waited for no longer."""
        if self.deadline is None or now < self.deadline:
            return None
        if self.state == "under_way":
            self._end_it(now)
            return "done"
        late: Overdue = "created" if self.state == "asked" else "cancel"
        self.ended()
        return late

    def _end_it(self, now: float) -> bool:
        self.state = "cancelling"
        self.deadline = now + self._cancel
        return True


LONGEST: Final = 256 * 1024
"""So many characters of one utterance are put together; its pieces are told all the same."""


class _Pieces:
    """A text that comes in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0

    def add(self, text: str) -> None:
        """Add one; what is too much is left out."""
        if self._length < LONGEST:
            self._pieces.append(text)
            self._length += len(text)

    def take(self) -> str:
        """Return all of it, and begin anew."""
        text = "".join(self._pieces)
        self._pieces.clear()
        self._length = 0
        return text


class TextBuffers:
    """What the model says in its response, and what the user is heard to say."""

    def __init__(self) -> None:
        self.has_said = False
        """Whether anything has come of the model's last response: text, or audio. Who begins one sets it back."""
        self._said = _Pieces()
        self._spoken = False
        self._heard = _Pieces()

    def said(self, text: str, *, spoken: bool) -> None:
        """The model says a piece; ``spoken``: in audio, of which this is the transcript."""
        self.has_said = True
        self._spoken = self._spoken or spoken
        self._said.add(text)

    def take_said(self) -> tuple[str, bool]:
        """The response is over: return what was said, and whether that was spoken."""
        spoken, self._spoken = self._spoken, False
        return self._said.take(), spoken

    def heard(self, text: str) -> None:
        """The user is heard to say a piece."""
        self._heard.add(text)

    def take_heard(self) -> str:
        """Return what was heard in pieces; it is whole."""
        return self._heard.take()


_LONGEST_SPEECH: Final = 300.0
"""Seconds after which a user whose audio goes on, and whose end the server has not told, is taken to be silent."""

_LONGEST_WAIT: Final = 20.0
"""The same where no audio goes on, and where the server has told the end: within that it begins to answer, if it does."""

_LONGEST_PAUSE: Final = 5.0
"""The same where a server says word by word what it hears."""


class UserSpeech:
    """``fell_silent`` is called when a user who spoke is taken to be silent, and the model has not begun to answer.

    ``tells_ends``: the server says when the user begins to speak and when the user has ended. Where not, it says the first only
    of a user who interrupts the model, else just what it hears.
    """

    def __init__(
        self,
        limits: RealtimeLimits,
        listener: Listener,
        utterances: TextBuffers,
        fell_silent: Callable[[], None],
        *,
        tells_ends: bool,
    ) -> None:
        self.user_speaks = False
        """Whether the user is speaking, or has ended and is about to be answered, as far as the server tells."""
        self.has_words = False
        """Whether that user has said something, as far as was heard."""
        self._limits = limits
        self._listener = listener
        self._utterances = utterances
        self._fell_silent = fell_silent
        self._tells_ends = tells_ends
        self._ends_by: float | None = None  # the speech whose end is still to be told
        self._silence = Timer(self._is_silent)
        self._loop = asyncio.get_running_loop()

    # Whether the user speaks

    def begins(self) -> None:
        """The user begins to speak."""
        self._speaks_for(_LONGEST_WAIT)
        self._ends_by = self._loop.time() + _LONGEST_SPEECH if self._tells_ends else None

    def goes_on(self) -> None:
        """Audio of the user's is sent: while it is, somebody who began to speak may go on with that."""
        if self._ends_by is not None and (left := self._ends_by - self._loop.time()) > 0:
            self._speaks_for(min(_LONGEST_WAIT, left))

    def ends(self) -> None:
        """The server has heard the end, and begins to answer soon."""
        if self.user_speaks:
            self._ends_by = None
            self._speaks_for(_LONGEST_WAIT)

    def over(self) -> None:
        """The model answers, or is asked to."""
        self._silence.cancel()
        self.user_speaks = self.has_words = False
        self._ends_by = None

    def _speaks_for(self, seconds: float) -> None:
        """The user speaks, and is taken to be silent when nothing more is known of that for so long."""
        self.user_speaks = True
        self._silence.set(min(self._limits.done, seconds))

    def _is_silent(self) -> None:
        self.over()
        self._fell_silent()

    # What was said

    def heard(self, news: InputTranscript, *, is_answering: bool) -> None:
        """The user was heard to say something; ``is_answering``: the model is saying something itself."""
        if not self._tells_ends and not is_answering:
            self._speaks_for(_LONGEST_PAUSE)
        self.has_words = self.user_speaks
        if news.whole:
            self._utterances.take_heard()
            self._line(news.text)
        else:
            self._utterances.heard(news.text)
        self._listener.emit(TranscriptEvent("user", news.text, whole=news.whole))

    def flush(self) -> None:
        """What was heard in pieces is whole: the model answers, or the connection is over."""
        if text := self._utterances.take_heard():
            self._line(text)

    def _line(self, text: str) -> None:
        self._listener.heard_line(Line("user", text), is_answered=not self.user_speaks)
