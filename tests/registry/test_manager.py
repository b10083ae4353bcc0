"""Same-process registration as the seeds show it, and live sessions that are told of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from patchbay.errors import ToolSyncError
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.registry import ToolRegistry

from .registering import names, registry_of, remote, run


def definition(name: str, source: str = "my_extension") -> ToolDefinition:
    return ToolDefinition(name=name, description="d", handler=dict, metadata={"source": source})


async def until(true: Callable[[], bool]) -> None:
    """Let the other tasks run until it is so; ``run`` bounds it."""
    while not true():
        await asyncio.sleep(0)


class Session:
    """A live session that remembers what it was told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.told: list[list[str]] = []
        self.error = error
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    async def use_tools(self, snapshot: Any) -> None:
        self.asked.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.told.append([*snapshot.tools])


def test_tools_are_registered_listed_and_taken_away_by_name_and_by_source():
    manager = LLMSessionManager("ann")
    first = definition("a")
    for each in (first, definition("b"), definition("c", "builtin")):
        manager.register_tool(each)
    assert (first, ["a", "b", "c"]) == (manager.list_tools()[0], [each.name for each in manager.list_tools()])
    assert (True, False) == (manager.unregister_tool("a"), manager.unregister_tool("a"))
    assert (1, ["c"]) == (manager.clear_tools("my_extension"), [each.name for each in manager.list_tools()])
    assert (1, []) == (manager.clear_tools(), manager.list_tools())


def test_a_tool_of_the_same_name_is_replaced_in_its_place_whosever_it_was():
    registry = registry_of(remote("a", "plugin:x"), remote("b", "plugin:x"))
    manager = LLMSessionManager("ann", registry)
    manager.register_tool(definition("a"))
    sources = {role: registry.snapshot(role).registrations["a"].source for role in ("ann", "ben")}
    assert ({"ann": "my_extension", "ben": "plugin:x"}, ["a", "b"]) == (sources, names(registry, "ann"))


def test_managers_share_what_is_for_all_and_keep_their_own():
    registry = ToolRegistry([])
    ann, ben = LLMSessionManager("ann", registry), LLMSessionManager("ben", registry)
    registry.register(remote("shared"))
    ann.register_tool(definition("own"))
    assert [["shared", "own"], ["shared"]] == [[each.name for each in manager.list_tools()] for manager in (ann, ben)]


def test_a_rebuilt_manager_has_its_tools_still():  # W4: a real incident
    registry = ToolRegistry([])
    LLMSessionManager("ann", registry).register_tool(definition("a"))
    registry.register(remote("b"))
    assert ["a", "b"] == [each.name for each in LLMSessionManager("ann", registry).list_tools()]


def test_a_plain_function_is_a_tool_too():
    def get_time(zone: str) -> str:
        """Tell the time."""
        return zone

    manager = LLMSessionManager()
    manager.register_tool(get_time)
    assert (["get_time"], "") == (names(manager.registry, "default"), manager.snapshot().registrations["get_time"].source)


def test_sessions_have_been_told_when_the_sync_returns():
    async def work():
        manager = LLMSessionManager("ann")
        manager.active, manager.pending = Session(), Session()
        await manager.register_tool_and_sync(definition("a"))
        await manager.register_tool_and_sync(definition("b"))
        assert await manager.unregister_tool_and_sync("a")
        assert 1 == await manager.clear_tools_and_sync()
        return manager.active.told, manager.pending.told

    active, pending = run(work())
    assert [["a"], ["a", "b"], ["b"], []] == active == pending


def test_who_waits_is_told_which_session_failed_and_the_tool_is_registered_all_the_same():
    async def work():
        manager = LLMSessionManager("ann")
        manager.active, manager.pending = Session(ValueError("closed")), Session(OSError("gone"))
        with pytest.raises(
            ToolSyncError, match=r"^tool sync failed: active: ValueError: closed; pending: OSError: gone$"
        ) as all_of_it:
            await manager.register_tool_and_sync(definition("a"))
        manager.active = Session()
        with pytest.raises(RuntimeError, match=r"^tool sync failed: pending: OSError: gone$"):
            await manager.sync()
        return all_of_it.value.code, [each.name for each in manager.list_tools()], manager.active.told

    assert ("tool_sync_failed", ["a"], [["a"]]) == run(work())


def test_the_others_tell_the_sessions_in_the_background(caplog):
    async def work():
        manager = LLMSessionManager("ann")
        session = manager.active = Session()
        session.gate.clear()
        manager.register_tool(definition("a"))
        await session.asked.wait()
        manager.register_tool(definition("b"))
        session.gate.set()
        await until(lambda: len(session.told) == 2)
        manager.active = Session(ValueError("closed"))
        manager.clear_tools()
        await until(lambda: "tool sync failed: active: ValueError: closed" in caplog.text)
        return session.told

    assert [["a"], ["a", "b"]] == run(work())


def test_without_an_event_loop_nothing_is_told_until_somebody_syncs():
    manager = LLMSessionManager("ann")
    manager.active = session = Session()
    manager.register_tool(definition("a"))
    assert [] == session.told
    run(manager.sync())
    assert [["a"]] == session.told
