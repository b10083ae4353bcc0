"""Workflow agents: order, endings and visibility."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from patchbay.agents import (
    BaseAgent,
    EventBus,
    InMemorySessionService,
    LlmAgent,
    LoopAgent,
    ParallelAgent,
    RunConfig,
    Runner,
    SequentialAgent,
)
from patchbay.errors import ConfigurationError
from patchbay.models.chat_model import ModelReply
from patchbay.testing import ScriptedModel
from patchbay.types import Reply, Usage
from support.running import run

from .turns import FailingAgent, FunctionAgent, TextAgent, call, line, lines, log, roles, run_turn, state


def escalate(tool_context) -> str:
    tool_context.actions.escalate = True
    return "enough"


def escalate_and_fail(tool_context) -> None:
    tool_context.actions.escalate = True
    raise ValueError("no")


def end_run(ctx) -> None:
    ctx.end_invocation = True


def sequence(*agents, name: str = "all", **fields) -> SequentialAgent:
    return SequentialAgent(name=name, sub_agents=agents, **fields)


def loop(*agents, name: str = "loop", **fields) -> LoopAgent:
    return LoopAgent(name=name, sub_agents=agents, **fields)


def parallel(*agents, name: str = "side") -> ParallelAgent:
    return ParallelAgent(name=name, sub_agents=agents)


def model_agent(*steps, name: str = "a", **fields) -> LlmAgent:
    return LlmAgent(name=name, model=ScriptedModel(steps), **fields)


def deep(depth: int) -> BaseAgent:
    agent: BaseAgent = TextAgent("leaf")
    for level in range(depth):
        make = (sequence, parallel, lambda each, name: loop(each, name=name, max_iterations=1))[level % 3]
        agent = make(agent, name=f"level{level}")
    return agent


NO = ValueError("no")

OUTCOMES = {
    "children in order": (
        lambda: sequence(TextAgent("b"), TextAgent("a", "1", "2"), TextAgent("c")),
        ["b: b", "a: 1", "a: 2", "c: c"],
    ),
    "a child that escalates finishes and ends the sequence": (
        lambda: sequence(TextAgent("a"), TextAgent("b", "1", "2", escalates=0), TextAgent("never")),
        ["a: a", "b: 1", "b: 2"],
    ),
    "a callback that ends the run ends the sequence": (
        lambda: sequence(TextAgent("a", after_agent_callback=end_run), TextAgent("never")),
        ["a: a"],
    ),
    "a sequence without children": (sequence, []),
    "a loop without children": (loop, []),
    "branches without children": (parallel, []),
    "a loop of three": (lambda: loop(TextAgent("a"), TextAgent("b"), max_iterations=3), ["a: a", "b: b"] * 3),
    "a loop of ten by default": (lambda: loop(TextAgent("a")), ["a: a"] * 10),
    "a child that escalates finishes and ends only its loop": (
        lambda: sequence(loop(TextAgent("a", "1", "2", escalates=0), TextAgent("never")), TextAgent("after")),
        ["a: 1", "a: 2", "after: after"],
    ),
    "a tool that escalates ends the loop after its agent's answer": (
        lambda: sequence(loop(model_agent(call("escalate"), "that is it", tools=[escalate])), TextAgent("after")),
        ["a > escalate", "a < escalate", "a: that is it", "after: after"],
    ),
    "a tool that escalates and fails has not escalated": (
        lambda: loop(model_agent(call("escalate_and_fail"), "1", "2", tools=[escalate_and_fail]), max_iterations=2),
        ["a > escalate_and_fail", "a < escalate_and_fail", "a: 1", "a: 2"],
    ),
    "an escalation ends the nearest loop through sequences and branches": (
        lambda: loop(
            loop(parallel(sequence(TextAgent("a", escalates=0), TextAgent("never")), TextAgent("b")), name="inner"),
            TextAgent("c"),
            max_iterations=2,
        ),
        ["a: a", "b: b", "c: c"] * 2,
    ),
    "a failing first child ends its loop": (
        lambda: sequence(loop(FailingAgent("bad", NO), TextAgent("a")), TextAgent("after")),
        ["bad! AGENT_ERROR"],
    ),
    "a failing second child ends its loop": (
        lambda: sequence(loop(TextAgent("a"), FailingAgent("bad", NO)), TextAgent("after")),
        ["a: a", "bad! AGENT_ERROR"],
    ),
    "a failing child ends the sequence": (
        lambda: sequence(FailingAgent("bad", NO, after=True), TextAgent("never")),
        ["bad: bad", "bad! AGENT_ERROR"],
    ),
    "a child that raises a cancellation": (
        lambda: sequence(FailingAgent("bad", asyncio.CancelledError()), TextAgent("never")),
        ["bad! AGENT_ERROR"],
    ),
    "a child whose error has a code": (
        lambda: sequence(FailingAgent("bad", ConfigurationError("no")), TextAgent("never")),
        ["bad! CONFIGURATION"],
    ),
    "an agent without a run method": (lambda: BaseAgent(name="bare"), ["bare! AGENT_ERROR"]),
    "the budget ends an unbounded loop": (
        lambda: loop(model_agent(*["again"] * 5), max_iterations=None),
        ["a: again"] * 5 + ["a! MAX_LLM_CALLS"],
    ),
    "workflows in workflows of any depth": (lambda: deep(30), ["leaf: leaf"]),
}


@pytest.mark.parametrize(("tree", "expected"), OUTCOMES.values(), ids=OUTCOMES)
def test_the_events_of_a_workflow_are_those_of_its_log(tree, expected):
    runner = Runner(tree())
    assert expected == lines(run(run_turn(runner, run_config=RunConfig(max_llm_calls=5))))
    assert ["user: hi", *expected] == run(log(runner))


def test_child_reads_the_state_set_by_its_predecessor():
    second = model_agent("fine", name="second", instruction="Review {draft}.", output_key="verdict")
    runner = Runner(sequence(model_agent("a draft", name="first", output_key="draft"), second))
    run(run_turn(runner))
    assert "Review a draft." == second.model.requests[0].messages[0]["content"]
    assert {"draft": "a draft", "verdict": "fine"} == run(state(runner))


def test_unbounded_loop_ends_when_a_child_escalates():
    async def work(ctx):
        rounds = ctx.state["rounds"] = ctx.session.state.get("rounds", 0) + 1
        yield str(rounds)

    def more(ctx) -> str | None:
        return "more" if ctx.session.state["rounds"] < 25 else None

    check = TextAgent("check", escalates=0, before_agent_callback=more)
    events = run(run_turn(Runner(loop(FunctionAgent("work", work, []), check, max_iterations=None))))
    assert ["work: 25", "check: check"] == lines(events)[-2:]


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "3"])
def test_unenforceable_round_limit_is_refused(number):
    child = TextAgent("a")
    with pytest.raises(ConfigurationError, match="max_iterations"):
        loop(child, max_iterations=number)
    assert child is loop(child).sub_agents[0]  # it has no parent yet


# --- side by side


async def test_events_of_parallel_branches_arrive_as_they_happen():
    gates = [asyncio.Event() for _ in range(4)]

    def waits(*mine: int):
        async def work(_ctx):
            for number in mine:
                await gates[number].wait()
                yield str(number)

        return work

    agent = parallel(FunctionAgent("a", waits(1, 2), []), FunctionAgent("b", waits(0, 3), []))
    seen = []
    gates[0].set()
    async for event in Runner(agent).run("u", "s", "hi"):
        # Nothing else is let go before this event has been seen: one that was held back would never come.
        seen.append(line(event))
        if len(seen) < len(gates):
            gates[len(seen)].set()
    assert ["b: 0", "a: 1", "a: 2", "b: 3"] == seen


async def test_all_branches_run_at_the_same_time():
    everybody = asyncio.Barrier(5)

    async def work(_ctx):
        await everybody.wait()
        yield "here"

    names = [f"a{number}" for number in range(5)]
    events = await run_turn(Runner(parallel(*(FunctionAgent(name, work, []) for name in names))))
    assert {f"{name}: here" for name in names} == set(lines(events))


async def test_a_branch_sees_its_own_results_and_not_its_siblings():
    both = asyncio.Barrier(2)

    async def look(where: str) -> str:
        await both.wait()  # so both have called before either gets its result
        return f"at {where}"

    children = [
        model_agent(call("look", "same", where=name), f"{name} has looked", name=name, tools=[look]) for name in ("a", "b")
    ]
    last = model_agent("all seen", name="last")
    events = await run_turn(Runner(sequence(parallel(*children), last)))
    for child in children:
        request = child.model.requests[1]
        own_id = request.messages[1]["tool_calls"][0]["id"]
        assert ["user: hi", f"assistant > {own_id}", f"tool {own_id}"] == roles(request)
        assert f"at {child.name}" == request.messages[-1]["content"]
    assert "last: all seen" == line(events[-1])
    # Who comes after sees all of it, each call with its own result, although both models use the same id.
    seen = last.model.requests[0].messages
    asked = {
        at: json.loads(each["tool_calls"][0]["function"]["arguments"]) for at, each in enumerate(seen) if each.get("tool_calls")
    }
    assert ["a", "b"] == sorted(arguments["where"] for arguments in asked.values())
    assert all(f"at {arguments['where']}" == seen[at + 1]["content"] for at, arguments in asked.items())
    assert 2 == sum(message["role"] == "tool" for message in seen)


def test_branch_names_contain_the_whole_path_and_an_agent_sees_inner_branches_of_its_own():
    z = model_agent("done", name="z")
    outer = parallel(
        sequence(parallel(TextAgent("x"), TextAgent("y"), name="inner"), z, name="steps"), TextAgent("w"), name="outer"
    )
    events = run(run_turn(Runner(sequence(TextAgent("before"), outer, TextAgent("after")))))
    branches = {"x": "outer.steps.inner.x", "y": "outer.steps.inner.y", "z": "outer.steps", "w": "outer.w"}
    assert {"before": None, "after": None, **branches} == {event.author: event.branch for event in events}
    assert ["user: hi", "assistant: before", "assistant: x", "assistant: y"] == roles(z.model.requests[0])


async def test_calls_and_tokens_of_all_branches_are_counted_together():
    def noop() -> str:
        return "ok"

    asking = ModelReply(Reply(None, tool_calls=(call("noop"),)), "tool_calls", Usage(2, 3, 5))
    children = [model_agent(*[asking] * 9, name=f"a{number}", tools=[noop]) for number in range(3)]
    events = Runner(parallel(*children)).run("u", "s", "hi", RunConfig(max_llm_calls=7))
    codes = [event.error_code async for event in events if event.error_code is not None]
    assert (7, ["MAX_LLM_CALLS"] * 3) == (sum(len(child.model.requests) for child in children), codes)
    assert Usage(14, 21, 35) == events.usage


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()])
async def test_failing_parallel_branch_is_an_error_event_and_others_continue(error):
    failed = asyncio.Event()

    async def patient(_ctx):
        await failed.wait()
        yield "still here"

    bus = EventBus()
    received = []
    bus.subscribe("agent.error", lambda event: received.append(event.data))
    runner = Runner(parallel(FailingAgent("bad", error), FunctionAgent("good", patient, [])), bus=bus)
    events = []
    async for event in runner.run("u", "s", "hi"):
        events.append(event)
        if event.error_code:
            failed.set()
    await bus.drain()
    kept = await log(runner)
    assert ["bad! PARALLEL_ERROR", "good: still here"] == lines(events)
    assert ["user: hi", *lines(events)] == kept
    assert "side.bad" == events[0].branch
    assert events[0].error_message.startswith("Sub-agent 'bad' failed: ")
    assert [{"agent": "bad", "error": "PARALLEL_ERROR", "message": events[0].error_message}] == received


async def test_values_of_all_branches_are_stored():
    both = asyncio.Barrier(2)

    async def meet(tool_context) -> str:
        tool_context.state[f"met_{tool_context.agent_name}"] = True
        await both.wait()
        return "ok"

    children = [
        model_agent(call("meet"), f"from {name}", name=name, tools=[meet], output_key=f"out_{name}") for name in ("a", "b")
    ]
    runner = Runner(parallel(*children))
    await run_turn(runner)
    assert {"met_a": True, "met_b": True, "out_a": "from a", "out_b": "from b"} == await state(runner)


async def test_branches_wait_for_a_slow_consumer():
    many = 500
    made = 0

    async def busy(_ctx):
        nonlocal made
        for number in range(many):
            made += 1
            yield str(number)

    runner = Runner(parallel(FunctionAgent("a", busy, []), FunctionAgent("b", busy, [])))
    events = []
    async for event in runner.run("u", "s", "hi"):
        events.append(event)
        if len(events) == 1:
            for _ in range(many):
                await asyncio.sleep(0)
            waiting = made
    session = await runner.session_service.get_session("patchbay", "u", "s")
    assert waiting < many
    for name in "ab":
        assert [str(number) for number in range(many)] == [event.content.text for event in events if event.author == name]
    assert [event.id for event in events] == [event.id for event in session.events][1:]  # the log is in the order of the events


class FailingSessionService(InMemorySessionService):
    """Fails to append once it has ``after`` events."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after
        self.appended = 0

    async def append_event(self, session, event):
        await asyncio.sleep(0)
        self.appended += 1
        if self.appended > self.after:
            raise OSError("the disk is full")
        return await super().append_event(session, event)


