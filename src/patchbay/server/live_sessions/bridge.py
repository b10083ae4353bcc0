"""One WebSocket and its live session: frames in, events out, and a close code with the reason.

Both directions have backpressure. The log of a session has one line for each failure and each lost connection to its model, with
untrusted text cut and escaped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from patchbay._text import one_line, printable
from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.loop import ToolCallEvent, ToolResultEvent
from patchbay.realtime.events import AudioEvent, ConnectionEvent, DroppedEvent, ErrorEvent, IdleEvent, RealtimeEvent
from patchbay.server.errors import StoppingError
from patchbay.server.http import Receive
from patchbay.server.live_sessions.protocol import (
    AudioInput,
    Control,
    Frame,
    TextInput,
    encode_frame,
    error_frame,
    event_frame,
    read_frame,
)
from patchbay.server.websocket import GONE, CloseInfo, SocketWriter

if TYPE_CHECKING:
    from patchbay.realtime import ChatSession, RealtimeSession

_MAX_LOG_CHARS: Final = 500
_MAX_KEY_CHARS: Final = 100

_logger = logging.getLogger(__name__)


class SessionLog:
    """The log of the session ``key`` of ``role``."""

    def __init__(self, role: str, key: str) -> None:
        self._session = f"{_printable(key, _MAX_KEY_CHARS)!r} of the role {_printable(role, _MAX_KEY_CHARS)!r}"
        self._last = ""

    def failed(self, error: Exception) -> None:
        """Log that the session could not be opened."""
        self._warn("The session %s could not be opened: %s", str(error))

    def event(self, event: RealtimeEvent) -> None:
        """Log an error, a lost connection, or a planned reconnect."""
        if isinstance(event, ErrorEvent):
            self._warn("In the session %s: %s", str(event.error))
        elif isinstance(event, ConnectionEvent) and event.planned:
            reason = _printable(event.reason, _MAX_LOG_CHARS)
            _logger.info("The connection of the session %s to its model is renewed: %s", self._session, reason)
        elif isinstance(event, ConnectionEvent) and event.state == "lost":
            self._warn("The connection of the session %s to its model is lost: %s", event.reason or "no reason was given")

    def ended(self, why: str) -> None:
        """Log that the model has ended the session, unless the reason was logged already."""
        if _printable(why, _MAX_LOG_CHARS) != self._last:
            self._warn("The session %s has ended: %s", why)

    def _warn(self, words: str, why: str) -> None:
        self._last = _printable(why, _MAX_LOG_CHARS)
        _logger.warning(words, self._session, self._last)


def _printable(text: str, most: int) -> str:
    return printable(one_line(text, most))


_MAX_READ_AHEAD: Final = 8
"""Maximum messages buffered before the session is open. More wait in the socket, and delay the detection of a disconnect."""


class DisconnectWatcher:
    """Buffers the first messages of ``receive`` until it is called; ``left`` is called once if the client disconnects before."""

    def __init__(self, receive: Receive, left: Callable[[], object]) -> None:
        self.has_left = False
        self._receive = receive
        self._left = left
        self._buffer: deque[Any] = deque()
        self._reader: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(self._read_ahead())

    async def receive(self) -> Any:
        """Return the next message, buffered ones first."""
        await self.close()
        return self._buffer.popleft() if self._buffer else await self._receive()

    async def close(self) -> None:
        """Stop reading ahead."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait({reader})

    async def _read_ahead(self) -> None:
        while len(self._buffer) < _MAX_READ_AHEAD:
            message = await self._receive()
            self._buffer.append(message)
            if message["type"] == "websocket.disconnect":
                self.has_left = True
                self._left()
                return


if TYPE_CHECKING:
    Session: TypeAlias = RealtimeSession | ChatSession

_FLUSH_SECONDS: Final = 2.0
"""Seconds for sending pending events when a session is ended at once: a model may never be idle."""

_PING: Final = Control("ping")
_INTERRUPT: Final = Control("interrupt")

_MAX_INVALID: Final = 32
"""Maximum invalid frames in a row."""

BAD_REQUEST: Final = 4400
UNKNOWN_ROLE: Final = 4404
SLOW_CLIENT: Final = 4408
ROLE_BUSY: Final = 4409
REPLACED: Final = 4410
MODEL_FAILED: Final = 4502
NO_MODEL: Final = 4503


class Socket(SocketWriter):
    """The sending side of a session's socket."""

    binary = False
    """Whether audio goes out as binary frames."""
    _rate = 0

    async def send(self, frame: Frame) -> None:
        """Send a frame. Raises TimeoutError, and OSError where the client has disconnected."""
        await self.send_text(encode_frame(frame))

    async def send_event(self, event: RealtimeEvent) -> None:
        """Send an event, as a binary frame if it is audio and the client requested it. Raises as ``send``."""
        if not self.binary or not isinstance(event, AudioEvent):
            await self.send(event_frame(event))
            return
        if event.rate != self._rate:
            self._rate = event.rate
            await self.send({"type": "audio_format", "rate": event.rate})
        await self.send_bytes(event.audio)


