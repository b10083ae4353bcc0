"""Sessions may come, take over and leave in any order: in the end those of the role have its tools."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from patchbay.errors import ConfigurationError, ToolSyncError
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from support.running import run

ACTS = st.sampled_from(
    ["prepare", "prepare", "swap", "take over", "leave", "add", "add", "add and wait", "no patience", "busy", "free", "breathe"]
)
WAYS = st.lists(st.sampled_from(["take", "take", "fail", "wait", "wait and fail"]), max_size=12)


class Session:
    """A session whose first syncs are scripted; later ones succeed."""

    def __init__(self, ways: list[str]) -> None:
        self.idle = True
        self.knows: list[str] | None = None
        self.under_way = 0
        self._ways = ways

    async def use_tools(self, snapshot: Any) -> None:
        self.under_way += 1
        assert 1 == self.under_way  # one at a time
        try:
            way = self._ways.pop() if self._ways else "take"
            for _ in range(5 if "wait" in way else 0):
                await asyncio.sleep(0)
            if "fail" in way:
                raise ConnectionError("gone")
            self.knows = [*snapshot.tools]
        finally:
            self.under_way -= 1


async def ignore_failures(work: Any) -> None:
    with contextlib.suppress(ToolSyncError, ConfigurationError, TimeoutError):
        await work


@given(acts=st.lists(ACTS, max_size=30), ways=WAYS)
def test_any_order_of_events_keeps_a_role_consistent(acts: list[str], ways: list[str]):
    async def work() -> None:
        before = asyncio.all_tasks()
        manager = LLMSessionManager("ann", retry_delays=(0.0,) * 100)
        going: list[asyncio.Task[None]] = []

        def begin(what: Any) -> None:
            going.append(asyncio.ensure_future(ignore_failures(what)))

        for number, act in enumerate(acts):
            tool = ToolDefinition(f"t{number}", handler=dict)
            if act == "prepare":
                begin(manager.prepare(Session(ways)))
            elif act == "swap":
                begin(manager.swap())
            elif act == "take over":
                manager.take_over()
            elif act == "leave" and manager.active is not None:
                manager.leave(manager.active)
            elif act == "add":
                manager.register_tool(tool)
            elif act == "add and wait":
                begin(manager.register_tool_and_sync(tool))
            elif act == "no patience" and going:
                going[-1].cancel()
            elif act in ("busy", "free") and isinstance(manager.active, Session):
                manager.active.idle = act == "free"
            elif act == "breathe":
                for _ in range(8):
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        ways.clear()
        if isinstance(manager.active, Session):
            manager.active.idle = True
        await asyncio.gather(*going, return_exceptions=True)
        while manager.out_of_sync or asyncio.all_tasks() - before:
            await asyncio.sleep(0)
        tools = [tool.name for tool in manager.list_tools()]
        for session in (manager.active, manager.pending):
            assert session is None or tools == session.knows

    run(work())
