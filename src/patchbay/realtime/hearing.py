"""What is heard of the user on one connection: whether the user speaks, and what was said.

What lives here: how long a user who began to speak is taken to do so. What does not: what the session does about it (``talk``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from patchbay.realtime.dialect import Line
from patchbay.realtime.events import TranscriptEvent
from patchbay.realtime.listener import Listener
from patchbay.realtime.news import Heard
from patchbay.realtime.settings import RealtimeLimits
from patchbay.realtime.timer import Timer
from patchbay.realtime.utterances import Utterances

_LONGEST_SPEECH: Final = 300.0
"""Seconds after which a user whose audio goes on, and whose end the server has not told, is taken to be silent."""

_LONGEST_WAIT: Final = 20.0
"""The same where no audio goes on, and where the server has told the end: within that it begins to answer, if it does."""

_LONGEST_PAUSE: Final = 5.0
"""The same where a server says word by word what it hears."""


class Hearing:
    """``fell_silent`` is called when a user who spoke is taken to be silent, and the model has not begun to answer.

    ``tells_ends``: the server says when the user begins to speak and when the user has ended. Where not, it says the first only
    of a user who interrupts the model, else just what it hears.
    """

    def __init__(
        self,
        limits: RealtimeLimits,
        listener: Listener,
        utterances: Utterances,
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

    def heard(self, news: Heard, *, is_answering: bool) -> None:
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
