"""Runs of this process: the names of steps, which do not depend on the order of parallel agents and calls; readers; old runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from dbos._sys_db import SystemDatabase
from sqlalchemy.exc import OperationalError

from patchbay.agents import AgentTool, LlmAgent, LoopAgent, ParallelAgent, Runner, SequentialAgent
from patchbay.agents.durable import DurableRuns, watcher
from patchbay.errors import RunNotFoundError
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


async def test_each_reader_of_a_run_gets_all_its_events_and_old_runs_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(watcher, "_PRUNE", 0.0)
    monkeypatch.setattr(watcher, "_PRUNED", 1)
    agent = LlmAgent(name="one", model=ScriptedModel([asks("look"), "done", "done", "done"]), tools=[look])
    durable = DurableRuns(f"sqlite:///{tmp_path}/runs.db", keep_days=1.5 / 86400)

    async def read() -> list[str]:
        return [event.id async for event in runner.run("u", "s", "go", run_id="r")]

    async with Runner(agent, durable=durable) as runner:
        first, second = await asyncio.gather(read(), read())
        assert 3 == len(first) == len(set(first))
        assert first == second == await read()
        await durable.wait((await durable.submit("one", "go")).id)
        async with asyncio.timeout(20):
            while True:
                try:
                    await durable.get("r")
                except RunNotFoundError:
                    break
                await asyncio.sleep(0.1)


async def test_an_error_that_was_recorded_in_place_of_an_outcome_is_not_the_outcome(tmp_path, monkeypatch):
    monkeypatch.setattr(watcher, "BEAT", 0.2)
    monkeypatch.setattr(watcher, "_WATCH", 0.1)
    record, failed = SystemDatabase.record_operation_result, []

    def fails_once(self, result, **options):
        if result["function_name"].endswith(("call 1.0", "round 2")) and result["function_name"] not in failed:
            failed.append(result["function_name"])
            raise OperationalError("INSERT", {}, Exception("connection is bad"))
        return record(self, result, **options)

    monkeypatch.setattr(SystemDatabase, "record_operation_result", fails_once)
    model = ScriptedModel([asks("look"), "done", "done"])
    async with Runner(LlmAgent(name="events", model=model, tools=[look]), durable=f"sqlite:///{tmp_path}/runs.db") as runner:
        async with asyncio.timeout(30):
            events = [event async for event in runner.run("u", "s", "go", run_id="r")]
        run = await runner.durable.get("r")
        kinds = [step["kind"] async for step in runner.durable.steps("r")]
    assert ["events#1 call 1.0", "events#1 round 2"] == failed
    assert ["model", "tool_begins", "tool", "model"] == kinds
    assert ("completed", "done") == (run.status, run.text)
    assert [] == [event.error_message for event in events if event.error_code]
