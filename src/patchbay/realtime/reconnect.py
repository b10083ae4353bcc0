"""Keeps a session connected: opens a connection, reopens it after a loss or on request, and gives up."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from patchbay._backoff import Backoff
from patchbay.errors import PatchbayError, UpstreamError
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.connection import SetupRefusedError, open_connection
from patchbay.realtime.events import ConnectionEvent, ErrorEvent
from patchbay.realtime.history import Transcript
from patchbay.realtime.host import SessionHost
from patchbay.realtime.providers.base import ConnectionSetup, Dialect
from patchbay.realtime.responses import ResponseController
from patchbay.realtime.tool_sync import ToolSync

_TRANSIENT: Final = (408, 409, 425, 429)

_logger = logging.getLogger(__name__)


class ConnectionOwner(SessionHost, Protocol):
    """The session that a connection is kept for."""

    def on_connected(self, controller: ResponseController) -> None:
        """Handle a new connection."""

    def on_disconnected(self, controller: ResponseController) -> None:
        """Handle the end of a connection."""

    def on_connection_failed(self, error: PatchbayError) -> None:
        """Handle that no connection can be had."""

    def is_quiescent(self) -> bool:
        """True if the connection can be replaced without disturbing anything."""


class Reconnector:
    """``controller`` is the connection in use, None while there is none."""

    def __init__(
        self,
        settings: RealtimeSettings,
        dialect: type[Dialect],
        owner: ConnectionOwner,
        *,
        tools: ToolSync,
        transcript: Transcript,
    ) -> None:
        self.controller: ResponseController | None = None
        self._settings = settings
        self._limits = limits = settings.limits
        self._dialect = dialect
        self._owner = owner
        self._tools = tools
        self._transcript = transcript
        self._was_open = False
        self._backoff = Backoff(limits.first_pause, limits.longest_pause, retries=limits.reconnects)
        self._renewal_wanted = False
        self._was_useful = False  # of the current connection
        self._leave_timer: asyncio.TimerHandle | None = None  # set by ``schedule_renewal``
        self._listening: asyncio.Task[None] | None = None  # to the current connection

    async def keep_connected(self) -> None:
        """Keep a connection until none can be had, then call ``on_connection_failed``."""
        try:
            error = await self._connect_until_failure()
        except Exception as bug:
            _logger.exception("A realtime session has failed")
            error = PatchbayError(f"The session has failed: {bug!r}")
        self._owner.on_connection_failed(error)

    def mark_useful(self) -> None:
        """Record a completed response, which resets the failure count."""
        self._backoff.reset()
        self._was_useful = True

    def request_renewal(self) -> None:
        """Replace the connection as soon as the session is quiescent."""
        self._renewal_wanted = True
        self.renew_if_idle()

    def renew_if_idle(self) -> None:
        """Replace the connection if that was requested and the session is quiescent."""
        if self._renewal_wanted and self.controller is not None and self._owner.is_quiescent():
            self._close_for_renewal()

    def schedule_renewal(self, seconds: float) -> None:
        """Replace the connection before the server closes it, at the latest shortly before."""
        if self._leave_timer is None and self.controller is not None:
            self._leave_timer = asyncio.get_running_loop().call_later(max(seconds * 0.8, seconds - 2.0), self._close_for_renewal)
        self.request_renewal()

    async def _connect_until_failure(self) -> PatchbayError:
        """Reconnect until no connection can be had; return the reason."""
        while True:
            try:
                controller = await self._open()
            except PatchbayError as failure:
                error = failure
                if isinstance(error, SetupRefusedError) and self._tools.revert(str(error)):
                    self._owner.emit(ErrorEvent(error))
                    continue  # at once
                if not self._may_try_again(error):
                    return error
                pause = self._backoff.fail()
                if self._backoff.is_exhausted:
                    return error
                self._owner.emit(ErrorEvent(error))
            else:
                reason = await self._serve(controller)
                if self._renewal_wanted:
                    self._renewal_wanted = False
                    continue  # a planned renewal does not wait
                pause = self._backoff.fail()
                if self._backoff.is_exhausted:
                    return UpstreamError(f"The connection to the model's server is lost: {reason}")
            await asyncio.sleep(pause)

    async def _open(self) -> ResponseController:
        tools = self._tools
        wire = await open_connection(
            self._dialect(self._settings),
            self._settings,
            lambda: ConnectionSetup(tools.tools_for_connection()),
            lines=self._transcript.lines,
            exclude=tools.exclude_refused_tool,
        )
        return ResponseController(wire, self._limits, self._owner)

    async def _serve(self, controller: ResponseController) -> str:
        """Use a connection until it ends; return the reason."""
        clock = asyncio.get_running_loop().time
        began = clock()
        self.controller = controller
        self._was_open = True
        self._renewal_wanted = self._was_useful = False
        connection = controller.wire.connection
        listening = self._listening = asyncio.get_running_loop().create_task(self._listen(controller))
        try:
            self._owner.on_connected(controller)
            await asyncio.wait([listening])
            if not listening.cancelled():
                listening.result()
        finally:
            listening.cancel()
            self._disconnect(controller, emits=False)
            if clock() - began >= self._limits.longest_pause:
                self.mark_useful()
            if self._leave_timer is not None:
                self._leave_timer.cancel()
                self._leave_timer = None
                if not self._was_useful:
                    self._renewal_wanted = False  # a server that closes each connection counts as lost
            await asyncio.wait([listening])
            await connection.close()
        return connection.reason

    async def _listen(self, controller: ResponseController) -> None:
        await controller.listen()
        self._disconnect(controller)  # at once, so that input waits for the next connection

    def _disconnect(self, controller: ResponseController, *, emits: bool = True, planned: bool = False) -> None:
        """Detach the connection: later input waits for the next one."""
        if self.controller is controller:
            controller.close()
            if emits:
                self._owner.emit(ConnectionEvent("lost", controller.wire.connection.reason, planned))
            self.controller = None
            self._owner.on_disconnected(controller)

    def _may_try_again(self, error: PatchbayError) -> bool:
        if not self._was_open or not isinstance(error, UpstreamError):
            return False  # the caller handles a failure of the first connection
        status = error.upstream_status
        is_final = status is not None and 400 <= status < 500 and status not in _TRANSIENT
        return not is_final

    def _close_for_renewal(self) -> None:
        """Close the connection on purpose after sending what is queued; the next is opened at once."""
        controller, listening = self.controller, self._listening
        if controller is not None and listening is not None:
            self._renewal_wanted = True
            controller.wire.connection.finish_sending(
                "the server is leaving" if self._leave_timer is not None else "another one is opened"
            )
            self._disconnect(controller, planned=True)
            listening.cancel()
