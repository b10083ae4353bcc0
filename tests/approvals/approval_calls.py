"""Calls that await approval, and helpers to decide them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from patchbay.approvals import ApprovalPolicy, ApprovalRequest, ApprovalService, Rule
from patchbay.executor import Executor, ToolExecution
from patchbay.hooks import HookManager, HookScope
from patchbay.types import ToolCall

T = TypeVar("T")

LONG = 60.0
"""What every wait of a test is bounded by, in seconds."""

ASK = ApprovalPolicy(otherwise=Rule(name="all", deadline=600))
SCOPE = HookScope(agent_id="helper", turn_id="turn-2", parent_turn_id="turn-1", session_key="s1")
NO_SESSION = HookScope(agent_id="helper")


class Files:
    """A tool that does something, and what it has done."""

    def __init__(self) -> None:
        self.deleted: list[Any] = []

    def tools(self) -> list[Callable[..., Any]]:
        def delete(path: str) -> str:
            self.deleted.append(path)
            return f"deleted {path}"

        def show(path: str) -> str:
            return path

        return [delete, show]


class Clock:
    """A manual wall clock."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def service_at(url: str | None = None, policy: ApprovalPolicy = ASK, **options: Any) -> AsyncIterator[ApprovalService]:
    service = ApprovalService(policy, url, **options)
    service.accept_decisions("http")
    try:
        yield service
    finally:
        await service.aclose()


def executor_of(service: ApprovalService, files: Files, **options: Any) -> Executor:
    hooks = HookManager()
    service.mount(hooks)
    return Executor(files.tools(), hooks=hooks, max_repeats=None, **options)


def call_of(path: str = "/a", name: str = "delete", call_id: str = "1") -> ToolCall:
    return ToolCall(call_id, name, json.dumps({"path": path}))


def running_calls(
    executor: Executor, *calls: ToolCall, scope: HookScope = SCOPE, **options: Any
) -> asyncio.Task[list[ToolExecution]]:
    """Start the calls as one run; the task ends with what became of them, and stops them where it is cancelled."""

    async def work() -> list[ToolExecution]:
        batch = executor.begin(scope=scope, **options).start(calls)
        try:
            while await batch.next_event() is not None:
                pass
        finally:
            await batch.stop()
        return batch.executions

    return asyncio.create_task(work())


async def waiting(service: ApprovalService, count: int = 1) -> list[ApprovalRequest]:
    """Return what is pending, once there are so many."""
    async with asyncio.timeout(LONG):
        while len(pending := await service.pending()) != count:
            await asyncio.sleep(0.005)  # not at once: the threads of the database would hardly come to their turn
    return pending
