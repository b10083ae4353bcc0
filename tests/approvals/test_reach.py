"""Decisions never cover another tool, role, session or rule."""

from __future__ import annotations

import pytest

from patchbay.approvals import ApprovalPolicy, ApprovalService, Rule
from patchbay.hooks import HookScope

from .approval_calls import ASK, SCOPE, Files, ask, call_of, decided, executor_of, running_calls, service_at, stop, waiting
from .test_service import SilentTerminal

ANN = HookScope(agent_id="helper", session_key="s1", context={"scope": {"role": "ann"}})
BEN = HookScope(agent_id="helper", session_key="s1", context={"scope": {"role": "ben"}})


async def approved_for_the_session(service: ApprovalService, files: Files, scope: HookScope = SCOPE, **tool) -> None:
    await decided(service, "approve_session", executor=executor_with(service, files, **tool), scope=scope, by="ann")


def executor_with(service: ApprovalService, files: Files, **tool):
    executor = executor_of(service, files)
    for name, value in tool.items():
        setattr(executor.tools["delete"], name, value)
    return executor


async def test_a_session_approval_covers_one_role(url):
    files = Files()
    async with service_at(url) as service:
        await approved_for_the_session(service, files, ANN)
        await running_calls(executor_of(service, files), call_of("/b"), scope=ANN)
        task, request = await ask(service, call_of("/c"), scope=BEN, files=files)
        await stop(task)
        assert (["/a", "/b"], "ben") == (files.deleted, request.role)


async def test_a_session_approval_does_not_cover_another_endpoint(url):
    """Another endpoint registers a tool with the same name and source."""
    first = {"source": "external", "endpoint": "http://127.0.0.1:9001/call"}

    files = Files()
    async with service_at(url) as service:
        await approved_for_the_session(service, files, **first)
        await running_calls(executor_with(service, files, **first), call_of("/b"))
        task, request = await ask(
            service, call_of("/c"), executor=executor_with(service, files, **{**first, "endpoint": "http://127.0.0.1:9002/call"})
        )
        await stop(task)
        assert (["/a", "/b"], "http://127.0.0.1:9002/call") == (files.deleted, request.endpoint)


async def test_a_session_approval_is_limited_to_its_rule(url):
    """An approval of the boss for the session does not cover its worker, for whom there is another rule."""
    rules = (Rule(name="worker", agents=("worker",), deadline=600), Rule(name="all", deadline=600))
    boss, worker = (HookScope(agent_id=name, session_key="s1") for name in ("boss", "worker"))

    files = Files()
    async with service_at(url, ApprovalPolicy(rules=rules)) as service:
        await approved_for_the_session(service, files, boss)
        await running_calls(executor_of(service, files), call_of("/b"), scope=boss)
        task, request = await ask(service, call_of("/c"), scope=worker, files=files)
        await stop(task)
        assert (["/a", "/b"], "worker") == (files.deleted, request.rule)


async def test_http_decision_does_not_apply_to_terminal_only_requests(url):
    """An approval for the session approves all pending calls that its channel may decide."""
    rules = (Rule(name="r", agents=("worker",), who=("terminal",), deadline=600), Rule(name="r", deadline=600))
    boss, worker = (HookScope(agent_id=name, session_key="s1") for name in ("boss", "worker"))

    files = Files()
    async with service_at(url, ApprovalPolicy(rules=rules), terminal=SilentTerminal()) as service:
        executor = executor_of(service, files)
        tasks = [running_calls(executor, call_of(scope.agent_id), scope=scope) for scope in (boss, worker)]
        by_agent = {each.agent: each for each in await waiting(service, 2)}
        await service.decide(by_agent["boss"].id, "approve_session")
        await tasks[0]
        [left] = await waiting(service)
        await stop(tasks[1])
        assert (["boss"], "worker") == (files.deleted, left.agent)


@pytest.mark.parametrize("who", [("terminal",), ("http",)])
async def test_request_left_by_an_earlier_run_is_not_used_for_a_rule_with_other_approvers(url, who):
    """The policy was made stricter before the program was started again."""
    files = Files()
    async with service_at(url) as service:
        service.leave()
        task, before = await ask(service, files=files)
        await stop(task)
    stricter = ApprovalPolicy(otherwise=Rule(name="all", deadline=600, who=who))
    async with service_at(url, stricter, terminal=SilentTerminal()) as service:
        await service.decide(before.id, "approve")
        task, after = await ask(service, files=files)
        await stop(task)
    assert ([], ASK.otherwise.who, who) == (files.deleted, before.who, after.who)