@pytest.mark.parametrize("after", range(10))
def test_failing_session_service_ends_the_run_with_its_exception(after):
    async def scenario() -> int:
        before = asyncio.all_tasks()
        left: list[str] = []

        async def work(_ctx):
            while True:
                yield "more"

        def noop() -> str:
            return "ok"

        children = [
            FunctionAgent("a", work, left),
            loop(TextAgent("c"), name="b", max_iterations=None),
            loop(model_agent(call("noop"), *["again"] * 10, name="e", tools=[noop]), name="d"),
        ]
        service = FailingSessionService(after)
        runner = Runner(parallel(*children), session_service=service)
        with pytest.raises(OSError, match="the disk is full"):
            await run_turn(runner)
        assert set() == asyncio.all_tasks() - before
        # The lock is free again.
        async with asyncio.timeout(30), service.lock("patchbay", "u", "s"):
            return len((await service.get_session("patchbay", "u", "s")).events)

    assert after == run(scenario())


@pytest.mark.parametrize("kind", [sequence, parallel])
def test_calls_of_agents_that_do_not_see_each_other_have_ids_and_keys_of_their_own(kind):  # law 1
    seen: list[tuple[str, str]] = []

    def pay(tool_context) -> None:
        seen.append((tool_context.call_id, tool_context.idempotency_key))

    payers = [
        model_agent(call("pay", "call_0"), "paid", name=name, tools=[pay], include_contents="none") for name in ("one", "two")
    ]
    asyncio.run(run_turn(Runner(kind(*payers))))
    ids, keys = zip(*seen, strict=True)
    assert (2, 2) == (len(set(ids)), len(set(keys)))


@pytest.mark.parametrize("branches", [2, 5])
async def test_concurrent_branch_increments_are_summed(service, branches):
    async def bump(tool_context):
        seen = tool_context.state
        seen["n"] = seen.get("n", 0) + 1
        seen["user:n"] = seen.get("user:n", 0) + 1
        seen.setdefault("log", []).append(tool_context.agent_name)
        seen["last"] = "assigned"
        await asyncio.sleep(0)

    agents = [model_agent([call("bump", "1"), call("bump", "2")], "ok", name=f"b{n}", tools=[bump]) for n in range(branches)]
    runner = Runner(parallel(*agents), f"counting-{os.urandom(8).hex()}", service)
    async for _ in runner.run("u", "s", "hi"):
        pass
    after = (await service.get_session(runner.app_name, "u", "s")).state
    assert (2 * branches, 2 * branches, "assigned") == (after["n"], after["user:n"], after["last"])
    assert sorted(2 * [agent.name for agent in agents]) == sorted(after["log"])
