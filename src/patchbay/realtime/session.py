"""A realtime session: one model, spoken to over a WebSocket, with tools.

What lives here: what a program does with a session. What does not: how that is done (``core``), what all sessions have in common
(``base``), and a session with a model that is asked and answers (``offline``).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from patchbay.errors import ConfigurationError, InvalidRequestError, ToolSyncError
from patchbay.executor import ToolExecution
from patchbay.hooks.scope import HookScope
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.event_queue import NOT_OPEN, EventQueue, Events
from patchbay.realtime.providers.base import Dialect
from patchbay.tools import well_formed
from patchbay.tools.registry import Snapshot

if TYPE_CHECKING:
    from patchbay.hooks import HookManager
    from patchbay.media import MediaStore


_HAS_ENDED: Final = "The session has ended and is not open any more. A session is connected once: make another one."


class Session(ABC):
    """A session whose events go into ``_feed``: at most ``waiting`` of them wait to be read."""

    def __init__(self, waiting: int) -> None:
        self._feed = EventQueue(waiting)
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


_PIECE: Final = 32 * 1024
"""Bytes of audio in one frame."""


class RealtimeSession(Session):
    """A live session with a model. ``settings`` may be the model's name, ``openai/gpt-realtime``, and the settings keywords.

    ``tools`` are the program's own (functions and Tools), ``snapshot`` those of a role's registry, which ``use_tools`` changes.
    ``hooks``, ``media``, ``session_key`` and ``agent_id`` are as for every turn of tools, and so is ``context``: what hooks,
    observers and the audit are told of who talks (``HookScope.context``). ``dialect`` is the provider's language where it is none
    of ours.

    ``events()`` is to be read by one task; what happens does not wait for it. A session is used in the event loop that it was
    connected in, and connected once. Raises ConfigurationError for settings that cannot work, TypeError for tools that are none.
    """

    def __init__(
        self,
        settings: RealtimeSettings | str,
        *,
        tools: Iterable[Any] = (),
        snapshot: Snapshot | None = None,
        hooks: HookManager | None = None,
        media: MediaStore | None = None,
        session_key: str = "",
        agent_id: str = "",
        context: Mapping[str, Any] | None = None,
        dialect: type[Dialect] | None = None,
        **settings_fields: Any,
    ) -> None:
        _check_settings(settings)
        if isinstance(settings, str):
            settings = RealtimeSettings(model=settings, **settings_fields)
        elif settings_fields:
            raise ConfigurationError(f"{', '.join(settings_fields)}: set in the settings, or name the model and set them here.")
        if dialect is None:
            from patchbay.realtime.providers.registry import dialect_for

            dialect = dialect_for(settings)
        super().__init__(settings.limits.waiting)
        self.settings = settings
        self._dialect = dialect
        scope = HookScope(agent_id, session_key=session_key, model=settings.model, context=context or {})
        # Imported here: a chat session needs no WebSocket client.
        from patchbay.realtime.engine import SessionEngine
        from patchbay.realtime.turns import SessionContext

        around = SessionContext(scope, hooks, media)
        self._core = SessionEngine(settings, dialect, tools, around, queue=self._feed, end_soon=self._end_soon)
        if snapshot is not None:
            self._core.offered.use(snapshot)

    async def connect(self) -> None:
        """Open the connection. Raises UpstreamError, UpstreamTimeoutError, ConfigurationError; then the session is closed."""
        if self._core.has_begun or self._ending is not None:
            raise ConfigurationError("A session is connected once: make another one.")
        self._feed.begin()
        try:
            await self._core.open()
        except BaseException:
            await self.close()
            raise

    async def send_text(self, text: str) -> None:
        """Say something as the user, and have it answered. What the model is saying ends, tools that run are given up.

        While there is no connection it is kept for the next one. Raises InvalidRequestError for a text with nothing in it,
        ConfigurationError where the session is not open.
        """
        self._check_open()
        self._core.say(sayable(text))

    async def send_audio(self, pcm: bytes) -> None:
        """Send a piece of the user's speech: 16-bit PCM, one channel, in the provider's rate (``input_rate``).

        Waits where the connection does not keep up. Without a connection it is lost, as what was said then would be late.
        Raises InvalidRequestError for what is no whole number of samples, ConfigurationError where the session is not open.
        """
        self._check_open()
        audio = whole_samples(pcm)
        await asyncio.sleep(0)  # a program that sends without a pause must not keep a lost connection from being opened again
        for start in range(0, len(audio), _PIECE):
            if (talk := self._core.keeper.talk) is None:
                return
            await talk.wire.connection.room()
            if not talk.over:
                talk.sound(audio[start : start + _PIECE])

    async def respond(self) -> None:
        """Say that the user has ended, and have the model answer: for sessions that do not ``detect_turns``."""
        self._check_open()
        self._core.respond()

    async def interrupt(self) -> None:
        """End what the model is saying, and give up the tools that run; nothing is answered until the user goes on."""
        self._check_open()
        self._core.interrupt()

    async def use_tools(self, snapshot: Snapshot) -> None:
        """Offer the model these tools from now on, beside the program's own, and wait until it has been told.

        It is told when no response is under way; calls that have begun go on with the tools that they began with. With a provider
        that takes tools at the beginning only, another connection is opened when nothing is going on. Raises ToolSyncError where
        the server refuses them or does not confirm them in time (one tool that it does not take is left out alone, and named),
        and where such a connection is not opened in time: then it is as soon as it can be.
        """
        if self._ending is not None:
            raise ToolSyncError("the session is closed")
        await self._core.use_tools(snapshot)

    @property
    def input_rate(self) -> int:
        """Samples a second of the audio that ``send_audio`` takes."""
        return self._dialect.input_rate

    @property
    def idle(self) -> bool:
        """Whether nothing is under way: the model says nothing and is not to, no tool runs, the user does not speak."""
        return self._core.is_idle

    @property
    def is_open(self) -> bool:
        """Whether the session can be spoken to; also while a lost connection is being opened again."""
        return self._core.was_open and self._ending is None

    @property
    def is_told(self) -> bool:
        """Whether the model knows the tools of the last ``use_tools``, also where that has raised ToolSyncError."""
        return self._core.is_told

    @property
    def dropped(self) -> Sequence[ToolExecution]:
        """The last results that came too late and were told to nobody."""
        return tuple(self._core.answers.dropped)

    async def _end(self, reason: str) -> None:
        await self._core.end(reason)


def _check_settings(settings: object) -> None:
    if not isinstance(settings, RealtimeSettings | str):
        kind = type(settings).__name__
        raise ConfigurationError(f"settings of a realtime session must be RealtimeSettings or a model's name, not {kind}.")
