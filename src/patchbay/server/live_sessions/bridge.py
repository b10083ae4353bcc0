"""What the log of a server has of its sessions: one line for each that fails, and for each connection to a model that is lost.

What lives here: which events are an operator's affair, and their words. What does not: what clients are told (``frames``). A line
says whose session it is and why; what models and clients wrote stands in it cut, and as characters that obey nobody.

What a client says before its session is there, and that it goes away.

What lives here: messages that are kept until somebody takes them. What does not: what they mean (``frames``).

One socket and the session that a client holds by it: frames in, events out, and an end with a code that says why.

What lives here: the two ways between them, each as slow as whoever takes what comes. What does not: which session it is, and
whether the role is free (``door``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.legible import one_line, printable
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

if TYPE_CHECKING:
    from patchbay.realtime import ChatSession, RealtimeSession

_LONGEST: Final = 500
_LONGEST_KEY: Final = 100

_logger = logging.getLogger(__name__)


class SessionLog:
    """The log of the session ``key`` of ``role``."""

    def __init__(self, role: str, key: str) -> None:
        self._whose = f"{_shown(key, _LONGEST_KEY)!r} of the role {_shown(role, _LONGEST_KEY)!r}"
        self._last = ""

    def failed(self, error: Exception) -> None:
        """There is no session."""
        self._say("The session %s could not be opened: %s", str(error))

    def event(self, event: RealtimeEvent) -> None:
        """Something has happened in it."""
        if isinstance(event, ErrorEvent):
            self._say("In the session %s: %s", str(event.error))
        elif isinstance(event, ConnectionEvent) and event.planned:
            _logger.info(
                "The connection of the session %s to its model is renewed: %s", self._whose, _shown(event.reason, _LONGEST)
            )
        elif isinstance(event, ConnectionEvent) and event.state == "lost":
            self._say("The connection of the session %s to its model is lost: %s", event.reason or "no reason was given")

    def ended(self, why: str) -> None:
        """Its model has ended it; what was said of that already is not said again."""
        if _shown(why, _LONGEST) != self._last:
            self._say("The session %s has ended: %s", why)

    def _say(self, words: str, why: str) -> None:
        self._last = _shown(why, _LONGEST)
        _logger.warning(words, self._whose, self._last)


def _shown(text: str, most: int) -> str:
    return printable(one_line(text, most))


_MOST: Final = 8
"""How many messages are heard before their session is there. The rest waits in the socket, and so does that the client goes."""


class DisconnectWatcher:
    """Hears ``receive`` until it is itself asked for messages; ``left`` is called once, if the client goes away before that."""

    def __init__(self, receive: Receive, left: Callable[[], object]) -> None:
        self.has_left = False
        self._receive = receive
        self._left = left
        self._said: deque[Any] = deque()
        self._hearing: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(self._hear())

    async def receive(self) -> Any:
        """Return the next message, the early ones first."""
        await self.close()
        return self._said.popleft() if self._said else await self._receive()

    async def close(self) -> None:
        """Hear nothing by itself any more."""
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.cancel()
            await asyncio.wait({hearing})

    async def _hear(self) -> None:
        while len(self._said) < _MOST:
            message = await self._receive()
            self._said.append(message)
            if message["type"] == "websocket.disconnect":
                self.has_left = True
                self._left()
                return


if TYPE_CHECKING:
    Session: TypeAlias = RealtimeSession | ChatSession

_CLOSING: Final = 2.0
"""How long a client has to take its close frame (seconds): a server that stops waits for it."""

_LAST_WORDS: Final = 2.0
"""How long a client is told what has happened, once its session is to end at once (seconds): a model may never be silent."""

_PING: Final = Control("ping")
_INTERRUPT: Final = Control("interrupt")

_MOST_BROKEN: Final = 32
"""How many frames in a row may be none."""

BAD_REQUEST: Final = 4400
UNKNOWN_ROLE: Final = 4404
SLOW_CLIENT: Final = 4408
ROLE_BUSY: Final = 4409
REPLACED: Final = 4410
MODEL_FAILED: Final = 4502
NO_MODEL: Final = 4503
STOPPING: Final = 1001

_LONGEST_REASON: Final = 120
"""Bytes that a close frame has for its reason."""


@dataclass(frozen=True)
class CloseInfo:
    """Why a socket ends. With the code 0 the client has gone, and is told nothing."""

    code: int
    reason: str = ""


GONE: Final = CloseInfo(0)


class Socket:
    """A socket that was accepted: what goes out. Nobody waits longer than ``seconds`` for its client to take a frame."""

    def __init__(self, send: Callable[[Any], Awaitable[None]], seconds: float) -> None:
        self.binary = False
        """Whether audio goes out as binary frames."""
        self._send = send
        self._seconds = seconds
        self._rate = 0

    async def tell(self, frame: Frame) -> None:
        """Send a frame. Raises TimeoutError, OSError where the client has gone."""
        await self._out({"type": "websocket.send", "text": encode_frame(frame)})

    async def tell_event(self, event: RealtimeEvent) -> None:
        """Send an event, as a binary frame if it is audio and the client wants it so. Raises as ``tell``."""
        if not self.binary or not isinstance(event, AudioEvent):
            await self.tell(event_frame(event))
            return
        if event.rate != self._rate:
            self._rate = event.rate
            await self.tell({"type": "audio_format", "rate": event.rate})
        await self._out({"type": "websocket.send", "bytes": event.audio})

    async def end(self, ending: CloseInfo) -> None:
        """Close it, and say why."""
        if ending.code:
            reason = ending.reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
            with contextlib.suppress(OSError):  # (TimeoutError is one) it may be closed on the other side by now
                closing = {"type": "websocket.close", "code": ending.code, "reason": reason}
                await self._out(closing, seconds=min(self._seconds, _CLOSING))

    async def _out(self, message: Any, *, seconds: float | None = None) -> None:
        try:
            async with asyncio.timeout(seconds or self._seconds):
                await self._send(message)
        except RuntimeError:  # how servers say that they have closed it already: a frame was too long, or no ping was answered
            raise ConnectionResetError from None


class SessionBridge:
    """A session that is open, and its client. ``run`` serves both until one of them, or ``end``, ends it."""

    def __init__(self, session: Session, socket: Socket, log: SessionLog) -> None:
        self.session = session
        self._socket = socket
        self._log = log
        self._events = session.events()
        self._ending: CloseInfo | None = None
        self._is_hurried = False
        self._too_late: asyncio.Future[CloseInfo] = (
            asyncio.get_running_loop().create_future()
        )  # then it ends, whatever is under way
        self._heard = 0  # how often it has asked for something
        self._owes_idle = False  # it has asked, or something has come to its end, since it was told that nothing is under way
        self._broken = 0

    def end(self, code: int, reason: str, *, when_idle: bool = False) -> None:
        """Have it end, for this reason; ``when_idle``: what is under way comes to its end first, and nothing more is said."""
        if not when_idle and not self._is_hurried:
            self._is_hurried = True
            asyncio.get_running_loop().call_later(_LAST_WORDS, self._too_late.cancel)
        self._ending = self._ending or CloseInfo(code, reason)
        self._events.wake()

    async def run(self, receive: Callable[[], Awaitable[Any]]) -> CloseInfo:
        """Pass on what either says, until the end; return why it ended. The session is the caller's to close."""
        loop = asyncio.get_running_loop()
        work = [loop.create_task(self._listen(receive)), loop.create_task(self._tell())]
        try:
            await asyncio.wait([*work, self._too_late], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in work:
                task.cancel()
            await asyncio.wait(work)
        endings = [_ending_of(task) for task in work if not task.cancelled()]
        return self._ending or endings[0]

    async def _listen(self, receive: Callable[[], Awaitable[Any]]) -> CloseInfo:
        """Do what the client says, one after the other: who speaks faster than the model's server takes it waits."""
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return GONE
            try:
                frame = read_frame(message)
            except InvalidRequestError as error:
                self._broken += 1
                if self._broken > _MOST_BROKEN:
                    return CloseInfo(BAD_REQUEST, "too many frames that are none")
                await self._socket.tell(error_frame(error))
                if error.param == "text":
                    self._wants_answer()  # and this was it
                continue
            self._broken = 0
            try:
                await self._do(frame)
            except PatchbayError as error:
                await self._socket.tell(error_frame(error))
            if not (isinstance(frame, AudioInput) or frame == _PING):
                self._wants_answer()

    async def _do(self, frame: TextInput | AudioInput | Control) -> None:
        session, is_ending = self.session, self._ending is not None
        if isinstance(frame, AudioInput):
            if not is_ending:
                await session.send_audio(frame.audio)
        elif frame == _PING:
            await self._socket.tell({"type": "pong"})
        elif frame == _INTERRUPT:
            await session.interrupt()
        elif is_ending:
            raise StoppingError
        else:
            await (session.send_text(frame.text) if isinstance(frame, TextInput) else session.respond())

    def _wants_answer(self) -> None:
        self._heard += 1
        self._owes_idle = True
        self._events.wake()

    async def _tell(self) -> CloseInfo:
        """Tell the client what happens; and that nothing is under way any more, once it has been told all else."""
        while True:
            event = self._events.now()
            if event is None and self._is_settled():
                await asyncio.sleep(0)  # a session may be idle a turn of the loop before its IdleEvent is there
                event = self._events.now()
            if event is not None:
                self._owes_idle = self._owes_idle or _is_of_an_end(event)
                self._log.event(event)
                if not isinstance(event, IdleEvent):  # it is told below, with a number
                    await self._socket.tell_event(event)
                if isinstance(event, ConnectionEvent) and event.state == "closed":
                    return CloseInfo(MODEL_FAILED, event.reason)
            elif not self._is_settled():
                if not await self._events.wait():
                    return CloseInfo(MODEL_FAILED, "the session has ended")
            else:
                if self._owes_idle and self.session.idle:
                    self._owes_idle = False
                    # The number tells it from one that was on its way when the client asked for more.
                    await self._socket.tell({"type": "idle", "heard": self._heard})
                if self._ending is not None:
                    return self._ending

    def _is_settled(self) -> bool:
        """Whether its client is owed an end, or word that all is done. A session that is not idle has one more event, then."""
        if self.session.idle:
            return self._owes_idle or self._ending is not None
        return self._is_hurried


def _is_of_an_end(event: RealtimeEvent) -> bool:
    """Whether something that was under way has come to its end; word of that may be among events that were dropped."""
    return isinstance(event, IdleEvent) or (isinstance(event, DroppedEvent) and event.what == "events")


def _ending_of(task: asyncio.Task[CloseInfo]) -> CloseInfo:
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, TimeoutError):
        return CloseInfo(SLOW_CLIENT, "the client does not take what it is sent")
    if isinstance(error, OSError):
        return GONE
    raise error
