"""Transfer: valid and invalid targets, and how the log keeps the transfer's call."""

from __future__ import annotations

import pytest

from patchbay.agents import EventBus, LlmAgent, LoopAgent, ParallelAgent, RunConfig, Runner, SequentialAgent
from patchbay.testing import ScriptedModel
from support.running import run

from .turns import FailingAgent, TextAgent, call, lines, log, roles, run_turn, state


def transfer_call(agent: str, call_id: str = "1"):
    return call("transfer_to_agent", call_id, agent_name=agent)


def offered(model: ScriptedModel) -> dict[str, dict]:
    return {spec.name: spec for spec in model.requests[0].tools}


def transfer_tool(name: str):
    """A function tool that hands over to ``name``."""

    def go(tool_context) -> str:
        tool_context.state["went"] = name
        tool_context.actions.transfer_to_agent = name
        return "gone"

    return go


def test_agent_with_sub_agents_is_offered_a_transfer_to_each():
    model = ScriptedModel(["ok"])
    billing = TextAgent("billing", description="Knows invoices.")
    travel = TextAgent("travel")
    run(run_turn(Runner(LlmAgent(name="root", model=model, sub_agents=[billing, travel]))))
    spec = offered(model)["transfer_to_agent"]
    assert ["billing", "travel"] == spec.parameters["properties"]["agent_name"]["enum"]
    assert ["agent_name"] == spec.parameters["required"]
    assert "- billing: Knows invoices.\n- travel" in spec.description


def test_target_agent_continues_the_turn():
    model = ScriptedModel(["It is 3 euros."])
    billing = LlmAgent(name="billing", model=model)
    root = LlmAgent(name="root", model=ScriptedModel([transfer_call("billing")]), sub_agents=[billing])
    bus, received = EventBus(), []
    bus.subscribe("agent.*", lambda event: received.append((event.type, event.data)))
    runner = Runner(root, bus=bus)

    async def scenario():
        events = await run_turn(runner, "How much?")
        await bus.drain()
        return events

    expected = ["root > transfer_to_agent", "root < transfer_to_agent", "billing: It is 3 euros."]
    assert expected == lines(run(scenario()))
    assert ["user: How much?", *expected] == run(log(runner))
    assert ["user: How much?", "assistant > 1", "tool 1"] == roles(model.requests[0])
    assert [
        ("agent.start", {"agent": "root", "model": ""}),
        ("agent.transfer", {"from": "root", "to": "billing"}),
        ("agent.start", {"agent": "billing", "model": ""}),
        ("agent.response", {"agent": "billing", "text": "It is 3 euros.", "session_id": "s"}),
    ] == received


def test_next_message_goes_to_the_root_agent_and_the_state_of_the_transfer_is_kept():
    model = ScriptedModel([call("go"), "back"])
    root = LlmAgent(name="root", model=model, tools=[transfer_tool("other")], sub_agents=[TextAgent("other")])
    runner = Runner(root)
    run(run_turn(runner))
    assert {"went": "other"} == run(state(runner))
    assert ["root: back"] == lines(run(run_turn(runner)))


