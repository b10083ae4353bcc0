"""Workflow agents: order, endings and visibility."""

from __future__ import annotations

import asyncio
import os

import pytest

from patchbay.agents import (
    Content,
    EventBus,
    InMemorySessionService,
    LlmAgent,
    LoopAgent,
    ParallelAgent,
    Part,
    RunConfig,
    Runner,
    SequentialAgent,
)
from patchbay.errors import ConfigurationError
from patchbay.testing import ScriptedModel
from support.running import run

from .turns import FailingAgent, FunctionAgent, TextAgent, call, line, lines, log, roles, run_turn, state


def escalate(tool_context) -> str:
    tool_context.actions.escalate = True
    return "enough"


# --- one after the other


def test_children_run_in_their_order_and_the_log_has_theirs():
    runner = Runner(SequentialAgent(name="all", sub_agents=[TextAgent("b"), TextAgent("a", "1", "2"), TextAgent("c")]))
    expected = ["b: b", "a: 1", "a: 2", "c: c"]
    assert expected == lines(run(run_turn(runner)))
    assert ["user: hi", *expected] == run(log(runner))


def test_child_reads_the_state_set_by_its_predecessor():
    first = LlmAgent(name="first", model=ScriptedModel(["a draft"]), output_key="draft")
    model = ScriptedModel(["fine"])
    second = LlmAgent(name="second", model=model, instruction="Review {draft}.", output_key="verdict")
    runner = Runner(SequentialAgent(name="all", sub_agents=[first, second]))
    run(run_turn(runner))
    assert "Review a draft." == model.requests[0].messages[0]["content"]
    assert {"draft": "a draft", "verdict": "fine"} == run(state(runner))


def test_a_child_that_escalates_finishes_and_the_rest_is_not_run():
    never = TextAgent("never")
    runner = Runner(SequentialAgent(name="all", sub_agents=[TextAgent("a"), TextAgent("b", "1", "2", escalates=0), never]))
    assert ["a: a", "b: 1", "b: 2"] == lines(run(run_turn(runner)))
    assert 0 == never.times


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError(), ConfigurationError("no")])
@pytest.mark.parametrize("after", [False, True])
def test_a_child_that_fails_ends_the_sequence_with_an_event(error, after):
    never = TextAgent("never")
    runner = Runner(SequentialAgent(name="all", sub_agents=[FailingAgent("bad", error, after=after), never]))
    code = "CONFIGURATION" if isinstance(error, ConfigurationError) else "AGENT_ERROR"
    expected = [*(["bad: bad"] if after else []), f"bad! {code}"]
    assert expected == lines(run(run_turn(runner)))
    assert ["user: hi", *expected] == run(log(runner))
    assert 0 == never.times


def test_a_run_that_a_callback_ends_ends_the_sequence():
    def stop(ctx) -> None:
        ctx.end_invocation = True

    never = TextAgent("never")
    runner = Runner(SequentialAgent(name="all", sub_agents=[TextAgent("a", after_agent_callback=stop), never]))
    assert ["a: a"] == lines(run(run_turn(runner)))
    assert 0 == never.times


@pytest.mark.parametrize("kind", [SequentialAgent, LoopAgent, ParallelAgent])
def test_workflow_without_children_yields_nothing(kind):
    assert [] == run(run_turn(Runner(kind(name="all"))))


# --- again and again


def test_loop_agent_runs_its_children_in_order_max_iterations_times():
    loop = LoopAgent(name="all", sub_agents=[TextAgent("a"), TextAgent("b")], max_iterations=3)
    assert ["a: a", "b: b"] * 3 == lines(run(run_turn(Runner(loop))))


def test_loop_agent_defaults_to_ten_iterations():
    agent = TextAgent("a")
    run(run_turn(Runner(LoopAgent(name="all", sub_agents=[agent]))))
    assert 10 == agent.times


