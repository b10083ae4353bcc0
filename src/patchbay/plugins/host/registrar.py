"""Keeps the server's list of tools as the plugins want it, through restarts of either side."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from patchbay.plugins.host.policy import HostPolicy, spread
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

_MOST_EDITS = 3
"""So often a tool that the server shows otherwise than it was registered is registered again; then the server has its way."""
_MOST_TAKEN = 3
"""So often a tool that somebody else has registered at another address is taken back at once."""

Verdict = Literal["there", "edited", "gone", "taken"]
Rows = list[tuple[str, Mapping[str, Any]]]
"""A tool's rows: the role, and what the server shows for it."""


@dataclass(slots=True, eq=False)
class DesiredTool:
    """A tool that is wanted. ``settled`` is when the server last answered for it, on the reconciler's clock of requests.

    ``due`` is when it is to be sent next (on the loop's clock; None: not at all), ``failures`` how often in a row it was not.
    ``edits``: how often in a row it was found to be shown otherwise, ``accepted``: how the server shows it for good.
    ``signed``: whether its calls carry a signature; None where the server has not said so. ``taken``: how often it was found at
    another host.
    """

    tool: WantedTool
    state: ToolStateName = "pending"
    reason: str = ""
    settled: int = 0
    due: float | None = 0.0
    failures: int = 0
    edits: int = 0
    accepted: Rows | None = None
    signed: bool | None = None
    taken: int = 0


@dataclass(frozen=True)
class ServerSnapshot:
    """A listing, as it is asked: all rows of a source's tool. ``asked`` is when it was asked for, on the clock of requests."""

    asked: int = 0
    roles: int = 0
    instance: str | None = None
    rows: Mapping[str, Mapping[str, Rows]] = field(default_factory=dict)

    @classmethod
    def of(cls, listing: Listing, asked: int) -> ServerSnapshot:
        """Index a listing."""
        rows: dict[str, dict[str, Rows]] = {}
        for role, tools in listing.tools_by_role.items():
            for row in tools:
                source = rows.setdefault(str(row.get("source")), {})
                source.setdefault(str(row.get("name")), []).append((role, row))
        return cls(asked, len(listing.tools_by_role), listing.instance, rows)

    def diff(self, wish: DesiredTool) -> Verdict:
        """Say whether the server has the tool as it is wanted.

        A server that says which run it is keeps a tool for all roles in each of them; where a role lacks it, somebody took it
        away there, and that stands. Of any other server a role that lacks it was made anew, and the tool is gone there.
        """
        tool, rows = wish.tool, self._rows_of(wish.tool)
        missing = tool.role is None and self.instance is None and len(rows) < self.roles
        if not rows or missing or any(not _reaches(row, tool) for _, row in rows):
            is_taken = self.taken_by(tool) != ""
            wish.taken += is_taken
            return "taken" if is_taken and wish.taken > _MOST_TAKEN else "gone"
        if all(_is_as_wanted(row, tool) for _, row in rows):
            wish.edits, wish.accepted = 0, None
            return "there"
        if rows == wish.accepted:
            return "there"
        if wish.edits >= _MOST_EDITS:
            wish.accepted = rows
            return "there"
        return "edited"

    def taken_by(self, tool: WantedTool) -> str:
        """Return the address at which somebody else has the tool now, "" where nobody has."""
        others = [row for _, row in self._rows_of(tool) if row.get("callback_url") != tool.callback_url]
        return next((str(row.get("callback_url")) for row in others if row.get("state", "active") == "active"), "")

    def _rows_of(self, tool: WantedTool) -> Rows:
        rows = self.rows.get(tool.source, {}).get(tool.name, [])
        return rows if tool.role is None else [(role, row) for role, row in rows if role == tool.role]

    def leftovers(self, source: str, wanted: Mapping[str, DesiredTool]) -> Iterator[tuple[str, str | None]]:
        """Yield the names and roles of tools that the server has of this source, and that are not wanted."""
        for name, rows in self.rows.get(source, {}).items():
            wish = wanted.get(name)
            if wish is None:
                yield name, None
                continue
            for role, row in rows:
                if "role" in row and (row["role"] or None) != wish.tool.role:
                    yield name, role


def _reaches(row: Mapping[str, Any], tool: WantedTool) -> bool:
    """Whether calls of it come to this host. A tool that the server hides is registered again, which shows it."""
    return row.get("callback_url") == tool.callback_url and row.get("state", "active") == "active"


def _is_as_wanted(row: Mapping[str, Any], tool: WantedTool) -> bool:
    return bool(
        row.get("description", tool.description) == tool.description
        and row.get("parameters", tool.parameters) == tool.parameters
        and row.get("timeout_seconds", tool.timeout_seconds) == tool.timeout_seconds
        and row.get("annotations", tool.annotations) == tool.annotations
    )