@pytest.mark.parametrize("by", ["transfer_to_agent", "go"])
@pytest.mark.parametrize(
    ("name", "words"),
    [("nobody", "Unknown agent 'nobody'. Available: other."), ("root", "yourself"), ("Other", "other"), ("", "other")],
)
def test_transfer_to_an_unknown_agent_or_itself_is_an_error_for_the_model(name, words, by):
    model = ScriptedModel([transfer_call(name) if by == "transfer_to_agent" else call("go"), "then I answer"])
    root = LlmAgent(name="root", model=model, tools=[transfer_tool(name)], sub_agents=[TextAgent("other")])
    runner = Runner(root)
    events = run(run_turn(runner))
    assert [f"root > {by}", f"root < {by}", "root: then I answer"] == lines(events)
    if by == "go":
        assert words in events[1].get_function_responses()[0].response["error"]
    assert "other" in model.requests[1].messages[-1]["content"] or words in model.requests[1].messages[-1]["content"]
    assert (None, {}) == (events[1].actions.transfer_to_agent, run(state(runner)))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("root", ["root: root answers"]),
        ("left", ["left: left answers"]),
        ("steps", ["one: one", "two: two"]),
        ("two", ["two: two"]),
        ("again", ["again: again"]),
        ("loop", ["again: again", "again: again"]),
        ("side", ["x: x", "y: y"]),
    ],
)
def test_any_agent_of_the_tree_is_a_transfer_target(target, expected):
    leaf = LlmAgent(name="leaf", model=ScriptedModel([call("go")]), tools=[transfer_tool(target)])
    left = LlmAgent(name="left", model=ScriptedModel([transfer_call("leaf"), "left answers"]), sub_agents=[leaf])
    steps = SequentialAgent(name="steps", sub_agents=[TextAgent("one"), TextAgent("two")])
    loop = LoopAgent(name="loop", sub_agents=[TextAgent("again")], max_iterations=2)
    side = ParallelAgent(name="side", sub_agents=[TextAgent("x"), TextAgent("y")])
    model = ScriptedModel([transfer_call("left"), "root answers"])
    root = LlmAgent(name="root", model=model, sub_agents=[left, steps, loop, side])
    events = lines(run(run_turn(Runner(root))))
    assert ["root > transfer_to_agent", "root < transfer_to_agent"] == events[:2]
    assert ["leaf > go", "leaf < go"] == events[4:6]
    assert expected == events[6:]


@pytest.mark.parametrize("limit", [3, 50])
def test_circular_transfers_end_with_the_budget(limit):
    agents = {}

    class GoesOn:
        def __init__(self, name: str, other: str) -> None:
            self.name, self.other, self.times = name, other, 0

        async def respond(self, _request):
            from patchbay.models.chat_model import ModelReply
            from patchbay.types import Reply

            self.times += 1
            yield ModelReply(Reply(None, tool_calls=(call("go"),)), "tool_calls")

    models = GoesOn("a", "b"), GoesOn("b", "a")
    agents["b"] = LlmAgent(name="b", model=models[1], tools=[transfer_tool("a")])
    agents["a"] = LlmAgent(name="a", model=models[0], tools=[transfer_tool("b")], sub_agents=[agents["b"]])
    events = run(run_turn(Runner(agents["a"]), run_config=RunConfig(max_llm_calls=limit)))
    assert limit == models[0].times + models[1].times
    assert "MAX_LLM_CALLS" == events[-1].error_code
    assert f"({limit})" in events[-1].error_message


def broken() -> None:
    raise ValueError("no")


INHERITS = SequentialAgent(name="child", sub_agents=[LlmAgent(name="leaf")])


@pytest.mark.parametrize(
    ("steps", "sub_agents", "expected"),
    [
        ([[transfer_call("a", "1"), transfer_call("b", "2")]], [TextAgent("a"), TextAgent("b")], "b: b"),
        ([[call("broken"), transfer_call("a", "2")]], [TextAgent("a")], "a: a"),
        ([transfer_call("bad")], [FailingAgent("bad", ValueError("no"))], "bad! AGENT_ERROR"),
        ([transfer_call("child"), "from the child"], [INHERITS], "leaf: from the child"),
    ],
    ids=["the last of two", "beside a failing call", "to an agent that fails", "to one that inherits the model"],
)
def test_who_has_the_last_word_after_a_transfer(steps, sub_agents, expected):
    root = LlmAgent(name="root", model=ScriptedModel(steps), tools=[broken], sub_agents=sub_agents)
    events = run(run_turn(Runner(root)))
    assert (expected, 3) == (lines(events)[-1], len(events))


def test_transfer_target_runs_in_the_same_branch():
    inner = LlmAgent(name="inner", model=ScriptedModel([transfer_call("below")]), sub_agents=[TextAgent("below")])
    runner = Runner(ParallelAgent(name="side", sub_agents=[inner, TextAgent("beside")]))
    events = run(run_turn(runner))
    assert {"side.inner"} == {event.branch for event in events if event.author in ("inner", "below")}
