"""Keeps the server's list of tools as the plugins want it, through restarts of either side.

A change is sent at once. Every few seconds the server's list is requested (``If-None-Match``: an unchanged one costs next to
nothing), and what is missing or differs is registered again, with backoff.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from patchbay._backoff import Backoff, with_jitter
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.host.server_api import (
    Accepted,
    Listing,
    NotTrustedError,
    Refused,
    ServerUnavailableError,
    ToolsApi,
    WantedTool,
    source_of,
)
from patchbay.plugins.protocol import LlmToolState, ToolStateName

_PER_PLUGIN = 4
_IN_ALL = 16
"""Concurrent requests to the server."""
_ANNOUNCE_SECONDS = 0.1
"""Tools that are registered within this time are announced together."""
_MAX_MENDS = 20
"""A tool that is edited or taken again and again is registered at most every ``refused_retry`` times this."""

SUSPENDED = "the plugin is frozen"
"""Why a tool of a suspended plugin is pending."""

_logger = logging.getLogger(__name__)

OnState = Callable[[str, LlmToolState], None]
Registered = Callable[[str, Sequence[str], Sequence[str]], None]
Difference = Literal["", "missing", "edited", "taken"]
Rows = list[tuple[str, Mapping[str, Any]]]
"""A tool's rows: the role, and what the server lists for it."""


@dataclass(slots=True, eq=False)
class DesiredTool:
    """A tool that the server should have, and the state of its registration.

    ``settled``: when the server last answered a registration, on the registrar's clock of requests. ``due``: when to register it
    next, on the loop's clock (None: not at all). ``backoff``: of requests without an answer. ``mends``: how often in a row
    it was registered again since the list differed, ``mended`` the last time. ``signed``: whether its calls are signed (None:
    the server has not said).
    """

    tool: WantedTool
    backoff: Backoff
    state: ToolStateName = "pending"
    reason: str = ""
    settled: int = 0
    due: float | None = 0.0
    mends: int = 0
    mended: float = 0.0
    signed: bool | None = None

    def is_due(self, now: float) -> bool:
        """Return whether to register it now."""
        return self.due is not None and self.due <= now


@dataclass(frozen=True)
class ServerSnapshot:
    """A listing of the server by source and name. ``requested``: when, on the clock of requests."""

    requested: int = 0
    roles: int = 0
    instance: str | None = None
    rows: Mapping[str, Mapping[str, Rows]] = field(default_factory=dict)

    @classmethod
    def of(cls, listing: Listing, requested: int) -> ServerSnapshot:
        """Index a listing."""
        rows: dict[str, dict[str, Rows]] = {}
        for role, tools in listing.tools_by_role.items():
            for row in tools:
                source = rows.setdefault(str(row.get("source")), {})
                source.setdefault(str(row.get("name")), []).append((role, row))
        return cls(requested, len(listing.tools_by_role), listing.instance, rows)

    def diff(self, tool: WantedTool) -> Difference:
        """Return how the server's rows of a tool differ from it, "" where they do not.

        A server with an instance id keeps a tool for all roles in each of them: one that a role lacks was removed on purpose. On
        another server the role was created anew, and the tool is missing there.
        """
        rows = self._rows_of(tool)
        if self.other_host(tool):
            return "taken"
        if any(row.get("state", "active") != "active" for _, row in rows):
            return "missing"  # hidden: registering shows it again
        if not rows or (tool.role is None and self.instance is None and len(rows) < self.roles):
            return "missing"
        return "" if all(_is_same(row, tool) for _, row in rows) else "edited"

    def other_host(self, tool: WantedTool) -> str:
        """Return the callback URL at which another host has registered the tool, "" where none has."""
        urls = [row.get("callback_url") for _, row in self._rows_of(tool) if row.get("state", "active") == "active"]
        return next((str(url) for url in urls if url != tool.callback_url), "")

    def leftovers(self, source: str, desired: Mapping[str, DesiredTool]) -> Iterator[tuple[str, str | None]]:
        """Yield the names and roles of tools of this source that are not desired."""
        for name, rows in self.rows.get(source, {}).items():
            if name not in desired:
                yield name, None
                continue
            for role, row in rows:
                if "role" in row and (row["role"] or None) != desired[name].tool.role:
                    yield name, role

    def _rows_of(self, tool: WantedTool) -> Rows:
        rows = self.rows.get(tool.source, {}).get(tool.name, [])
        return rows if tool.role is None else [(role, row) for role, row in rows if role == tool.role]


