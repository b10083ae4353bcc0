"""How far a decision reaches: never to another tool, another role, another session, or what another rule is about."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.approvals import ApprovalPolicy, ApprovalService, Rule
from patchbay.hooks import HookScope
from support.running import run

from .approval_calls import ASK, SCOPE, Files, call_of, executor_of, running_calls, service_at, waiting
from .test_service import SilentTerminal

ANN = HookScope(agent_id="helper", session_key="s1", context={"scope": {"role": "ann"}})
BEN = HookScope(agent_id="helper", session_key="s1", context={"scope": {"role": "ben"}})


async def ended(*tasks) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def approved_for_the_session(service: ApprovalService, files: Files, scope: HookScope = SCOPE, **tool) -> None:
    task = running_calls(executor_with(service, files, **tool), call_of("/a"), scope=scope)
    [request] = await waiting(service)
    await service.decide(request.id, "approve_session", by="ann")
    await task


def executor_with(service: ApprovalService, files: Files, **tool):
    executor = executor_of(service, files)
    for name, value in tool.items():
        setattr(executor.tools["delete"], name, value)
    return executor


def test_a_session_approval_covers_one_role(url):
    async def main():
        files = Files()
        async with service_at(url) as service:
            await approved_for_the_session(service, files, ANN)
            await running_calls(executor_of(service, files), call_of("/b"), scope=ANN)
            task = running_calls(executor_of(service, files), call_of("/c"), scope=BEN)
            [request] = await waiting(service)
            await ended(task)
            return files.deleted, request.role

    assert (["/a", "/b"], "ben") == run(main())


def test_a_session_approval_does_not_cover_another_endpoint(url):
    """Another endpoint registers a tool with the same name and source."""
    first = {"source": "external", "endpoint": "http://127.0.0.1:9001/call"}

    async def main():
        files = Files()
        async with service_at(url) as service:
            await approved_for_the_session(service, files, **first)
            await running_calls(executor_with(service, files, **first), call_of("/b"))
            task = running_calls(
                executor_with(service, files, **{**first, "endpoint": "http://127.0.0.1:9002/call"}), call_of("/c")
            )
            [request] = await waiting(service)
            await ended(task)
            return files.deleted, request.endpoint

    assert (["/a", "/b"], "http://127.0.0.1:9002/call") == run(main())


def test_a_session_approval_is_limited_to_its_rule(url):
    """What the boss may do all day long, its worker is asked about each time."""
    rules = (Rule(name="worker", agents=("worker",), deadline=600), Rule(name="all", deadline=600))
    boss, worker = (HookScope(agent_id=name, session_key="s1") for name in ("boss", "worker"))

    async def main():
        files = Files()
        async with service_at(url, ApprovalPolicy(rules=rules)) as service:
            await approved_for_the_session(service, files, boss)
            await running_calls(executor_of(service, files), call_of("/b"), scope=boss)
            task = running_calls(executor_of(service, files), call_of("/c"), scope=worker)
            [request] = await waiting(service)
            await ended(task)
            return files.deleted, request.rule

    assert (["/a", "/b"], "worker") == run(main())


def test_http_decision_does_not_apply_to_terminal_only_requests(url):
    """An approval for the session approves all pending calls that its channel may decide."""
    rules = (Rule(name="r", agents=("worker",), who=("terminal",), deadline=600), Rule(name="r", deadline=600))
    boss, worker = (HookScope(agent_id=name, session_key="s1") for name in ("boss", "worker"))

    async def main():
        files = Files()
        async with service_at(url, ApprovalPolicy(rules=rules), terminal=SilentTerminal()) as service:
            executor = executor_of(service, files)
            tasks = [running_calls(executor, call_of(scope.agent_id), scope=scope) for scope in (boss, worker)]
            by_agent = {each.agent: each for each in await waiting(service, 2)}
            await service.decide(by_agent["boss"].id, "approve_session")
            await tasks[0]
            [left] = await waiting(service)
            await ended(tasks[1])
            return files.deleted, left.agent

    assert (["boss"], "worker") == run(main())


@pytest.mark.parametrize("who", [("terminal",), ("http",)])
async def test_request_left_by_an_earlier_run_is_not_used_for_a_rule_with_other_approvers(url, who):
    """The policy was made stricter before the program was started again."""
    files = Files()
    async with service_at(url) as service:
        service.leave()
        task = running_calls(executor_of(service, files), call_of())
        [before] = await waiting(service)
        await ended(task)
    stricter = ApprovalPolicy(otherwise=Rule(name="all", deadline=600, who=who))
    async with service_at(url, stricter, terminal=SilentTerminal()) as service:
        await service.decide(before.id, "approve")
        task = running_calls(executor_of(service, files), call_of())
        [after] = await waiting(service)
        await ended(task)
    assert ([], ASK.otherwise.who, who) == (files.deleted, before.who, after.who)
