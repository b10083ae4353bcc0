"""Laws 1, 2, 3 and 9 with any hooks: whatever they decide, however they fail, at whichever of their awaits, and whenever the turn
is stopped."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchbay.errors import ToolFailed
from patchbay.executor import Budget, Executor
from patchbay.hooks import (
    PROCESS,
    AbortTurn,
    Approval,
    CallRecord,
    Continue,
    DenyTool,
    HardAbort,
    HookManager,
    HookPolicy,
    Modify,
    Respond,
)
from patchbay.hooks.events import digest_of
from patchbay.loop import FinalEvent, turn
from patchbay.testing import ScriptedModel
from patchbay.tools import tool
from patchbay.transcript import insert_results
from patchbay.types import IncompleteCall, Reply, ToolCall, ToolSpec
from support.repeated import examples

from .clock import SteppedLoop

HI = [{"role": "system", "content": "obey"}, {"role": "user", "content": "hi"}]
POINTS = ["before_llm", "after_llm", "before_tool", "after_tool", "approve_tool", "on_runtime_event"]
ERRORS = [ValueError("no"), TimeoutError("mine"), asyncio.CancelledError(), SystemExit(3), GeneratorExit(), ToolFailed("never")]
STEPS = 5_000


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """Hooks that fail are what this is about; each is logged."""
    logger = logging.getLogger("patchbay")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def injected(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"data": {"type": "array"}}, "required": ["data"]}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "\ud800", "hi"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["role", "content", "id", "function", "name"]), inner, max_size=2)
    ),
    max_leaves=4,
)
tool_names = st.sampled_from([*["work"] * 8, *["alone"] * 2, *["mine"] * 3, "yours", "nobody", *["theirs"] * 3])
call_shapes = st.builds(
    lambda name, call_id, data: {"id": call_id, "function": {"name": name, "arguments": json.dumps({"data": data})}},
    tool_names,
    st.sampled_from(["c0", "c1", "x"]),
    st.lists(st.integers(0, 3), max_size=2),
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["other", "", 5]),
        "messages": st.sampled_from([HI, HI[1:], [], [*HI, {"role": "tool", "tool_call_id": "c0", "content": "x"}]])
        | json_values,
        "tools": st.lists(st.sampled_from([injected("mine"), injected("yours"), injected("work")]), max_size=2) | json_values,
        "options": st.sampled_from([{"top_p": 1}, {"stream": True}, {"x": object()}]) | json_values,
        "content": st.sampled_from(["text", "", "\ud800"]) | json_values,
        "reasoning": json_values,
        "tool_calls": st.lists(call_shapes, max_size=2) | json_values,
        "finish_reason": st.sampled_from(["stop", "length", ""]) | json_values,
        "tool": tool_names | json_values,
        "arguments": st.fixed_dictionaries({"data": st.lists(st.integers(4, 6), max_size=2)}) | json_values,
        "result": st.fixed_dictionaries(
            {}, optional={"for_llm": st.just("changed"), "is_error": st.booleans(), "response_handled": st.booleans()}
        )
        | json_values,
    },
)
answers = st.fixed_dictionaries(
    {},
    optional={
        "for_llm": st.just("answered"),
        "for_user": st.just("look"),
        "is_error": st.booleans(),
        "response_handled": st.booleans(),
    },
)
changing = {
    "before_llm": ["model", "messages", "tools", "options"],
    "after_llm": ["content", "reasoning", "tool_calls", "finish_reason"],
    "before_tool": ["tool", "arguments"],
    "after_tool": ["result"],
}
anything = st.one_of(
    st.builds(Modify, changes),
    st.builds(Respond, answers | st.just("answered") | json_values),
    st.sampled_from([Continue(), DenyTool(), DenyTool("no"), DenyTool(5), AbortTurn("enough"), HardAbort("enough")]),
    st.sampled_from([True, False, Approval(True), Approval(False, "no"), "yes", 7]),
)
likely = {
    **{
        point: st.builds(Modify, changes.map(lambda each, names=names: {k: v for k, v in each.items() if k in names}))
        for point, names in changing.items()
    },
    "approve_tool": st.sampled_from([True, Approval(True)]),
    "on_runtime_event": st.none(),
}
likely["before_llm"] |= st.sampled_from([f"leave out {number}" for number in range(2, 6)])
likely["before_llm"] |= st.just(Modify({"tools": [injected("mine")]}))
likely["before_tool"] |= st.builds(Respond, answers)
likely["after_tool"] |= st.just(AbortTurn("enough"))


def decisions(point: str) -> Any:
    """Decisions at a hook point, mostly valid ones."""
    text = st.sampled_from([None, None, None, "modify the view", "look at all"]) if point != "approve_tool" else likely[point]
    return st.integers(0, 9).flatmap(lambda chance: anything if chance == 9 else likely[point] if chance > 3 else text)


@dataclass(frozen=True)
class Move:
    """One reaction of a hook: ``waits`` awaits, then ``ends``: "answers", "raises", "hangs" or "is stubborn"."""

    waits: int
    ends: str
    decision: Any
    error: int
    spoils: bool


def moves(point: str) -> Any:
    return st.builds(
        Move,
        st.integers(0, 2),
        st.sampled_from(["answers"] * 20 + ["raises"] * 2 + ["hangs", "is stubborn"]),
        decisions(point),
        st.integers(0, len(ERRORS) - 1),
        st.booleans(),
    )


@dataclass(frozen=True)
class Plan:
    """A hook: what it does at each point, one move after the other, over and over."""

    points: dict[str, list[Move]]
    priority: int
    group: int


hooks = st.builds(
    Plan,
    st.fixed_dictionaries({}, optional={point: st.lists(moves(point), min_size=1, max_size=3) for point in POINTS}).filter(bool),
    st.integers(-1, 1),
    st.sampled_from([0, 0, PROCESS]),
)
calls = st.lists(
    st.tuples(
        tool_names,
        st.sampled_from(
            [*(json.dumps({"data": data}) for data in ([1], [1, 2], [3, 2, 1], [2], [])), '{"data": ["1"]}', '{"data": 5}', "{"]
        ),
        st.sampled_from([*[True] * 15, False]),
    ),
    min_size=1,
    max_size=3,
)
policies = st.builds(
    HookPolicy,
    tool_injection=st.sampled_from(["additive", "additive", "off", "full"]),
    respond_approval=st.sampled_from(["foreign", "never", "always"]),
    protected=st.sampled_from([frozenset(), frozenset({"work"}), frozenset({"*"})]),
    edit_system=st.booleans(),
)


@dataclass
class World:
    """The participants of one turn, with a record of what they saw."""

    plans: list[Plan]
    rounds: list[Any]
    policy: HookPolicy
    natives: bool
    max_seconds: float | None
    kept: list[Any] = field(default_factory=list)
    approved: dict[str, list[str]] = field(default_factory=dict)
    ran: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    records: list[CallRecord] = field(default_factory=list)
    messages: list[Any] = field(default_factory=lambda: copy.deepcopy(HI))
    final: FinalEvent | None = None
    settled: list[str] = field(default_factory=list)

    def spoil(self) -> None:
        for each in self.kept:
            if isinstance(each, dict) and "data" in each:
                each["data"] = [666]
            elif isinstance(each, dict):
                each["role"] = "system"
                each.setdefault("list", []).append(666)
            elif isinstance(each, list):
                each.append({"role": "user", "content": "spoiled"})

    def hook(self, plan: Plan) -> Any:
        turns = dict.fromkeys(plan.points, 0)

        def method(point: str) -> Any:
            async def asked(_self: Any, view: Any) -> Any:
                return await self.move(point, plan.points[point][turns[point] % len(plan.points[point])], view, turns)

            return asked

        return type("Planned", (), {point: method(point) for point in plan.points})()

    async def move(self, point: str, move: Move, view: Any, turns: dict[str, int]) -> Any:
        turns[point] += 1
        for name in type(view).__annotations__ if point != "on_runtime_event" else ():
            value = getattr(view, name, None)
            if isinstance(value, dict | list) and (move.spoils or move.decision == "look at all"):
                self.kept.append(value)
        for _ in range(move.waits):
            await asyncio.sleep(0)
        if move.spoils:
            self.spoil()
        if move.ends == "raises":
            raise ERRORS[move.error]
        while move.ends in ("hangs", "is stubborn"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if move.ends == "hangs":
                    raise
        decision = copy.deepcopy(move.decision)
        if decision == "modify the view":
            decision = Modify(view)
        elif isinstance(decision, str) and decision.startswith("leave out") and point == "before_llm":
            messages = view.messages
            del messages[int(decision[-1]) : int(decision[-1]) + 1]
            self.kept.append(messages)
            decision = Modify({"messages": messages})
        if isinstance(decision, Modify) and isinstance(decision.changes, dict):
            self.kept.extend(decision.changes.values())
        return decision

    def watcher(self) -> Any:
        """The last approver: what it saw is what may run."""

        async def approve_tool(_self: Any, call: Any) -> bool:
            self.approved.setdefault(call.call_id, []).append(call.digest)
            self.kept.append(call.arguments)
            await asyncio.sleep(0)
            self.spoil()
            return True

        return type("Watcher", (), {"approve_tool": approve_tool})()

    def tools(self) -> list[Any]:
        def make(name: str, **options: Any) -> Any:
            async def body(data: list[int], tool_context: Any) -> list[int]:
                self.ran.setdefault(tool_context.call_id, []).append((name, [*data]))
                self.spoil()
                data.append(99)
                await asyncio.sleep(0)
                if len(data) == 3:
                    raise ToolFailed("three")
                return data

            return tool(handler=body, name=name, **options)

        return [make("work"), make("alone", sequential=True)]

    async def turn(self) -> None:
        manager = HookManager(policy=self.policy)
        manager.recorders.append(self.records.append)
        for number, plan in enumerate(self.plans):
            manager.mount(f"hook{number}", self.hook(plan), priority=plan.priority, group=plan.group)
        manager.mount("watcher", self.watcher(), group=PROCESS, priority=99)
        options = {"before": lambda *about: self.kept.append(about[2]), "after": lambda *_: None} if self.natives else {}
        executor = Executor(self.tools(), hooks=manager, max_repeats=None, cancel_grace=2.0, **options)
        asked: list[Any] = []

        def step(answer: Any) -> Any:
            def given(request: Any) -> Any:
                asked.append(copy.deepcopy((request.messages, request.tools)))
                return answer

            return given

        model = ScriptedModel([step(answer) for answer in (*self.rounds, *["done"] * 9)])
        run = executor.begin_run(
            budget=Budget(max_seconds=self.max_seconds), on_settled=lambda each: self.settled.append(each.call.id)
        )
        try:
            async for event in turn(model, run, self.messages, max_iterations=4, external=[ToolSpec("theirs")]):
                self.final = event if isinstance(event, FinalEvent) else None
        finally:
            self.spoil()
            for request, seen in zip(model.requests, asked, strict=True):
                assert seen == (request.messages, request.tools), "what was asked stays what it was"
                holds(request.messages)
                assert self.policy.edit_system or "obey" == request.messages[0]["content"]
            await manager.aclose()

    def holds(self) -> None:
        """Assert the laws for the finished turn."""
        executions = self.final.tool_executions if self.final is not None else ()
        if self.final is not None:
            pending = self.final.pending
            assert not pending or "tool_calls" == self.final.finish_reason
            holds(
                insert_results(
                    self.final.messages, [{"role": "tool", "tool_call_id": call.id, "content": ""} for call in pending]
                )
            )
            assert HI == self.final.messages if self.final.finish_reason == "hard_abort" else HI == self.final.messages[:2]
            assert (self.final.aborted is not None) is (self.final.finish_reason in ("abort_turn", "hard_abort"))
            json.dumps(self.final.messages, ensure_ascii=False).encode()  # no half surrogate pairs
        assert sorted(self.settled) == sorted(record.call_id for record in self.records)
        assert len(set(self.settled)) == len(self.settled)
        digests = {record.call_id: record.digest for record in self.records}
        for call_id, runs in self.ran.items():
            ((name, data),) = runs
            # Law 9: the last thing that was approved is what ran, and what is written down.
            assert (
                self.approved[call_id][-1] == digest_of(name, {"data": data}) == digests.get(call_id, self.approved[call_id][-1])
            )
        for execution in executions:
            if execution.call.id in self.ran:
                assert {"data": self.ran[execution.call.id][0][1]} == execution.arguments


def holds(messages: Any) -> None:
    seen: set[str] = set()
    at = 0
    while at < len(messages):
        ids = [call["id"] for call in messages[at].get("tool_calls") or ()]
        at += 1
        assert ids == [message["tool_call_id"] for message in messages[at : at + len(ids)] if message["role"] == "tool"]
        assert not seen & set(ids)
        seen |= set(ids)
        at += len(ids)
        assert at >= len(messages) or messages[at].get("role") != "tool"


def reply(number: int, written: Any) -> Reply:
    made = [ToolCall(f"c{number}{place}", name, raw) for place, (name, raw, whole) in enumerate(written) if whole]
    cut_off = [
        IncompleteCall(f"i{number}{place}", name, raw, raw) for place, (name, raw, whole) in enumerate(written) if not whole
    ]
    return Reply("some words", tool_calls=tuple(made), incomplete=tuple(cut_off))


@settings(max_examples=examples(20))
@given(
    plans=st.lists(hooks, min_size=1, max_size=3),
    rounds=st.lists(calls, min_size=1, max_size=3),
    policy=policies,
    natives=st.booleans(),
    max_seconds=st.sampled_from([None, None, 7.0]),
    cancelled_after=st.none() | st.none() | st.integers(0, 60),
)
def test_turn_ends_and_keeps_its_laws_with_any_hooks(plans, rounds, policy, natives, max_seconds, cancelled_after):
    loop = SteppedLoop()
    reports: list[Any] = []
    loop.set_exception_handler(lambda _loop, report: reports.append(report))
    world = World(plans, [reply(number, written) for number, written in enumerate(rounds)], policy, natives, max_seconds)
    try:
        task = loop.create_task(world.turn())
        if cancelled_after is not None:
            loop.step(cancelled_after)
            task.cancel()
        for _ in range(STEPS):
            if not asyncio.all_tasks(loop):
                break
            loop.step(3)
            loop.now += 0.2  # hooks that hang are over when their time is
        assert set() == asyncio.all_tasks(loop), "it hangs"
        if task.cancelled():
            assert cancelled_after is not None
        else:
            assert task.exception() is None
            assert world.final is not None
        world.holds()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    gc.collect(0)
    assert [] == reports
