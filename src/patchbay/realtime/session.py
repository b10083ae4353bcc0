"""Realtime sessions: the base of all sessions, and the session with a model over a WebSocket."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from typing_extensions import override

from patchbay.errors import ConfigurationError, InvalidRequestError, ToolSyncError
from patchbay.executor import ToolExecution
from patchbay.hooks.types import HookScope
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.event_queue import NOT_OPEN, EventQueue, EventReader
from patchbay.realtime.providers.base import Dialect
from patchbay.tools import ToolSearch, well_formed
from patchbay.tools.registry import Snapshot
from patchbay.types import Message

if TYPE_CHECKING:
    from patchbay.hooks import HookManager
    from patchbay.media import MediaStore


_CLOSED: Final = "The session is not open any more. A session is connected once: make another one."


class BaseSession(ABC):
    """Base of sessions: connect once, read events, close. At most ``waiting`` events are queued."""

    def __init__(self, waiting: int) -> None:
        self._queue = EventQueue(waiting)
        self._ending: asyncio.Task[None] | None = None

    @abstractmethod
    async def connect(self) -> None:
        """Open the session. Raises ConfigurationError on a second call."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """True if the session accepts input."""

    @property
    @abstractmethod
    def is_synced(self) -> bool:
        """True if the model has the tools of the last ``use_tools``."""

    @property
    @abstractmethod
    def history(self) -> Sequence[Message]:
        """The conversation as far as it is kept, as chat messages; also that of the running turn."""

    @abstractmethod
    def restore(self, history: Sequence[Message]) -> None:
        """Begin with the ``history`` of another session. Call it before ``connect``."""

    async def close(self) -> None:
        """Close the session and stop all tools; nothing is left running. Idempotent."""
        await asyncio.shield(self._close_soon("closed by the program"))

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        await self.close()

    def events(self) -> EventReader:
        """Return an iterator from the first unread event to ``ConnectionEvent("closed")``.

        One reader waits at a time, and not before ``connect``: else reading raises ConfigurationError. Events that are not read
        in time are dropped, and counted by a DroppedEvent.
        """
        return self._queue.read()

    @property
    def unread(self) -> int:
        """Number of events that wait to be read."""
        return len(self._queue)

    @abstractmethod
    async def _end(self, reason: str) -> None:
        """Stop everything; ``reason`` goes into the last event."""

    def _check_open(self) -> None:
        if not self.is_open:
            raise ConfigurationError(NOT_OPEN if self._ending is None else _CLOSED)

    def _close_soon(self, reason: str) -> asyncio.Task[None]:
        """Start closing, once."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end(reason))
        return self._ending