def _is_same(row: Mapping[str, Any], tool: WantedTool) -> bool:
    return all(
        row.get(name, expected) == expected
        for name, expected in (
            ("callback_url", tool.callback_url),
            ("description", tool.description),
            ("parameters", tool.parameters),
            ("timeout_seconds", tool.timeout_seconds),
            ("annotations", tool.annotations),
        )
    )


class Registrar:
    """Registers the plugins' tools with the server ``api``. For one event loop: ``start`` it there, and ``aclose`` it.

    ``on_state`` is called with a plugin's id and each change of the state of one of its tools, ``registered`` with a plugin's id,
    the names of tools that the server has just accepted, and the roles that have them. A task per plugin sends its requests in
    order, so that a plugin with many tools does not delay others.
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
        self._on_state = on_state
        self._plugins: dict[str, PluginTools] = {}
        self._requests = asyncio.Semaphore(_IN_ALL)
        self._clock = 0
        self._snapshot: ServerSnapshot | None = None
        self._up = asyncio.Event()
        self._poll_now = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._problem = "the server was not asked yet"
        self._wants_token = False

    @property
    def is_up(self) -> bool:
        """Whether the server answered the last poll."""
        return self._up.is_set()

    @property
    def problem(self) -> str:
        """Why the server cannot be reached, "" where it can."""
        return "" if self.is_up else self._problem

    def start(self) -> None:
        """Start polling the server."""
        self._spawn(self._poll())

    def manage(self, plugin_id: str) -> PluginTools:
        """Return the tools of a plugin. Other tools of its source are removed from the server from now on."""
        sync = self._plugins.get(plugin_id)
        if sync is None:
            sync = self._plugins[plugin_id] = PluginTools(self, plugin_id)
            self._spawn(sync.run())
            self._poll_now.set()
        return sync

    async def aclose(self) -> None:
        """Stop, and close the connections. The server keeps the tools: ``clear`` removes them."""
        if tasks := tuple(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await self.api.aclose()

    def tick(self) -> int:
        """Advance the clock of requests: a listing says nothing of what was settled after it was requested."""
        self._clock += 1
        return self._clock

    async def request(self, send: Callable[[], Coroutine[Any, Any, Any]], *, even_if_down: bool = False) -> Any:
        """Send one request, within the bound of concurrent ones. Raises ServerUnavailableError."""
        async with self._requests:
            if not self.is_up and not even_if_down:
                raise ServerUnavailableError(self._problem)
            try:
                answer = await send()
            except ServerUnavailableError:
                self._poll_now.set()
                raise
            instance = getattr(answer, "instance", None)
            if instance is not None and self._snapshot is not None and instance != self._snapshot.instance:
                self._poll_now.set()  # the server was restarted since the last listing
            return answer

    def refuse(self, plugin_id: str, tool: WantedTool, reason: str) -> None:
        """Report that a tool is not accepted."""
        self._on_state(plugin_id, LlmToolState(name=tool.name, state="refused", reason=reason, registration=tool.registration))

    def set_state(self, sync: PluginTools, desired: DesiredTool, state: ToolStateName, reason: str = "") -> None:
        """Set a tool's state, and report it where it has changed."""
        tool = desired.tool
        if sync.desired.get(tool.name) is not desired or (desired.state, desired.reason) == (state, reason):
            return
        if state == "refused" and not self._wants_token:
            _logger.warning("Tool %r of plugin %r is refused: %s", tool.name, sync.plugin_id, reason)
        desired.state, desired.reason = state, reason
        self._on_state(sync.plugin_id, LlmToolState(name=tool.name, state=state, reason=reason, registration=tool.registration))

    def note_trust(self, problem: str) -> None:
        """Log once, not for each tool, that the server wants a token; "" where the token is accepted."""
        if problem and not self._wants_token:
            _logger.warning("No tool can be registered: %s", problem)
        self._wants_token = bool(problem)

    async def _poll(self) -> None:
        backoff = self.policy.server_backoff()
        while True:
            self._poll_now.clear()
            requested = self.tick()
            try:
                listing = await self.api.listing()
            except ServerUnavailableError as error:
                self._set_down(str(error), wants_token=isinstance(error, NotTrustedError))
                await asyncio.sleep(backoff.fail())
                continue
            backoff.reset()
            self._set_up(listing, requested)
            with suppress(TimeoutError):
                async with asyncio.timeout(with_jitter(self.policy.poll_interval)):
                    await self._poll_now.wait()

    def _set_down(self, problem: str, *, wants_token: bool) -> None:
        if wants_token:
            self.note_trust(problem)
        elif self.is_up or self._problem != problem:
            self.note_trust("")
            _logger.warning("No tools can be registered: %s", problem)
        self._problem = problem
        self._up.clear()
        for sync in self._plugins.values():
            for each in sync.desired.values() if not sync.is_suspended else ():
                if wants_token:
                    self.set_state(sync, each, "refused", problem)
                elif each.state == "active":
                    self.set_state(sync, each, "stale", problem)

    def _set_up(self, listing: Listing | None, requested: int) -> None:
        """Compare a listing (None: it is the last one) with what is desired."""
        old = self._snapshot
        if listing is not None:
            self._snapshot = ServerSnapshot.of(listing, requested)
        elif old is not None:
            self._snapshot = replace(old, requested=requested)
        is_new = not self.is_up or (old is not None and self._snapshot is not None and old.instance != self._snapshot.instance)
        self._up.set()
        if self._snapshot is not None:
            for sync in self._plugins.values():
                sync.compare(self._snapshot, changed=listing is not None, is_new=is_new)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("The registrar failed", exc_info=error)


