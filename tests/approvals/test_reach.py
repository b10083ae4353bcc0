"""Decisions never cover another tool, role, session or rule."""

from __future__ import annotations

import pytest

from patchbay.approvals import ApprovalPolicy, Rule
from patchbay.hooks import HookScope

from .approval_calls import ASK, SCOPE, Files, ask, call_of, decided, executor_of, running_calls, service_at, stop, waiting
from .test_service import SilentTerminal

ANN, BEN = (HookScope(agent_id="helper", session_key="s1", context={"scope": {"role": role}}) for role in ("ann", "ben"))
BOSS, WORKER = (HookScope(agent_id=name, session_key="s1") for name in ("boss", "worker"))
HERE = {"source": "external", "endpoint": "http://127.0.0.1:9001/call"}
THERE = {**HERE, "endpoint": "http://127.0.0.1:9002/call"}
WORKERS = (Rule(name="worker", agents=("worker",), deadline=600), Rule(name="all", deadline=600))


@pytest.mark.parametrize(
    ("mine", "theirs", "shown"),
    [
        ({"scope": ANN}, {"scope": BEN}, ("role", "ben")),
        ({"scope": BOSS}, {"scope": WORKER}, ("rule", "worker")),
        (HERE, THERE, ("endpoint", THERE["endpoint"])),
        ({}, {"source": "plugin:other"}, ("source", "plugin:other")),
    ],
    ids=["another role", "another rule", "another endpoint", "another source"],
)
async def test_a_session_approval_covers_the_calls_of_one_tool_role_and_rule(url, mine, theirs, shown):
    files = Files()
    async with service_at(url, ApprovalPolicy(rules=WORKERS)) as service:

        def of(about):
            executor = executor_of(service, files)
            for name in about.keys() - {"scope"}:
                setattr(executor.tools["delete"], name, about[name])
            return {"executor": executor, "scope": about.get("scope", SCOPE)}

        await decided(service, "approve_session", **of(mine), by="ann")
        options = of(mine)
        await running_calls(options["executor"], call_of("/b"), scope=options["scope"])
        task, request = await ask(service, call_of("/c"), **of(theirs))
        await stop(task)
    assert (["/a", "/b"], shown[1]) == (files.deleted, getattr(request, shown[0]))


async def test_http_decision_does_not_apply_to_terminal_only_requests(url):
    """An approval for the session approves all pending calls that its channel may decide."""
    rules = (Rule(name="r", agents=("worker",), who=("terminal",), deadline=600), Rule(name="r", deadline=600))
    files = Files()
    async with service_at(url, ApprovalPolicy(rules=rules), terminal=SilentTerminal()) as service:
        executor = executor_of(service, files)
        tasks = [running_calls(executor, call_of(scope.agent_id), scope=scope) for scope in (BOSS, WORKER)]
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
