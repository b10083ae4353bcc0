"""Keeps a connection under a session: opens it, opens another when it is lost or has served its time, and knows when to give up.

What lives here: when a connection is opened. What does not: how (``wire``), and what a session does with it (``core``, the
``Keeper``'s ``Holder``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final, Protocol

from patchbay.errors import PatchbayError, UpstreamError
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.connection import SetupRefusedError, open_wire
from patchbay.realtime.events import ConnectionEvent, ErrorEvent
from patchbay.realtime.listener import Listener
from patchbay.realtime.providers.base import ConnectionSetup, Dialect, Line
from patchbay.realtime.responses import ResponseController
from patchbay.realtime.server_events import ServerError

_TRANSIENT: Final = (408, 409, 425, 429)

_logger = logging.getLogger(__name__)


class ConnectionOwner(Listener, Protocol):
    """Who a connection is kept for."""

    def opening(self, handle: str) -> ConnectionSetup:
        """Return what the next connection begins with; ``handle`` is that of the session that it goes on with."""

    def lines(self) -> Sequence[Line]:
        """Return what was said, for a connection that has not heard it."""

    def refuse(self, refused: ServerError) -> bool:
        """Take away what the server does not take; False where that is not known."""

    def refuse_all(self, why: str) -> bool:
        """Take away all that no server has taken yet; False where there is nothing of the kind."""

    def opened(self, talk: ResponseController) -> None:
        """A connection is there."""

    def lost(self, talk: ResponseController) -> None:
        """It is over."""

    def failed(self, error: PatchbayError) -> None:
        """There will be none."""

    def nothing_is_going_on(self) -> bool:
        """Whether another connection would disturb nobody."""


class Reconnector:
    """``talk`` is the connection in use, None while there is none. ``run`` keeps one until there is none to be had."""

    def __init__(self, settings: RealtimeSettings, dialect: type[Dialect], holder: ConnectionOwner) -> None:
        self.talk: ResponseController | None = None
        self.handle = ""
        """With what another connection can go on where this one is; "" where it cannot."""
        self._settings = settings
        self._limits = settings.limits
        self._dialect = dialect
        self._holder = holder
        self._was_open = False
        self._failures = 0  # in a row
        self._renewing = False
        self._is_of_use = False  # the connection of now
        self._leaving: asyncio.TimerHandle | None = None  # the server ends it
        self._listening: asyncio.Task[None] | None = None  # to it

    async def run(self) -> None:
        """Keep a connection. What ends it for good is told by ``Holder.failed``."""
        try:
            error = await self._keep()
        except Exception as bug:
            _logger.exception("A realtime session has failed")
            error = PatchbayError(f"The session has failed: {bug!r}")
        self._holder.failed(error)

    def served(self) -> None:
        """The connection is of use: something was answered on it, to its end."""
        self._failures = 0
        self._is_of_use = True

    def renew(self) -> None:
        """Open another connection as soon as nothing is going on."""
        self._renewing = True
        self.renew_when_idle()

    def renew_when_idle(self) -> None:
        """Do so, if that is wanted and nothing is going on."""
        if self._renewing and self.talk is not None and self._holder.nothing_is_going_on():
            self._hang_up()

    def leave(self, seconds: float) -> None:
        """The server will end the connection: open another before, when nothing is going on or a little before its end."""
        if self._leaving is None and self.talk is not None:
            self._leaving = asyncio.get_running_loop().call_later(max(seconds * 0.8, seconds - 2.0), self._hang_up)
        self.renew()

    async def _keep(self) -> PatchbayError:
        """Keep a connection, until there is none to be had; return why."""
        while True:
            try:
                talk = await self._reach()
            except PatchbayError as error:
                if isinstance(error, SetupRefusedError) and self._holder.refuse_all(str(error)):
                    self._holder.emit(ErrorEvent(error))
                    continue  # at once, and where the last one was
                self.handle = ""  # what cannot be taken up is begun anew
                if not self._may_try_again(error):
                    return error
                self._holder.emit(ErrorEvent(error))
            else:
                reason = await self._use(talk)
                if self._limits.reconnects <= self._failures and not self._renewing:
                    return UpstreamError(f"The connection to the model's server is lost: {reason}")
            await self._pause()

    async def _reach(self) -> ResponseController:
        """Open a connection."""
        holder, handle = self._holder, self.handle
        dialect = self._dialect(self._settings)
        wire = await open_wire(
            dialect,
            self._settings,
            lambda: holder.opening(handle),
            lines=lambda: () if handle else holder.lines(),
            refused=holder.refuse,
        )
        return ResponseController(wire, self._limits, holder, resumed=bool(handle))

    async def _use(self, talk: ResponseController) -> str:
        """Talk on a connection until it is over; return why it is."""
        clock = asyncio.get_running_loop().time
        began = clock()
        self.talk = talk
        self._was_open = True
        self._renewing = self._is_of_use = False
        connection = talk.wire.connection
        listening = self._listening = asyncio.get_running_loop().create_task(self._listen(talk))
        try:
            self._holder.opened(talk)
            await asyncio.wait([listening])
            if not listening.cancelled():
                listening.result()
        finally:
            listening.cancel()
            self._lose(talk, tells=False)
            if clock() - began >= self._limits.longest_pause:
                self.served()
            if self._leaving is not None:
                self._leaving.cancel()
                self._leaving = None
                if not self._is_of_use:
                    self._renewing = False  # a server that sends away whoever comes is as good as lost
            await asyncio.wait([listening])
            await connection.close()
        return connection.reason

    async def _listen(self, talk: ResponseController) -> None:
        await talk.listen()
        self._lose(talk)  # at once: what is said to one that is over has to wait for the next

    def _lose(self, talk: ResponseController, *, tells: bool = True, planned: bool = False) -> None:
        """Have no connection any more: what is said from now on waits for the next."""
        if self.talk is talk:
            talk.end()
            if tells:
                self._holder.emit(ConnectionEvent("lost", talk.wire.connection.reason, planned))
            self.talk = None
            self._holder.lost(talk)

    def _may_try_again(self, error: PatchbayError) -> bool:
        if not self._was_open or not isinstance(error, UpstreamError):
            return False  # the first connection is the caller's affair
        status = error.upstream_status
        is_final = status is not None and 400 <= status < 500 and status not in _TRANSIENT
        return not is_final and self._failures < self._limits.reconnects

    async def _pause(self) -> None:
        """Wait before the next attempt: any time up to one that doubles. One that ended on purpose is followed at once."""
        if self._renewing:
            self._renewing = False
            return
        longest = min(self._limits.longest_pause, self._limits.first_pause * 2 ** min(self._failures, 30))
        self._failures += 1
        await asyncio.sleep(random.uniform(0, longest))  # noqa: S311  (so that not all sessions come back at once)

    def _hang_up(self) -> None:
        """End this connection on purpose, when all that was said on it has gone out: the next is opened at once."""
        talk, listening = self.talk, self._listening
        if talk is not None and listening is not None:
            self._renewing = True
            talk.wire.connection.hang_up("the server is leaving" if self._leaving is not None else "another one is opened")
            self._lose(talk, planned=True)
            listening.cancel()