def test_unbounded_loop_ends_when_a_child_escalates():
    rounds = 0

    async def work(ctx):
        nonlocal rounds
        rounds += 1
        ctx.state["rounds"] = rounds
        yield str(rounds)

    def enough(ctx) -> Content | None:
        return None if ctx.session.state["rounds"] < 25 else Content("model", [Part("enough")])

    check = TextAgent(
        "check", escalates=0, before_agent_callback=lambda ctx: None if enough(ctx) else Content("model", [Part("more")])
    )
    loop = LoopAgent(name="all", sub_agents=[FunctionAgent("work", work, []), check], max_iterations=None)
    events = run(run_turn(Runner(loop)))
    assert 25 == rounds
    assert "check: check" == line(events[-1])


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "3"])
def test_unenforceable_round_limit_is_refused(number):
    child = TextAgent("a")
    with pytest.raises(ConfigurationError, match="max_iterations"):
        LoopAgent(name="all", sub_agents=[child], max_iterations=number)
    assert child is LoopAgent(name="all", sub_agents=[child]).sub_agents[0]  # it has no parent yet


def test_a_child_that_escalates_finishes_and_ends_the_loop_and_only_the_loop():
    inner = LoopAgent(name="inner", sub_agents=[TextAgent("a", "1", "2", escalates=0), TextAgent("never")])
    runner = Runner(SequentialAgent(name="all", sub_agents=[inner, TextAgent("after")]))
    assert ["a: 1", "a: 2", "after: after"] == lines(run(run_turn(runner)))


def test_a_tool_that_escalates_ends_the_loop_when_its_agent_has_answered():
    model = ScriptedModel([call("escalate"), "that is it"])
    loop = LoopAgent(name="inner", sub_agents=[LlmAgent(name="a", model=model, tools=[escalate])])
    runner = Runner(SequentialAgent(name="all", sub_agents=[loop, TextAgent("after")]))
    assert ["a > escalate", "a < escalate", "a: that is it", "after: after"] == lines(run(run_turn(runner)))


def test_a_tool_that_escalates_and_fails_has_not_escalated():
    def escalate_and_fail(tool_context) -> None:
        tool_context.actions.escalate = True
        raise ValueError("no")

    model = ScriptedModel([call("escalate_and_fail"), "1", "2"])
    agent = LlmAgent(name="a", model=model, tools=[escalate_and_fail])
    run(run_turn(Runner(LoopAgent(name="all", sub_agents=[agent], max_iterations=2))))
    model.assert_consumed()


def test_an_escalation_ends_the_nearest_loop_through_sequences_and_branches():
    escalating = SequentialAgent(name="steps", sub_agents=[TextAgent("a", escalates=0), TextAgent("never")])
    inner = LoopAgent(name="inner", sub_agents=[ParallelAgent(name="side", sub_agents=[escalating, TextAgent("b")])])
    outer = LoopAgent(name="outer", sub_agents=[inner, TextAgent("c")], max_iterations=2)
    events = lines(run(run_turn(Runner(outer))))
    assert ["c: c", "c: c"] == [each for each in events if each.startswith("c")]
    assert 2 == events.count("a: a") == events.count("b: b")
    assert not any(each.startswith("never") for each in events)


@pytest.mark.parametrize("position", [0, 1])
def test_a_failing_child_ends_its_loop(position):
    children = [TextAgent("a")]
    children.insert(position, FailingAgent("bad", ValueError("no")))
    runner = Runner(SequentialAgent(name="all", sub_agents=[LoopAgent(name="loop", sub_agents=children), TextAgent("after")]))
    assert [*["a: a"][:position], "bad! AGENT_ERROR"] == lines(run(run_turn(runner)))


def test_budget_ends_an_unbounded_loop():
    agent = LlmAgent(name="a", model=ScriptedModel(["again"] * 5))
    loop = LoopAgent(name="all", sub_agents=[agent], max_iterations=None)
    events = run(run_turn(Runner(loop), run_config=RunConfig(max_llm_calls=5)))
    assert ["a: again"] * 5 + ["a! MAX_LLM_CALLS"] == lines(events)


# --- side by side


