"""Laws 1, 2, 3, 6, 9 and 10 of the executor at every step: any failure at any await, in any order."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from patchbay.errors import ToolFailed, ToolRetry
from patchbay.executor import Budget, Executor, ToolExecution
from patchbay.tools import tool
from patchbay.types import IncompleteCall, ToolCall
from support.repeated import examples

from .clock import SteppedLoop

LIMIT, GRACE, WHOLE = 5.0, 2.0, 60.0
TOOLS = ["plain", "limited", "alone", "timed"]
# What may come of an await, and the code of the result that it leads to.
FAILURES: dict[str, tuple[BaseException, str]] = {
    "value": (ValueError("no"), "tool_error"),
    "timeout": (TimeoutError("mine"), "tool_error"),
    "exit": (SystemExit(3), "tool_error"),
    "cancelled": (asyncio.CancelledError(), "cancelled"),
    "retry": (ToolRetry("like this"), "tool_retry"),
    "failed": (ToolFailed("never"), "tool_failed"),
    "group": (BaseExceptionGroup("several", [ValueError()]), "tool_error"),
}
# Calls that end before anything runs.
BROKEN = {
    "unknown": (ToolCall, "plainn", '{"data": [1]}', "unknown_tool"),
    "invalid": (ToolCall, "plain", '{"data": 3}', "invalid_arguments"),
    "cut off": (IncompleteCall, "plain", '{"data": [', "incomplete_call"),
}


class ExecutorMachine(RuleBasedStateMachine):
    """One run of an executor. Every await of a hook or tool is a gate that a rule opens, in the way that it likes."""

    @initialize(
        max_parallel=st.integers(1, 4),
        before=st.booleans(),
        after=st.booleans(),
        max_calls=st.sampled_from([None, 5]),
        max_seconds=st.sampled_from([None, WHOLE]),
    )
    def begin(self, max_parallel: int, before: bool, after: bool, max_calls: int | None, max_seconds: float | None) -> None:
        gc.freeze()  # for good: what the process has loaded is not looked through at the end of each example
        self.loop = SteppedLoop()
        self.reports: list[Any] = []
        self.loop.set_exception_handler(lambda _loop, report: self.reports.append(report))
        self.gates: dict[tuple[str, str], asyncio.Future[str]] = {}
        self.asked: dict[str, Any] = {}  # call -> the arguments as the hook holds them
        self.approved: dict[str, Any] = {}  # call -> what they were when the hook was done with them
        self.began: dict[str, list[Any]] = {}  # call -> the arguments of each run of its tool
        self.too_late = False
        self.running: set[str] = set()
        self.failures: dict[str, set[str]] = {}
        self.kinds: dict[str, str] = {}
        self.batch: Any = None
        self.expected: list[str] = []
        self.first_seen: dict[str, ToolExecution] = {}
        self.told: list[str] = []
        self.stopper: Any = None
        self.consumer: Any = None
        self.count = 0
        self.asking = before
        self.max_parallel = max_parallel
        self.options = {"limited": {"max_parallel": 2}, "alone": {"sequential": True}, "timed": {"timeout": LIMIT}}
        executor = Executor(
            [self.make(name) for name in TOOLS],
            max_parallel=max_parallel,
            cancel_grace=GRACE,
            max_repeats=None,
            before=self.before if before else None,
            after=self.after if after else None,
        )
        budget = Budget(max_calls=max_calls, max_seconds=max_seconds)
        self.run = self.loop.inside(lambda: executor.begin_run(budget=budget))

    def make(self, name: str) -> Any:
        async def body(data: list[int], tool_context: Any) -> list[int]:
            call = tool_context.call_id
            self.too_late = self.too_late or self.run.budget.exceeded == "max_seconds"
            self.began.setdefault(call, []).append([*data])
            self.running.add(call)
            try:
                await self.gate(call, "first")
                data.append(99)  # a tool may change its own copy of the arguments
                tool_context.state["by"] = call
                await self.gate(call, "second")
            except asyncio.CancelledError:
                await self.gate(call, "cleaning up")
                raise
            finally:
                self.running.discard(call)
            return data

        return tool(handler=body, name=name, **self.options.get(name, {}))

    async def before(self, call: ToolCall, _tool: Any, arguments: dict[str, Any], _context: Any) -> Any:
        self.asked[call.id] = arguments
        try:
            await self.gate(call.id, "before")
        finally:
            if isinstance(arguments["data"], list):  # else the model's arguments do not fit, and are refused behind this hook
                self.approved[call.id] = [*arguments["data"]]

    async def after(self, call: ToolCall, _tool: Any, _arguments: Any, _context: Any, _value: Any) -> Any:
        await self.gate(call.id, "after")

    async def gate(self, call: str, where: str) -> None:
        gate = self.gates[call, where] = asyncio.get_running_loop().create_future()
        try:
            outcome = await gate
        finally:
            self.gates.pop((call, where), None)
        if outcome in FAILURES:
            error, code = FAILURES[outcome]
            self.failures.setdefault(call, set()).add(code)
            raise error

    @precondition(lambda self: self.batch is None)
    @rule(kinds=st.lists(st.sampled_from([*TOOLS, *TOOLS, *BROKEN]), min_size=1, max_size=7))
    def start(self, kinds: list[str]) -> None:
        calls: list[Any] = []
        for kind in kinds:
            self.count += 1
            call_id = f"c{self.count}"
            self.kinds[call_id] = kind
            if kind in BROKEN:
                make, name, raw, _ = BROKEN[kind]
                calls.append(make(call_id, name, raw) if make is ToolCall else make(call_id, name, raw, raw))
            else:
                calls.append(ToolCall(call_id, kind, f'{{"data": [{self.count}]}}'))
        self.expected = [call.id for call in calls]
        self.batch = self.loop.inside(lambda: self.run.start_batch(calls))
        self.told = []
        self.stopper = None
        self.consumer = self.loop.create_task(self.consume(self.batch))

    async def consume(self, batch: Any) -> None:
        async for execution in batch:
            self.told.append(execution.call.id)

    @precondition(lambda self: self.batch is not None)
    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        self.loop.step(times)

    @precondition(lambda self: self.gates)
    @rule(data=st.data(), outcome=st.sampled_from(["go", "go", "go", *FAILURES]), times=st.integers(0, 2))
    def open(self, data: Any, outcome: str, times: int) -> None:
        gate = self.gates[data.draw(st.sampled_from(sorted(self.gates)))]
        if not gate.done():
            gate.set_result(outcome)
        self.loop.step(times)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def tamper(self, data: Any) -> None:
        """A hook that kept the arguments changes them: before it is done that is its right, later it must be without effect."""
        kept = self.asked[data.draw(st.sampled_from(sorted(self.asked)))]["data"]
        if isinstance(kept, list):
            kept.append(-1)

    @precondition(lambda self: self.batch is not None)
    @rule(seconds=st.sampled_from([0.5, GRACE, LIMIT, WHOLE]), times=st.integers(0, 2))
    def wait(self, seconds: float, times: int) -> None:
        self.loop.now += seconds
        self.loop.step(times)

    @precondition(lambda self: self.batch is not None and self.stopper is None)
    @rule(times=st.integers(0, 2))
    def stop(self, times: int) -> None:
        self.stopper = self.loop.create_task(self.batch.stop())
        self.loop.step(times)

    @precondition(lambda self: self.batch is not None and len(self.batch.executions) == len(self.expected))
    @rule()
    def end(self) -> None:
        self.finish()

    @invariant()
    def what_has_settled_stays_as_it_is_and_is_in_call_order(self) -> None:
        if getattr(self, "batch", None) is None:
            return
        done = self.batch.executions
        places = [self.expected.index(execution.call.id) for execution in done]
        assert sorted(set(places)) == places
        for execution in done:
            assert execution is self.first_seen.setdefault(execution.call.id, execution)
        assert len(set(self.told)) == len(self.told)

    @invariant()
    def no_more_run_at_once_than_may(self) -> None:
        if getattr(self, "batch", None) is None:
            return
        settled = {execution.call.id for execution in self.batch.executions}
        # What was given up because it ignores its cancellation is not under the executor's power any more.
        running = sorted((self.running & set(self.expected)) - settled)
        kinds = [self.kinds[call] for call in running]
        assert len(running) <= self.max_parallel
        assert kinds.count("limited") <= 2
        if "alone" in kinds:
            place = self.expected.index(running[kinds.index("alone")])
            assert [self.expected[place]] == running
            assert settled >= set(self.expected[:place])
            assert not set(self.expected[place + 1 :]) & {call for call in self.began if self.kinds[call] not in BROKEN}

    @invariant()
    def tools_run_at_most_once_with_exactly_what_was_let_through(self) -> None:
        for call, runs in getattr(self, "began", {}).items():
            assert [self.approved[call] if self.asking else [int(call[1:])]] == runs

    @invariant()
    def nothing_begins_when_the_time_of_the_run_is_up(self) -> None:
        assert not getattr(self, "too_late", False)

    @invariant()
    def nothing_is_reported_as_lost(self) -> None:
        assert [] == getattr(self, "reports", [])

    def finish(self) -> None:
        """Let the batch come to its end, and hold what has become of every call against all that was done to it."""
        batch, self.batch = self.batch, None
        for _ in range(30 if self.stopper is None else 0):
            # Nothing may hold up what is left: neither what has failed nor what was given up.
            for (call, _where), gate in list(self.gates.items()):
                if call in self.expected and not gate.done():
                    gate.set_result("go")
            self.loop.step(3)
        assert self.stopper is not None or len(self.expected) == len(batch.executions)
        stopper = self.stopper or self.loop.create_task(batch.stop())
        for _ in range(6):
            self.loop.step(6)
            self.loop.now += GRACE
        assert stopper.done()
        assert self.consumer.done()
        assert not self.consumer.cancelled()
        assert stopper.exception() is None
        assert self.consumer.exception() is None
        done = batch.executions
        assert self.expected == [execution.call.id for execution in done]
        assert self.expected == [execution.result.call_id for execution in done]
        assert sorted(self.expected) == sorted(self.told)
        for execution in done:
            self.hold(execution)

    def hold(self, execution: ToolExecution) -> None:
        call, code = execution.call.id, execution.result.code
        kind = self.kinds[call]
        assert execution.content
        assert execution.is_error is (code is not None) is (execution.actions is None)
        if code == "call_budget":
            assert self.run.budget.exceeded in ("max_calls", "max_seconds")
        elif kind in BROKEN and not (kind == "invalid" and self.asking):
            assert BROKEN[kind][3] == code
        elif code is None:
            assert execution.actions is not None
            assert {"by": call} == execution.actions.state_delta
            assert call not in self.failures
        else:
            possible = self.failures.get(call, set()) | {"cancelled"}  # finish() stops what is still under way
            possible |= {"tool_timeout"} if kind == "timed" else set()
            possible |= {BROKEN[kind][3]} if kind in BROKEN else set()
            possible |= {"run_timeout"} if self.loop.now >= (self.run.budget.ends or float("inf")) else set()
            assert code in possible
        if call in self.began:
            assert {"data": self.began[call][0]} == execution.arguments
        else:
            assert execution.arguments is None

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            if self.batch is not None:
                self.finish()
            for _ in range(20):  # abandoned calls may end now, without an event
                for gate in list(self.gates.values()):
                    if not gate.done():
                        gate.set_result("go")
                self.loop.step(3)
            assert set() == asyncio.all_tasks(self.loop)
            gc.collect()
            assert [] == self.reports
        finally:
            self.loop.close()


TestExecutorMachine = ExecutorMachine.TestCase
TestExecutorMachine.settings = settings(max_examples=examples(15), stateful_step_count=40)
