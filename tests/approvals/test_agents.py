"""Calls of agents and of agents that work for them wait for the same people."""

from __future__ import annotations

import asyncio

from patchbay import ToolCall
from patchbay.agents import AgentTool, LlmAgent, ParallelAgent, RunConfig, Runner
from patchbay.approvals import ApprovalPolicy, Rule
from patchbay.hooks import HookManager
from patchbay.testing import ScriptedModel

from .approval_calls import Files, service_at, waiting

DELETE = ApprovalPolicy(rules=(Rule(tools=("delete",), deadline=600),))


def worker(files: Files, name: str = "worker", path: str = "/a") -> LlmAgent:
    call = ToolCall("1", "delete", f'{{"path": "{path}"}}')
    return LlmAgent(name=name, model=ScriptedModel([[call], f"{name} is done"]), tools=files.tools())


def hooked(service) -> HookManager:
    hooks = HookManager()
    service.mount(hooks)
    return hooks


async def text_of(events) -> str | None:
    async for _ in events:
        pass
    return events.text


async def test_call_of_a_sub_agent_is_shown_with_its_owner_and_pauses_the_runs_deadline():
    files = Files()
    boss = LlmAgent(
        name="boss",
        model=ScriptedModel([[ToolCall("9", "worker", '{"request": "tidy up"}')], "all done"]),
        tools=[AgentTool(worker(files), timeout=60)],
    )
    async with service_at(policy=DELETE) as service:
        events = Runner(boss, hooks=hooked(service)).run("u", "s", "hi", RunConfig(run_timeout=60))
        task = asyncio.create_task(text_of(events))
        [request] = await waiting(service)
        assert events.context.budget.ends is None  # paused; the other limits are in tests/executor/test_pauses.py
        await service.decide(request.id, "approve")
        assert ("all done", ["/a"]) == (await task, files.deleted)
        assert events.context.budget.ends is not None
    assert ("worker", True) == (request.agent, bool(request.parent_turn))
    assert request.parent_turn != request.turn
    assert request.session_key.endswith(":s")


async def test_a_session_approval_covers_the_agents_of_the_session():
    files = Files()
    team = ParallelAgent(name="team", sub_agents=[worker(files, "one", "/1"), worker(files, "two", "/2")])
    async with service_at(policy=DELETE) as service:
        task = asyncio.create_task(text_of(Runner(team, hooks=hooked(service)).run("u", "s", "hi")))
        first, _ = await waiting(service, 2)
        await service.decide(first.id, "approve_session")
        await task
        assert ["/1", "/2"] == sorted(files.deleted)
