"""Looks after one request while its upstream is at work: whether the client left, the upstream is silent, the stream idle.

One lazily re-armed timer per request answers all three; nothing is armed per piece of a stream. A request that is answered
within LISTEN_AFTER pays for that one timer and for nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from patchbay.errors import PatchbayError, UpstreamTimeoutError

LISTEN_AFTER = 0.01
"""Seconds until a request listens for its client's leaving: a fifth of the time in which the upstream is to be freed."""
_SLACK = 0.001


class ClientDisconnect(PatchbayError):  # noqa: N818  (as Starlette names it)
    """The client is gone: nobody reads the answer."""

    code = "client_left"
    status = 499


class RequestWatchdog:
    """A scope around the work on one request. Leaving it raises what ended the work: ClientLeftError or UpstreamTimeoutError.

    The work is ended by cancelling its task, as ``asyncio.timeout`` does, so it must not swallow CancelledError. Around each wait
    for the upstream the work sets ``waiting_since`` (the loop's time; 0 while it does not wait, so that a slow client is not
    taken for a silent upstream; negative while it waits for something else).
    """

    __slots__ = (
        "_beating", "_cancels", "_ended_by", "_heartbeat", "_idle_since", "_interval", "_listener", "_loop", "_receive",
        "_silence", "_task", "_timer", "listening", "waiting_since",
    )  # fmt: skip

    def __init__(self, receive: Callable[[], Awaitable[Any]], *, silence: float, interval: float) -> None:
        self._receive = receive
        self._silence = silence
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._ended_by: PatchbayError | None = None
        self._listener: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._heartbeat: Callable[[], Awaitable[None]] | None = None
        self._idle_since = 0.0
        self.listening = True
        """Whether this watch reads from the client. False while the work itself does (a body that is being uploaded)."""
        self.waiting_since = 0.0

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancels = task.cancelling()
        self._timer = self._loop.call_later(LISTEN_AFTER, self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._timer.cancel()
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None  # its traceback holds this object: a ring that only the collector could undo
        if self._beating is not None:
            self._beating.cancel()
        # Whatever the cancelled work made of it, the reason is known here. A cancel from outside counts one more and goes on.
        if self._ended_by is not None and self._task.uncancel() <= self._cancels:
            raise self._ended_by from error

    def beat(self, heartbeat: Callable[[], Awaitable[None]]) -> None:
        """Call ``heartbeat`` whenever nothing was written for the interval. ``wrote`` says when something was."""
        self._heartbeat = heartbeat
        self._idle_since = self._loop.time()

    def left(self) -> None:
        """End the work because the client has left."""
        self._end(ClientDisconnect("The client left."))

    def wait(self) -> None:
        """Note that the upstream is being waited for from now on."""
        self.waiting_since = self._loop.time()

    def wait_elsewhere(self) -> None:
        """Note that something else is waited for, such as a tool: the stream is kept alive, and the upstream may be silent."""
        self.waiting_since = -1.0

    async def wrote(self) -> None:
        """Note that something is about to be written; waits for a heartbeat that is just going out."""
        self.waiting_since = 0.0
        self._idle_since = self._loop.time()
        if self._beating is not None:
            await self._beating

    def passed(self, data: bytes) -> None:
        """Note that a piece came, that ``data`` was written for it, and that the next one is waited for."""
        self.waiting_since = now = self._loop.time()
        if data:
            self._idle_since = now

    def _look(self) -> None:
        """Look at all three and come back when the next one can be due."""
        now = self._loop.time()
        if self._listener is None and self.listening:
            self._listener = self._loop.create_task(self._listen())
        next_look = self._interval if self._silence == 0 else min(self._interval, self._silence)
        if not self.listening:
            next_look = min(next_look, 2 * LISTEN_AFTER)
        if self._silence and self.waiting_since > 0:
            left = self.waiting_since + self._silence - now
            if left <= 0:
                self._end(UpstreamTimeoutError(f"The upstream sent nothing for {self._silence:g} s (upstream timeout)."))
                return
            next_look = min(next_look, left)
        if self._heartbeat is not None and self.waiting_since and self._beating is None:
            left = self._idle_since + self._interval - now
            if left <= 0:
                self._idle_since = now
                self._beating = self._loop.create_task(self._beat(self._heartbeat))
            else:
                next_look = min(next_look, left)
        self._timer = self._loop.call_later(next_look + _SLACK, self._look)

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left()

    async def _beat(self, heartbeat: Callable[[], Awaitable[None]]) -> None:
        try:
            await heartbeat()
        except Exception:  # noqa: BLE001  (a lock, a connection: whatever it holds may refuse, in any way)
            self.left()
        finally:
            self._beating = None

    def _end(self, reason: PatchbayError) -> None:
        if self._ended_by is None:
            self._ended_by = reason
            self._task.cancel()
