"""Calls await approval: valid approvers, one use per approval, and the call that runs. Over SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
import sqlalchemy as sa

from patchbay.approvals import ApprovalPolicy, ApprovalService, Rule, State
from patchbay.approvals import service as service_module
from patchbay.approvals.request import MAX_ARGUMENTS, Answer
from patchbay.errors import ApprovalConflictError, ApprovalForbiddenError, ApprovalNotFoundError, InvalidRequestError
from patchbay.executor import Budget, Executor
from patchbay.hooks import Approval, HookManager, HookScope, Modify, Respond
from patchbay.hooks.events import digest_of
from patchbay.types import ToolCall
from support.running import run

from .approval_calls import ASK, LONG, NO_SESSION, SCOPE, Clock, Files, call_of, executor_of, running_calls, service_at, waiting

OTHER = HookScope(agent_id="helper", session_key="s2")


def policy(**rule) -> ApprovalPolicy:
    return ApprovalPolicy(otherwise=Rule(**{"name": "all", "deadline": 600, **rule}))


def contents(executions) -> list[str]:
    return [each.content for each in executions]


def denied(reason: str) -> str:
    return f"Tool execution denied by approval hook: {reason}"


def test_call_runs_after_approval(url):
    async def main():
        files = Files()
        async with service_at(url) as service:
            task = running_calls(executor_of(service, files), call_of())
            [request] = await waiting(service)
            assert not files.deleted
            decided = await service.decide(request.id, "approve", reason="fine", by="ann")
            assert ["deleted /a"] == contents(await task)
            return files, request, decided, await service.get(request.id), await service.pending()

    files, request, decided, after, pending = run(main())
    assert (["/a"], []) == (files.deleted, pending)
    assert (State.APPROVED, "ann", "fine", False) == (decided.state, decided.by, decided.reason, decided.for_session)
    assert after.used is not None
    assert ("delete", {"path": "/a"}, "helper", "s1", "turn-2", "turn-1", "1") == (
        request.tool,
        json.loads(request.arguments),
        request.agent,
        request.session_key,
        request.turn,
        request.parent_turn,
        request.call_id,
    )
    assert digest_of("delete", {"path": "/a"}) == request.digest


def test_denied_call_does_not_run_and_its_result_has_the_reason(url):
    async def main():
        files = Files()
        async with service_at(url) as service:
            task = running_calls(executor_of(service, files), call_of())
            [request] = await waiting(service)
            await service.decide(request.id, "deny", reason="not that one", by="ann")
            [execution] = await task
            return files, execution

    files, execution = run(main())
    assert ([], denied("not that one"), "tool_denied", "ann") == (
        files.deleted,
        execution.content,
        execution.result.code,
        execution.error.by,
    )


def test_request_is_stored_before_it_is_published(url):
    async def main():
        async with service_at(url) as service:
            changes = service.watch()
            outcome = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)
            task = running_calls(executor_of(service, Files()), call_of())
            request = await outcome
            kept = await service.store.get(request.id)
            await changes.aclose()
            task.cancel()
            await asyncio.wait([task])
            return request, kept

    request, kept = run(main())
    assert request == kept


def test_first_of_concurrent_decisions_wins_and_others_conflict(url):
    async def main():
        async with service_at(url) as service:
            task = running_calls(executor_of(service, Files()), call_of())
            [request] = await waiting(service)
            decisions = [service.decide(request.id, "approve" if n % 2 else "deny", by=f"n{n}") for n in range(8)]
            results = await asyncio.gather(*decisions, return_exceptions=True)
            return [each for each in results if not isinstance(each, Exception)], results, (await task)[0]

    made, results, execution = run(main())
    assert 1 == len(made)
    conflicts = [each for each in results if isinstance(each, ApprovalConflictError)]
    assert 7 == len(conflicts)
    assert {f"The request is {made[0].state} by {made[0].by} already."} == {str(each) for each in conflicts}
    assert (made[0].state is State.DENIED) == execution.is_error


def test_two_desks_on_one_database_decide_once(url):
    """One process waits, another decides; here they are two desks."""

    async def main():
        files = Files()
        async with service_at(url) as here, service_at(url) as there:
            task = running_calls(executor_of(here, files), call_of())
            await waiting(here)
            [request] = await waiting(there)
            results = await asyncio.gather(
                here.decide(request.id, "approve", by="here"),
                there.decide(request.id, "approve", by="there"),
                return_exceptions=True,
            )
            return contents(await task), results, files

    shown, results, files = run(main())
    assert (["deleted /a"], ["/a"]) == (shown, files.deleted)
    assert 1 == sum(isinstance(each, ApprovalConflictError) for each in results)


@pytest.mark.parametrize(("at_deadline", "expected"), [("deny", denied("no decision within 600 s")), ("allow", "deleted /a")])
def test_timeout_has_the_outcome_of_the_rule(url, at_deadline, expected):
    async def main():
        clock, files = Clock(), Files()
        async with service_at(url, policy(at_deadline=at_deadline), clock=clock) as service:
            task = running_calls(executor_of(service, files), call_of())
            [request] = await waiting(service)
            clock.now += 600
            service.wake(request.id)
            shown = contents(await task)
            with pytest.raises(ApprovalConflictError, match="expired"):
                await service.decide(request.id, "approve")
            return shown, (await service.get(request.id)).state

    assert ([expected], State.EXPIRED) == run(main())


def test_request_expires_by_itself():
    async def main():
        async with service_at(policy=policy(deadline=0.01)) as service:
            return contents(await running_calls(executor_of(service, Files()), call_of()))

    assert [denied("no decision within 0.01 s")] == run(main())


def test_decision_after_the_deadline_is_a_conflict(url):
    async def main():
        clock = Clock()
        async with service_at(url, clock=clock) as service:
            task = running_calls(executor_of(service, Files()), call_of())
            [request] = await waiting(service)
            clock.now += 600
            with pytest.raises(ApprovalConflictError, match="expired"):
                await service.decide(request.id, "approve")
            listed = [await service.pending(), [each.state for each in await service.recent()]]
            service.wake()
            await task
            return listed

    assert [[], [State.EXPIRED]] == run(main())


def test_the_request_of_a_run_that_is_stopped_is_withdrawn(url):
    async def main():
        files = Files()
        async with service_at(url) as service:
            task = running_calls(executor_of(service, files), call_of())
            [request] = await waiting(service)
            task.cancel()
            await asyncio.wait([task])
            with pytest.raises(ApprovalConflictError, match="withdrawn"):
                await service.decide(request.id, "approve")
            again = running_calls(executor_of(service, files), call_of())
            [other] = await waiting(service)
            again.cancel()
            await asyncio.wait([again])
            return (await service.get(request.id)).state, other.id != request.id, files.deleted

    assert (State.WITHDRAWN, True, []) == run(main())


def test_run_timeout_before_the_request_creates_no_request(url):
    async def main():
        async with service_at(url) as service:
            executor = executor_of(service, Files())
            budget = Budget(max_seconds=0.001)
            budget.start()
            while asyncio.get_running_loop().time() < budget.ends:
                await asyncio.sleep(0)
            executions = await running_calls(executor, call_of(), budget=budget)
            return executions[0].result.code, await service.recent()

    assert ("run_timeout", []) == run(main())


# For the session


def test_a_session_approval_covers_other_calls_of_the_tool_in_the_session_only(url):
    async def main():
        files = Files()
        async with service_at(url) as service:
            executor = executor_of(service, files)
            task = running_calls(executor, call_of("/a"))
            [request] = await waiting(service)
            await service.decide(request.id, "approve_session", by="ann")
            await task
            assert ["deleted /b"] == contents(await running_calls(executor, call_of("/b")))
            others = [
                running_calls(executor, call_of("/c"), scope=OTHER),
                running_calls(executor, call_of("/c", "show")),
                running_calls(executor, call_of("/c"), scope=NO_SESSION),
            ]
            pending = await waiting(service, 3)
            for other in others:
                other.cancel()
            await asyncio.wait(others)
            return files.deleted, {(each.tool, each.session_key) for each in pending}

    assert (["/a", "/b"], {("delete", "s2"), ("show", "s1"), ("delete", "")}) == run(main())


async def test_a_session_approval_survives_a_restart_and_expires(url):
    clock, files = Clock(), Files()
    async with service_at(url, clock=clock) as service:
        task = running_calls(executor_of(service, files), call_of("/a"))
        [request] = await waiting(service)
        await service.decide(request.id, "approve_session")
        await task
    async with service_at(url, clock=clock, session=100) as service:
        executor = executor_of(service, files)
        clock.now += 99
        await running_calls(executor, call_of("/b"))
        clock.now += 1
        task = running_calls(executor, call_of("/c"))
        await waiting(service)
        task.cancel()
        await asyncio.wait([task])
    assert ["/a", "/b"] == files.deleted


def test_a_session_approval_resolves_pending_requests(url):
    async def main():
        files = Files()
        async with service_at(url) as service:
            task = running_calls(
                executor_of(service, files), *(call_of(f"/{n}", call_id=str(n)) for n in range(4)), call_of("/x", "show", "9")
            )
            pending = await waiting(service, 5)
            await service.decide(next(each.id for each in pending if each.tool == "delete"), "approve_session", by="ann")
            [left] = await waiting(service, 1)
            await service.decide(left.id, "deny")
            executions = await task
            return sorted(files.deleted), executions[-1].is_error, left.tool

    assert (["/0", "/1", "/2", "/3"], True, "show") == run(main())


async def test_a_session_approval_with_scope_call_covers_the_same_arguments_only(url):
    files = Files()
    async with service_at(url, policy(session="call")) as service:
        executor = executor_of(service, files)
        task = running_calls(executor, call_of("/a"))
        [request] = await waiting(service)
        await service.decide(request.id, "approve_session")
        await task
        await running_calls(executor, call_of("/a"))
        other = running_calls(executor, call_of("/b"))
        await waiting(service)
        other.cancel()
        await asyncio.wait([other])
    assert ["/a", "/a"] == files.deleted


@pytest.mark.parametrize(("rule", "scope"), [({"session": "never"}, SCOPE), ({}, NO_SESSION)])
def test_session_approval_requires_a_session_and_a_rule_that_allows_it(url, rule, scope):
    async def main():
        async with service_at(url, policy(**rule)) as service:
            task = running_calls(executor_of(service, Files()), call_of(), scope=scope)
            [request] = await waiting(service)
            with pytest.raises(ApprovalConflictError, match="alone, and not for the session"):
                await service.decide(request.id, "approve_session")
            await service.decide(request.id, "approve")
            return request.session, contents(await task)

    assert ("never", ["deleted /a"]) == run(main())


def test_a_session_approval_does_not_cover_a_tool_of_the_same_name_from_another_source(url):
    async def main():
        files = Files()
        async with service_at(url) as service:
            task = running_calls(executor_of(service, files), call_of())
            [request] = await waiting(service)
            await service.decide(request.id, "approve_session")
            await task
            executor = executor_of(service, files)
            executor.tools["delete"].source = "plugin:other"
            task = running_calls(executor, call_of())
            [request] = await waiting(service)
            task.cancel()
            await asyncio.wait([task])
            return request.source

    assert "plugin:other" == run(main())


# After a restart


async def orphaned_request(url, clock, call=None, scope=SCOPE):
    """The request of a run whose process has ended without a word."""
    service = ApprovalService(ASK, url, clock=clock)
    service.accept_decisions("http")
    service.leave()
    task = running_calls(executor_of(service, Files()), call or call_of(), scope=scope)
    [request] = await waiting(service)
    task.cancel()
    await asyncio.wait([task])
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
        for other in (*others, again):
            other.cancel()
        await asyncio.wait([*others, again])
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


def test_denial_given_meanwhile_is_used_once(url):
    async def main():
        clock = Clock()
        request = await orphaned_request(url, clock)
        async with service_at(url, clock=clock) as service:
            await service.decide(request.id, "deny", reason="no")
            return contents(await running_calls(executor_of(service, Files()), call_of()))

    assert [denied("no")] == run(main())


def test_unused_decision_expires(url):
    async def main():
        clock = Clock()
        request = await orphaned_request(url, clock)
        async with service_at(url, clock=clock, keep=100) as service:
            await service.decide(request.id, "approve")
            clock.now += 100
            task = running_calls(executor_of(service, Files()), call_of())
            [other] = await waiting(service)
            task.cancel()
            await asyncio.wait([task])
            return other.id != request.id

    assert run(main())


async def test_old_names_work_with_a_warning():
    service = ApprovalService()
    with pytest.warns(DeprecationWarning, match="accept_decisions"):
        service.open_door("http")
    with pytest.warns(DeprecationWarning, match="channel="), pytest.raises(ApprovalNotFoundError):
        await service.decide("0123456789ab", "approve", door="http")
    await service.aclose()


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
    assert (["/a"], sorted([denied("once is enough"), "deleted /a"])) == (
        files.deleted,
        sorted(each.content for each in executions),
    )


def test_stopped_run_leaves_a_shared_request_to_the_other_waiter(url):
    """Two processes took up the same run, and one of them gives up: the other asks for itself."""

    async def main():
        clock, files = Clock(), Files()
        request = await orphaned_request(url, clock)
        async with service_at(url, clock=clock) as here, service_at(url, clock=clock) as there:
            tasks = [running_calls(executor_of(service, files), call_of()) for service in (here, there)]
            async with asyncio.timeout(LONG):
                while not (request.id in here.waiting and request.id in there.waiting):
                    await asyncio.sleep(0.005)
            tasks[1].cancel()
            await asyncio.wait([tasks[1]])
            here.wake()
            [other] = await waiting(here)
            await here.decide(other.id, "approve")
            return contents(await tasks[0]), (await here.get(request.id)).state, other.id != request.id

    assert (["deleted /a"], State.WITHDRAWN, True) == run(main())


def test_approval_given_after_the_run_stopped_is_not_used_by_another_run(url):
    async def main():
        async with service_at(url) as service:
            task = running_calls(executor_of(service, Files()), call_of())
            [request] = await waiting(service)
            await service.store.decide(_approved(request), now=time.time())  # the waiting run is not notified
            task.cancel()
            await asyncio.wait([task])
            again = running_calls(executor_of(service, Files()), call_of())
            [other] = await waiting(service)
            again.cancel()
            await asyncio.wait([again])
            return other.id != request.id

    assert run(main())


def _approved(request):
    from dataclasses import replace

    return replace(request, state=State.APPROVED, by="ann")


def test_a_request_that_is_long_over_is_forgotten(url):
    async def main():
        clock = Clock()
        await orphaned_request(url, clock)
        clock.now += 8 * 24 * 3600
        await orphaned_request(url, clock, call_of("/b"))
        async with service_at(url, clock=clock) as service:
            return [json.loads(each.arguments)["path"] for each in await service.recent()]

    assert ["/b"] == run(main())


# What runs is what was shown (law 9)


def test_arguments_changed_by_a_hook_are_shown_and_run():
    class Mended:
        async def before_tool(self, call):
            return Modify({"arguments": {"path": "/mended"}})

    async def main():
        files = Files()
        async with service_at() as service:
            executor = executor_of(service, files)
            executor.hooks.mount("mended", Mended())
            task = running_calls(executor, call_of("/a"))
            [request] = await waiting(service)
            await service.decide(request.id, "approve")
            await task
            return request.arguments, files.deleted

    assert ('{"path": "/mended"}', ["/mended"]) == run(main())


def test_arguments_that_are_changed_after_they_were_approved_never_run():
    """A holder of the arguments object changes it during and after the approval."""
    kept = []

    def before(_call, _tool, arguments, _context):
        kept.append(arguments)

    async def main():
        deleted = []

        def delete(paths: list[str]) -> str:
            deleted.append(list(paths))
            return "done"

        async with service_at() as service:
            hooks = HookManager()
            service.mount(hooks)
            task = running_calls(Executor([delete], hooks=hooks, before=before), ToolCall("1", "delete", '{"paths": ["/a"]}'))
            [request] = await waiting(service)
            kept[0]["paths"].append("/etc")
            await service.decide(request.id, "approve")
            await task
            return request.arguments, deleted

    assert ('{"paths": ["/a"]}', [["/a"]]) == run(main())


def test_approver_cannot_change_the_request():
    class Sly:
        async def approve_tool(self, call):
            call.arguments["path"] = "/etc"
            call.tool = "show"
            return Approval(approved=True)

    async def main():
        files = Files()
        async with service_at() as service:
            executor = executor_of(service, files)
            executor.hooks.mount("sly", Sly())
            task = running_calls(executor, call_of("/a"))
            [request] = await waiting(service)
            await service.decide(request.id, "approve")
            await task
            return request.arguments, files.deleted

    assert ('{"path": "/a"}', ["/a"]) == run(main())


def test_tampered_request_row_cannot_be_decided(tmp_path):
    """The file says a harmless path, and the digest is that of the real one."""

    async def main():
        file = tmp_path / "approvals.db"
        files = Files()
        async with service_at(str(file)) as service:
            task = running_calls(executor_of(service, files), call_of("/etc"))
            [request] = await waiting(service)
            engine = sa.create_engine(f"sqlite:///{file}")
            with engine.begin() as connection:
                connection.exec_driver_sql("UPDATE patchbay_approvals SET body = replace(body, '/etc', '/tmp')")
            engine.dispose()
            [shown] = await service.pending()
            with pytest.raises(ApprovalConflictError, match="not what the call would run with"):
                await service.decide(request.id, "approve")
            task.cancel()
            await asyncio.wait([task])
            return shown.arguments, files.deleted

    assert ('{"path": "/tmp"}', []) == run(main())


def test_decision_with_another_digest_is_refused():
    async def main():
        async with service_at() as service:
            task = running_calls(executor_of(service, Files()), call_of())
            [request] = await waiting(service)
            with pytest.raises(ApprovalConflictError, match="not what the call would run with"):
                await service.decide(request.id, "approve", digest=digest_of("delete", {"path": "/b"}))
            await service.decide(request.id, "approve", digest=request.digest)
            return contents(await task)

    assert ["deleted /a"] == run(main())


def test_hook_answer_is_approved_first():
    class Quick:
        async def before_tool(self, call):
            return Respond("made up")

    async def main():
        async with service_at() as service:
            executor = executor_of(service, Files())
            executor.hooks.mount("quick", Quick())
            task = running_calls(executor, call_of())
            [request] = await waiting(service)
            await service.decide(request.id, "deny", reason="no")
            return contents(await task)

    assert [denied("no")] == run(main())


# Who is asked


def test_allow_and_deny_rules_decide_without_a_request():
    rules = (Rule(tools=("show",), outcome="allow"), Rule(outcome="deny", reason="never"))

    async def main():
        async with service_at(policy=ApprovalPolicy(rules=rules)) as service:
            return contents(
                await running_calls(executor_of(service, Files()), call_of("/a", "show"), call_of())
            ), await service.recent()

    assert (["/a", denied("never")], []) == run(main())


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
def test_decision_is_left_to_other_approvers_if_any(who, mounted, expected):
    async def main():
        async with service_at(policy=policy(who=who)) as service:
            executor = executor_of(service, Files())
            if mounted:
                executor.hooks.mount("yes", ApprovingHook())
            return contents(await running_calls(executor, call_of()))

    assert [expected] == run(main())


def test_approver_mounted_during_a_turn_applies_from_the_next():
    """It is not asked either."""

    async def main():
        async with service_at(policy=policy(who=("hooks",))) as service:
            executor = executor_of(service, Files())
            batch_run = executor.begin(scope=SCOPE)
            executor.hooks.mount("yes", ApprovingHook())
            batch = batch_run.start([call_of()])
            shown = [each.content async for each in batch]
            await batch.stop()
            return shown

    assert [denied("no hook is there to approve it")] == run(main())


def test_people_and_hooks_must_agree_where_both_are_named():
    class No:
        async def approve_tool(self, call):
            return Approval(approved=False, reason="hooks say no")

    async def main():
        async with service_at(policy=policy(who=("hooks", "http"))) as service:
            executor = executor_of(service, Files())
            executor.hooks.mount("yes", ApprovingHook())
            task = running_calls(executor, call_of())
            [request] = await waiting(service)
            await service.decide(request.id, "approve")
            first = contents(await task)
            executor.hooks.mount("no", No())
            return first, contents(await running_calls(executor, call_of())), await service.pending()

    assert (["deleted /a"], [denied("hooks say no")], []) == run(main())


def test_channel_outside_the_rule_cannot_decide():
    async def main():
        async with service_at(policy=policy(who=("terminal",)), terminal=SilentTerminal()) as service:
            task = running_calls(executor_of(service, Files()), call_of())
            [request] = await waiting(service)
            with pytest.raises(ApprovalForbiddenError, match="http may not decide this call"):
                await service.decide(request.id, "approve")
            await service.decide(request.id, "approve", channel="terminal")
            return contents(await task)

    assert ["deleted /a"] == run(main())


class SilentTerminal:
    """A terminal without input."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    async def ask(self, request):
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