_PER_PLUGIN = 4
_IN_ALL = 16
"""Requests to the server at a time."""
_TOGETHER = 0.1
"""Tools that are registered within so many seconds are told of together."""

_logger = logging.getLogger(__name__)

Tell = Callable[[str, LlmToolState], None]
Registered = Callable[[str, Sequence[str], Sequence[str]], None]


class Registrar:
    """``api`` is the server; ``tell`` is called with a plugin's id and each change of the state of one of its tools.

    ``registered`` is called with a plugin's id, the names of tools that the server has just taken, and the roles that have them.
    Belongs to one event loop: ``start`` it there, and ``aclose`` it.
    """

    def __init__(
        self,
        api: ToolsApi,
        *,
        tell: Tell,
        registered: Registered = lambda _plugin_id, _names, _roles: None,
        policy: HostPolicy | None = None,
    ) -> None:
        self._api = api
        self._tell = tell
        self.registered = registered
        self._policy = policy or HostPolicy()
        self._plugins: dict[str, _PluginSync] = {}
        self._requests = asyncio.Semaphore(_IN_ALL)
        self._clock = 0
        self._shown: ServerSnapshot | None = None
        self._up = asyncio.Event()
        self._poll_now = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._problem = "the server was not asked yet"
        self._wants_token = False

    @property
    def problem(self) -> str:
        """Why the server cannot be reached now, empty where it can."""
        return "" if self._up.is_set() else self._problem

    def start(self) -> None:
        """Begin to ask the server."""
        self._in_task(self._poll())

    def manage(self, plugin_id: str) -> None:
        """Take charge of a plugin's source: what the server has of it and nobody wants is taken away."""
        if plugin_id not in self._plugins:
            sync = self._plugins[plugin_id] = _PluginSync(self, plugin_id)
            self._in_task(sync.run())
            self._poll_now.set()

    def want(self, tool: WantedTool) -> None:
        """Have a tool registered, in the place of the plugin's tool of this name."""
        self.manage(tool.plugin_id)
        self._plugins[tool.plugin_id].want(tool)

    def unwant(self, plugin_id: str, name: str, registration: int) -> None:
        """Have a tool taken away, unless it was wanted anew meanwhile."""
        if (sync := self._plugins.get(plugin_id)) is not None:
            sync.unwant(name, registration)

    def drop(self, plugin_id: str) -> None:
        """Have all tools of a plugin taken away, without waiting for it."""
        if (sync := self._plugins.get(plugin_id)) is not None:
            sync.drop()

    async def clear(self, plugin_id: str) -> bool:
        """Have all tools of a plugin taken away, wait until they are (for a bounded time), and say whether they are."""
        sync = self._plugins.get(plugin_id)
        return sync is None or await sync.clear()

    def states(self, plugin_id: str) -> dict[str, tuple[ToolStateName, str]]:
        """Return the state of each wanted tool of a plugin, and why."""
        sync = self._plugins.get(plugin_id)
        return {} if sync is None else {name: (wish.state, self._reason_of(wish)) for name, wish in sync.wishes.items()}

    async def wanted(self, plugin_id: str, name: str) -> tuple[WantedTool, bool] | None:
        """Return a tool as the plugin wants it, and whether its calls must be signed; None where it does not want it.

        A server may call a tool before its answer to the registration has been heard: that is waited for, since it says which.
        As long as no server has said that it does not sign, calls must be.
        """
        sync = self._plugins.get(plugin_id)
        wish = None if sync is None else sync.wishes.get(name)
        if sync is not None and wish is not None and wish.signed is None and name in sync.asking:
            await asyncio.wait({sync.asking[name]}, timeout=self._policy.server_timeout)
            wish = sync.wishes.get(name)
        return None if wish is None else (wish.tool, wish.signed is not False)

    async def aclose(self) -> None:
        """End all tasks, and close the connections to the server. Tools stay as they are: ``clear`` takes them away."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._api.aclose()

    # For the plugins' tasks.

    def tick(self) -> int:
        """Count a request, or the end of one."""
        self._clock += 1
        return self._clock

    async def ask(self, request: Callable[[], Coroutine[Any, Any, Any]], *, even_if_down: bool = False) -> Any:
        """Make one request, when the server is there and not too many are under way. Raises ServerUnavailableError."""
        async with self._requests:
            if not self._up.is_set() and not even_if_down:
                raise ServerUnavailableError(self._problem)
            try:
                answer = await request()
            except ServerUnavailableError:
                self._poll_now.set()  # to see whether it is there at all
                raise
            said = getattr(answer, "instance", None)
            if said is not None and self._shown is not None and said != self._shown.instance:
                self._poll_now.set()  # this is another server than the one whose list we know
            return answer

    def set_state(self, sync: _PluginSync, wish: DesiredTool, state: ToolStateName, reason: str = "") -> None:
        """Take note of what became of a tool, and tell of it where that is new."""
        if sync.wishes.get(wish.tool.name) is not wish or (wish.state, wish.reason) == (state, reason):
            return
        if state == "refused" and not self._wants_token:
            _logger.warning("Tool %r of plugin %r is refused: %s", wish.tool.name, sync.plugin_id, reason)
        wish.state, wish.reason = state, reason
        self._tell(
            sync.plugin_id,
            LlmToolState(name=wish.tool.name, state=state, reason=reason, registration=wish.tool.registration),
        )

    def note_trust(self, problem: str) -> None:
        """Say once, and not for each tool, that the server wants a token; "" when it wants none, or has the right one."""
        if problem and not self._wants_token:
            _logger.warning("No tool can be registered: %s", problem)
        self._wants_token = bool(problem)

    @property
    def policy(self) -> HostPolicy:
        """How patient it is."""
        return self._policy

    @property
    def api(self) -> ToolsApi:
        """The server."""
        return self._api

    @property
    def is_up(self) -> bool:
        """Whether the server answered when it was last asked."""
        return self._up.is_set()

    # The poll.

    async def _poll(self) -> None:
        failures = 0
        while True:
            self._poll_now.clear()
            asked = self.tick()
            try:
                listing = await self._api.listing()
            except ServerUnavailableError as error:
                failures += 1
                self._is_down(str(error), wants_token=isinstance(error, NotTrustedError))
            else:
                failures = 0
                if listing is not None:
                    self._shown = ServerSnapshot.of(listing, asked)
                elif self._shown is not None:
                    self._shown = ServerSnapshot(asked, self._shown.roles, self._shown.instance, self._shown.rows)
                self._is_up(changed=listing is not None)
            delay = self._policy.poll_delay(failures)
            if failures:
                await asyncio.sleep(delay)  # it is known to be away, whoever asks
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._poll_now.wait()

    def _is_down(self, problem: str, *, wants_token: bool) -> None:
        if wants_token:
            self.note_trust(problem)
        elif self._up.is_set() or self._problem != problem:
            self.note_trust("")
            _logger.warning("The server cannot be asked: %s", problem)
        self._problem = problem
        self._up.clear()
        for sync in self._plugins.values():
            for wish in sync.wishes.values():
                if wants_token:
                    self.set_state(sync, wish, "refused", problem)
                elif wish.state == "active":
                    self.set_state(sync, wish, "stale", problem)

    def _reason_of(self, wish: DesiredTool) -> str:
        return wish.reason or (self.problem if wish.state == "pending" else "")

    def _is_up(self, *, changed: bool) -> None:
        came_up = not self._up.is_set()
        if came_up:
            _logger.info("The server is there")
        self._up.set()
        if self._shown is None:
            return  # it says that nothing changed, and never said what there is
        for sync in self._plugins.values():
            sync.compare(self._shown, changed=changed or came_up, came_up=came_up)

    def _in_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("The reconciler failed", exc_info=error)


class _PluginSync:
    """What one plugin wants, and the task that tells the server of it."""

    def __init__(self, owner: Registrar, plugin_id: str) -> None:
        self.plugin_id = plugin_id
        self.wishes: dict[str, DesiredTool] = {}
        self.asking: dict[str, asyncio.Future[None]] = {}  # until a registration that is under way is answered
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._clearing: asyncio.Future[bool] | None = None
        self._removals: dict[tuple[str, str | None], None] = {}
        self._taken: dict[tuple[str, ...], list[str]] = {}  # names by roles, of what was not told of yet
        self._changed = 0
        self._timer: asyncio.TimerHandle | None = None

    def want(self, tool: WantedTool) -> None:
        old = self.wishes.pop(tool.name, None)
        if old is not None and old.tool.role != tool.role:
            self._removals[tool.name, old.tool.role] = None
        self.wishes[tool.name] = DesiredTool(tool)
        self._wake.set()

    def unwant(self, name: str, registration: int) -> None:
        wish = self.wishes.get(name)
        if wish is not None and wish.tool.registration == registration:
            del self.wishes[name]
            self._removals[name, wish.tool.role] = None
            self._wake.set()

    def drop(self) -> None:
        self.wishes.clear()
        self._removals.clear()
        if self._clearing is None:
            self._clearing = self._loop.create_future()
        self._wake.set()

    async def clear(self) -> bool:
        self.drop()
        clearing = self._clearing
        assert clearing is not None
        await asyncio.wait({clearing}, timeout=self._owner.policy.clear_timeout)
        return clearing.done() and clearing.result()

    def compare(self, shown: ServerSnapshot, *, changed: bool, came_up: bool) -> None:
        """Hold a listing against what is wanted, and mend what differs. ``changed``: it may differ from the last one."""
        now = self._loop.time()
        for wish in self.wishes.values():
            if wish.settled == 0 or wish.settled > shown.asked:
                continue
            verdict = shown.diff(wish)
            if verdict == "there":
                wish.due = None
                self._owner.set_state(self, wish, "active")
            elif wish.state == "refused":
                if changed:
                    wish.due = now  # what was in its way may be gone
            elif verdict == "taken":
                wish.due = now + spread(self._owner.policy.refused_retry)
                reason = f"another host has registered it too: {shown.taken_by(wish.tool)}"
                self._owner.set_state(self, wish, "refused", reason)
            elif wish.state == "pending":
                if came_up:
                    wish.due = now
            else:
                wish.edits += verdict == "edited"
                wish.due = now
                self._owner.set_state(self, wish, "stale", "the server has lost it" if verdict == "gone" else "it was edited")
        if self._clearing is None and self._changed <= shown.asked:
            for name, role in shown.leftovers(source_of(self.plugin_id), self.wishes):
                self._removals.setdefault((name, role))
        self._wake.set()

    async def run(self) -> None:
        """Send what is due, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._clearing is not None:
                await self._clear_now()
            elif self._owner.is_up:
                await self._send_due()

    async def _clear_now(self) -> None:
        clearing = self._clearing
        assert clearing is not None
        done = True
        try:
            # It may be back since the last poll, and a host that stops has no other chance.
            await self._owner.ask(lambda: self._owner.api.clear(source_of(self.plugin_id)), even_if_down=True)
        except ServerUnavailableError:
            done = False  # the poll finds what is left
        finally:
            self._changed = self._owner.tick()
            self._clearing = None
            if not clearing.done():
                clearing.set_result(done)
        self._wake.set()

    async def _send_due(self) -> None:
        now = self._loop.time()
        removals, self._removals = tuple(self._removals), {}
        due = [wish for wish in self.wishes.values() if wish.due is not None and wish.due <= now]
        # Taken away first: what is registered under the same name for another role must stay.
        await self._each(self._remove, removals)
        await self._each(self._register, due)
        self._plan()

    async def _each(self, request: Callable[[Any], Coroutine[Any, Any, None]], items: Sequence[Any]) -> None:
        left = iter(items)

        async def some() -> None:
            for item in left:
                await request(item)

        if items:
            await asyncio.gather(*(some() for _ in range(min(len(items), _PER_PLUGIN))))

    async def _remove(self, removal: tuple[str, str | None]) -> None:
        name, role = removal
        try:
            await self._owner.ask(lambda: self._owner.api.unregister(name, role=role, source=source_of(self.plugin_id)))
        except ServerUnavailableError:
            pass  # the poll finds that it is still there
        finally:
            self._changed = self._owner.tick()

    async def _register(self, wish: DesiredTool) -> None:
        if self.wishes.get(wish.tool.name) is not wish:
            return  # no longer wanted
        wish.due = None
        name, asking = wish.tool.name, self._loop.create_future()
        self.asking[name] = asking
        try:
            answer: Accepted | Refused = await self._owner.ask(lambda: self._owner.api.register(wish.tool))
        except ServerUnavailableError as error:
            wish.failures += 1
            wish.due = self._loop.time() + self._owner.policy.poll_delay(wish.failures)
            self._owner.set_state(self, wish, "stale" if wish.state in ("active", "stale") else "pending", str(error))
            return
        finally:
            wish.settled = self._changed = self._owner.tick()
            asking.set_result(None)
            if self.asking.get(name) is asking:
                del self.asking[name]
        wish.failures = 0
        if isinstance(answer, Accepted):
            self._owner.note_trust("")
            wish.signed = answer.signed
            self._owner.set_state(self, wish, "active")
            if not self._taken:
                self._loop.call_later(_TOGETHER, self._tell_of_taken)
            self._taken.setdefault(answer.roles, []).append(wish.tool.name)
        else:
            wish.due = self._loop.time() + spread(self._owner.policy.refused_retry)
            self._owner.note_trust(answer.reason if answer.wants_token else "")
            self._owner.set_state(self, wish, "refused", answer.reason)

    def _tell_of_taken(self) -> None:
        taken, self._taken = self._taken, {}
        for roles, names in taken.items():
            if kept := [name for name in names if name in self.wishes]:
                self._owner.registered(self.plugin_id, kept, roles)

    def _plan(self) -> None:
        """Come back when the next one is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        dues = [wish.due for wish in self.wishes.values() if wish.due is not None]
        if dues:
            self._timer = self._loop.call_at(min(dues), self._wake.set)
