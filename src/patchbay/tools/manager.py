"""``LLMSessionManager``: registers local and remote tools, for roles, against a running tool server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from patchbay.errors import ConfigurationError, ToolSyncError
from patchbay.tools.function import as_tool
from patchbay.tools.registry import DEFAULT_ROLE, Change, Registration, Snapshot, ToolRegistry
from patchbay.tools.results import describe
from patchbay.tools.tool import Tool

DELAYS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0, 30.0, 30.0)
"""Seconds before each attempt: two and a half minutes in all."""

ATTEMPT_SECONDS: Final = 10.0
"""The seconds that one attempt may take."""


_SESSIONS: Final = ("active", "pending")

_POLL_SECONDS: Final = 0.05
"""The seconds between a swap's checks whether the active session is idle."""

_logger = logging.getLogger(__name__)


class LiveSession(Protocol):
    """A session with a model that has its own list of tools, such as a realtime connection.

    Optional attributes: ``idle`` (a swap waits until it is true), ``is_open`` (only an open session takes over), and
    ``is_synced``: whether the model has the tools of the last call, perhaps by another connection.
    """

    async def use_tools(self, snapshot: Snapshot) -> None:
        """Offer the model these tools from now on; errors reach the caller that waits for the sync. Never called concurrently."""
        ...