async def test_events_of_parallel_branches_arrive_as_they_happen():
    gates = [asyncio.Event() for _ in range(4)]

    def waits(*mine: int):
        async def work(_ctx):
            for number in mine:
                await gates[number].wait()
                yield str(number)

        return work

    agent = ParallelAgent(name="side", sub_agents=[FunctionAgent("a", waits(1, 2), []), FunctionAgent("b", waits(0, 3), [])])
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

    children = [FunctionAgent(f"a{number}", work, []) for number in range(5)]
    assert {f"a{number}: here" for number in range(5)} == set(
        lines(await run_turn(Runner(ParallelAgent(name="side", sub_agents=children))))
    )


async def test_a_branch_sees_its_own_results_and_not_its_siblings():
    both = asyncio.Barrier(2)

    async def look(where: str) -> str:
        await both.wait()  # so both have called before either gets its result
        return f"at {where}"

    models = {name: ScriptedModel([call("look", "same", where=name), f"{name} has looked"]) for name in ("a", "b")}
    children = [LlmAgent(name=name, model=model, tools=[look]) for name, model in models.items()]
    last = ScriptedModel(["all seen"])
    runner = Runner(
        SequentialAgent(
            name="all", sub_agents=[ParallelAgent(name="side", sub_agents=children), LlmAgent(name="last", model=last)]
        )
    )
    events = await run_turn(runner)
    for name, model in models.items():
        messages = model.requests[1].messages
        own_id = messages[1]["tool_calls"][0]["id"]
        assert ["user: hi", f"assistant > {own_id}", f"tool {own_id}"] == roles(model.requests[1])
        assert f"at {name}" == messages[-1]["content"]
    assert "last: all seen" == line(events[-1])
    # Who comes after sees all of it, each call with its own result, although both models use the same id.
    seen = last.requests[0].messages
    for name in ("a", "b"):
        at = next(
            number
            for number, message in enumerate(seen)
            if message.get("tool_calls") and name in message["tool_calls"][0]["function"]["arguments"]
        )
        assert f"at {name}" == seen[at + 1]["content"]
    assert 2 == sum(message["role"] == "tool" for message in seen)


def test_branch_names_contain_the_whole_path():
    inner = ParallelAgent(name="inner", sub_agents=[TextAgent("x"), TextAgent("y")])
    outer = ParallelAgent(
        name="outer", sub_agents=[SequentialAgent(name="steps", sub_agents=[inner, TextAgent("z")]), TextAgent("w")]
    )
    events = run(run_turn(Runner(SequentialAgent(name="all", sub_agents=[TextAgent("before"), outer, TextAgent("after")]))))
    assert {
        "before": None,
        "x": "outer.steps.inner.x",
        "y": "outer.steps.inner.y",
        "z": "outer.steps",
        "w": "outer.w",
        "after": None,
    } == {event.author: event.branch for event in events}


def test_agent_sees_earlier_inner_branches_of_its_own_branch():
    inner = ParallelAgent(name="inner", sub_agents=[TextAgent("x"), TextAgent("y")])
    model = ScriptedModel(["done"])
    steps = SequentialAgent(name="steps", sub_agents=[inner, LlmAgent(name="z", model=model)])
    run(run_turn(Runner(ParallelAgent(name="outer", sub_agents=[steps, TextAgent("w")]))))
    assert ["user: hi", "assistant: x", "assistant: y"] == [each for each in roles(model.requests[0]) if each != "assistant: w"]
    assert "assistant: w" not in roles(model.requests[0])


def test_calls_of_all_branches_share_one_budget():
    def noop() -> str:
        return "ok"

    models = [ScriptedModel([call("noop")] * 9) for _ in range(3)]
    children = [LlmAgent(name=f"a{number}", model=model, tools=[noop]) for number, model in enumerate(models)]
    events = run(run_turn(Runner(ParallelAgent(name="side", sub_agents=children)), run_config=RunConfig(max_llm_calls=7)))
    assert 7 == sum(len(model.requests) for model in models)
    assert 3 == lines(events).count("a0! MAX_LLM_CALLS") + lines(events).count("a1! MAX_LLM_CALLS") + lines(events).count(
        "a2! MAX_LLM_CALLS"
    )


