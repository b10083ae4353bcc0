"""Calls await approval: valid approvers, one use per approval, and the call that runs. Over SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest

from patchbay.approvals import ApprovalPolicy, ApprovalService, Rule, State
from patchbay.approvals import service as service_module
from patchbay.approvals.request import MAX_ARGUMENTS
from patchbay.errors import ApprovalConflictError, ApprovalForbiddenError, ApprovalNotFoundError, InvalidRequestError
from patchbay.executor import Budget
from patchbay.hooks import Approval, HookScope
from patchbay.hooks.events import digest_of

from .approval_calls import (
    ASK,
    LONG,
    NO_SESSION,
    SCOPE,
    Clock,
    Files,
    ask,
    call_of,
    decided,
    executor_of,
    running_calls,
    service_at,
    stop,
    waiting,
)

OTHER = HookScope(agent_id="helper", session_key="s2")


def policy(**rule) -> ApprovalPolicy:
    return ApprovalPolicy(otherwise=Rule(**{"name": "all", "deadline": 600, **rule}))


def contents(executions) -> list[str]:
    return [each.content for each in executions]


def denied(reason: str) -> str:
    return f"Tool execution denied by approval hook: {reason}"


def denied_by_person(reason: str) -> str:
    return f"Tool execution denied by a person: {reason}"


async def test_call_runs_after_approval(url):
    files = Files()
    async with service_at(url) as service:
        task, request = await ask(service, files=files)
        assert not files.deleted
        decided = await service.decide(request.id, "approve", reason="fine", by="ann")
        assert ["deleted /a"] == contents(await task)
        after, pending = await service.get(request.id), await service.pending()
    assert (["/a"], []) == (files.deleted, pending)
    assert (State.APPROVED, "ann", "fine", False) == (decided.state, decided.by, decided.reason, decided.for_session)
    assert after.used is not None
    shown = {
        "tool": "delete", "arguments": '{"path": "/a"}', "agent": "helper", "session_key": "s1", "turn": "turn-2",
        "parent_turn": "turn-1", "call_id": "1",
    }  # fmt: skip
    assert shown == {name: getattr(request, name) for name in shown}
    assert digest_of("delete", {"path": "/a"}) == request.digest


async def test_denied_call_does_not_run_and_its_result_has_the_reason(url):
    files = Files()
    async with service_at(url) as service:
        _, execution = await decided(service, "deny", files=files, reason="not that one", by="ann")
    assert ([], denied_by_person("not that one"), "tool_denied", "ann") == (
        files.deleted,
        execution.content,
        execution.result.code,
        execution.error.by,
    )


async def test_request_is_stored_before_it_is_published(url):
    async with service_at(url) as service:
        changes = service.watch()
        outcome = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        task = running_calls(executor_of(service, Files()), call_of())
        request = await outcome
        kept = await service.store.get(request.id)
        await changes.aclose()
        await stop(task)
    assert request == kept


async def test_first_of_concurrent_decisions_wins_and_others_conflict(url):
    async with service_at(url) as service:
        task, request = await ask(service)
        decisions = [service.decide(request.id, "approve" if n % 2 else "deny", by=f"n{n}") for n in range(8)]
        results = await asyncio.gather(*decisions, return_exceptions=True)
        made, execution = [each for each in results if not isinstance(each, Exception)], (await task)[0]
    assert 1 == len(made)
    conflicts = [each for each in results if isinstance(each, ApprovalConflictError)]
    assert 7 == len(conflicts)
    assert {f"The request is {made[0].state} by {made[0].by} already."} == {str(each) for each in conflicts}
    assert (made[0].state is State.DENIED) == execution.is_error


@pytest.mark.parametrize(("at_deadline", "expected"), [("deny", denied("no decision within 600 s")), ("allow", "deleted /a")])
async def test_timeout_has_the_outcome_of_the_rule(url, at_deadline, expected):
    clock, files = Clock(), Files()
    async with service_at(url, policy(at_deadline=at_deadline), clock=clock) as service:
        task, request = await ask(service, files=files)
        clock.now += 600
        service.wake(request.id)
        shown = contents(await task)
        with pytest.raises(ApprovalConflictError, match="expired"):
            await service.decide(request.id, "approve")
        assert ([expected], State.EXPIRED) == (shown, (await service.get(request.id)).state)


async def test_the_request_of_a_run_that_is_stopped_is_withdrawn(url):
    files = Files()
    async with service_at(url) as service:
        task, request = await ask(service, files=files)
        await stop(task)
        with pytest.raises(ApprovalConflictError, match="withdrawn"):
            await service.decide(request.id, "approve")
        again, other = await ask(service, files=files)
        await stop(again)
        assert (State.WITHDRAWN, True, []) == ((await service.get(request.id)).state, other.id != request.id, files.deleted)


async def test_run_timeout_before_the_request_creates_no_request(url):
    async with service_at(url) as service:
        executor = executor_of(service, Files())
        budget = Budget(max_seconds=0.001)
        budget.start_clock()
        while asyncio.get_running_loop().time() < budget.ends:
            await asyncio.sleep(0)
        executions = await running_calls(executor, call_of(), budget=budget)
        assert ("run_timeout", []) == (executions[0].result.code, await service.recent())


# For the session


async def test_a_session_approval_covers_other_calls_of_the_tool_in_the_session_only(url):
    files = Files()
    async with service_at(url) as service:
        executor = executor_of(service, files)
        await decided(service, "approve_session", call_of("/a"), executor=executor, by="ann")
        assert ["deleted /b"] == contents(await running_calls(executor, call_of("/b")))
        others = [
            running_calls(executor, call_of("/c"), scope=OTHER),
            running_calls(executor, call_of("/c", "show")),
            running_calls(executor, call_of("/c"), scope=NO_SESSION),
        ]
        pending = await waiting(service, 3)
        await stop(*others)
        assert (["/a", "/b"], {("delete", "s2"), ("show", "s1"), ("delete", "")}) == (
            files.deleted,
            {(each.tool, each.session_key) for each in pending},
        )


async def test_a_session_approval_with_scope_call_covers_the_same_arguments_only(url):
    files = Files()
    async with service_at(url, policy(session="call")) as service:
        executor = executor_of(service, files)
        await decided(service, "approve_session", call_of("/a"), executor=executor)
        await running_calls(executor, call_of("/a"))
        other, _ = await ask(service, call_of("/b"), executor=executor)
        await stop(other)
    assert ["/a", "/a"] == files.deleted


@pytest.mark.parametrize(("rule", "scope"), [({"session": "never"}, SCOPE), ({}, NO_SESSION)])
async def test_session_approval_requires_a_session_and_a_rule_that_allows_it(url, rule, scope):
    async with service_at(url, policy(**rule)) as service:
        task, request = await ask(service, scope=scope)
        with pytest.raises(ApprovalConflictError, match="alone, and not for the session"):
            await service.decide(request.id, "approve_session")
        await service.decide(request.id, "approve")
        assert ("never", ["deleted /a"]) == (request.session, contents(await task))


# After a restart


async def orphaned_request(url, clock, call=None, scope=SCOPE):
    """The request of a run whose process has ended without a word."""
    service = ApprovalService(ASK, url, clock=clock)
    service.accept_decisions("http")
    service.leave()
    task, request = await ask(service, call or call_of(), scope=scope)
    await stop(task)
    await service.aclose()
    return request


async def test_pending_request_survives_a_restart_and_its_decision_is_used_once(url):
    clock, files = Clock(), Files()
    request = await orphaned_request(url, clock)
    async with service_at(url, clock=clock) as service:
        assert [request] == await service.pending()
        await service.decide(request.id, "approve", by="ann")
    async with service_at(url, clock=clock) as service:
        executor = executor_of(service, files)
        others = [
            running_calls(executor, call_of("/b")),
            running_calls(executor, call_of(), scope=OTHER),
            running_calls(executor, call_of(), scope=NO_SESSION),
        ]
        await waiting(service, 3)
        assert ["deleted /a"] == contents(await running_calls(executor, call_of(call_id="another")))
        again = running_calls(executor, call_of())
        await waiting(service, 4)
        await stop(*others, again)
    assert ["/a"] == files.deleted


async def test_resumed_run_waits_for_its_existing_request(url):
    clock, files = Clock(), Files()
    request = await orphaned_request(url, clock)
    async with service_at(url, clock=clock) as service:
        first, second = (running_calls(executor_of(service, files), call_of(call_id=name)) for name in "12")
        pending = await waiting(service, 2)  # the second call is another one: it is asked about by itself
        assert request.id in {each.id for each in pending}
        await service.decide(request.id, "approve")
        done, _ = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        assert 1 == len(done)
        [other] = await waiting(service)
        await service.decide(other.id, "deny")
        await asyncio.wait([first, second])
    assert ["/a"] == files.deleted


async def test_unused_decision_expires(url):
    clock = Clock()
    request = await orphaned_request(url, clock)
    async with service_at(url, clock=clock, keep=100) as service:
        await service.decide(request.id, "approve")
        clock.now += 100
        task, other = await ask(service)
        await stop(task)
        assert other.id != request.id


async def test_two_runs_of_the_same_call_do_not_share_one_decision(url):
    """Two processes took up the same run: one of them has to ask again."""
    clock, files = Clock(), Files()
    request = await orphaned_request(url, clock)
    async with service_at(url, clock=clock) as here, service_at(url, clock=clock) as there:
        tasks = [running_calls(executor_of(service, files), call_of()) for service in (here, there)]
        async with asyncio.timeout(LONG):
            while not (here.waiting and there.waiting):
                await asyncio.sleep(0.005)
        assert [request.id] == [*here.waiting] == [*there.waiting]
        await here.decide(request.id, "approve")
        [other] = await waiting(there)
        await there.decide(other.id, "deny", reason="once is enough")
        executions = [(await task)[0] for task in tasks]
    assert (["/a"], sorted([denied_by_person("once is enough"), "deleted /a"])) == (
        files.deleted,
        sorted(each.content for each in executions),
    )


async def test_approval_given_after_the_run_stopped_is_not_used_by_another_run(url):
    async with service_at(url) as service:
        task, request = await ask(service)
        await service.store.decide(
            replace(request, state=State.APPROVED, by="ann"), now=time.time()
        )  # the waiting run is not notified
        await stop(task)
        again, other = await ask(service)
        await stop(again)
        assert other.id != request.id


async def test_a_request_that_is_long_over_is_forgotten(url):
    clock = Clock()
    await orphaned_request(url, clock)
    clock.now += 8 * 24 * 3600
    await orphaned_request(url, clock, call_of("/b"))
    async with service_at(url, clock=clock) as service:
        assert ["/b"] == [json.loads(each.arguments)["path"] for each in await service.recent()]


# What runs is what was shown (law 9)


async def test_decision_with_another_digest_is_refused():
    async with service_at() as service:
        task, request = await ask(service)
        with pytest.raises(ApprovalConflictError, match="not what the call would run with"):
            await service.decide(request.id, "approve", digest=digest_of("delete", {"path": "/b"}))
        await service.decide(request.id, "approve", digest=request.digest)
        assert ["deleted /a"] == contents(await task)


# Who is asked


async def test_allow_and_deny_rules_decide_without_a_request():
    rules = (Rule(tools=("show",), outcome="allow"), Rule(outcome="deny", reason="never"))

    async with service_at(policy=ApprovalPolicy(rules=rules)) as service:
        assert (["/a", denied("never")], []) == (
            contents(await running_calls(executor_of(service, Files()), call_of("/a", "show"), call_of())),
            await service.recent(),
        )


async def test_call_is_denied_if_no_approver_exists():
    service = ApprovalService(ASK)
    assert [denied("it needs a person's approval, and no person can be asked here")] == contents(
        await running_calls(executor_of(service, Files()), call_of())
    )


class ApprovingHook:
    async def approve_tool(self, call):
        return True


@pytest.mark.parametrize(
    ("who", "mounted", "expected"),
    [
        (("hooks",), False, denied("no hook is there to approve it")),
        (("hooks",), True, "deleted /a"),
        (("hooks", "http"), False, denied("no hook is there to approve it")),
    ],
)
async def test_decision_is_left_to_other_approvers_if_any(who, mounted, expected):
    async with service_at(policy=policy(who=who)) as service:
        executor = executor_of(service, Files())
        if mounted:
            executor.hooks.mount("yes", ApprovingHook())
        assert [expected] == contents(await running_calls(executor, call_of()))


async def test_people_and_hooks_must_agree_where_both_are_named():
    class No:
        async def approve_tool(self, call):
            return Approval(approved=False, reason="hooks say no")

    async with service_at(policy=policy(who=("hooks", "http"))) as service:
        executor = executor_of(service, Files())
        executor.hooks.mount("yes", ApprovingHook())
        task, request = await ask(service, executor=executor)
        await service.decide(request.id, "approve")
        first = contents(await task)
        executor.hooks.mount("no", No())
        assert (["deleted /a"], [denied("hooks say no")], []) == (
            first,
            contents(await running_calls(executor, call_of())),
            await service.pending(),
        )


async def test_channel_outside_the_rule_cannot_decide():
    async with service_at(policy=policy(who=("terminal",)), terminal=SilentTerminal()) as service:
        task, request = await ask(service)
        with pytest.raises(ApprovalForbiddenError, match="http may not decide this call"):
            await service.decide(request.id, "approve")
        await service.decide(request.id, "approve", channel="terminal")
        assert ["deleted /a"] == contents(await task)


class SilentTerminal:
    """A terminal without input."""

    async def ask(self, request):
        await asyncio.Event().wait()


async def test_failing_terminal_leaves_the_request_to_others(caplog):
    class Broken:
        async def ask(self, request):
            raise OSError("gone")

    async with service_at(terminal=Broken()) as service:
        task, request = await ask(service)
        await service.decide(request.id, "approve")
        assert ["deleted /a"] == contents(await task)
    assert "Could not ask at the terminal" in caplog.text


# Hostile and broken


async def test_invalid_id_is_not_found(url):
    async with service_at(url) as service:
        for request_id in ("", "x", "0" * 11, "0" * 13, "0" * 12, "\x00" * 12, "'; DROP TABLE--", "０" * 12, "0" * 10_000):
            for ask_for in (service.get(request_id), service.decide(request_id, "approve")):
                with pytest.raises(ApprovalNotFoundError):
                    await ask_for


async def test_invalid_decision_is_refused():
    async with service_at() as service:
        task, request = await ask(service)
        for verdict in ("", "Approve", "pending", None):
            with pytest.raises(InvalidRequestError):
                await service.decide(request.id, verdict)
        await service.decide(request.id, "deny", reason="x" * 100_000, by="y" * 100_000)
        await task
        decided = await service.get(request.id)
    assert (2000, 100) == (len(decided.reason), len(decided.by))


async def test_any_json_text_is_stored(url):
    odd = "\x00 '\"\\ 猫 \x1b[2J"

    async with service_at(url) as service:
        scope = HookScope(agent_id=odd, session_key=odd, context={"inbound": {"text": odd}})
        task, request = await ask(service, call_of(odd), scope=scope)
        await service.decide(request.id, "approve_session", reason=odd, by=odd)
        decided = await service.get(request.id)
        shown = contents(await task)
    assert [f"deleted {odd}"] == shown
    assert (odd, odd, {"inbound": {"text": odd}}) == (request.agent, request.session_key, request.meta["context"])
    assert (odd, odd) == (decided.by, decided.reason)


async def test_call_with_too_long_arguments_is_denied():
    async with service_at() as service:
        [shown] = contents(await running_calls(executor_of(service, Files()), call_of("x" * MAX_ARGUMENTS)))
    assert shown.startswith(denied("it needs a person's approval, and its arguments are too long to show (2621"))


async def test_only_so_many_calls_wait(monkeypatch):
    monkeypatch.setattr(service_module, "MAX_WAITING", 2)

    async with service_at() as service:
        executor = executor_of(service, Files())
        tasks = [running_calls(executor, call_of(path)) for path in "ab"]
        await waiting(service, 2)
        shown = contents(await running_calls(executor, call_of("c")))
        await stop(*tasks)
        assert [denied("too many calls wait for approval")] == shown


async def test_a_store_that_fails_denies(tmp_path, caplog):
    async with service_at(f"sqlite:///{tmp_path / 'nowhere' / 'approvals.db'}") as service:
        assert [denied('tool approval hook "approvals" failed')] == contents(
            await running_calls(executor_of(service, Files()), call_of())
        )


async def test_transient_store_failure_is_retried(tmp_path, caplog):
    async with service_at(str(tmp_path / "approvals.db")) as service:
        task, request = await ask(service)
        get, failures = service.store.get, [OSError("busy")]

        async def sometimes(request_id):
            if failures:
                raise failures.pop()
            return await get(request_id)

        service.store.get = sometimes
        service.wake(request.id)
        async with asyncio.timeout(LONG):
            while failures:
                await asyncio.sleep(0)
        await service.decide(request.id, "approve")
        assert ["deleted /a"] == contents(await task)
    assert "Could not read approval request" in caplog.text


async def test_closing_the_service_denies_waiting_calls_and_keeps_their_requests(tmp_path):
    async with service_at(str(tmp_path / "approvals.db")) as service:
        task, request = await ask(service)
        await service.aclose()
        shown = contents(await task)
        assert ([denied('tool approval hook "approvals" failed')], State.PENDING) == (
            shown,
            (await service.get(request.id)).state,
        )


async def test_slow_watchers_are_dropped(monkeypatch):
    monkeypatch.setattr(service_module, "WATCHER_QUEUE", 3)

    async with service_at() as service:
        changes = service.watch()
        outcome = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        executor = executor_of(service, Files())
        tasks = [running_calls(executor, call_of(str(n))) for n in range(10)]
        pending = await waiting(service, 10)
        seen = [await outcome, *[each async for each in changes]]
        for each in pending:
            await service.decide(each.id, "approve")
        await asyncio.wait(tasks)
    assert 0 < len(seen) < 10


async def test_request_expires_by_itself():
    async with service_at(policy=policy(deadline=0.01)) as service:
        assert [denied("no decision within 0.01 s")] == contents(await running_calls(executor_of(service, Files()), call_of()))
