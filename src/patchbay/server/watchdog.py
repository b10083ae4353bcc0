"""Watches one request while its upstream works: client disconnect, silent upstream, idle stream.

One lazily re-armed timer per request checks all three, and nothing is armed per chunk. A request that is answered within
LISTEN_AFTER costs that one timer only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from patchbay.errors import PatchbayError, UpstreamTimeoutError

LISTEN_AFTER = 0.01
"""Seconds until a request listens for a disconnect: a fifth of the time within which the upstream must be freed."""
_SLACK = 0.001
_IDLE = 3600.0
"""Seconds between the checks of a request that has neither an upstream nor heartbeats."""


class ClientDisconnect(PatchbayError):  # noqa: N818  (as Starlette names it)
    """The client has closed its connection."""

    code = "client_left"
    status = 499


class RequestWatchdog:
    """A scope around the work on one request. Leaving it raises what ended the work: a disconnect or a timeout.

    The work is ended by cancelling its task, as ``asyncio.timeout`` does, so it must not swallow CancelledError. Around each wait
    for the upstream the work sets ``waiting_since``: the loop's time; 0 while it does not wait, so that a slow client does not
    count as a silent upstream; negative while it waits for something else.
    """

    __slots__ = (
        "_beating", "_cancels", "_ended_by", "_heartbeat", "_idle_since", "_interval", "_listener", "_loop", "_receive",
        "_silence", "_task", "_timer", "listening", "waiting_since",
    )  # fmt: skip

    def __init__(self, receive: Callable[[], Awaitable[Any]], *, silence: float = 0.0, interval: float = _IDLE) -> None:
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
        """Whether the watchdog reads from the client. False while the work itself does (an upload)."""
        self.waiting_since = 0.0

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancels = task.cancelling()
        self._timer = self._loop.call_later(LISTEN_AFTER, self._check)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._timer.cancel()
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None  # its traceback holds this object: a cycle that only the collector could free
        if self._beating is not None:
            self._beating.cancel()
        # A cancellation from outside counts one more, and is propagated.
        if self._ended_by is not None and self._task.uncancel() <= self._cancels:
            raise self._ended_by from error

    def beat(self, heartbeat: Callable[[], Awaitable[None]]) -> None:
        """Call ``heartbeat`` whenever nothing was written for the interval."""
        self._heartbeat = heartbeat
        self._idle_since = self._loop.time()

    def disconnect(self) -> None:
        """End the work: the client has disconnected."""
        self._end(ClientDisconnect("The client left."))

    def wait(self) -> None:
        """Start the silence timeout: the upstream is waited for."""
        self.waiting_since = self._loop.time()

    def wait_elsewhere(self) -> None:
        """Suspend the silence timeout, for instance while a tool runs; heartbeats go on."""
        self.waiting_since = -1.0

    async def before_write(self) -> None:
        """Call before writing; waits for a heartbeat that is being sent."""
        self.waiting_since = 0.0
        self._idle_since = self._loop.time()
        if self._beating is not None:
            await self._beating

    def passed(self, data: bytes) -> None:
        """Note that a chunk came, ``data`` was written for it, and the next one is waited for."""
        self.waiting_since = now = self._loop.time()
        if data:
            self._idle_since = now

    def _check(self) -> None:
        """Check all three, and reschedule for the next deadline."""
        now = self._loop.time()
        if self._listener is None and self.listening:
            self._listener = self._loop.create_task(self._listen())
        next_check = self._interval if self._silence == 0 else min(self._interval, self._silence)
        if not self.listening:
            next_check = min(next_check, 2 * LISTEN_AFTER)
        if self._silence and self.waiting_since > 0:
            remaining = self.waiting_since + self._silence - now
            if remaining <= 0:
                self._end(UpstreamTimeoutError(f"The upstream sent nothing for {self._silence:g} s (upstream timeout)."))
                return
            next_check = min(next_check, remaining)
        if self._heartbeat is not None and self.waiting_since and self._beating is None:
            remaining = self._idle_since + self._interval - now
            if remaining <= 0:
                self._idle_since = now
                self._beating = self._loop.create_task(self._beat(self._heartbeat))
            else:
                next_check = min(next_check, remaining)
        self._timer = self._loop.call_later(next_check + _SLACK, self._check)

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.disconnect()

    async def _beat(self, heartbeat: Callable[[], Awaitable[None]]) -> None:
        try:
            await heartbeat()
        except Exception:  # noqa: BLE001  (any failure to write means that the client is gone)
            self.disconnect()
        finally:
            self._beating = None

    def _end(self, reason: PatchbayError) -> None:
        if self._ended_by is None:
            self._ended_by = reason
            self._task.cancel()
