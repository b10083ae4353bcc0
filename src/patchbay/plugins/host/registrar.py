"""Keeps the server's list of tools as the plugins want it, through restarts of either side.

One loop, at each change and every few seconds: request the server's list (``If-None-Match``: an unchanged one costs next to
nothing), remove what is not wanted, register what is missing or differs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from patchbay._backoff import Backoff, with_jitter
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.host.server_api import (
    Accepted,
    Listing,
    NotTrustedError,
    ServerUnavailableError,
    ToolsApi,
    WantedTool,
    source_of,
)
from patchbay.plugins.protocol import LlmToolState, ToolStateName

_PER_PLUGIN = 4
_IN_ALL = 16
"""Concurrent requests to the server."""

SUSPENDED = "the plugin is frozen"
"""Why a tool of a suspended plugin is pending."""

_logger = logging.getLogger(__name__)

OnState = Callable[[str, LlmToolState], None]
Registered = Callable[[str, Sequence[str], Sequence[str]], None]
Difference = Literal["", "missing", "edited", "taken"]
Rows = list[tuple[str, Mapping[str, Any]]]
"""A tool's rows: the role, and what the server lists for it."""

_LOST = "the server has lost it"
_STATES_OF_REPEATED: Mapping[Difference, ToolStateName] = {"edited": "active", "taken": "refused"}
"""The state of a tool that the server has otherwise although it was registered again."""


@dataclass(slots=True, eq=False)
class DesiredTool:
    """A tool that the server should have, and the state of its registration."""

    tool: WantedTool
    backoff: Backoff
    """Counts how often in a row it was to be registered again."""
    state: ToolStateName = "pending"
    reason: str = ""
    due: float | None = 0.0
    """When to register it next, on the loop's clock; None: it is registered."""
    tried: float = 0.0
    """When it was registered again the last time."""


@dataclass(frozen=True)
class ServerSnapshot:
    """A listing of the server by source and name."""

    roles: int = 0
    instance: str | None = None
    rows: Mapping[str, Mapping[str, Rows]] = field(default_factory=dict)

    @classmethod
    def of(cls, listing: Listing) -> ServerSnapshot:
        """Index a listing."""
        rows: dict[str, dict[str, Rows]] = {}
        for role, tools in listing.tools_by_role.items():
            for row in tools:
                source = rows.setdefault(str(row.get("source")), {})
                source.setdefault(str(row.get("name")), []).append((role, row))
        return cls(len(listing.tools_by_role), listing.instance, rows)

    def diff(self, tool: WantedTool) -> tuple[Difference, str]:
        """Return how the server's rows of a tool differ from it ("": they do not), and why.

        A server with an instance id keeps a tool for all roles in each of them: one that a role lacks was removed on purpose. On
        another server the role was created anew, and the tool is missing there.
        """
        rows = self.rows.get(tool.source, {}).get(tool.name, [])
        if tool.role is not None:
            rows = [(role, row) for role, row in rows if role == tool.role]
        active = [row for _, row in rows if row.get("state", "active") == "active"]
        others = [str(row.get("callback_url")) for row in active if row.get("callback_url") != tool.callback_url]
        if others:
            return "taken", f"another host has registered it too: {others[0]}"
        is_hidden = len(active) < len(rows)  # registering shows it again
        if is_hidden or not rows or (tool.role is None and self.instance is None and len(rows) < self.roles):
            return "missing", _LOST
        if all(_is_same(row, tool) for row in active):
            return "", ""
        return "edited", "the server lists it otherwise than it was registered"

    def leftovers(self, source: str, desired: Mapping[str, DesiredTool]) -> set[tuple[str, str | None]]:
        """Return the names of this source's tools that are not desired, or not for the role, which comes second."""
        found: set[tuple[str, str | None]] = set()
        for name, rows in self.rows.get(source, {}).items():
            if name not in desired:
                found.add((name, None))
                continue
            wanted = desired[name].tool.role
            for listed, row in rows:
                role = (row["role"] or None) if "role" in row else (wanted and listed)
                if role != wanted:
                    found.add((name, role))
        return found


def _is_same(row: Mapping[str, Any], tool: WantedTool) -> bool:
    compared = ("callback_url", "description", "parameters", "timeout_seconds", "annotations")
    return all(row.get(name, getattr(tool, name)) == getattr(tool, name) for name in compared)


