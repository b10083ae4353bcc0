"""The seeds' ``LLMSessionManager``: registers local and remote tools, for roles, against a running tool server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
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
"""How long one attempt may take."""


class BackgroundRetry:
    """Calls ``attempt``, which says whether it has worked and does not raise, after each of ``delays`` (seconds).

    ``given_up`` is called when the last of them has not. It waits without a task, so that an event loop may end at any time.
    """

    def __init__(
        self, attempt: Callable[[], Awaitable[bool]], given_up: Callable[[], object], *, delays: Sequence[float] = DELAYS
    ) -> None:
        self._attempt = attempt
        self._given_up = given_up
        self._delays = delays
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin anew, with the first delay; for a running event loop."""
        self.stop()
        self._plan(0)

    def stop(self) -> None:
        """Try no more, and cancel the attempt that is under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _plan(self, number: int) -> None:
        if number < len(self._delays):
            self._timer = asyncio.get_running_loop().call_later(self._delays[number], self._begin, number)
        else:
            self._given_up()

    def _begin(self, number: int) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._try(number))

    async def _try(self, number: int) -> None:
        worked = False
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                worked = await self._attempt()
        except TimeoutError:
            pass
        self._task = None
        if not worked:
            self._plan(number + 1)


_SESSIONS: Final = ("active", "pending")

_LOOK: Final = 0.05
"""How often a session is looked at that is waited for (seconds)."""

_logger = logging.getLogger(__name__)


class LiveSession(Protocol):
    """A session with a model that holds its own list of tools, such as a realtime connection."""

    async def use_tools(self, snapshot: Snapshot) -> None:
        """Offer the model these tools from now on. What it raises is raised to the caller that waits for the sync.

        It is asked again when it has returned or was cancelled, not before. Where it says so itself (``idle``, ``is_open``), a
        swap waits until it is idle, and none takes over that is not open. Where it says whether the model knows the tools of the
        last call (``is_told``), that counts: it may have been told with another connection.
        """
        ...


@dataclass(eq=False)
class _Listener:
    """A session that gets one snapshot at a time. ``why`` is what kept it from the last change, "" where it has it."""

    session: LiveSession
    why: str = ""
    given: int = -1  # the revision that it was asked to tell last
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)


class LLMSessionManager:
    """The door for code of this process: what it registers is for ``role`` alone, and takes the place of any tool of that name.

    ``active`` is the session the role talks through, ``pending`` the one that is about to take over; None where there is none.
    Both get the role's tools by ``sync``. ``prepare``, ``swap`` and ``leave`` put sessions there: a realtime session, an
    offline one, one of each. Sessions come and go; what is registered stays.

    The methods ending in ``_and_sync`` wait for the sync and raise ToolSyncError (a RuntimeError) for a session that could not be
    told; the change stands all the same. The others begin it in the background, where there is a running event loop, and log what
    goes wrong.

    Sending the tools to a session is retried in the background, after each of ``retry_delays`` (seconds), until it was, or a
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
        self._listeners: list[_Listener] = []  # by the session itself and not its place: it keeps what it owes when it takes over
        self._is_due = False
        self._background: asyncio.Task[None] | None = None
        self._again = BackgroundRetry(self._tell_the_untold, self._gave_up, delays=retry_delays)

    def register_tool(self, tool: Tool | Callable[..., Any]) -> None:
        """Register a tool or a function, in the place of one of the same name. Its source is ``metadata["source"]``."""
        self._register(tool)
        self.sync_later()

    async def register_tool_and_sync(self, tool: Tool | Callable[..., Any]) -> None:
        """Register a tool, and wait until the sessions have been told."""
        self._register(tool)
        await self.sync()

    def unregister_tool(self, name: str) -> bool:
        """Remove a tool from this role, from any source. Returns whether there was one."""
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

    @property
    def untold(self) -> dict[str, str]:
        """The sessions (``active``, ``pending``) that have not been told of the last change, and what kept them from it."""
        named = {name: each for name in _SESSIONS for each in self._listeners if each.session is getattr(self, name)}
        return {name: why for name, each in named.items() if (why := self._behind(each))}

    async def prepare(self, session: LiveSession) -> None:
        """Make ``session`` the pending one, and tell it of the role's tools; one that is not open yet opens with them.

        Raises ConfigurationError where there is a pending one already, for the active one and for anything but a session;
        ToolSyncError where it cannot be told. Then, or when this is cancelled, it has left.
        """
        if not callable(getattr(session, "use_tools", None)):
            raise ConfigurationError(f"{type(session).__name__} is no session: a session has use_tools.")
        if self.pending is not None:
            raise ConfigurationError(f"The role {self.role!r} has a pending session: swap it in, or have it leave.")
        if session is self.active:
            raise ConfigurationError(f"The session is the role {self.role!r}'s active already.")
        self.pending = session  # first, so that it gets what changes meanwhile
        try:
            why = await self._tell(self._listener(session))
        except BaseException:
            self.leave(session)
            raise
        if why:
            self.leave(session)
            raise ToolSyncError(f"tool sync failed: pending: {why}")

    async def swap(self) -> LiveSession | None:
        """Let the pending session take over, and return the one that it takes over from, for the caller to close.

        Waits until the active one is idle, where it says so (its ``idle``) and is open, and the pending one is not being told of
        anything. A limit of time is the caller's to set; a tool of the active session, which would wait for itself, uses
        ``take_over``. Raises ConfigurationError where there is no pending session or it is not open, also where it leaves or ends
        meanwhile.
        """
        while (session := self.pending) is not None:
            async with self._listener(session).one_at_a_time:
                if session is self.pending and not (_is_open(session) and _is_busy(self.active)):
                    return self.take_over()
            await asyncio.sleep(_LOOK)  # it says whether it is idle, not when
        raise ConfigurationError(f"The role {self.role!r} has no pending session.")

    def take_over(self) -> LiveSession | None:
        """Do as ``swap``, at once. Does nothing where there is no pending session.

        Raises ConfigurationError where it is not open.
        """
        if self.pending is None:
            return None
        if not _is_open(self.pending):  # a role that talked through it would be dumb; the one that is active may still be good
            why = f"The pending session of the role {self.role!r} is not open"
            raise ConfigurationError(f"{why}: open it first, or, where it has ended, have it leave.")
        before, self.active, self.pending = self.active, self.pending, None
        self._forget_others()
        return before

    def leave(self, session: LiveSession) -> None:
        """Forget a session: it gets no more changes. Does nothing for one that is not the role's."""
        for name in _SESSIONS:
            if getattr(self, name) is session:
                setattr(self, name, None)
        self._forget_others()

    async def sync(self) -> None:
        """Tell the active session, then the pending one, of the role's tools. Raises ToolSyncError when both have been tried."""
        self._again.stop()  # what it would tell is old
        left = [(name, self._listener(session)) for name in _SESSIONS if (session := getattr(self, name)) is not None]
        failures: list[str] = []
        try:
            while left:
                name, listener = left[0]
                if why := await self._tell(listener):
                    failures.append(f"{name}: {why}")
                del left[0]
        except asyncio.CancelledError:  # the waiter has given up
            for _, listener in left:
                listener.why = "it took too long"
            raise
        finally:
            if self.untold:
                self._again.start()
            else:
                self._again.stop()
        if failures:
            raise ToolSyncError(f"tool sync failed: {'; '.join(failures)}")

    async def _tell(self, listener: _Listener) -> str:
        """Tell a session what there is when its turn has come, and return what went wrong: nothing, where it has left."""
        session = listener.session
        async with listener.one_at_a_time:
            if not self._has(session):
                return ""
            is_newest, why = True, ""
            try:
                snapshot = self.snapshot()
                listener.given = snapshot.revision
                await session.use_tools(snapshot)
                is_newest = snapshot.revision == self.snapshot().revision
            except Exception as error:  # noqa: BLE001  (a session may fail in any way; the other still gets the tools)
                why = describe(error)
            if not self._has(session):
                return ""
            if why or is_newest:  # else whoever changed something since has yet to tell it, or has given up, and it owes that
                listener.why = why
            return why

    async def _tell_the_untold(self) -> bool:
        behind = [each for each in self._listeners if self._behind(each) and self._has(each.session)]
        for listener in behind:
            await self._tell(listener)
        if behind and not self.untold:
            _logger.info("The sessions of role %r have been told of their tools after all", self.role)
        return not self.untold

    def _gave_up(self) -> None:
        _logger.error("The sessions of role %r cannot be told of their tools: %s", self.role, self.untold)

    def _behind(self, listener: _Listener) -> str:
        """What keeps a session from the last change, "" where it knows it."""
        is_told = getattr(listener.session, "is_told", None)
        if is_told is None or not _is_open(listener.session) or listener.given != self.snapshot().revision:
            return listener.why
        if is_told:
            return ""
        is_being_told = listener.one_at_a_time.locked()
        return listener.why or ("" if is_being_told else "its model's server has not taken them after all")

    def _has(self, session: LiveSession) -> bool:
        return session is self.active or session is self.pending

    def _listener(self, session: LiveSession) -> _Listener:
        """What is known of a session of the role."""
        found = next((each for each in self._listeners if each.session is session), None)
        if found is None:
            self._forget_others()
            found = _Listener(session)
            self._listeners.append(found)
        return found

    def _forget_others(self) -> None:
        """Let go of sessions that are none of the role's any more."""
        self._listeners = [each for each in self._listeners if self._has(each.session)]
        if not self.untold:
            self._again.stop()

    def sync_later(self) -> None:
        """Begin to tell the sessions in the background, where there is a running event loop; log what goes wrong."""
        if self.active is None and self.pending is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # sessions live on a loop; whoever changes tools from elsewhere calls sync() there
        self._is_due = True
        if self._background is None or self._background.done():
            self._background = loop.create_task(self._sync_what_is_due())

    async def _sync_what_is_due(self) -> None:
        while self._is_due:  # one sync for all that was changed during the last one
            self._is_due = False
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    await self.sync()
            except TimeoutError:
                _logger.warning("tool sync failed: not done within %g s: %s", ATTEMPT_SECONDS, self.untold)
            except ToolSyncError as error:
                _logger.warning("%s", error)

    def _register(self, tool: Tool | Callable[..., Any]) -> Change:
        return self.registry.register(Registration.of(as_tool(tool), role=self.role), inside=True)

    def _unregister(self, name: str) -> Change:
        return self.registry.unregister(name, self.role, inside=True)

    def _clear(self, source: str | None) -> Change:
        return self.registry.clear(source, self.role, inside=True)


def _is_open(session: LiveSession | None) -> bool:
    """Whether a session can be spoken to, as far as it says so."""
    return bool(getattr(session, "is_open", True))


def _is_busy(session: LiveSession | None) -> bool:
    """Whether a session is in the middle of something; one that is not open, or does not say, is not."""
    return _is_open(session) and not getattr(session, "idle", True)