@dataclass(eq=False)
class _Listener:
    """A session, and why it does not have the last change ("": it has). ``revision`` is the last one passed to it."""

    session: LiveSession
    why: str = ""
    revision: int = -1
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class LLMSessionManager:
    """Registers tools of this process for ``role`` alone, replacing any tool of the same name, and sends them to its sessions.

    ``active`` is the role's current session, ``pending`` the one that is about to take over; None if there is none. ``prepare``,
    ``swap`` and ``leave`` set them. Both get the role's tools by ``sync``. Tools stay registered when sessions end, but are not
    stored: the program registers them again when it starts.

    The methods ending in ``_and_sync`` wait for the sync and raise ToolSyncError (a RuntimeError) if a session could not be
    updated; the change stays. The others sync in the background, if there is a running event loop, and log errors. A failed sync
    is retried in the background after each of ``retry_delays`` (seconds). ``out_of_sync`` has the sessions without the last
    change, and why.
    """

    def __init__(
        self, role: str = DEFAULT_ROLE, registry: ToolRegistry | None = None, *, retry_delays: Sequence[float] = DELAYS
    ) -> None:
        self.role = role
        self.registry = registry if registry is not None else ToolRegistry(())
        self.registry.add_role(role)
        self.active: LiveSession | None = None
        self.pending: LiveSession | None = None
        self._listeners: list[_Listener] = []  # by session, not by role of it: a pending change survives a swap
        self._is_due = False
        self._background: asyncio.Task[None] | None = None
        self._retry_delays = retry_delays
        self._retry_task: asyncio.Task[None] | None = None

    def register_tool(self, tool: Tool | Callable[..., Any]) -> None:
        """Register a tool or a function, replacing one of the same name. Its source is ``metadata["source"]``."""
        self._register(tool)
        self.sync_later()

    async def register_tool_and_sync(self, tool: Tool | Callable[..., Any]) -> None:
        """Register a tool, and wait for the sync."""
        self._register(tool)
        await self.sync()

    def unregister_tool(self, name: str) -> bool:
        """Remove a tool from this role, from any source. Returns whether there was one."""
        change = self._unregister(name)
        self.sync_later()
        return change.removed > 0

    async def unregister_tool_and_sync(self, name: str) -> bool:
        """Remove a tool, and wait for the sync."""
        change = self._unregister(name)
        await self.sync()
        return change.removed > 0

    def clear_tools(self, source: str | None = None) -> int:
        """Remove all tools of a source (None: all tools) from this role. Returns their number."""
        change = self._clear(source)
        self.sync_later()
        return change.removed

    async def clear_tools_and_sync(self, source: str | None = None) -> int:
        """Remove tools, and wait for the sync."""
        change = self._clear(source)
        await self.sync()
        return change.removed

    def list_tools(self) -> list[Tool]:
        """Return the role's tools, in the order of their registration."""
        return list(self.snapshot().tools.values())

    def snapshot(self) -> Snapshot:
        """Return the role's tools as a snapshot for a turn."""
        return self.registry.snapshot(self.role)

    @property
    def out_of_sync(self) -> dict[str, str]:
        """The sessions (``active``, ``pending``) that do not have the last change, and why."""
        named = {name: each for name in _SESSIONS for each in self._listeners if each.session is getattr(self, name)}
        return {name: why for name, each in named.items() if (why := self._behind(each))}

    async def prepare(self, session: LiveSession) -> None:
        """Make ``session`` the pending one, and send it the role's tools; one that is not open yet opens with them.

        Raises ConfigurationError if there is a pending one already, for the active one and for anything but a session;
        ToolSyncError if it cannot be updated. Then, or when this is cancelled, it is no longer pending.
        """
        if not callable(getattr(session, "use_tools", None)):
            raise ConfigurationError(f"{type(session).__name__} is not a session: a session has use_tools.")
        if self.pending is not None:
            raise ConfigurationError(f"The role {self.role!r} has a pending session: swap it in, or have it leave.")
        if session is self.active:
            raise ConfigurationError(f"The session is the role {self.role!r}'s active already.")
        self.pending = session  # first, so that it gets changes made meanwhile
        try:
            why = await self._update(self._listener(session))
        except BaseException:
            self.leave(session)
            raise
        if why:
            self.leave(session)
            raise ToolSyncError(f"tool sync failed: pending: {why}")

    async def swap(self) -> LiveSession | None:
        """Let the pending session take over, and return the previous one for the caller to close.

        Waits, without a time limit, until the active one is idle or closed and no sync of the pending one runs. A tool of the
        active session would wait for itself: use ``take_over`` there. Raises ConfigurationError if there is no open pending
        session, or it leaves or ends meanwhile.
        """
        while (session := self.pending) is not None:
            async with self._listener(session).lock:
                if session is self.pending and not (_is_open(session) and _is_busy(self.active)):
                    return self.take_over()
            await asyncio.sleep(_POLL_SECONDS)
        raise ConfigurationError(f"The role {self.role!r} has no pending session.")

    def take_over(self) -> LiveSession | None:
        """Swap without waiting; does nothing if there is no pending session. Raises ConfigurationError if it is not open."""
        if self.pending is None:
            return None
        if not _is_open(self.pending):  # the active one may still be good
            why = f"The pending session of the role {self.role!r} is not open"
            raise ConfigurationError(f"{why}: open it first, or, where it has ended, have it leave.")
        before, self.active, self.pending = self.active, self.pending, None
        self._forget_others()
        return before

    def leave(self, session: LiveSession) -> None:
        """Remove a session: it gets no more changes. Does nothing for one that is not the role's."""
        for name in _SESSIONS:
            if getattr(self, name) is session:
                setattr(self, name, None)
        self._forget_others()

    async def sync(self) -> None:
        """Send the role's tools to the active session, then to the pending one. Raises ToolSyncError after both were tried."""
        self._stop_retries()
        waiting = [(name, self._listener(session)) for name in _SESSIONS if (session := getattr(self, name)) is not None]
        failures: list[str] = []
        try:
            while waiting:
                name, listener = waiting[0]
                if why := await self._update(listener):
                    failures.append(f"{name}: {why}")
                del waiting[0]
        except asyncio.CancelledError:
            for _, listener in waiting:
                listener.why = "it took too long"
            raise
        finally:
            if self.out_of_sync:
                self._start_retries()
            else:
                self._stop_retries()
        if failures:
            raise ToolSyncError(f"tool sync failed: {'; '.join(failures)}")

    async def _update(self, listener: _Listener) -> str:
        """Send a session the current tools, and return why it failed; "" also if the session has left."""
        session = listener.session
        async with listener.lock:
            if not self._has(session):
                return ""
            is_newest, why = True, ""
            try:
                snapshot = self.snapshot()
                listener.revision = snapshot.revision
                await session.use_tools(snapshot)
                is_newest = snapshot.revision == self.snapshot().revision
            except Exception as error:  # noqa: BLE001  (a session may raise anything; the other still gets the tools)
                why = describe(error)
            if not self._has(session):
                return ""
            if why or is_newest:  # else a sync for a newer change is due, or has failed: that reason stays
                listener.why = why
            return why

    def _start_retries(self) -> None:
        self._stop_retries()
        self._retry_task = asyncio.get_running_loop().create_task(self._retry())

    def _stop_retries(self) -> None:
        """Stop retrying, and cancel a running attempt."""
        if self._retry_task is not None:
            self._retry_task.cancel()
            self._retry_task = None

    async def _retry(self) -> None:
        """Update the sessions that lack a change after each of the delays, until none is left."""
        for delay in self._retry_delays:
            await asyncio.sleep(delay)
            with suppress(TimeoutError):
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    if await self._sync_behind():
                        return
        _logger.error("The tools of role %r cannot be sent to its sessions: %s", self.role, self.out_of_sync)

    async def _sync_behind(self) -> bool:
        behind = [each for each in self._listeners if self._behind(each) and self._has(each.session)]
        for listener in behind:
            await self._update(listener)
        if behind and not self.out_of_sync:
            _logger.info("The sessions of role %r have their tools after a retry", self.role)
        return not self.out_of_sync

    def _behind(self, listener: _Listener) -> str:
        """Return why a session does not have the last change, "" if it has it."""
        is_synced = getattr(listener.session, "is_synced", None)
        if is_synced is None or not _is_open(listener.session) or listener.revision != self.snapshot().revision:
            return listener.why
        if is_synced:
            return ""
        return listener.why or ("" if listener.lock.locked() else "its model's server has not accepted them")

    def _has(self, session: LiveSession) -> bool:
        return session is self.active or session is self.pending

    def _listener(self, session: LiveSession) -> _Listener:
        """Return the listener of a session of the role."""
        found = next((each for each in self._listeners if each.session is session), None)
        if found is None:
            self._forget_others()
            found = _Listener(session)
            self._listeners.append(found)
        return found

    def _forget_others(self) -> None:
        """Remove listeners of sessions that are no longer the role's."""
        self._listeners = [each for each in self._listeners if self._has(each.session)]
        if not self.out_of_sync:
            self._stop_retries()

    def sync_later(self) -> None:
        """Start a sync in the background, if there is a running event loop; log errors."""
        if self.active is None and self.pending is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # a caller outside of the sessions' loop calls sync() there
        self._is_due = True
        if self._background is None or self._background.done():
            self._background = loop.create_task(self._sync_due())

    async def _sync_due(self) -> None:
        while self._is_due:  # one sync for all changes made during the last one
            self._is_due = False
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    await self.sync()
            except TimeoutError:
                _logger.warning("tool sync failed: not done within %g s: %s", ATTEMPT_SECONDS, self.out_of_sync)
            except ToolSyncError as error:
                _logger.warning("%s", error)

    def _register(self, tool: Tool | Callable[..., Any]) -> Change:
        return self.registry.register(Registration.of(as_tool(tool), role=self.role), inside=True)

    def _unregister(self, name: str) -> Change:
        return self.registry.unregister(name, self.role, inside=True)

    def _clear(self, source: str | None) -> Change:
        return self.registry.clear(source, self.role, inside=True)


def _is_open(session: LiveSession | None) -> bool:
    """Whether a session is open; one without ``is_open`` counts as open."""
    return bool(getattr(session, "is_open", True))


def _is_busy(session: LiveSession | None) -> bool:
    """Whether a session is open and not idle."""
    return _is_open(session) and not getattr(session, "idle", True)