class Registrar:
    """Registers the plugins' tools with the server ``api``. For one event loop: ``start`` it there, and ``aclose`` it.

    ``on_state`` is called with a plugin's id and each change of the state of one of its tools, ``registered`` with a plugin's id,
    the names of tools that the server has just accepted, and the roles that have them.
    """

    def __init__(
        self,
        api: ToolsApi,
        *,
        on_state: OnState,
        registered: Registered = lambda _plugin_id, _names, _roles: None,
        policy: HostPolicy | None = None,
    ) -> None:
        self.api = api
        self.policy = policy or HostPolicy()
        self.registered = registered
        self.requests = asyncio.Semaphore(_IN_ALL)
        """Bounds concurrent requests."""
        self.is_up = False
        """Whether the server answered the last request for its list."""
        self.signs: bool | None = None
        """Whether the server signs calls; None: it has not said."""
        self.answered = asyncio.Event()
        """A registration was answered, so ``signs`` is what is known of the server."""
        self.interrupted = False
        """A request of this pass was not answered: the rest of it waits for the next list."""
        self._on_state = on_state
        self._plugins: dict[str, PluginTools] = {}
        self._snapshot = ServerSnapshot()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._problem = "the server was not asked yet"
        self._wants_token = False

    @property
    def problem(self) -> str:
        """Why the server cannot be reached, "" where it can."""
        return "" if self.is_up else self._problem

    def start(self) -> None:
        """Start the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(_log_failure)

    def manage(self, plugin_id: str) -> PluginTools:
        """Return the tools of a plugin. Other tools of its source are removed from the server from now on."""
        if plugin_id not in self._plugins:
            self._plugins[plugin_id] = PluginTools(self, plugin_id)
            self.wake()
        return self._plugins[plugin_id]

    def wake(self) -> None:
        """Compare the tools with the server's list as soon as possible."""
        self._wake.set()

    async def aclose(self) -> None:
        """Stop, and close the connections. The server keeps the tools: ``clear`` removes them."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self.api.aclose()

    def refuse(self, plugin_id: str, tool: WantedTool, reason: str) -> None:
        """Report that a tool is not accepted."""
        self._on_state(plugin_id, LlmToolState(name=tool.name, state="refused", reason=reason, registration=tool.registration))

    def set_state(self, plugin: PluginTools, desired: DesiredTool, state: ToolStateName, reason: str = "") -> None:
        """Set a tool's state, and report it where it has changed."""
        tool = desired.tool
        if plugin.desired.get(tool.name) is not desired or (desired.state, desired.reason) == (state, reason):
            return
        if state == "refused" and not self._wants_token:
            _logger.warning("Tool %r of plugin %r is refused: %s", tool.name, plugin.plugin_id, reason)
        desired.state, desired.reason = state, reason
        self._on_state(plugin.plugin_id, LlmToolState(name=tool.name, state=state, reason=reason, registration=tool.registration))

    def note_trust(self, problem: str) -> None:
        """Log once, not for each tool, that the server wants a token; "" where the token is accepted."""
        if problem and not self._wants_token:
            _logger.warning("No tool can be registered: %s", problem)
        self._wants_token = bool(problem)

    async def _run(self) -> None:
        backoff = self.policy.server_backoff()
        while True:
            self._wake.clear()
            try:
                await self._reconcile()
            except ServerUnavailableError as error:
                self._set_down(str(error), wants_token=isinstance(error, NotTrustedError))
                await asyncio.sleep(backoff.fail())
                continue
            backoff.reset()
            if not self.interrupted:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(self._next_pass()):
                        await self._wake.wait()

    async def _reconcile(self) -> None:
        """Request the server's list, and send what makes it as it should be."""
        listing = await self.api.listing()
        is_new = not self.is_up
        if listing is not None:
            is_new = is_new or listing.instance != self._snapshot.instance
            self._snapshot = ServerSnapshot.of(listing)
        self.is_up, self.interrupted = True, False
        for plugin in self._plugins.values():
            plugin.compare(self._snapshot, changed=listing is not None, is_new=is_new)
        await asyncio.gather(*(plugin.reconcile(self._snapshot) for plugin in tuple(self._plugins.values())))

    def _next_pass(self) -> float:
        due = (each.due for plugin in self._plugins.values() if not plugin.is_suspended for each in plugin.desired.values())
        poll = asyncio.get_running_loop().time() + with_jitter(self.policy.poll_interval)
        return min([poll, *(time for time in due if time is not None)])

    def _set_down(self, problem: str, *, wants_token: bool) -> None:
        if wants_token:
            self.note_trust(problem)
        elif self.is_up or self._problem != problem:
            self.note_trust("")
            _logger.warning("No tools can be registered: %s", problem)
        self._problem, self.is_up = problem, False
        for plugin in self._plugins.values():
            for each in plugin.desired.values() if not plugin.is_suspended else ():
                if wants_token:
                    self.set_state(plugin, each, "refused", problem)
                elif each.state == "active":
                    self.set_state(plugin, each, "stale", problem)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _logger.error("The registrar failed", exc_info=error)


