"""Every step of a run has a name of its own, which does not depend on the order in which parallel agents and calls come."""

from __future__ import annotations

import json
from typing import Any

from patchbay.agents import AgentTool, LlmAgent, LoopAgent, ParallelAgent, Runner, SequentialAgent
from patchbay.agents.durable import DurableRuns
from patchbay.testing import ScriptedModel
from patchbay.types import ToolCall


async def look() -> str:
    return "seen"


def asks(tool: str, **arguments: str) -> Any:
    return ToolCall("c1", tool, json.dumps(arguments))


async def test_steps_of_parallel_agents_loops_and_agents_as_tools(tmp_path):
    expert = LlmAgent(name="expert", model=ScriptedModel([asks("look"), "It is so."]), tools=[look])
    left = LlmAgent(name="left", model=ScriptedModel([asks("look"), "left"]), tools=[look])
    right = LlmAgent(name="right", model=ScriptedModel([asks("expert", request="?"), "right"]), tools=[AgentTool(expert)])
    again = LlmAgent(name="again", model=ScriptedModel(["one", "two"]))
    agent = SequentialAgent(
        name="all",
        sub_agents=[
            ParallelAgent(name="both", sub_agents=[left, right]),
            LoopAgent(name="loop", sub_agents=[again], max_iterations=2),
        ],
    )
    durable = DurableRuns(f"sqlite:///{tmp_path}/runs.db")
    async with Runner(agent, durable=durable) as runner:
        events = [event async for event in runner.run("u", "s", "go", run_id="r")]
        assert [] == [event.error_message for event in events if event.error_code]
        names = [step["step"] async for step in durable.steps("r")]
        ids = {step["id"] async for step in durable.steps("r")}
    assert len(names) == len(ids)
    inner = next(name for name in names if "expert" in name).split("/")[0]  # the id of the call, which follows from its place
    branch_left, branch_right = "both.left/left#1", "both.right/right#1"
    assert sorted(
        [
            *(f"{branch_left} round {number}" for number in (1, 2)),
            *(f"{branch_left} call 1.0{began}" for began in ("", " began")),
            *(f"{branch_right} round {number}" for number in (1, 2)),
            *(f"{inner}/expert#1 round {number}" for number in (1, 2)),
            *(f"{inner}/expert#1 call 1.0{began}" for began in ("", " began")),
            *(f"again#{number} round 1" for number in (1, 2)),
        ]
    ) == sorted(names)
