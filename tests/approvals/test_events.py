"""Observer events of calls that await approval, and of their decisions."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from patchbay.approvals import ApprovalService
from patchbay.hooks import Event, HookManager
from patchbay.hooks.process.protocol import parse_kinds
from support.running import run

from .approval_calls import SCOPE, Clock, Files, ask, call_of, decided, executor_of, running_calls, service_at, stop
from .test_service import policy


class RecordingObserver:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def on_runtime_event(self, event: Event) -> None:
        self.events.append(event)


def approval_events(watching: RecordingObserver) -> list[tuple[str, dict[str, Any], str]]:
    return [(each.kind, dict(each.payload), each.severity) for each in watching.events if "approval" in each.kind]


def watched(service: ApprovalService, files: Files):
    executor, watching = executor_of(service, files), RecordingObserver()
    executor.hooks.mount("watching", watching)
    return executor, watching


@pytest.mark.parametrize(
    ("verdict", "state", "severity"),
    [("approve", "approved", "info"), ("deny", "denied", "warn"), ("approve_session", "approved", "info")],
)
async def test_observers_get_approval_requested_and_decided_events(verdict, state, severity):
    async with service_at() as service:
        executor, watching = watched(service, Files())
        task, request = await ask(service, executor=executor)
        await executor.hooks.events.flush()
        first = approval_events(watching)
        await service.decide(request.id, verdict, by="ann", reason="so")
        await task
        await executor.hooks.events.flush()
        both, events = approval_events(watching), watching.events
    payload = {"ID": request.id, "Tool": "delete", "Arguments": {"path": "/a"}, "Who": ["terminal", "http"], "Rule": "all"}
    payload |= {"Deadline": request.deadline, "AtDeadline": "deny"}
    assert [("agent.approval.requested", payload, "info")] == first
    decided = {"ID": request.id, "Tool": "delete", "Decision": state, "By": "ann", "Reason": "so"}
    assert ("agent.approval.decided", {**decided, "ForSession": verdict == "approve_session"}, severity) == both[1]
    assert 2 == len(both)
    about = [each for each in events if "approval" in each.kind]
    assert {("s1", "turn-2", "1")} == {(each.meta.session_key, each.meta.turn_id, each.attrs["call_id"]) for each in about}
    kinds = [each.kind for each in events]
    last = "agent.tool.exec_skipped" if verdict == "deny" else "agent.tool.exec_start"
    assert kinds.index("agent.approval.decided") < kinds.index(last)


@pytest.mark.parametrize(("at_deadline", "severity"), [("deny", "warn"), ("allow", "info")])
async def test_expired_approval_is_an_event_with_its_severity(at_deadline, severity):
    clock = Clock()
    async with service_at(policy=policy(at_deadline=at_deadline), clock=clock) as service:
        executor, watching = watched(service, Files())
        task, _ = await ask(service, executor=executor)
        clock.now += 600
        service.wake()
        await task
        await executor.hooks.events.flush()
        kind, payload, text = approval_events(watching)[-1]
    assert ("agent.approval.decided", "expired", severity) == (kind, payload["Decision"], text)


def test_cancelled_run_withdraws_its_request_unless_the_service_is_leaving():
    async def stopped(leaves: bool):
        async with service_at() as service:
            executor, watching = watched(service, Files())
            task, _ = await ask(service, executor=executor)
            if leaves:
                service.leave()
            await stop(task)
            await executor.hooks.events.flush()
            return [payload.get("Decision") for _, payload, _ in approval_events(watching)]

    assert [[None, "withdrawn"], [None]] == [run(stopped(leaves)) for leaves in (False, True)]


async def test_immediate_decision_emits_no_event():
    """For the session, by the policy, by what is left of an earlier run: the call's own events have the decisions."""
    async with service_at() as service:
        executor, watching = watched(service, Files())
        await decided(service, "approve_session", executor=executor)
        await running_calls(executor, call_of("/b"))
        await executor.hooks.events.flush()
        assert 2 == len(approval_events(watching))


async def test_approval_service_notifies_observers_of_all_managers_and_holds_weak_references():
    async with service_at() as service:
        executor, watching = watched(service, Files())
        other, also = HookManager(), RecordingObserver()
        service.mount(other)
        other.mount("also", also)
        await decided(service, "approve", executor=executor, scope=SCOPE)
        await other.events.flush()
        await executor.hooks.events.flush()
        assert (2, 2) == (len(approval_events(watching)), len(approval_events(also)))
    service.mount(forgotten := HookManager())
    weakly = weakref.ref(forgotten)
    del forgotten
    assert weakly() is None


def test_a_process_hook_may_name_them():
    names = {"agent.approval.requested", "agent.approval.decided"}
    assert names == parse_kinds(sorted(names), "observe")
