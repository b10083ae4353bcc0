"""The service against a model of it: any order of calls, decisions, silence, stopped runs and restarts (law 9).

Invariant: a call that needs approval runs once per approval of it, and never otherwise.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from patchbay.approvals import ApprovalPolicy, ApprovalService, ApprovalStore, Rule, State
from patchbay.errors import ApprovalConflictError
from patchbay.hooks import HookScope
from support.repeated import examples

from .approval_calls import LONG, Clock, Files, call_of, executor_of, running_calls

DEADLINE, KEEP, SESSION = 50.0, 70.0, 100.0
POLICY = ApprovalPolicy(otherwise=Rule(name="all", deadline=DEADLINE))

sessions = st.sampled_from(["", "s1", "s2"])
paths = st.sampled_from(["/a", "/b"])
indexes = st.integers(0, 5)


@dataclass
class PendingCall:
    """A request, as the model has it. ``task`` is the run that waits for it, None after a restart."""

    id: str
    session: str
    path: str
    created: float
    task: asyncio.Task | None
    verdict: str = "pending"
    decided: float = 0.0
    used: bool = False


@dataclass
class ExpectedState:
    """The expected state."""

    asked: list[PendingCall] = field(default_factory=list)
    granted: dict[str, float] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)


class ApprovalMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock, self.files, self.world = Clock(), Files(), ExpectedState()
        self.store = ApprovalStore()
        self.service = self.opened()

    def teardown(self) -> None:
        async def end():
            self.service.leave()
            for each in self.waiting():
                each.task.cancel()
                await asyncio.wait([each.task])
            await self.service.aclose()
            await self.store.close()

        self.do(end())
        self.runner.close()

    def do(self, work):
        self.clock.now += 1

        async def bounded():
            return await asyncio.wait_for(work, LONG)

        return self.runner.run(bounded())

    def opened(self) -> ApprovalService:
        service = ApprovalService(POLICY, self.store, keep=KEEP, session=SESSION, clock=self.clock)
        service.accept_decisions("http")
        self.executor = executor_of(service, self.files)
        return service

    def waiting(self) -> list[PendingCall]:
        return [each for each in self.world.asked if each.task is not None and each.verdict == "pending"]

    def pending(self) -> list[PendingCall]:
        now = self.clock.now
        return [each for each in self.world.asked if each.verdict == "pending" and each.created + DEADLINE > now]

    def left_over(self, session: str, path: str) -> PendingCall | None:
        """Return what an earlier run left for this call: the oldest request that waits, or was decided and not used."""
        now = self.clock.now + 1  # it is moved on before the call is made
        for each in self.world.asked:
            if not session or (each.session, each.path) != (session, path) or each.task is not None or each.used:
                continue
            if each.verdict == "pending" and each.created + DEADLINE > now:
                return each
            if each.verdict in ("approve", "deny") and each.decided > now - KEEP:
                return each
        return None

    @rule(session=sessions, path=paths)
    def call(self, session, path):
        """A run makes a call: it runs at once, is refused at once, or waits."""
        left = self.left_over(session, path)
        granted = self.world.granted.get(session, -1e9) > self.clock.now + 1 - SESSION
        outcome = "approve" if granted else left.verdict if left is not None else "pending"

        async def work():
            task = running_calls(self.executor, call_of(path), scope=HookScope(session_key=session))
            if outcome != "pending":
                await asyncio.wait([task])
                return task, ""
            known = set(self.service.waiting)
            while not (new := set(self.service.waiting) - known):
                assert not task.done(), task
                await asyncio.sleep(0)
            return task, new.pop()

        task, request_id = self.do(work())
        if outcome == "pending":
            if left is not None:
                assert left.id == request_id
                left.task = task
            else:
                self.world.asked.append(PendingCall(request_id, session, path, self.clock.now, task))
            return
        assert (outcome == "deny") == task.result()[0].is_error
        if outcome == "approve":
            self.world.deleted.append(path)
        if not granted:
            left.used = True

    @precondition(lambda self: self.pending())
    @rule(index=indexes, verdict=st.sampled_from(["approve", "deny", "approve_session"]))
    def decide(self, index, verdict):
        each = self.pending()[index % len(self.pending())]
        now = self.clock.now + 1
        if each.created + DEADLINE <= now or (verdict == "approve_session" and not each.session):
            return

        async def work():
            await self.service.decide(each.id, verdict)
            for other in decided:
                if other.task is not None:
                    await asyncio.wait([other.task])

        decided = [each]
        if verdict == "approve_session":
            self.world.granted[each.session] = now
            decided = [other for other in self.pending() if other.session == each.session and other.created + DEADLINE > now]
        self.do(work())
        for other in decided:
            other.verdict, other.decided = "deny" if verdict == "deny" else "approve", now
            if other.task is not None:
                other.used = True
                assert (verdict == "deny") == other.task.result()[0].is_error
                if verdict != "deny":
                    self.world.deleted.append(other.path)

    @precondition(lambda self: self.world.asked)
    @rule(index=indexes, verdict=st.sampled_from(["approve", "deny"]))
    def decide_what_is_decided(self, index, verdict):
        each = self.world.asked[index % len(self.world.asked)]
        if each in self.pending() and each.created + DEADLINE > self.clock.now + 1:
            return

        async def work():
            with pytest.raises(ApprovalConflictError):
                await self.service.decide(each.id, verdict)

        self.do(work())

    @rule(seconds=st.sampled_from([5.0, 30.0, 60.0]))
    def time_passes(self, seconds):
        """No decision is made; expired requests are denied."""
        self.clock.now += seconds
        late = [each for each in self.waiting() if each.created + DEADLINE <= self.clock.now + 1]

        async def work():
            self.service.wake()
            for each in late:
                await asyncio.wait([each.task])

        self.do(work())
        for each in late:
            assert each.task.result()[0].is_error
            each.verdict, each.used = "expired", True

    @precondition(lambda self: self.waiting())
    @rule(index=indexes)
    def stop(self, index):
        each = self.waiting()[index % len(self.waiting())]

        async def work():
            each.task.cancel()
            await asyncio.wait([each.task])

        self.do(work())
        each.verdict, each.used = "withdrawn", True

    @precondition(lambda self: self.world.granted)
    @rule(index=indexes)
    def take_back(self, index):
        session = sorted(self.world.granted)[index % len(self.world.granted)]
        granted = self.world.granted.pop(session)

        async def work():
            for each in await self.service.sessions():
                if each.request.session_key == session:
                    await self.service.revoke(each.request.id)
                    return True
            return False

        holds = granted > self.clock.now + 1 - SESSION
        assert holds == self.do(work())

    @rule()
    def restart(self):
        waiting = self.waiting()

        async def work():
            self.service.leave()
            for each in waiting:
                each.task.cancel()
                await asyncio.wait([each.task])
            await self.service.aclose()

        self.do(work())
        for each in waiting:
            each.task = None
            if not each.session:  # no run could ever have the decision
                each.verdict, each.used = "withdrawn", True
        self.service = self.opened()

    @invariant()
    def what_ran_is_what_was_approved(self):
        assert self.world.deleted == self.files.deleted or sorted(self.world.deleted) == sorted(self.files.deleted)

    @invariant()
    def what_is_pending_is_listed(self):
        async def listed():
            found = await self.service.pending()
            return {each.id: (each.state, json.loads(each.arguments)["path"], each.awaited) for each in found}

        expected = {each.id: (State.PENDING, each.path, each.task is not None) for each in self.pending()}
        assert expected == self.runner.run(listed())


TestApprovals = ApprovalMachine.TestCase
TestApprovals.settings = settings(max_examples=examples(12), stateful_step_count=30)
