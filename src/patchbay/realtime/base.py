"""What every session has in common, whatever kind of model it is with: it is opened once, read, and ended.

What lives here: its lifetime. What does not: what is said in it (``session``, ``offline``).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.realtime.feed import NOT_OPEN, Events, Feed
from patchbay.tools import well_formed

RESULT_CHARS: Final = 2_000_000
"""How many characters of long results a session keeps for the model to read on."""

_HAS_ENDED: Final = "The session has ended and is not open any more. A session is connected once: make another one."


class Session(ABC):
    """A session whose events go into ``_feed``: at most ``waiting`` of them wait to be read."""

    def __init__(self, waiting: int) -> None:
        self._feed = Feed(waiting)
        self._ending: asyncio.Task[None] | None = None

    @abstractmethod
    async def connect(self) -> None:
        """Open it. Raises ConfigurationError where that was done before."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether it can be spoken to."""

    async def close(self) -> None:
        """End the session, and all tools that run. Nothing is left running then. May be called twice."""
        await asyncio.shield(self._end_soon("closed by the program"))

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        await self.close()

    def events(self) -> Events:
        """Return what happens, from the last event on that was read, to ``ConnectionEvent("closed")``.

        One reader waits for it at a time, and none before ``connect`` was called, since that would be for ever: to read on raises
        ConfigurationError then. Who has left off reading need not say so. What is not read in time is dropped, and a DroppedEvent
        says so.
        """
        return self._feed.read()

    @abstractmethod
    async def _end(self, reason: str) -> None:
        """End all there is; ``reason`` goes into the last event."""

    def _check_open(self) -> None:
        """Raise ConfigurationError where it is not open."""
        if not self.is_open:
            raise ConfigurationError(NOT_OPEN if self._ending is None else _HAS_ENDED)

    def _end_soon(self, reason: str) -> asyncio.Task[None]:
        """Begin to end it, where that has not begun."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end(reason))
        return self._ending


def sayable(text: str) -> str:
    """Return what a user says as it can be sent. Raises InvalidRequestError for what is no text, or has nothing in it."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequestError("What is said must be a text, and not empty.", param="text")
    return well_formed(text)


def whole_samples(pcm: bytes) -> bytes:
    """Return a user's speech as it can be sent. Raises InvalidRequestError for what is no audio, or has nothing in it."""
    try:
        audio = bytes(memoryview(pcm))
    except TypeError:
        audio = b""
    if not audio or len(audio) % 2:
        raise InvalidRequestError("Audio is 16-bit PCM: a whole number of samples, at least one.", param="audio")
    return audio