class PluginTools:
    """The desired tools of one plugin. Their requests are concurrent to those of other plugins.

    ``closed``: the plugin is stopping, and no more tools are accepted. ``is_suspended``: none is registered before ``resume``.
    """

    def __init__(self, owner: Registrar, plugin_id: str) -> None:
        self.plugin_id = plugin_id
        self.desired: dict[str, DesiredTool] = {}
        self.closed = False
        self.is_suspended = False
        self._owner = owner
        self._source = source_of(plugin_id)
        self._sending = asyncio.Lock()
        self._accepted: dict[tuple[str, ...], list[str]] = {}  # names by roles, to be announced

    def want(self, tool: WantedTool) -> None:
        """Register a tool, in place of the plugin's tool of this name; later, if the plugin is suspended."""
        most = self._owner.policy.tools_most
        if self.closed:
            return
        if tool.name not in self.desired and len(self.desired) >= most:
            self._owner.refuse(self.plugin_id, tool, f"a plugin may have no more than {most} tools")
            return
        each = self.desired[tool.name] = self._new(tool)
        if self.is_suspended:
            self._owner.set_state(self, each, "pending", SUSPENDED)
        self._owner.wake()

    def unwant(self, name: str, registration: int) -> None:
        """Remove a tool, unless it has a newer registration."""
        each = self.desired.get(name)
        if each is not None and each.tool.registration == registration:
            del self.desired[name]
            self._owner.wake()

    def drop(self) -> None:
        """Remove all tools, without waiting for it."""
        self.desired.clear()
        self._owner.wake()

    async def clear(self) -> bool:
        """Remove all tools, wait for it for a bounded time, and return whether it was done."""
        self.desired.clear()
        return await self._clear()

    async def suspend(self) -> bool:
        """Remove all tools from the server until ``resume``; return whether the server could be reached."""
        self.is_suspended = True
        self._begin_anew()
        reached = await self._clear()
        for each in tuple(self.desired.values()):
            self._owner.set_state(self, each, "pending", SUSPENDED)
        return reached

    def resume(self) -> None:
        """Undo ``suspend``."""
        self.is_suspended = False
        self._begin_anew()
        self._owner.wake()

    def states(self) -> dict[str, tuple[ToolStateName, str]]:
        """Return the state of each tool, and the reason."""
        problem = self._owner.problem
        return {
            name: (each.state, each.reason or (problem if each.state == "pending" else "")) for name, each in self.desired.items()
        }

    async def wanted(self, name: str) -> tuple[WantedTool, bool] | None:
        """Return a tool and whether its calls must be signed; None where there is none.

        Calls must be signed until a server says that it does not sign. It may call a tool before its answer to the first
        registration has arrived: that is awaited, since it says which.
        """
        if name in self.desired and not self._owner.answered.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._owner.policy.server_timeout):
                    await self._owner.answered.wait()
        each = self.desired.get(name)
        return None if each is None else (each.tool, self._owner.signs is not False)

    def compare(self, snapshot: ServerSnapshot, *, changed: bool, is_new: bool) -> None:
        """Set when to register what differs from a snapshot. ``changed``: it differs from the last; ``is_new``: the server is."""
        now = asyncio.get_running_loop().time()
        for each in tuple(self.desired.values()):
            if each.state == "pending":  # it was never registered
                each.due = now if is_new else each.due
                continue
            difference, why = snapshot.diff(each.tool)
            if not difference:
                each.due = None
                if now - each.tried > 2 * self._owner.policy.refused_retry:
                    each.backoff.reset()
                self._owner.set_state(self, each, "active")
            elif is_new:
                each.backoff.reset()
                each.due = now
                if each.state == "active":
                    self._owner.set_state(self, each, "stale", _LOST)
            elif each.due is None:
                self._mend(each, difference, why)
            elif changed and each.state == "refused" and difference != "taken":
                each.due = now  # the reason may be gone

    async def reconcile(self, snapshot: ServerSnapshot) -> None:
        """Remove what a snapshot has too much, and register what is due."""
        async with self._sending:
            desired = {} if self.is_suspended else self.desired
            leftovers = snapshot.leftovers(self._source, desired)
            if leftovers and not desired:
                with suppress(ServerUnavailableError):
                    await self._clear_source()
            else:
                # Before the registrations: what is registered under the same name for another role must stay.
                await self._send_all(self._unregister, leftovers)
            now = asyncio.get_running_loop().time()
            due = [each for each in self.desired.values() if each.due is not None and each.due <= now]
            await self._send_all(self._register, due if not self.is_suspended else ())
        accepted, self._accepted = self._accepted, {}
        for roles, names in accepted.items():
            if not self.is_suspended and (found := [name for name in names if name in self.desired]):
                self._owner.registered(self.plugin_id, found, roles)

    def _new(self, tool: WantedTool) -> DesiredTool:
        policy = self._owner.policy
        return DesiredTool(tool, Backoff(policy.poll_interval, policy.refused_retry))

    def _begin_anew(self) -> None:
        self.desired = {name: self._new(each.tool) for name, each in self.desired.items()}

    async def _clear(self) -> bool:
        """Clear at once, even if the server did not answer before: a host that stops has no other chance."""
        try:
            async with asyncio.timeout(self._owner.policy.clear_timeout), self._sending:
                await self._clear_source()
        except (TimeoutError, ServerUnavailableError):
            return False  # the next list shows what is left
        return True

    def _mend(self, desired: DesiredTool, difference: Difference, why: str) -> None:
        """Register a tool again: the first time at once, then with backoff."""
        is_repeated = desired.backoff.failures > 0
        delay = desired.backoff.fail()
        desired.due = desired.tried = asyncio.get_running_loop().time() + (delay if is_repeated else 0.0)
        state = _STATES_OF_REPEATED.get(difference, "stale") if is_repeated else "stale"
        self._owner.set_state(self, desired, state, why)

    async def _send_all(self, send: Callable[[Any], Coroutine[Any, Any, None]], items: Iterable[Any]) -> None:
        left = iter(tuple(items))

        async def send_some() -> None:
            for item in left:
                if not self._owner.interrupted:
                    await send(item)

        await asyncio.gather(*(send_some() for _ in range(_PER_PLUGIN)))

    async def _clear_source(self) -> None:
        async with self._owner.requests:
            await self._owner.api.clear(self._source)

    async def _unregister(self, leftover: tuple[str, str | None]) -> None:
        name, role = leftover
        with suppress(ServerUnavailableError):  # the next list shows it
            async with self._owner.requests:
                await self._owner.api.unregister(name, role=role, source=self._source)

    async def _register(self, desired: DesiredTool) -> None:
        owner, name = self._owner, desired.tool.name
        if self.desired.get(name) is not desired:
            return
        try:
            async with owner.requests:
                answer = await owner.api.register(desired.tool)
        except ServerUnavailableError as error:
            owner.interrupted = True
            desired.due = asyncio.get_running_loop().time() + desired.backoff.fail()
            owner.set_state(self, desired, "stale" if desired.state in ("active", "stale") else "pending", str(error))
            return
        if isinstance(answer, Accepted):
            desired.due = None
            owner.note_trust("")
            owner.signs = answer.signed
            owner.set_state(self, desired, "active")
            self._accepted.setdefault(answer.roles, []).append(name)
        else:
            desired.due = asyncio.get_running_loop().time() + with_jitter(owner.policy.refused_retry)
            owner.note_trust(answer.reason if answer.wants_token else "")
            owner.set_state(self, desired, "refused", answer.reason)
        owner.answered.set()