class PluginTools:
    """The desired tools of one plugin, and the task that sends its requests.

    ``closed``: the plugin is stopping, and no more tools are accepted. ``is_suspended``: none is registered before ``resume``.
    """

    def __init__(self, owner: Registrar, plugin_id: str) -> None:
        self.plugin_id = plugin_id
        self.desired: dict[str, DesiredTool] = {}
        self.registering: dict[str, asyncio.Future[None]] = {}  # until the server has answered
        self.closed = False
        self.is_suspended = False
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._clearing: asyncio.Future[bool] | None = None
        self._removals: dict[tuple[str, str | None], None] = {}
        self._accepted: dict[tuple[str, ...], list[str]] = {}  # names by roles, to be announced
        self._changed = 0
        self._timer: asyncio.TimerHandle | None = None

    def want(self, tool: WantedTool) -> None:
        """Register a tool, in place of the plugin's tool of this name; later, if the plugin is suspended."""
        most = self._owner.policy.tools_most
        if self.closed:
            return
        if tool.name not in self.desired and len(self.desired) >= most:
            self._owner.refuse(self.plugin_id, tool, f"a plugin may have no more than {most} tools")
            return
        old = self.desired.pop(tool.name, None)
        if old is not None and old.tool.role != tool.role:
            self._removals[tool.name, old.tool.role] = None
        each = self.desired[tool.name] = self._new(tool)
        if self.is_suspended:
            self._owner.set_state(self, each, "pending", SUSPENDED)
        self._wake.set()

    def unwant(self, name: str, registration: int) -> None:
        """Remove a tool, unless it has a newer registration."""
        each = self.desired.get(name)
        if each is not None and each.tool.registration == registration:
            del self.desired[name]
            self._removals[name, each.tool.role] = None
            self._wake.set()

    def drop(self) -> None:
        """Remove all tools, without waiting for it."""
        self.desired.clear()
        self._clear()

    async def clear(self) -> bool:
        """Remove all tools, wait for it for a bounded time, and return whether it was done."""
        self.desired.clear()
        return await self._cleared(self._clear())

    async def suspend(self) -> bool:
        """Remove all tools from the server until ``resume``; return whether the server could be reached."""
        self.is_suspended = True
        self.desired = {name: self._new(each.tool) for name, each in self.desired.items()}
        reached = await self._cleared(self._clear())
        for each in tuple(self.desired.values()):
            self._owner.set_state(self, each, "pending", SUSPENDED)
        return reached

    def resume(self) -> None:
        """Undo ``suspend``."""
        self.is_suspended = False
        self.desired = {name: self._new(each.tool) for name, each in self.desired.items()}
        self._wake.set()

    def _new(self, tool: WantedTool) -> DesiredTool:
        return DesiredTool(tool, self._owner.policy.server_backoff())

    def states(self) -> dict[str, tuple[ToolStateName, str]]:
        """Return the state of each tool, and the reason."""
        problem = self._owner.problem
        return {
            name: (each.state, each.reason or (problem if each.state == "pending" else "")) for name, each in self.desired.items()
        }

    async def wanted(self, name: str) -> tuple[WantedTool, bool] | None:
        """Return a tool and whether its calls must be signed; None where there is none.

        A server may call a tool before its answer to the registration has arrived: that is awaited, since it says which. Calls
        must be signed until a server says that it does not sign.
        """
        each = self.desired.get(name)
        if each is not None and each.signed is None and name in self.registering:
            await asyncio.wait({self.registering[name]}, timeout=self._owner.policy.server_timeout)
            each = self.desired.get(name)
        return None if each is None else (each.tool, each.signed is not False)

    def _clear(self) -> asyncio.Future[bool]:
        self._removals.clear()
        if self._clearing is None:
            self._clearing = self._loop.create_future()
        self._wake.set()
        return self._clearing

    async def _cleared(self, clearing: asyncio.Future[bool]) -> bool:
        await asyncio.wait({clearing}, timeout=self._owner.policy.clear_timeout)
        return clearing.done() and clearing.result()

    def compare(self, snapshot: ServerSnapshot, *, changed: bool, is_new: bool) -> None:
        """Schedule what differs from a snapshot. ``changed``: it may differ from the last one; ``is_new``: the server is."""
        now = self._loop.time()
        retry = self._owner.policy.refused_retry
        for each in self.desired.values():
            if each.settled == 0 or each.settled > snapshot.requested:
                continue
            difference = snapshot.diff(each.tool)
            if not difference:
                each.due = None
                if now - each.mended > 2 * retry:
                    each.mends = 0
                self._owner.set_state(self, each, "active")
            elif is_new:
                each.mends, each.due = 0, now
                if each.state == "active":
                    self._owner.set_state(self, each, "stale", "the server has lost it")
            elif each.state == "refused" and difference != "taken":
                if changed:
                    each.due = now  # the reason may be gone
            elif each.state != "pending" and each.due is None:
                self._mend(each, difference, snapshot.other_host(each.tool))
        if self._clearing is None and self._changed <= snapshot.requested:
            for name, role in snapshot.leftovers(source_of(self.plugin_id), {} if self.is_suspended else self.desired):
                self._removals.setdefault((name, role))
        self._wake.set()

    def _mend(self, desired: DesiredTool, difference: Difference, other_host: str) -> None:
        """Register a tool again: the first time at once, then with backoff."""
        policy, now = self._owner.policy, self._loop.time()
        most = policy.refused_retry if difference == "missing" else _MAX_MENDS * policy.refused_retry
        delay = min(most, policy.poll_interval * 2**desired.mends) if desired.mends else 0.0
        desired.due, desired.mended = now + with_jitter(delay), now + delay
        if difference == "taken" and desired.mends:
            self._owner.set_state(self, desired, "refused", f"another host has registered it too: {other_host}")
        elif difference == "edited" and desired.mends:
            self._owner.set_state(self, desired, "active", "the server lists it otherwise than it was registered")
        else:
            reason = {"edited": "it was edited", "taken": "another host has it"}.get(difference, "the server has lost it")
            self._owner.set_state(self, desired, "stale", reason)
        desired.mends = min(desired.mends + 1, 30)

    async def run(self) -> None:
        """Send what is due, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._clearing is not None:
                await self._clear_now(self._clearing)
            elif self._owner.is_up:
                now = self._loop.time()
                removals, self._removals = tuple(self._removals), {}
                due = [] if self.is_suspended else [each for each in self.desired.values() if each.is_due(now)]
                # Removals first: what is registered under the same name for another role must stay.
                await self._send_all(self._remove, removals)
                await self._send_all(self._register, due)
                self._schedule()

    async def _clear_now(self, clearing: asyncio.Future[bool]) -> None:
        done = True
        try:
            # The server may be back since the last poll, and a host that stops has no other chance.
            await self._owner.request(lambda: self._owner.api.clear(source_of(self.plugin_id)), even_if_down=True)
        except ServerUnavailableError:
            done = False  # the poll finds what is left
        finally:
            self._changed = self._owner.tick()
            self._clearing = None
            if not clearing.done():
                clearing.set_result(done)
        self._wake.set()

    async def _send_all(self, send: Callable[[Any], Coroutine[Any, Any, None]], items: Sequence[Any]) -> None:
        left = iter(items)

        async def send_some() -> None:
            for item in left:
                await send(item)

        if items:
            await asyncio.gather(*(send_some() for _ in range(min(len(items), _PER_PLUGIN))))

    async def _remove(self, removal: tuple[str, str | None]) -> None:
        name, role = removal
        try:
            await self._owner.request(lambda: self._owner.api.unregister(name, role=role, source=source_of(self.plugin_id)))
        except ServerUnavailableError:
            pass  # the poll finds it
        finally:
            self._changed = self._owner.tick()

    async def _register(self, desired: DesiredTool) -> None:
        owner, name = self._owner, desired.tool.name
        if self.desired.get(name) is not desired:
            return
        desired.due = None
        answered = self.registering[name] = self._loop.create_future()
        try:
            answer: Accepted | Refused = await owner.request(lambda: owner.api.register(desired.tool))
        except ServerUnavailableError as error:
            desired.due = self._loop.time() + desired.backoff.fail()
            owner.set_state(self, desired, "stale" if desired.state in ("active", "stale") else "pending", str(error))
            return
        finally:
            desired.settled = self._changed = owner.tick()
            answered.set_result(None)
            if self.registering.get(name) is answered:
                del self.registering[name]
        desired.backoff.reset()
        if isinstance(answer, Accepted):
            owner.note_trust("")
            desired.signed = answer.signed
            owner.set_state(self, desired, "active")
            if not self._accepted:
                self._loop.call_later(_ANNOUNCE_SECONDS, self._announce)
            self._accepted.setdefault(answer.roles, []).append(name)
        else:
            desired.due = self._loop.time() + with_jitter(owner.policy.refused_retry)
            owner.note_trust(answer.reason if answer.wants_token else "")
            owner.set_state(self, desired, "refused", answer.reason)

    def _announce(self) -> None:
        accepted, self._accepted = self._accepted, {}
        for roles, names in accepted.items():
            if not self.is_suspended and (desired := [name for name in names if name in self.desired]):
                self._owner.registered(self.plugin_id, desired, roles)

    def _schedule(self) -> None:
        """Wake up when the next tool is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        dues = [each.due for each in self.desired.values() if each.due is not None]
        if dues and not self.is_suspended:
            self._timer = self._loop.call_at(min(dues), self._wake.set)