class SessionBridge:
    """An open session and its client. ``pass_messages`` serves both until one of them, or ``end_session``, ends it.

    ``save`` is called with each text of the user before the model gets it, and with "" before the client is sent a call, a result
    or ``idle``.
    """

    def __init__(
        self, session: Session, socket: Socket, log: SessionLog, save: Callable[[str], Awaitable[None]] | None = None
    ) -> None:
        self.session = session
        self._save = save
        self._socket = socket
        self._log = log
        self._events = session.events()
        self._ending: CloseInfo | None = None
        self._is_hurried = False
        self._expired: asyncio.Future[CloseInfo] = asyncio.get_running_loop().create_future()
        self._requests_seen = 0
        self._owes_idle = False  # a request came, or work ended, since the last ``idle`` frame
        self._invalid_frames = 0

    def end_session(self, code: int, reason: str, *, when_idle: bool = False) -> None:
        """End the session for this reason; ``when_idle``: once what is in progress has finished."""
        if not when_idle and not self._is_hurried:
            self._is_hurried = True
            asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._expired.cancel)
        self._ending = self._ending or CloseInfo(code, reason)
        self._events.wake()

    async def pass_messages(self, receive: Callable[[], Awaitable[Any]]) -> CloseInfo:
        """Pass frames and events until the end; return the reason. The caller closes the session."""
        loop = asyncio.get_running_loop()
        work = [loop.create_task(self._listen(receive)), loop.create_task(self._send_events())]
        try:
            await asyncio.wait([*work, self._expired], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in work:
                task.cancel()
            await asyncio.wait(work)
        endings = [_close_info_of(task) for task in work if not task.cancelled()]
        return self._ending or endings[0]

    async def _listen(self, receive: Callable[[], Awaitable[Any]]) -> CloseInfo:
        """Handle the client's frames in order, with backpressure from the model's server."""
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return GONE
            try:
                frame = read_frame(message)
            except InvalidRequestError as error:
                self._invalid_frames += 1
                if self._invalid_frames > _MAX_INVALID:
                    return CloseInfo(BAD_REQUEST, "too many invalid frames")
                await self._socket.send(error_frame(error))
                if error.param == "text":
                    self._request_idle()  # it was a request
                continue
            self._invalid_frames = 0
            try:
                await self._handle(frame)
            except PatchbayError as error:
                await self._socket.send(error_frame(error))
            if not (isinstance(frame, AudioInput) or frame == _PING):
                self._request_idle()

    async def _handle(self, frame: TextInput | AudioInput | Control) -> None:
        session, is_ending = self.session, self._ending is not None
        if isinstance(frame, AudioInput):
            if not is_ending:
                await session.send_audio(frame.audio)
        elif frame == _PING:
            await self._socket.send({"type": "pong"})
        elif frame == _INTERRUPT:
            await session.interrupt()
        elif is_ending:
            raise StoppingError
        else:
            if self._save is not None and isinstance(frame, TextInput):
                await self._save(frame.text)
            await (session.send_text(frame.text) if isinstance(frame, TextInput) else session.respond())

    def _request_idle(self) -> None:
        self._requests_seen += 1
        self._owes_idle = True
        self._events.wake()

    async def _send_events(self) -> CloseInfo:
        """Send events to the client, and ``idle`` once all have been sent."""
        while True:
            event = self._events.now()
            if event is None and self._has_frame_due():
                await asyncio.sleep(0)  # a session may be idle a turn of the loop before its IdleEvent is there
                event = self._events.now()
            if event is not None:
                self._owes_idle = self._owes_idle or _ends_work(event)
                self._log.event(event)
                if isinstance(event, ToolCallEvent | ToolResultEvent) and self._save is not None:
                    await self._save("")
                if not isinstance(event, IdleEvent):  # it is sent below, with a number
                    await self._socket.send_event(event)
                if isinstance(event, ConnectionEvent) and event.state == "closed":
                    return CloseInfo(MODEL_FAILED, event.reason)
            elif not self._has_frame_due():
                if not await self._events.wait():
                    return CloseInfo(MODEL_FAILED, "the session has ended")
            else:
                if self._owes_idle and self.session.idle:
                    self._owes_idle = False
                    if self._save is not None:
                        await self._save("")
                    # The number distinguishes it from one that was already sent when the client asked for more.
                    await self._socket.send({"type": "idle", "heard": self._requests_seen})
                if self._ending is not None:
                    return self._ending

    def _has_frame_due(self) -> bool:
        """Return whether an end or ``idle`` is due. A session that is not idle will have another event."""
        if self.session.idle:
            return self._owes_idle or self._ending is not None
        return self._is_hurried


def _ends_work(event: RealtimeEvent) -> bool:
    """Return whether something in progress has ended, perhaps among dropped events."""
    return isinstance(event, IdleEvent) or (isinstance(event, DroppedEvent) and event.what == "events")


def _close_info_of(task: asyncio.Task[CloseInfo]) -> CloseInfo:
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, TimeoutError):
        return CloseInfo(SLOW_CLIENT, "the client does not read")
    if isinstance(error, OSError):
        return GONE
    raise error
