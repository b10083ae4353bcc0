"""A session with a fake and its events, and helpers for tests of sessions. Every wait is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any, TypeVar

from patchbay.errors import UpstreamError
from patchbay.loop import TextEvent
from patchbay.realtime import ConnectionEvent, RealtimeEvent, RealtimeLimits, RealtimeSession, RealtimeSettings, ResponseEndEvent
from patchbay.realtime.providers.registry import dialect_for
from patchbay.testing.realtime import FakeRealtime
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.registry import Snapshot

T = TypeVar("T")

LONG = 60.0
# A test of one of these limits sets it: the others must not end anything on a busy machine.
LIMITS = {
    **dict.fromkeys(("connect", "update", "created", "done", "cancel", "grace"), LONG),
    "slow_after": None,
    "flood_calls": 1000,
    "first_pause": 0.01,
    "longest_pause": 0.05,
}


def limits(**fields: Any) -> RealtimeLimits:
    return RealtimeLimits(**{**LIMITS, **fields})


class Played:
    """An open session and its events; ``fake`` is its server."""

    fake: FakeRealtime

    def __init__(self, session: RealtimeSession) -> None:
        self.session = session
        self.events: list[RealtimeEvent] = []
        self._changed = asyncio.Event()

    async def read(self) -> None:
        async for event in self.session.events():
            self.events.append(event)
            self._changed.set()

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def text(self) -> str:
        """The model's text."""
        return "".join(event.delta for event in self.of(TextEvent))

    @property
    def states(self) -> list[str]:
        """The states of its connections."""
        return [event.state for event in self.of(ConnectionEvent)]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for a condition, which is checked at each event and every 20 ms."""
        async with asyncio.timeout(90):
            while not true():
                self._changed.clear()
                try:
                    async with asyncio.timeout(0.02):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    async def say(self, text: str, *, answers: int) -> None:
        """Send a text, and wait for the end of response number ``answers`` of the session."""
        await self.session.send_text(text)
        await self.answers(answers)

    async def answers(self, count: int) -> None:
        await self.until(lambda: len(self.of(ResponseEndEvent)) == count)

    async def reconnected(self) -> None:
        """Wait until the first connection is lost and another one open."""
        await self.until(lambda: self.states == ["open", "lost", "open"])

    async def idle(self) -> None:
        """Wait until the session is idle and its events are read."""
        await self.until(lambda: self.session.idle and not self.session.unread)


class SlowTool:
    """A tool, ``slow``, that runs until ``may_end`` is set, and returns ``result``. ``stopped`` is set at its end."""

    def __init__(self, result: object = "forty-two") -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.stopped = asyncio.Event()
        self._result = result

    async def slow(self) -> object:
        """Find the answer."""
        self.began.set()
        try:
            await self.may_end.wait()
        finally:
            self.stopped.set()
        return self._result


def recording(name: str) -> tuple[ToolDefinition, list[Any]]:
    """A tool that returns nothing, and the arguments of its calls."""
    ran: list[Any] = []
    return ToolDefinition(name, "d", handler=lambda arguments: ran.append(dict(arguments))), ran


@asynccontextmanager
async def playing(
    fake: FakeRealtime, *tools: Any, settings: dict[str, Any] | None = None, **kwargs: Any
) -> AsyncIterator[Played]:
    """Connect a session to a fake, which is started if it does not run; check at the end that nothing violated its rules."""
    with nullcontext() if hasattr(fake, "url") else fake:
        made = RealtimeSettings(
            model="a-model",
            provider=fake.provider,
            url=fake.url,
            api_key="a-secret-key",
            output="text",
            limits=kwargs.pop("limits", limits()),
            **(settings or {}),
        )
        session = RealtimeSession(made, tools=tools, dialect=dialect_for(made), **kwargs)
        played = Played(session)
        played.fake = fake
        async with session:
            reader = asyncio.get_running_loop().create_task(played.read())
            try:
                yield played
            finally:
                await session.close()
                await reader
        assert [] == fake.violations, fake.violations


async def connected(settings: RealtimeSettings, **kwargs: Any) -> RealtimeSession:
    """Open a session with a server that may refuse the first attempts."""
    for _ in range(20):
        session = RealtimeSession(settings, **kwargs)
        try:
            await session.connect()
        except UpstreamError:
            continue
        return session
    raise AssertionError("never let in")


async def bounded(thing: Awaitable[T]) -> T:
    async with asyncio.timeout(90):
        return await thing


def named(name: str, description: str = "d") -> ToolDefinition:
    return ToolDefinition(name, description, handler=lambda _arguments: "done")


def snapshot_of(*tools: str | ToolDefinition) -> Snapshot:
    """A registry snapshot with these tools."""
    manager = LLMSessionManager("ann")
    for tool in tools:
        manager.register_tool(named(tool) if isinstance(tool, str) else tool)
    return manager.snapshot()
