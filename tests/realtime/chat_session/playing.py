"""An open chat session with its events, and checks of its messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from patchbay.realtime import ChatSession, ConnectionEvent
from patchbay.tools import ToolDefinition
from patchbay.types import ToolCall
from realtime.core import playing as core


class Played(core.Played):
    """An open chat session and its events."""

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(90):
            while not true():
                await asyncio.sleep(0)

    async def idle(self) -> None:
        await self.until(lambda: self.session.idle)

    async def say(self, text: str) -> None:  # type: ignore[override]
        await self.session.send_text(text)
        await self.idle()


@asynccontextmanager
async def playing(model: Any, *tools: Any, **fields: Any) -> AsyncIterator[Played]:
    session = ChatSession(model, tools=tools, **fields)
    played = Played(session)  # type: ignore[arg-type]
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
    """Law 1: each message with calls is followed by their results, one each, in call order."""
    expected: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert expected.pop(0) == message["tool_call_id"]
            continue
        assert [] == expected
        expected = [each["id"] for each in message.get("tool_calls") or ()]
    assert [] == expected
