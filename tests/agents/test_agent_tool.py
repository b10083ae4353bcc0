"""An agent as a tool: a session of its own, the caller's state and limits, and its failures as failures of the call."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel

from patchbay import ToolRunner
from patchbay.agents import (
    AgentTool,
    EventBus,
    LlmAgent,
    LoopAgent,
    ParallelAgent,
    RunConfig,
    Runner,
    SequentialAgent,
)
from patchbay.models.chat_model import ModelReply
from patchbay.testing import ScriptedModel
from patchbay.types import Reply, Usage
from support.running import run

from .turns import FailingAgent, FunctionAgent, TextAgent, call, lines, log, roles, run_turn, state


def helper(*steps, **fields) -> LlmAgent:
    return LlmAgent(**{"name": "helper", "model": ScriptedModel(steps), **fields})


def agent_calling(*agents, script=None, **fields) -> LlmAgent:
    """An agent that asks each of ``agents`` once, and says "done"."""
    calls = [call(agent.name, str(number), request=f"for {agent.name}") for number, agent in enumerate(agents, 1)]
    tools = [AgentTool(agent) for agent in agents]
    return LlmAgent(**{"name": "boss", "model": ScriptedModel(script or [calls, "done"]), "tools": tools, **fields})


def response(events, number: int = 0) -> dict:
    """The response with this number, of the first event that has responses."""
    return next(found for event in events if (found := event.get_function_responses()))[number].response


def test_agent_tool_has_one_required_parameter():
    boss = agent_calling(helper("x", description="Helps."), TextAgent("other"))
    run(run_turn(Runner(boss)))
    specs = {spec.name: spec for spec in boss.model.requests[0].tools}
    assert {"helper": "Helps.", "other": "Ask the agent other."} == {name: spec.description for name, spec in specs.items()}
    assert ["request"] == list(specs["helper"].parameters["properties"]) == specs["helper"].parameters["required"]


def test_the_agent_sees_the_request_and_nothing_else_and_its_answer_is_the_result():
    inner = helper(call("look", "1"), "It is blue.", tools=[AgentTool(TextAgent("look", "blue"))])
    boss = agent_calling(inner)
    runner = Runner(boss)
    events = run(run_turn(runner, "What colour?"))
    assert ["boss > helper", "boss < helper", "boss: done"] == [each for each in lines(events) if each != "boss: "]
    assert {"result": "It is blue."} == response(events)
    assert ["user: for helper"] == roles(inner.model.requests[0])
    assert "It is blue." == boss.model.requests[1].messages[-1]["content"]
    # The log is the caller's alone, and so is what it is shown.
    assert ["user: What colour?", "boss > helper", "boss < helper", "boss: done"] == run(log(runner))
    assert ["user: What colour?", "assistant > 1", "tool 1"] == roles(boss.model.requests[1])


def test_state_is_passed_to_the_agent_and_its_changes_are_returned():
    def note(tool_context) -> str:
        tool_context.state["noted"] = tool_context.state["colour"] + "!"
        tool_context.state["user:name"] = "Ada"
        tool_context.state["temp:here"] = "gone"
        del tool_context.state["old"]
        return tool_context.state["temp:run"]

    def prepare(ctx) -> None:
        ctx.state.update({"colour": "blue", "old": 1, "temp:run": "of this run"})

    inner = helper(call("note"), "ok", tools=[note], instruction="{colour} {temp:run}", output_key="answer")
    runner = Runner(agent_calling(inner, before_agent_callback=lambda ctx: prepare(ctx)))
    boss = runner.agent

    def first(tool_context) -> str:
        prepare(tool_context)
        return "ready"

    boss.tools.append(first)
    boss.model = ScriptedModel([call("first", "0"), call("helper", "1", request="go"), "done"])
    run(run_turn(runner))
    assert "blue of this run" == inner.model.requests[0].messages[0]["content"]
    assert "of this run" == inner.model.requests[1].messages[-1]["content"]
    assert {"colour": "blue", "noted": "blue!", "user:name": "Ada", "answer": "ok"} == run(state(runner))


async def test_state_changes_beside_a_rejected_answer_are_returned():
    def note(ctx, answer) -> None:
        if answer.content.text:
            ctx.state["refused"] = answer.content.text

    inner = helper("words", call("give_answer", answer=3), output_schema=int, after_model_callback=note)
    runner = Runner(agent_calling(inner))
    await run_turn(runner)
    assert {"refused": "words"} == await state(runner)


def test_an_agent_that_fails_changes_nothing():
    def note(tool_context) -> None:
        tool_context.state["noted"] = True

    runner = Runner(agent_calling(helper(call("note"), RuntimeError("down"), tools=[note])))
    run(run_turn(runner))
    assert {} == run(state(runner))


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (helper(RuntimeError("the line is down")), "MODEL_ERROR: RuntimeError: the line is down"),
        (FailingAgent("helper", KeyError("foo")), "AGENT_ERROR: KeyError: 'foo'"),
        (FailingAgent("helper", asyncio.CancelledError()), "AGENT_ERROR"),
        (
            SequentialAgent(name="helper", sub_agents=[TextAgent("a"), FailingAgent("b", ValueError("no"))]),
            "AGENT_ERROR: ValueError: no",
        ),
        (ParallelAgent(name="helper", sub_agents=[TextAgent("c"), FailingAgent("d", ValueError("no"))]), "PARALLEL_ERROR"),
        (LlmAgent(name="helper"), "CONFIGURATION"),
    ],
)
def test_failure_of_the_agent_is_an_error_result(agent, words):
    boss = agent_calling(agent)
    events = run(run_turn(Runner(boss)))
    assert words in response(events)["error"]
    assert "helper" in response(events)["error"]
    assert words in boss.model.requests[1].messages[-1]["content"]
    assert "boss: done" == lines(events)[-1]


async def silent(ctx):
    ctx.state["seen"] = True
    if False:
        yield ""


SEVERAL = SequentialAgent(name="helper", sub_agents=[TextAgent("a", "1", "2"), TextAgent("b")])


@pytest.mark.parametrize(
    ("agent", "expected", "kept"),
    [(SEVERAL, "1\n\n2\n\nb", {}), (FunctionAgent("helper", silent, []), "", {"seen": True})],
)
def test_several_answers_are_joined_and_none_is_an_empty_result(agent, expected, kept):
    runner = Runner(agent_calling(agent))
    assert {"result": expected} == response(run(run_turn(runner)))
    assert kept == run(state(runner))


def test_missing_request_is_an_error_for_the_model():
    inner = helper("never")
    events = run(run_turn(Runner(agent_calling(inner, script=[call("helper"), "done"]))))
    assert "request" in response(events)["error"]
    assert [] == inner.model.requests


async def test_concurrent_agent_tools_are_isolated():
    both = asyncio.Barrier(2)

    async def meet(tool_context) -> str:
        await both.wait()
        tool_context.state[f"by_{tool_context.agent_name}"] = tool_context.session.id
        return tool_context.idempotency_key

    inner = [helper(call("meet"), f"from {name}", name=name, tools=[meet]) for name in ("a", "b")]
    runner = Runner(agent_calling(*inner))
    events = await run_turn(runner)
    kept = await state(runner)
    assert [{"result": "from a"}, {"result": "from b"}] == [response(events, 0), response(events, 1)]
    for agent in inner:
        assert [f"user: for {agent.name}", "assistant > 1", "tool 1"] == roles(agent.model.requests[1])
    assert kept["by_a"] != kept["by_b"]
    keys = [agent.model.requests[1].messages[-1]["content"] for agent in inner]
    assert keys[0] != keys[1]  # the same call id, in the same run: and yet another call


async def test_repeated_call_after_resumption_has_the_same_keys():
    keys = []

    def key(tool_context) -> None:
        keys.append(tool_context.idempotency_key)

    from patchbay.tools import AgentScope, ToolContext

    for invocation in ("run1", "run1", "run2"):
        tool = AgentTool(helper(call("key"), "ok", tools=[key]))
        around = AgentScope(invocation_id=invocation)
        await tool.run({"request": "go"}, ToolContext(call_id="1", name="helper", agent_scope=around))
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("limit", "code", "requests"), [({"max_llm_calls": 5}, "MAX_LLM_CALLS", 4), ({"max_tool_calls": 3}, "MAX_TOOL_CALLS", 3)]
)
def test_calls_of_an_agent_tool_count_against_the_callers_limit(limit, code, requests):
    inner = helper(*[call("noop")] * 9, tools=[noop])
    boss = agent_calling(inner)
    events = run(run_turn(Runner(boss), run_config=RunConfig(**limit)))
    assert (requests, 1) == (len(inner.model.requests), len(boss.model.requests))
    assert code in response(events)["error"]
    assert f"boss! {code}" == lines(events)[-1]


def noop() -> str:
    return "ok"


async def test_the_tokens_of_all_agents_are_counted():
    inner = helper(ModelReply(Reply("ok"), "stop", Usage(1, 1, 2)))
    boss = agent_calling(
        inner,
        script=[
            ModelReply(Reply(None, tool_calls=(call("helper", request="go"),)), "tool_calls", Usage(10, 10, 20)),
            ModelReply(Reply("done"), "stop", Usage(100, 100, 200)),
        ],
    )
    events = Runner(boss).run("u", "s", "hi")
    async for _ in events:
        pass
    assert Usage(111, 111, 222) == events.usage


def test_self_recursive_agent_ends_with_the_budget():
    def again(_request):
        return call("helper", request="again")

    inner = helper(*[again] * 20)
    inner.tools.append(AgentTool(inner))
    events = run(run_turn(Runner(inner), run_config=RunConfig(max_llm_calls=5)))
    assert 5 == len(inner.model.requests)
    assert "helper! MAX_LLM_CALLS" == lines(events)[-1]


def test_escalation_and_transfer_of_the_inner_agent_do_not_reach_the_caller():
    def both(tool_context) -> None:
        tool_context.actions.escalate = True
        tool_context.actions.transfer_to_agent = "below"

    inner = helper(call("both"), tools=[both], sub_agents=[TextAgent("below")])
    boss = agent_calling(inner, script=[call("helper", request="go"), "one", "two"])
    loop = LoopAgent(name="loop", sub_agents=[boss], max_iterations=2)
    events = run(run_turn(Runner(loop)))
    assert {"result": "below"} == response(events)
    assert ["boss: one", "boss: two"] == [each for each in lines(events) if ": " in each and not each.endswith(": ")]


async def test_agent_tool_publishes_inner_events_and_progress():
    bus, received = EventBus(), []
    bus.subscribe("agent.start", lambda event: received.append(event.data["agent"]))
    inner = helper(call("noop"), "ok", tools=[noop])
    events = await run_turn(Runner(agent_calling(inner), bus=bus))
    await bus.drain()
    assert (["boss", "helper"], ["helper: noop"]) == (
        received,
        [event.progress.message for event in events if event.progress is not None],
    )


@pytest.mark.usefixtures("time_jumps")
async def test_agent_tool_timeout_stops_the_agent_and_is_the_calls_error():
    left = []

    async def hang(_ctx):
        await asyncio.Event().wait()
        yield "never"

    tool = AgentTool(FunctionAgent("helper", hang, left), timeout=0.01)
    boss = LlmAgent(name="boss", model=ScriptedModel([call("helper", request="go"), "done"]), tools=[tool])
    events = await run_turn(Runner(boss))
    assert ["helper"] == left
    assert "timed out" in response(events)["error"]


def test_agent_tool_works_in_a_runner_without_agents():
    inner = helper(call("noop"), "It is blue.", tools=[noop], output_key="colour")
    model = ScriptedModel([call("helper", request="What colour?"), "Blue, it says."])
    result = run(ToolRunner(model, tools=[AgentTool(inner)]).run("What colour is it?"))
    assert "Blue, it says." == result.content
    assert "It is blue." == model.requests[1].messages[-1]["content"]
    assert ["user: What colour?"] == roles(inner.model.requests[0])


def test_a_structured_answer_is_json():
    class Colour(BaseModel):
        colour: str
        share: float

    inner = helper(call("give_answer", colour="blue", share=0.5), output_schema=Colour, output_key="colour")
    boss = agent_calling(inner)
    runner = Runner(boss)
    run(run_turn(runner))
    assert '{"colour": "blue", "share": 0.5}' == boss.model.requests[1].messages[-1]["content"]
    assert {"colour": {"colour": "blue", "share": 0.5}} == run(state(runner))
