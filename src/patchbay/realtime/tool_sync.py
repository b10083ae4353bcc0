"""Keeps the tools of the model's server in sync with those of the session: versions, confirmations, timeouts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from patchbay.errors import ToolSyncError
from patchbay.realtime.providers.base import WireTool, tool_names
from patchbay.realtime.response_state import Timer
from patchbay.realtime.responses import ResponseController
from patchbay.realtime.server_events import ServerError, SessionUpdated
from patchbay.realtime.session_tools import SessionTools

_MAX_PENDING: Final = 32


@dataclass(eq=False)
class _Change:
    """A tool update that was sent. ``timer`` runs while its confirmation is awaited.

    ``before`` are the tools confirmed until then; ``crossed``: those were confirmed again after this update was sent.
    """

    version: int
    tools: Sequence[WireTool]
    timer: Timer
    event_id: str = ""
    before: Sequence[WireTool] = ()
    crossed: bool = False


class ToolSync:
    """Sends tool updates and tracks their confirmations.

    ``changed`` announces other tools, ``push`` sends them when possible. A failed update is not retried until ``changed`` is
    called.
    """

    def __init__(self, tools: SessionTools, seconds: float, *, updates: bool, renew: Callable[[], None]) -> None:
        self._tools = tools
        self._seconds = seconds
        self._can_update = updates
        self._renew = renew
        self._version = 0
        self._confirmed_tools: Sequence[WireTool] | None = None  # last confirmed by a server
        self._rejected: Sequence[WireTool] | None = None  # last refused
        self._unconfirmed_tools: Sequence[WireTool] | None = None  # last sent on this connection without a confirmation in time
        self._offered_at_setup: tuple[int, Sequence[WireTool]] = 0, ()
        self._pending: deque[_Change] = deque(maxlen=_MAX_PENDING)  # confirmed in order
        self._answered: deque[_Change] = deque(maxlen=_MAX_PENDING)
        self._confirmed: _Change | None = None  # the last one confirmed on this connection
        self._echoes_tools = True  # confirmations name the right tools, as far as known
        self._retracted_version = -1  # last version refused after its confirmation
        self._known = 0  # version that the model has
        self._renewal_timer = Timer(self._on_renewal_timeout)  # for waiters of a new connection
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def is_synced(self) -> bool:
        """True if the model has the tools of the last ``changed``."""
        return self._known == self._version

    def changed(self) -> asyncio.Future[None]:
        """Announce other tools; the future completes when they are confirmed, or fails with ToolSyncError."""
        self._version += 1
        self._rejected = self._unconfirmed_tools = None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._version, future))
        if not self._can_update and not self._renewal_timer.is_set:
            self._renewal_timer.set(self._seconds)
        return future

    def tools_for_connection(self) -> Sequence[WireTool]:
        """Return the tools for a new connection: the current ones, or the last accepted if those were refused."""
        version, tools = self._version, self._tools.wire_tools()
        if self._confirmed_tools is not None and tools == self._rejected:
            version, tools = self._known, self._confirmed_tools
        self._offered_at_setup = version, tools
        return tools

    def exclude_refused_tool(self, refused: ServerError) -> bool:
        """Leave out a tool refused during setup; return False if it is not known which."""
        tools = self._offered_at_setup[1]
        return self._tools.exclude(refused, tools) or self._tools.wire_tools() not in (tools, self._rejected)

    def revert(self, why: str) -> bool:
        """Go back to accepted tools after a refused setup; return whether the next setup differs."""
        version, tools = self._offered_at_setup
        if self._confirmed_tools is None or tools == self._confirmed_tools:
            return False
        self._rejected = tools
        self._fail(version, why)
        return True

    def on_connected(self) -> None:
        """Record that the connection was opened with ``tools_for_connection``."""
        version, self._confirmed_tools = self._offered_at_setup
        self._done(version)

    def push(self, controller: ResponseController) -> None:
        """Send the tools unless a response or an update is pending, or they are known, refused or timed out."""
        if self._is_update_pending or not controller.is_quiet or controller.closed:
            return
        tools = self._tools.wire_tools()
        has_failed = tools in (self._rejected, self._unconfirmed_tools)
        if tools == self._confirmed_tools:
            if self._pending and not has_failed:
                self._send(tools, controller)  # the server may have applied an unconfirmed update
            self._done(self._version)
        elif has_failed:
            return
        elif self._can_update:
            self._send(tools, controller)
        else:
            self._renew()

    def on_session_change(self, event: SessionUpdated | ServerError, controller: ResponseController) -> bool:
        """Handle a confirmation or refusal; return whether it was about an update that was not confirmed before."""
        was_pending = self._on_rejected(event) if isinstance(event, ServerError) else self._on_confirmed(event)
        self.push(controller)
        return was_pending

    def on_disconnected(self) -> None:
        """Forget pending updates: the next connection starts with the current tools."""
        for change in self._pending:
            change.timer.cancel()
        self._pending.clear()
        self._answered.clear()
        self._confirmed = self._unconfirmed_tools = None

    def close(self, why: str) -> None:
        """Fail all waiters."""
        self.on_disconnected()
        self._fail(self._version, why)

    def _on_confirmed(self, event: SessionUpdated) -> bool:
        if not self._pending:
            return False
        change = self._match_confirmation(event.tools if self._echoes_tools else None)
        if change is None:
            self._pending[-1].crossed = True
            return False
        self._confirm(change)
        return True

    def _match_confirmation(self, names: frozenset[str] | None) -> _Change | None:
        """Return the update that is confirmed, by the names of its tools; the first if that is ambiguous.

        None if they are those of the tools before: these are confirmed again.
        """
        fitting = [each for each in self._pending if tool_names(each.tools) == names]
        if fitting:
            return [each for each in fitting if each.tools == fitting[0].tools][-1]
        return None if self._confirmed_tools is not None and tool_names(self._confirmed_tools) == names else self._pending[0]

    def _confirm(self, change: _Change) -> None:
        """Record a confirmation, which answers earlier updates too."""
        while change in self._pending:
            self._pending[0].timer.cancel()
            self._answered.append(self._pending.popleft())
        change.before, self._confirmed_tools, self._confirmed = self._confirmed_tools or (), change.tools, change
        self._done(self._version if self._confirmed_tools == self._tools.wire_tools() else change.version)

    def _on_rejected(self, event: ServerError) -> bool:
        """Handle the refusal of the update that it names, or of the first."""
        sent = (*self._pending, *self._answered)
        change = next((each for each in sent if each.event_id and each.event_id == event.event_id), None)
        if change is None and self._pending:
            change = self._pending[0]
        if change is None:
            return False
        if change is self._confirmed:
            self._retract(change, event)
            return False
        if change in self._pending:
            change.timer.cancel()
            self._pending.remove(change)
            self._answered.append(change)
            if not self._tools.exclude(event, change.tools):
                self._rejected = change.tools
                self._fail(change.version, f"the model's server refused the tools: {event.message}")
        return True

    def _retract(self, change: _Change, event: ServerError) -> None:
        """Take back a confirmation that was refused after all; the update is sent once more."""
        self._confirmed_tools, self._confirmed, self._known = change.before, None, -1
        if not self._tools.exclude(event, change.tools) and change.version == self._retracted_version:
            self._rejected = change.tools
        self._retracted_version = change.version

    @property
    def _is_update_pending(self) -> bool:
        return bool(self._pending) and self._pending[-1].timer.is_set

    def _send(self, tools: Sequence[WireTool], controller: ResponseController) -> None:
        frames = controller.update_tools(tools)
        event_id = "".join(str(frame.get("event_id", "")) for frame in frames)
        change = _Change(self._version, tools, Timer(lambda: self._on_timeout(change, controller)), event_id)
        change.timer.set(self._seconds)
        self._pending.append(change)

    def _on_timeout(self, change: _Change, controller: ResponseController) -> None:
        """Stop waiting for a confirmation. A late one must not be taken for that of another update."""
        if change.crossed:  # it was the confirmation: this server names other tools than it was sent
            self._echoes_tools = False
            self._confirm(change)
        else:
            self._unconfirmed_tools = change.tools
            self._fail(change.version, f"the model's server did not confirm the tools within {self._seconds} s")
        self.push(controller)

    def _on_renewal_timeout(self) -> None:
        """Fail waiters: a running call may wait for this itself."""
        self._fail(
            self._version,
            "the model's server takes tools only when a connection begins, and none could begin within"
            f" {self._seconds} s, because something is going on or the server is away; the next one brings the tools",
        )

    def _done(self, version: int) -> None:
        rejection_message = self._tools.rejection_message()
        if not rejection_message:
            self._known = max(self._known, version)
        for future in self._due(version):
            if rejection_message:
                future.set_exception(ToolSyncError(f"the model's server does not take {rejection_message}"))
            else:
                future.set_result(None)

    def _fail(self, version: int, why: str) -> None:
        for future in self._due(version):
            future.set_exception(ToolSyncError(why))

    def _due(self, version: int) -> list[asyncio.Future[None]]:
        due = [future for number, future in self._waiting if number <= version and not future.done()]
        self._waiting = [(number, future) for number, future in self._waiting if number > version]
        if not self._waiting:
            self._renewal_timer.cancel()
        return due
