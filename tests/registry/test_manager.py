"""Same-process registration as in the seeds, and the sync of live sessions."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from patchbay.errors import ConfigurationError, ToolSyncError
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.registry import ToolRegistry
from support.running import run

from .registering import names, registry_of, remote

NEVER = 1000.0


def definition(name: str, source: str = "my_extension") -> ToolDefinition:
    return ToolDefinition(name=name, description="d", handler=dict, metadata={"source": source})


async def run_until(true: Callable[[], bool]) -> None:
    """Let the other tasks run until it is so; ``run`` bounds it."""
    while not true():
        await asyncio.sleep(0)


class Session:
    """A live session that records its tools. It fails with ``error``, or so many ``failures`` times; its first calls may hang."""

    def __init__(self, error: Exception | None = None, *, failures: int = 0, hangs: int = 0) -> None:
        self.received: list[list[str]] = []
        self.error = error
        self.failures = failures
        self.hangs = hangs
        self.calls = 0
        self.idle = True
        self.is_open = True
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    async def use_tools(self, snapshot: Any) -> None:
        self.calls += 1
        self.asked.set()
        await (asyncio.Event() if self.calls <= self.hangs else self.gate).wait()
        if self.error is not None or self.calls <= self.failures:
            raise self.error or ConnectionError(f"gone {self.calls}")
        self.received.append([*snapshot.tools])


async def waiting() -> tuple[LLMSessionManager, Session, asyncio.Future[Any]]:
    """A manager, its pending session, and a swap that waits for the active one to be idle."""
    manager = LLMSessionManager("ann")
    manager.active, coming = Session(), Session()
    manager.active.idle = False
    await manager.prepare(coming)
    swapping = asyncio.ensure_future(manager.swap())
    await asyncio.sleep(0)
    return manager, coming, swapping


def test_tools_are_registered_listed_and_removed_by_name_and_source():
    manager = LLMSessionManager("ann")
    first = definition("a")
    for each in (first, definition("b"), definition("c", "builtin")):
        manager.register_tool(each)
    assert (first, ["a", "b", "c"]) == (manager.list_tools()[0], [each.name for each in manager.list_tools()])
    assert (True, False) == (manager.unregister_tool("a"), manager.unregister_tool("a"))
    assert (1, ["c"]) == (manager.clear_tools("my_extension"), [each.name for each in manager.list_tools()])
    assert (1, []) == (manager.clear_tools(), manager.list_tools())


def test_tool_of_the_same_name_is_replaced_in_place_for_any_owner():
    registry = registry_of(remote("a", "plugin:x"), remote("b", "plugin:x"))
    manager = LLMSessionManager("ann", registry)
    manager.register_tool(definition("a"))
    sources = {role: registry.snapshot(role).registrations["a"].source for role in ("ann", "ben")}
    assert ({"ann": "my_extension", "ben": "plugin:x"}, ["a", "b"]) == (sources, names(registry, "ann"))


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


async def test_sync_returns_after_sessions_have_the_tools():
    manager = LLMSessionManager("ann")
    manager.active, manager.pending = Session(), Session()
    await manager.register_tool_and_sync(definition("a"))
    await manager.register_tool_and_sync(definition("b"))
    assert await manager.unregister_tool_and_sync("a")
    assert 1 == await manager.clear_tools_and_sync()
    active, pending = manager.active.received, manager.pending.received
    assert [["a"], ["a", "b"], ["b"], []] == active == pending


async def test_sync_error_names_failed_sessions_and_the_tool_stays_registered():
    manager = LLMSessionManager("ann")
    manager.active, manager.pending = Session(ValueError("closed")), Session(OSError("gone"))
    with pytest.raises(
        ToolSyncError, match=r"^tool sync failed: active: ValueError: closed; pending: OSError: gone$"
    ) as all_of_it:
        await manager.register_tool_and_sync(definition("a"))
    manager.active = Session()
    with pytest.raises(RuntimeError, match=r"^tool sync failed: pending: OSError: gone$"):
        await manager.sync()
    assert ("tool_sync_failed", ["a"], [["a"]]) == (
        all_of_it.value.code,
        [each.name for each in manager.list_tools()],
        manager.active.received,
    )
    manager.pending = Session()
    await manager.sync()  # the session that failed is not tried again


async def test_changes_without_sync_are_sent_in_the_background(caplog):
    manager = LLMSessionManager("ann")
    session = manager.active = Session()
    session.gate.clear()
    manager.register_tool(definition("a"))
    await session.asked.wait()
    manager.register_tool(definition("b"))
    session.gate.set()
    await run_until(lambda: len(session.received) == 2)
    manager.active = Session(ValueError("closed"))
    manager.clear_tools()
    await run_until(lambda: "tool sync failed: active: ValueError: closed" in caplog.text)
    assert [["a"], ["a", "b"]] == session.received
    manager.active = Session()
    await manager.sync()  # the session that failed is not tried again


async def test_background_changes_are_coalesced():
    manager = LLMSessionManager("ann")
    session = manager.active = Session()
    session.gate.clear()
    for number in range(100):
        manager.register_tool(definition(f"a{number}"))
    await session.asked.wait()
    for number in range(100):
        manager.register_tool(definition(f"b{number}"))
        await asyncio.sleep(0)
    session.gate.set()
    await run_until(lambda: len(session.received) == 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert [100, 200] == [len(outcome) for outcome in session.received]


async def test_slow_background_sync_is_out_of_sync_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("patchbay.tools.manager.ATTEMPT_SECONDS", 0.01)
    manager = LLMSessionManager("ann", retry_delays=(0.0,) * 5)
    session = manager.active = Session()
    session.gate.clear()
    manager.register_tool(definition("a"))
    await run_until(lambda: bool(manager.out_of_sync))
    late = manager.out_of_sync
    session.gate.set()
    await run_until(lambda: not manager.out_of_sync)
    assert ({"active": "it took too long"}, [["a"]]) == (late, session.received)
    assert "not done within 0.01 s" in caplog.text


def test_change_without_an_event_loop_is_sent_on_sync():
    manager = LLMSessionManager("ann")
    manager.active = session = Session()
    manager.register_tool(definition("a"))
    assert [] == session.received
    run(manager.sync())
    assert [["a"]] == session.received


# Sessions that come, take over and go


async def test_prepared_session_has_the_tools_and_takes_over_when_the_active_one_is_idle():
    manager = LLMSessionManager("ann")
    manager.register_tool(definition("a"))
    first, second = Session(), Session()
    await manager.prepare(first)
    assert (None, first, None) == (await manager.swap(), manager.active, manager.pending)
    first.idle = False
    await manager.prepare(second)
    await manager.register_tool_and_sync(definition("b"))
    swapping = asyncio.ensure_future(manager.swap())
    await second.gate.wait()
    assert first is manager.active
    first.idle = True
    assert first is await swapping
    assert (second, None) == (manager.active, manager.pending)
    await manager.register_tool_and_sync(definition("c"))
    manager.leave(second)
    manager.leave(second)
    await manager.unregister_tool_and_sync("a")
    assert (None, ["b", "c"]) == (manager.active, [each.name for each in manager.list_tools()])
    assert [["a"], ["a", "b"]] == first.received
    assert [["a"], ["a", "b"], ["a", "b", "c"]] == second.received


async def test_only_one_synced_session_can_be_pending():
    manager = LLMSessionManager("ann")
    with pytest.raises(ToolSyncError, match="pending: OSError: gone"):
        await manager.prepare(Session(OSError("gone")))
    assert (None, {}) == (manager.pending, manager.out_of_sync)
    with pytest.raises(ConfigurationError, match="no pending session"):
        await manager.swap()
    await manager.prepare(Session())
    with pytest.raises(ConfigurationError, match="has a pending session"):
        await manager.prepare(Session())


async def test_session_is_prepared_while_the_active_one_is_busy():
    manager = LLMSessionManager("ann")
    busy = manager.active = Session()
    busy.gate.clear()
    telling = asyncio.ensure_future(manager.register_tool_and_sync(definition("a")))
    await busy.asked.wait()
    session = Session()
    await manager.prepare(session)
    assert ([["a"]], False) == (session.received, telling.done())
    busy.gate.set()
    await telling


async def test_tool_change_does_not_wait_for_a_closed_session():
    manager = LLMSessionManager("ann", retry_delays=(0.0,))
    session = manager.active = Session(ConnectionError("closed"))
    session.gate.clear()
    telling = asyncio.ensure_future(manager.register_tool_and_sync(definition("a")))
    await session.asked.wait()
    manager.leave(session)
    session.gate.set()
    await telling  # without a sync error
    assert {} == manager.out_of_sync


async def test_sync_is_not_retried_for_a_closed_session(caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO"):
        manager = LLMSessionManager("ann", retry_delays=(0.0,))
        session = manager.active = Session(ConnectionError("gone"))
        with pytest.raises(ToolSyncError):
            await manager.register_tool_and_sync(definition("a"))
        manager.leave(session)
        for _ in range(20):
            await asyncio.sleep(0)
    assert "" == caplog.text


@pytest.mark.parametrize("take_over", [False, True])
async def test_session_takes_over_only_once_open(take_over):
    manager = LLMSessionManager("ann")
    active, coming = Session(), Session()
    manager.active = active
    coming.is_open = False
    await manager.prepare(coming)  # it opens with the role's tools
    with pytest.raises(ConfigurationError, match="pending session of the role 'ann' is not open"):
        _ = manager.take_over() if take_over else await manager.swap()
    assert (active, coming) == (manager.active, manager.pending)
    coming.is_open = True
    assert active is (manager.take_over() if take_over else await manager.swap())
    assert coming is manager.active


@pytest.mark.parametrize("leaves", [False, True])
async def test_waiting_swap_is_refused_if_the_pending_session_ends_or_leaves(leaves):
    manager, coming, swapping = await waiting()
    if leaves:
        manager.leave(coming)
    coming.is_open = False
    with pytest.raises(ConfigurationError, match="no pending session" if leaves else "is not open"):
        await swapping
    assert manager.pending is (None if leaves else coming)


@pytest.mark.parametrize("thing", [None, "a session", dict])
async def test_prepare_rejects_an_invalid_session(thing):
    manager = LLMSessionManager("ann")
    with pytest.raises(ConfigurationError, match="is not a session"):
        await manager.prepare(thing)
    assert None is manager.pending


async def test_cancelled_prepare_and_swap_change_nothing():
    manager = LLMSessionManager("ann")
    active, coming = Session(), Session()
    manager.active = active
    coming.gate.clear()
    preparing = asyncio.ensure_future(manager.prepare(coming))
    await coming.asked.wait()
    assert coming is manager.pending
    preparing.cancel()
    await asyncio.wait([preparing])
    assert (active, None) == (manager.active, manager.pending)
    coming.gate.set()
    await manager.prepare(coming)
    active.idle = False
    swapping = asyncio.ensure_future(manager.swap())
    await asyncio.sleep(0)
    swapping.cancel()
    await asyncio.wait([swapping])
    assert (active, coming) == (manager.active, manager.pending)


async def test_the_active_session_is_not_prepared_again():
    manager = LLMSessionManager("ann")
    session = manager.active = Session()
    with pytest.raises(ConfigurationError, match="active already"):
        await manager.prepare(session)
    assert (True, None) == (session is manager.active, manager.pending)


async def test_manager_holds_no_reference_to_replaced_sessions():
    manager = LLMSessionManager("ann", retry_delays=(1000.0,))
    first, second = Session(), Session()
    gone = [weakref.ref(first), weakref.ref(second)]
    await manager.prepare(first)
    await manager.swap()
    await manager.prepare(second)
    await manager.swap()
    del first
    second.error = ValueError("busy")
    with pytest.raises(ToolSyncError):
        await manager.register_tool_and_sync(definition("a"))
    manager.leave(second)
    del second
    gc.collect()
    assert [None, None] == [ref() for ref in gone]


# Failed syncs are retried until they succeed, or a newer change replaces them


async def test_failed_sync_is_retried_until_it_succeeds(caplog):
    with caplog.at_level("INFO"):
        manager = LLMSessionManager("ann", retry_delays=[0.0] * 5)
        session = manager.active = Session(failures=2)
        with pytest.raises(ToolSyncError):
            await manager.register_tool_and_sync(definition("a"))
        assert {"active": "ConnectionError: gone 1"} == manager.out_of_sync
        await run_until(lambda: not manager.out_of_sync)
        assert (3, [["a"]]) == (session.calls, session.received)
    assert "after a retry" in caplog.text


async def test_only_the_failed_session_is_retried():
    manager = LLMSessionManager("ann", retry_delays=[0.0])
    active, pending = manager.active, manager.pending = Session(), Session(failures=1)
    manager.register_tool(definition("a"))
    await run_until(lambda: pending.calls == 2)
    await run_until(lambda: not manager.out_of_sync)
    assert ([["a"]], [["a"]], 1) == (active.received, pending.received, active.calls)


async def test_newer_change_replaces_a_pending_retry():
    manager = LLMSessionManager("ann", retry_delays=[NEVER])
    session = manager.active = Session(failures=1)
    with pytest.raises(ToolSyncError):
        await manager.register_tool_and_sync(definition("a"))
    await manager.register_tool_and_sync(definition("b"))
    assert ({}, [["a", "b"]]) == (manager.out_of_sync, session.received)


async def test_a_newer_change_does_not_wait_for_an_attempt_that_hangs():
    manager = LLMSessionManager("ann", retry_delays=[0.0, NEVER])
    session = manager.active = Session(failures=1)
    with pytest.raises(ToolSyncError):
        await manager.register_tool_and_sync(definition("a"))
    session.hangs, session.failures = 2, 0
    await run_until(lambda: session.calls == 2)
    await manager.register_tool_and_sync(definition("b"))
    assert ({}, [["a", "b"]]) == (manager.out_of_sync, session.received)


async def test_retries_are_bounded(caplog):
    manager = LLMSessionManager("ann", retry_delays=[0.0, 0.0])
    session = manager.active = Session(failures=100)
    with pytest.raises(ToolSyncError):
        await manager.register_tool_and_sync(definition("a"))
    while "cannot be sent" not in caplog.text:
        await asyncio.sleep(0)
    assert (3, {"active": "ConnectionError: gone 3"}) == (session.calls, manager.out_of_sync)