class TypedTerminal:
    """A terminal with ``answers`` as input, one per prompt."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.asked = []

    async def ask(self, request):
        self.asked.append(request.tool)
        return self.answers.pop(0)


def test_a_person_at_the_terminal_decides():
    async def main():
        terminal = TypedTerminal(Answer("approve", by="ann"), Answer("deny", "no", "ann"))
        async with service_at(terminal=terminal) as service:
            shown = contents(await running_calls(executor_of(service, Files()), call_of(), call_of("/b", "show")))
            return shown, terminal.asked

    shown, asked = run(main())
    assert (["deleted /a", denied("no")], ["delete", "show"]) == (shown, asked)


def test_decision_elsewhere_cancels_the_terminal_prompt():
    async def main():
        terminal = SilentTerminal()
        async with service_at(terminal=terminal) as service:
            task = running_calls(executor_of(service, Files()), call_of())
            [request] = await waiting(service)
            await service.decide(request.id, "approve")
            shown = contents(await task)
            await terminal.cancelled.wait()
            return shown

    assert ["deleted /a"] == run(main())


def test_call_is_denied_if_the_only_terminal_is_closed():
    async def main():
        service = ApprovalService(ASK, terminal=TypedTerminal(None))
        try:
            return contents(await running_calls(executor_of(service, Files()), call_of()))
        finally:
            await service.aclose()

    assert [denied("no person is at the terminal")] == run(main())


def test_failing_terminal_leaves_the_request_to_others(caplog):
    class Broken:
        async def ask(self, request):
            raise OSError("gone")

    async def main():
        async with service_at(terminal=Broken()) as service:
            task = running_calls(executor_of(service, Files()), call_of())
            [request] = await waiting(service)
            await service.decide(request.id, "approve")
            return contents(await task)

    assert ["deleted /a"] == run(main())
    assert "Could not ask at the terminal" in caplog.text


# Hostile and broken


@pytest.mark.parametrize(
    "request_id", ["", "x", "0" * 11, "0" * 13, "0" * 12, "\x00" * 12, "'; DROP TABLE--", "０" * 12, "0" * 10_000]
)
async def test_invalid_id_is_not_found(url, request_id):
    async with service_at(url) as service:
        for ask in (service.get(request_id), service.decide(request_id, "approve")):
            with pytest.raises(ApprovalNotFoundError):
                await ask


def test_invalid_decision_is_refused():
    async def main():
        async with service_at() as service:
            task = running_calls(executor_of(service, Files()), call_of())
            [request] = await waiting(service)
            for verdict in ("", "Approve", "pending", None):
                with pytest.raises(InvalidRequestError):
                    await service.decide(request.id, verdict)
            await service.decide(request.id, "deny", reason="x" * 100_000, by="y" * 100_000)
            await task
            return await service.get(request.id)

    decided = run(main())
    assert (2000, 100) == (len(decided.reason), len(decided.by))


def test_any_json_text_is_stored(url):
    odd = "\x00 '\"\\ 猫 \x1b[2J"

    async def main():
        async with service_at(url) as service:
            scope = HookScope(agent_id=odd, session_key=odd, context={"inbound": {"text": odd}})
            task = running_calls(executor_of(service, Files()), call_of(odd), scope=scope)
            [request] = await waiting(service)
            await service.decide(request.id, "approve_session", reason=odd, by=odd)
            decided = await service.get(request.id)
            return contents(await task), request, decided

    shown, request, decided = run(main())
    assert [f"deleted {odd}"] == shown
    assert (odd, odd, {"inbound": {"text": odd}}) == (request.agent, request.session_key, request.meta["context"])
    assert (odd, odd) == (decided.by, decided.reason)


def test_call_with_too_long_arguments_is_denied():
    async def main():
        async with service_at() as service:
            return contents(await running_calls(executor_of(service, Files()), call_of("x" * MAX_ARGUMENTS)))

    [shown] = run(main())
    assert shown.startswith(denied("it needs a person's approval, and its arguments are too long to show (2621"))


def test_only_so_many_calls_wait(monkeypatch):
    monkeypatch.setattr(service_module, "MAX_WAITING", 2)

    async def main():
        async with service_at() as service:
            executor = executor_of(service, Files())
            tasks = [running_calls(executor, call_of(path)) for path in "ab"]
            await waiting(service, 2)
            shown = contents(await running_calls(executor, call_of("c")))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            return shown

    assert [denied("too many calls wait for approval")] == run(main())


def test_a_store_that_fails_denies(tmp_path, caplog):
    async def main():
        async with service_at(f"sqlite:///{tmp_path / 'nowhere' / 'approvals.db'}") as service:
            return contents(await running_calls(executor_of(service, Files()), call_of()))

    assert [denied('tool approval hook "approvals" failed')] == run(main())


def test_transient_store_failure_is_retried(tmp_path, caplog):
    async def main():
        async with service_at(str(tmp_path / "approvals.db")) as service:
            task = running_calls(executor_of(service, Files()), call_of())
            [request] = await waiting(service)
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
            return contents(await task)

    assert ["deleted /a"] == run(main())
    assert "Could not read approval request" in caplog.text


def test_closing_the_service_denies_waiting_calls_and_keeps_their_requests(tmp_path):
    async def main():
        async with service_at(str(tmp_path / "approvals.db")) as service:
            task = running_calls(executor_of(service, Files()), call_of())
            [request] = await waiting(service)
            await service.aclose()
            shown = contents(await task)
            return shown, (await service.get(request.id)).state

    assert ([denied('tool approval hook "approvals" failed')], State.PENDING) == run(main())


def test_the_file_is_for_its_owner_only(tmp_path):
    import stat

    async def main():
        async with service_at(str(tmp_path / "approvals.db")) as service:
            task = running_calls(executor_of(service, Files()), call_of())
            await waiting(service)
            modes = {each.name: stat.filemode(each.stat().st_mode) for each in tmp_path.iterdir()}
            task.cancel()
            await asyncio.wait([task])
            return modes

    modes = run(main())
    assert {"approvals.db", "approvals.db-wal"} <= modes.keys()
    assert {"-rw-------"} == {*modes.values()}


def test_slow_watchers_are_dropped(monkeypatch):
    monkeypatch.setattr(service_module, "WATCHER_QUEUE", 3)

    async def main():
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
            return len(seen), service._watchers

    seen, watchers = run(main())
    assert 0 < seen < 10
    assert set() == watchers


def test_the_former_name_of_the_service_warns():
    import patchbay.approvals

    with pytest.warns(DeprecationWarning, match="ApprovalService"):
        assert ApprovalService is patchbay.approvals.ApprovalDesk
