"""Failed tool syncs of live sessions are retried until they succeed or a newer change replaces them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from patchbay.errors import ToolSyncError
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager

NEVER = 1000.0


def definition(name: str) -> ToolDefinition:
    return ToolDefinition(name=name, description="d", handler=dict)


class Session:
    """A live session that fails so many times, or hangs, before it can be told."""

    def __init__(self, failures: int = 0, *, hangs: int = 0) -> None:
        self.received: list[list[str]] = []
        self.asked = 0
        self.news = asyncio.Event()
        self.failures = failures
        self.hangs = hangs

    async def use_tools(self, snapshot: Any) -> None:
        self.asked += 1
        self.news.set()
        if self.asked <= self.hangs:
            await asyncio.Event().wait()
        if self.asked <= self.failures:
            raise ConnectionError(f"gone {self.asked}")
        self.received.append([*snapshot.tools])

    async def until(self, asked: int) -> None:
        while self.asked < asked:
            self.news.clear()
            await self.news.wait()


async def settled(manager: LLMSessionManager) -> None:
    """Let the other tasks run until all sessions have been told; ``run`` bounds it."""
    while manager.out_of_sync:
        await asyncio.sleep(0)


async def test_failed_sync_is_retried_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        manager = LLMSessionManager("ann", retry_delays=[0.0] * 5)
        session = manager.active = Session(2)
        with pytest.raises(ToolSyncError):
            await manager.register_tool_and_sync(definition("a"))
        assert {"active": "ConnectionError: gone 1"} == manager.out_of_sync
        await settled(manager)
        assert (3, [["a"]]) == (session.asked, session.received)
    assert "after a retry" in caplog.text


async def test_only_the_failed_session_is_retried() -> None:
    manager = LLMSessionManager("ann", retry_delays=[0.0])
    active, pending = manager.active, manager.pending = Session(), Session(1)
    manager.register_tool(definition("a"))
    await pending.until(2)
    await settled(manager)
    assert ([["a"]], [["a"]], 1) == (active.received, pending.received, active.asked)


async def test_newer_change_replaces_a_pending_retry() -> None:
    manager = LLMSessionManager("ann", retry_delays=[NEVER])
    session = manager.active = Session(1)
    with pytest.raises(ToolSyncError):
        await manager.register_tool_and_sync(definition("a"))
    await manager.register_tool_and_sync(definition("b"))
    assert ({}, [["a", "b"]]) == (manager.out_of_sync, session.received)


async def test_a_newer_change_does_not_wait_for_an_attempt_that_hangs() -> None:
    manager = LLMSessionManager("ann", retry_delays=[0.0, NEVER])
    session = manager.active = Session(1, hangs=0)
    with pytest.raises(ToolSyncError):
        await manager.register_tool_and_sync(definition("a"))
    session.hangs, session.failures = 2, 0
    await session.until(2)
    await manager.register_tool_and_sync(definition("b"))
    assert ({}, [["a", "b"]]) == (manager.out_of_sync, session.received)


async def test_sync_is_retried_after_its_caller_timed_out() -> None:
    manager = LLMSessionManager("ann", retry_delays=[0.0])
    session = manager.active = Session(hangs=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await manager.register_tool_and_sync(definition("a"))
    assert {"active": "it took too long"} == manager.out_of_sync
    await settled(manager)
    assert [["a"]] == session.received


async def test_retries_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    manager = LLMSessionManager("ann", retry_delays=[0.0, 0.0])
    session = manager.active = Session(100)
    with pytest.raises(ToolSyncError):
        await manager.register_tool_and_sync(definition("a"))
    while "cannot be sent" not in caplog.text:
        await asyncio.sleep(0)
    assert (3, {"active": "ConnectionError: gone 3"}) == (session.asked, manager.out_of_sync)


async def test_removed_session_is_not_retried() -> None:
    manager = LLMSessionManager("ann", retry_delays=[0.0])
    manager.active = Session(100)
    with pytest.raises(ToolSyncError):
        await manager.register_tool_and_sync(definition("a"))
    manager.active = None
    await settled(manager)
