"""MCP servers in programs: ``ToolRunner(mcp_servers=...)``, and ``McpToolset`` among the tools of agents."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from patchbay import ToolRunner
from patchbay.agents import InMemorySessionService, LlmAgent, Runner
from patchbay.errors import ConfigurationError
from patchbay.mcp import McpServer, McpToolset
from patchbay.testing import ScriptedModel
from patchbay.types import ToolCall

from .rig import raw_server

SAY = ToolCall("1", "mcp__raw__say", '{"n": 7}')
PID = ToolCall("1", "mcp__raw__pid", "{}")


def add(a: int) -> int:
    """Add one."""
    return a + 1


async def test_runner_adds_server_tools_after_its_own_and_stops_the_servers():
    model = ScriptedModel([[PID, ToolCall("2", "add", '{"a": 1}')], "done", "again"])
    runner = ToolRunner(model, [add], mcp_servers={"raw": raw_server(allow=("pid", "say")).to_json()})
    result = await runner.run("go")
    pid, two = (each.content for each in result.tool_executions)
    assert ("2", "done") == (two, result.content)
    await runner.run("again")
    assert [["add", "mcp__raw__pid", "mcp__raw__say"]] * 3 == [
        [each.name for each in request.tools] for request in model.requests
    ]
    assert Path(f"/proc/{pid}").exists()
    await runner.aclose()
    assert not Path(f"/proc/{pid}").exists()


def test_a_runner_is_used_from_several_event_loops_one_after_the_other_and_at_once():
    model = ScriptedModel([[PID], "one", [PID], "two", [PID], "three", [PID], "four"])
    runner = ToolRunner(model, mcp_servers=[raw_server()])
    first = asyncio.run(runner.run("go")).tool_executions[0].content
    assert not Path(f"/proc/{first}").exists()  # its event loop has ended, and it with that
    second = runner.run_sync("go").tool_executions[0].content  # in the background loop, which stays
    third = asyncio.run(runner.run("go")).tool_executions[0].content  # through that loop
    assert (True, second) == (second.isdigit() and second != first, third)
    assert second == runner.run_sync("go").tool_executions[0].content
    asyncio.run(runner.aclose())
    assert not Path(f"/proc/{second}").exists()


async def test_an_agent_has_the_tools_of_a_toolset():
    model = ScriptedModel([[SAY], "it said so"])
    toolset = McpToolset(raw_server(allow=("say",)))
    agent = LlmAgent(name="speaker", model=model, tools=[add, toolset])
    async with InMemorySessionService() as sessions, Runner(agent, "app", sessions) as runner:
        events = [event async for event in runner.run(user_id="ann", session_id="s", message="go")]
    assert "it said so" == events[-1].content.text
    assert ["add", "mcp__raw__say"] == [each.name for each in model.requests[0].tools]
    assert any("said 7" in str(event.content) for event in events)
    assert () == toolset.status


def test_two_servers_of_one_name_and_other_things_are_refused():
    with pytest.raises(ConfigurationError, match="two MCP servers of the name 'raw'"):
        ToolRunner(ScriptedModel([]), mcp_servers=[raw_server(), raw_server()])
    with pytest.raises(ConfigurationError, match="must be an McpServer, not str"):
        ToolRunner(ScriptedModel([]), mcp_servers=["npx"])


async def test_server_that_fails_to_start_does_not_affect_the_others():
    runner = ToolRunner(ScriptedModel([[SAY], "fine"]), mcp_servers=[McpServer(name="no", command="/no/such"), raw_server()])
    result = await runner.run("go")
    assert ("said 7", "fine") == (result.tool_executions[0].content, result.content)
    await runner.aclose()
