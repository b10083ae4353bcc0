"""Tools of this process for one role, and the live sessions that are told of them: the seeds' ``LLMSessionManager``.

What lives here: same-process registration, and when sessions are told. What does not: how a provider is told (a session's own
affair), and tools of other processes (``patchbay.server``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from patchbay.errors import ToolSyncError
from patchbay.tools.base import Tool
from patchbay.tools.collect import as_tool
from patchbay.tools.registry import DEFAULT_ROLE, Change, Registration, Snapshot, ToolRegistry
from patchbay.tools.results import describe
from patchbay.tools.retrying import DELAYS, Retrying

_SESSIONS: Final = ("active", "pending")

_logger = logging.getLogger(__name__)


class LiveSession(Protocol):
    """A session with a model that holds its own list of tools, such as a realtime connection."""

    async def use_tools(self, snapshot: Snapshot) -> None:
        """Offer the model these tools from now on. What it raises is told to who waits for the sync."""
        ...


class LLMSessionManager:
    """The door for code of this process: what it registers is for ``role`` alone, and takes the place of any tool of that name.

    ``active`` is the session the role talks through, ``pending`` the one that is about to take over; None where there is none.
    Both are told of the role's tools by ``sync``. The methods ending in ``_and_sync`` wait for it and raise ToolSyncError (a
    RuntimeError) for a session that could not be told; the change stands all the same. The others begin it in the background,
    where there is a running event loop, and log what goes wrong.

    A session that could not be told is told again in the background, after each of ``retry_delays`` (seconds), until it was, or a
    newer change is told. ``untold`` says which are behind, and why.

    Tools registered here are not stored: the program registers them again when it starts.
    """

    def __init__(
        self, role: str = DEFAULT_ROLE, registry: ToolRegistry | None = None, *, retry_delays: Sequence[float] = DELAYS
    ) -> None:
        self.role = role
        self.registry = registry if registry is not None else ToolRegistry(())
        self.registry.add_role(role)
        self.active: LiveSession | None = None
        self.pending: LiveSession | None = None
        self._one_sync = asyncio.Lock()
        self._syncs: set[asyncio.Task[None]] = set()
        self.untold: dict[str, str] = {}
        """The sessions (``active``, ``pending``) that have not been told of the last change, and what kept them from it."""
        self._again = Retrying(self._tell_the_untold, self._gave_up, delays=retry_delays)

    def register_tool(self, tool: Tool | Callable[..., Any]) -> None:
        """Register a tool or a function, in the place of one of the same name. Its source is ``metadata["source"]``."""
        self._register(tool)
        self.sync_later()

    async def register_tool_and_sync(self, tool: Tool | Callable[..., Any]) -> None:
        """Register a tool, and wait until the sessions have been told."""
        self._register(tool)
        await self.sync()

    def unregister_tool(self, name: str) -> bool:
        """Take a tool away from this role, whoever registered it. Returns whether there was one."""
        change = self._unregister(name)
        self.sync_later()
        return change.removed > 0

    async def unregister_tool_and_sync(self, name: str) -> bool:
        """Take a tool away, and wait until the sessions have been told."""
        change = self._unregister(name)
        await self.sync()
        return change.removed > 0

    def clear_tools(self, source: str | None = None) -> int:
        """Take all tools of a source (None: all tools) away from this role. Returns how many there were."""
        change = self._clear(source)
        self.sync_later()
        return change.removed

    async def clear_tools_and_sync(self, source: str | None = None) -> int:
        """Take tools away, and wait until the sessions have been told."""
        change = self._clear(source)
        await self.sync()
        return change.removed

    def list_tools(self) -> list[Tool]:
        """Return the tools that the role has now, in the order they were registered in."""
        return list(self.snapshot().tools.values())

    def snapshot(self) -> Snapshot:
        """Return what the role has now, for a turn."""
        return self.registry.snapshot(self.role)

    async def sync(self) -> None:
        """Tell the active session, then the pending one, of the role's tools. Raises ToolSyncError when both have been tried."""
        self._again.stop()  # what it would tell is old
        try:
            failures = await self._tell(_SESSIONS)
        except asyncio.CancelledError:  # whoever waits has no more patience
            self.untold |= {name: "it took too long" for name in _SESSIONS if getattr(self, name) is not None}
            raise
        finally:
            if self.untold:
                self._again.start()
            else:
                self._again.stop()
        if failures:
            raise ToolSyncError(f"tool sync failed: {'; '.join(failures)}")

    async def _tell(self, names: Iterable[str]) -> list[str]:
        """Tell these sessions, and return what went wrong."""
        async with self._one_sync:
            snapshot: Snapshot | None = None
            failures: list[str] = []
            for name in names:
                session: LiveSession | None = getattr(self, name)
                try:
                    if session is not None:
                        # Made when there is somebody to tell: it is as long as the list of tools, and comes with each of them.
                        snapshot = self.snapshot() if snapshot is None else snapshot
                        await session.use_tools(snapshot)
                except Exception as error:  # noqa: BLE001  (a session may fail in any way; the other is told all the same)
                    self.untold[name] = describe(error)
                    failures.append(f"{name}: {describe(error)}")
                else:
                    self.untold.pop(name, None)
            return failures

    async def _tell_the_untold(self) -> bool:
        failures = await self._tell(tuple(self.untold))
        if not failures:
            _logger.info("The sessions of role %r have been told of their tools after all", self.role)
        return not failures

    def _gave_up(self) -> None:
        _logger.error("The sessions of role %r cannot be told of their tools: %s", self.role, self.untold)

    def sync_later(self) -> None:
        """Begin to tell the sessions in the background, where there is a running event loop; log what goes wrong."""
        if self.active is None and self.pending is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # sessions live on a loop; whoever changes tools from elsewhere calls sync() there
        task = loop.create_task(self.sync())
        self._syncs.add(task)  # the loop itself keeps no task alive
        task.add_done_callback(self._synced)

    def _register(self, tool: Tool | Callable[..., Any]) -> Change:
        return self.registry.register(Registration.of(as_tool(tool), role=self.role), inside=True)

    def _unregister(self, name: str) -> Change:
        return self.registry.unregister(name, self.role, inside=True)

    def _clear(self, source: str | None) -> Change:
        return self.registry.clear(source, self.role, inside=True)

    def _synced(self, task: asyncio.Task[None]) -> None:
        self._syncs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.warning("%s", error)
