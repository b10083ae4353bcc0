"""Calls that await approval, and helpers to decide them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy as sa

from patchbay.approvals import ApprovalPolicy, ApprovalRequest, ApprovalService, Rule
from patchbay.executor import Executor, ToolExecution
from patchbay.hooks import HookManager, HookScope, Meta, ToolRequest
from patchbay.types import ToolCall

LONG = 60.0
"""Bound of every wait of a test, in seconds."""

ASK = ApprovalPolicy(otherwise=Rule(name="all", deadline=600))
SCOPE = HookScope(agent_id="helper", turn_id="turn-2", parent_turn_id="turn-1", session_key="s1")
NO_SESSION = HookScope(agent_id="helper")


class Files:
    """A tool that deletes paths, and a record of them."""

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


def tool_request(**members: Any) -> ToolRequest:
    """Return the view of a call with these members."""
    known = {"tool": "t", "source": "", "meta": Meta(), **members}

    class Call:
        def member(self, name: str, _point: str) -> Any:
            return known.get(name, {})

    return ToolRequest(Call(), "turn.tool.approve")


def running_calls(
    executor: Executor, *calls: ToolCall, scope: HookScope = SCOPE, **options: Any
) -> asyncio.Task[list[ToolExecution]]:
    """Start the calls as one run; the task returns their executions, and stops them when it is cancelled."""

    async def work() -> list[ToolExecution]:
        batch = executor.begin_run(scope=scope, **options).start_batch(calls)
        try:
            while await batch.next_event() is not None:
                pass
        finally:
            await batch.stop()
        return batch.executions

    return asyncio.create_task(work())


async def waiting(service: ApprovalService, count: int = 1) -> list[ApprovalRequest]:
    """Return the pending requests, once there are ``count``."""
    async with asyncio.timeout(LONG):
        while len(pending := await service.pending()) != count:
            await asyncio.sleep(0.005)  # not at once: the threads of the database would hardly come to their turn
    return pending


async def ask(
    service: ApprovalService,
    call: ToolCall | None = None,
    *,
    files: Files | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> tuple[asyncio.Task[list[ToolExecution]], ApprovalRequest]:
    """Start a call that needs approval, by default ``delete /a``; return its run, and the only pending request."""
    task = running_calls(executor or executor_of(service, files or Files()), call or call_of(), **options)
    pending = asyncio.create_task(waiting(service))
    await asyncio.wait((task, pending), return_when=asyncio.FIRST_COMPLETED)
    assert pending.done(), f"the call ended without a request: {task.result()}"
    [request] = pending.result()
    return task, request


async def decided(
    service: ApprovalService,
    verdict: Any,
    call: ToolCall | None = None,
    *,
    files: Files | None = None,
    executor: Executor | None = None,
    scope: HookScope = SCOPE,
    **decision: Any,
) -> tuple[ApprovalRequest, ToolExecution]:
    """Start a call as ``ask``, decide its request, and return both."""
    task, request = await ask(service, call, files=files, executor=executor, scope=scope)
    await service.decide(request.id, verdict, **decision)
    return request, (await task)[0]


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancel runs, and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def engine_of(url: str) -> sa.Engine:
    """Return an engine on the database of a store, without a pool."""
    parts = sa.make_url(url)
    return sa.create_engine(
        parts if parts.drivername == "sqlite" else parts.set(drivername="postgresql+psycopg"), poolclass=sa.NullPool
    )