def validated_text(text: str) -> str:
    """Return a user's text without lone surrogates. Raises InvalidRequestError if it is empty or not a string."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequestError("What is said must be a text, and not empty.", param="text")
    return well_formed(text)


def validated_audio(pcm: bytes) -> bytes:
    """Return audio as bytes. Raises InvalidRequestError unless it is a whole number of samples, at least one."""
    try:
        audio = bytes(memoryview(pcm))
    except TypeError:
        audio = b""
    if not audio or len(audio) % 2:
        raise InvalidRequestError("Audio is 16-bit PCM: a whole number of samples, at least one.", param="audio")
    return audio


_PIECE: Final = 32 * 1024
"""Bytes of audio per frame."""


class RealtimeSession(BaseSession):
    """A live session with a model. ``settings`` may be a model name, ``openai/gpt-realtime``, with settings as keywords.

    ``tools`` are the program's own (functions and Tools), ``snapshot`` those of a role's registry, which ``use_tools``
    replaces. ``hooks``, ``media``, ``session_key``, ``agent_id`` and ``context`` (``HookScope.context``) are those of every
    turn with tools. ``dialect`` overrides the provider's wire protocol. With more than 40 tools the model is offered a search in
    their place (``tool_search``; None: always all of them).

    ``events()`` is read by one task; the session does not wait for it. A session belongs to the event loop in which it is
    connected, and is connected once. Raises ConfigurationError for invalid settings, TypeError for invalid tools.
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
        tool_search: ToolSearch | None = ToolSearch(),  # noqa: B008  (frozen)
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
        from patchbay.realtime.session_tools import SessionTools
        from patchbay.realtime.turns import SessionContext

        turn_context = SessionContext(scope, hooks, media)
        own = SessionTools(dialect, tools, tool_search)
        self._engine = SessionEngine(settings, dialect, own, turn_context, queue=self._queue, close_soon=self._close_soon)
        if snapshot is not None:
            self._engine.tools.use(snapshot)

    async def connect(self) -> None:
        """Open the connection. Raises UpstreamError, UpstreamTimeoutError, ConfigurationError; then the session is closed."""
        if self._engine.has_begun or self._ending is not None:
            raise ConfigurationError("A session is connected once: make another one.")
        self._queue.open()
        try:
            await self._engine.open()
        except BaseException:
            await self.close()
            raise

    async def send_text(self, text: str) -> None:
        """Send a user text and request a response. Cancels the current response and abandons running tools.

        Without a connection the text is kept for the next one. Raises InvalidRequestError for an empty text, ConfigurationError
        if the session is not open.
        """
        self._check_open()
        self._engine.send_text(validated_text(text))

    async def send_audio(self, pcm: bytes) -> None:
        """Send a chunk of the user's speech: 16-bit PCM, mono, at ``input_rate``.

        Waits while the connection is congested. Without a connection the audio is dropped, since it would be late. Raises
        InvalidRequestError for a partial sample, ConfigurationError if the session is not open.
        """
        self._check_open()
        audio = validated_audio(pcm)
        await asyncio.sleep(0)  # lets a lost connection be reopened while audio is sent without a pause
        for start in range(0, len(audio), _PIECE):
            if (controller := self._engine.controller) is None:
                return
            await controller.wire.connection.wait_for_space()
            if not controller.closed:
                controller.send_audio(audio[start : start + _PIECE])

    async def respond(self) -> None:
        """End the user's audio and request a response: for sessions without ``detect_turns``."""
        self._check_open()
        self._engine.respond()

    async def interrupt(self) -> None:
        """Cancel the response and abandon running tools; nothing is requested until the user continues."""
        self._check_open()
        self._engine.interrupt()

    async def use_tools(self, snapshot: Snapshot) -> None:
        """Offer these tools from now on, beside the program's own, and wait until the server has confirmed them.

        They are sent when no response is in progress; running calls keep their tools. For a provider that takes tools only at
        the start, another connection is opened when nothing is pending. Raises ToolSyncError if the server refuses them or does
        not confirm them in time (a single refused tool is left out and named), and if such a connection is not opened in time:
        it is opened later then.
        """
        if self._ending is not None:
            raise ToolSyncError("the session is closed")
        await self._engine.use_tools(snapshot)

    @property
    def input_rate(self) -> int:
        """Samples per second of the audio that ``send_audio`` takes."""
        return self._dialect.input_rate

    @property
    def idle(self) -> bool:
        """True if no response or tool is pending and the user does not speak."""
        return self._engine.is_idle

    @property
    def is_open(self) -> bool:
        """True if the session accepts input; also while a lost connection is being reopened."""
        return self._engine.was_open and self._ending is None

    @property
    def is_synced(self) -> bool:
        """True if the model has the tools of the last ``use_tools``, also after that raised ToolSyncError."""
        return self._engine.tool_sync.is_synced

    @property
    def dropped(self) -> Sequence[ToolExecution]:
        """The last results that came too late for the model."""
        return tuple(self._engine.calls.dropped)

    @property
    @override
    def history(self) -> Sequence[Message]:
        return self._engine.transcript.messages()

    @override
    def restore(self, history: Sequence[Message]) -> None:
        for message in history:
            role, text = message["role"], message.get("content")
            if role in ("user", "assistant") and isinstance(text, str):
                self._engine.transcript.add(role, text)

    async def _end(self, reason: str) -> None:
        await self._engine.stop_all(reason)


def _check_settings(settings: object) -> None:
    if not isinstance(settings, RealtimeSettings | str):
        kind = type(settings).__name__
        raise ConfigurationError(f"settings of a realtime session must be RealtimeSettings or a model's name, not {kind}.")