async def test_the_usage_of_all_branches_is_one_sum():
    from patchbay.models.chat_model import ModelReply
    from patchbay.types import Reply, Usage

    def model() -> ScriptedModel:
        return ScriptedModel([ModelReply(Reply("ok"), "stop", Usage(2, 3, 5))])

    runner = Runner(ParallelAgent(name="side", sub_agents=[LlmAgent(name=name, model=model()) for name in "abc"]))
    events = runner.run("u", "s", "hi")
    async for _ in events:
        pass
    assert Usage(6, 9, 15) == events.usage


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()])
async def test_failing_parallel_branch_is_an_error_event_and_others_continue(error):
    failed = asyncio.Event()

    async def patient(_ctx):
        await failed.wait()
        yield "still here"

    bus = EventBus()
    received = []
    bus.subscribe("agent.error", lambda event: received.append(event.data))
    runner = Runner(
        ParallelAgent(name="side", sub_agents=[FailingAgent("bad", error), FunctionAgent("good", patient, [])]), bus=bus
    )
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

    def child(name: str) -> LlmAgent:
        return LlmAgent(name=name, model=ScriptedModel([call("meet"), f"from {name}"]), tools=[meet], output_key=f"out_{name}")

    runner = Runner(ParallelAgent(name="side", sub_agents=[child("a"), child("b")]))
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

    runner = Runner(ParallelAgent(name="side", sub_agents=[FunctionAgent("a", busy, []), FunctionAgent("b", busy, [])]))
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

        model = ScriptedModel([call("noop"), *["again"] * 10])
        children = [
            FunctionAgent("a", work, left),
            LoopAgent(name="b", sub_agents=[TextAgent("c")], max_iterations=None),
            LoopAgent(name="d", sub_agents=[LlmAgent(name="e", model=model, tools=[noop])]),
        ]
        service = FailingSessionService(after)
        runner = Runner(ParallelAgent(name="side", sub_agents=children), session_service=service)
        with pytest.raises(OSError, match="the disk is full"):
            await run_turn(runner)
        assert set() == asyncio.all_tasks() - before
        # The lock is free again.
        async with asyncio.timeout(30), service.lock("patchbay", "u", "s"):
            return len((await service.get_session("patchbay", "u", "s")).events)

    assert after == run(scenario())


def test_workflows_in_workflows_run_to_any_depth():
    agent = TextAgent("leaf")
    for depth in range(30):
        kind = (SequentialAgent, ParallelAgent, LoopAgent)[depth % 3]
        fields = {"max_iterations": 1} if kind is LoopAgent else {}
        agent = kind(name=f"level{depth}", sub_agents=[agent], **fields)
    runner = Runner(agent)
    events = run(run_turn(runner))
    assert ["leaf: leaf"] == lines(events)
    assert 10 * 2 == len(events[0].branch.split("."))
    assert ["user: hi", "leaf: leaf"] == run(log(runner))


@pytest.mark.parametrize("kind", [SequentialAgent, ParallelAgent])
def test_calls_of_agents_that_do_not_see_each_other_have_ids_and_keys_of_their_own(kind):  # law 1
    seen: list[tuple[str, str]] = []

    def pay(tool_context) -> None:
        seen.append((tool_context.call_id, tool_context.idempotency_key))

    def payer(name: str) -> LlmAgent:
        model = ScriptedModel([call("pay", "call_0"), "paid"])
        return LlmAgent(name=name, model=model, tools=[pay], include_contents="none")

    asyncio.run(run_turn(Runner(kind(name="both", sub_agents=[payer("one"), payer("two")]))))
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

    def counting(name):
        return LlmAgent(name=name, model=ScriptedModel([[call("bump", "1"), call("bump", "2")], "ok"]), tools=[bump])

    agents = [counting(f"b{n}") for n in range(branches)]
    runner = Runner(ParallelAgent(name="all", sub_agents=agents), f"counting-{os.urandom(8).hex()}", service)
    async for _ in runner.run("u", "s", "hi"):
        pass
    after = (await service.get_session(runner.app_name, "u", "s")).state
    assert (2 * branches, 2 * branches, "assigned") == (after["n"], after["user:n"], after["last"])
    assert sorted(2 * [agent.name for agent in agents]) == sorted(after["log"])
