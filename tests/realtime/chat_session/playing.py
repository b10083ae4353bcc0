"""Words for the tests of this folder: a session that is open, its events as they came, and what a chat must be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from patchbay.realtime import ChatSession, ConnectionEvent, TextEvent
from patchbay.tools import ToolDefinition
from patchbay.types import ToolCall

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test within its bound, and see that it has left no task."""

    async def bounded() -> T:
        async with asyncio.timeout(60):
            result = await work
            while asyncio.all_tasks() - {asyncio.current_task()}:  # an HTTP client's generators end a moment later
                await asyncio.sleep(0)
        return result

    return asyncio.run(bounded())


class Played:
    """An open session, and its events as they came."""

    def __init__(self, session: ChatSession) -> None:
        self.session = session
        self.events: list[Any] = []

    async def read(self) -> None:
        async for event in self.session.events():
            self.events.append(event)

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def text(self) -> str:
        return "".join(event.delta for event in self.of(TextEvent))

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not true():
                await asyncio.sleep(0)

    async def idle(self) -> None:
        await self.until(lambda: self.session.idle)

    async def say(self, text: str) -> None:
        await self.session.send_text(text)
        await self.idle()


@asynccontextmanager
async def playing(model: Any, *tools: Any, **fields: Any) -> AsyncIterator[Played]:
    session = ChatSession(model, tools=tools, **fields)
    played = Played(session)
    reader = asyncio.get_running_loop().create_task(played.read())
    async with session:
        yield played
    await reader
    assert [ConnectionEvent("open"), ConnectionEvent("closed", "closed by the program")] == [
        played.events[0],
        played.events[-1],
    ]


def named(name: str, result: str = "done") -> ToolDefinition:
    return ToolDefinition(name, description="d", handler=lambda _arguments: result)


def call(name: str, number: int = 1, arguments: str = "{}") -> ToolCall:
    return ToolCall(f"call_{number}", name, arguments)


def assert_answered_once(messages: Any) -> None:
    """Law 1: behind each message with calls stand their results, one each, in call order."""
    expected: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert expected.pop(0) == message["tool_call_id"]
            continue
        assert [] == expected
        expected = [each["id"] for each in message.get("tool_calls") or ()]
    assert [] == expected
