"""MCP servers that die, hang, flood, lie or send too much: each call has one result, and the others are not harmed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest

from patchbay.mcp import McpHost, McpServer, connection
from patchbay.mcp.stdio import stdio_transport
from patchbay.tools.registry import ToolRegistry
from patchbay.types import ToolCall
from ports import held_port

from .rig import Mounted, mounted, over_http, raw_server

ROUNDS = int(os.environ.get("PATCHBAY_MCP_ROUNDS", "8"))


async def test_calls_of_a_killed_server_have_results_and_its_tools_return():
    async with mounted(raw_server()) as there:
        for _ in range(ROUNDS):
            pid = int((await there.call("mcp__raw__pid")).content)
            calls = [ToolCall(f"c{n}", "mcp__raw__slow", json.dumps({"seconds": n * 0.1})) for n in range(10)]
            running = asyncio.create_task(there.executor().run(calls))
            await asyncio.sleep(0.04)
            os.kill(pid, signal.SIGKILL)
            results = await running
            assert [f"c{n}" for n in range(10)] == [each.result.call_id for each in results]
            assert {"yes", "unknown"} >= {each.ran for each in results}
            assert any(each.error is not None and each.ran == "unknown" for each in results)
            await there.until(lambda: not there.hidden)


async def test_output_of_a_process_that_has_exited_is_read_to_its_end(tmp_path):
    """More than the reader and the pipe hold together, so that the last of it is in the pipe at the exit."""
    left = tmp_path / "left"
    program = tmp_path / "server.py"
    program.write_text(
        "import os, sys\n"
        "for number in range(1000, 2600):\n"
        '    print(\'{"jsonrpc": "2.0", "method": "x", "params": {"n": %d, "text": "%s"}}\' % (number, \'x\' * 50))\n'
        "sys.stdout.flush()\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
    )
    server = McpServer(name="big", command=sys.executable, args=(str(program), str(left)))
    async with asyncio.timeout(30), stdio_transport(server, on_end=lambda: None) as (messages, _):
        while not (left.exists() and left.read_text()):
            await asyncio.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            while True:  # until the exit has been seen
                os.kill(int(left.read_text()), 0)
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        assert 1600 == len([message async for message in messages])


async def test_the_tools_of_a_dead_server_are_hidden_until_it_is_back(tmp_path):
    script = tmp_path / "server"
    server = raw_server()
    script.write_text(f"#!/bin/sh\nexec {server.command} {' '.join(server.args)}\n")
    script.chmod(0o700)
    async with mounted(replace(server, command=str(script), args=())) as there:
        pid = int((await there.call("mcp__raw__pid")).content)
        moved = script.rename(tmp_path / "away")
        os.kill(pid, signal.SIGKILL)
        await there.until(lambda: there.tools == [])
        assert "mcp__raw__pid" in there.hidden
        await there.until(lambda: "no command" in there.host.status[0].problem)
        moved.rename(script)
        assert pid != int((await there.call("mcp__raw__pid")).content)
        assert "mcp__raw__pid" in there.tools


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        (raw_server("hang", start_timeout=0.3), "it was not ready within 0.3 s"),
        (raw_server("crash"), "exit status 1; it wrote: no database"),
        (raw_server("no-list"), "it sent something invalid: tools: Input should be a valid list"),
        (McpServer(name="none", command="/no/such"), "no command '/no/such'"),
    ],
    ids=["hang", "crash", "no-list", "none"],
)
async def test_a_server_that_does_not_start_is_a_status_and_no_error_of_the_host(server, problem):
    async with mounted(server) as there:
        (status,) = there.host.status
        assert ("down", problem, ()) == (status.state, status.problem, status.tools)


async def test_a_host_that_is_closed_does_not_wait_for_a_server_that_has_not_started(tmp_path):
    pid = tmp_path / "pid"
    silent = McpServer(
        name="silent", command="sh", args=("-c", f"echo $$ > {pid}; while read line; do :; done"), start_timeout=3600.0
    )
    host = McpHost([silent], ToolRegistry())
    await host.start(wait=False)
    async with asyncio.timeout(30):
        while not (pid.exists() and pid.read_text().strip()):
            await asyncio.sleep(0.01)
        await host.aclose()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


ASKS = """
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel
server = MCPServer("asks")
class Size(BaseModel):
    size: str
@server.tool()
async def order(ctx: Context) -> str:
    await ctx.elicit("Which size?", Size)
server.run()
"""


async def test_tool_that_failed_at_elicitation_may_have_run():
    async with mounted(McpServer(name="asks", command=sys.executable, args=("-c", ASKS))) as there:
        order = await there.call("mcp__asks__order")
        assert ("unknown", True, False) == (order.ran, "no back-channel" in order.content, ".." in order.content)


async def test_definitions_that_break_the_protocol_are_left_out_alone_and_logged(caplog):
    async with mounted(raw_server("invalid")) as there:
        assert ["mcp__raw__good", "mcp__raw__last"] == there.tools
        assert 1 == caplog.text.count("The tool 'array' of the MCP server 'raw': it is left out: inputSchema.type: Input should")
        assert ["array", "number 3", "number 4"] == [line.split("'")[1] for line in caplog.messages if "left out" in line]


async def test_noise_on_both_outputs_does_not_harm_calls(caplog):
    async with mounted(raw_server("noise")) as there:
        results = [(await there.call("mcp__raw__say", n=n)).content for n in range(50)]
        assert [f"said {n}" for n in range(50)] == results
    assert len(caplog.records) < 200


async def test_server_output_is_logged_without_secrets_and_control_characters(caplog):
    caplog.set_level("INFO", "patchbay.mcp")
    env = {"API_TOKEN": "t0p-s3cr3t", "DATABASE": "db://u:hunter22@host/x", "LEVEL": "debug"}
    async with mounted(raw_server("leak", env=env)) as there:
        text = "\\x1b[31m[redacted] is refused by [redacted], level debug"
        assert f"exit status 1; it wrote: {text}" == there.host.status[0].problem
    assert f"mcp raw: {text}" in caplog.messages
    assert (True, False, False) == ("token=[redacted]" in caplog.text, "t0p-s3cr3t" in caplog.text, "hunter22" in caplog.text)


async def test_responses_with_unknown_or_repeated_ids_are_dropped():
    async with mounted(raw_server("liar")) as there:
        calls = [ToolCall(f"c{n}", "mcp__raw__say", json.dumps({"n": n})) for n in range(3)]
        assert ["first"] * 3 == [each.content for each in await there.executor().run(calls)]


async def test_a_result_that_breaks_the_protocol_is_an_error_of_one_line():
    async with mounted(raw_server()) as there:
        execution = await there.call("mcp__raw__malformed")
        text = "it sent something invalid: content.0.TextContent.text: Field required"
        assert (True, "yes", False) == (text in execution.content, execution.ran, "pydantic" in execution.content)


async def test_a_result_that_is_too_large_is_an_error_and_the_connection_stays():
    async with mounted(raw_server()) as there:
        pid = (await there.call("mcp__raw__pid")).content
        big = await there.call("mcp__raw__big", size=100_000_000)
        assert ("mcp_call_failed", "yes", True) == (big.result.code, big.ran, "is larger than" in big.content)
        assert pid == (await there.call("mcp__raw__pid")).content


async def test_call_timeout_is_cancelled_at_the_server(tmp_path):
    async with mounted(raw_server("", str(tmp_path / "state"), timeout=0.2)) as there:
        late = await there.call("mcp__raw__slow", seconds=5)
        assert ("tool_timeout", "unknown") == (late.result.code, late.ran)
        await there.until((tmp_path / "state.cancelled").exists)


@pytest.mark.parametrize(("era", "ping_interval"), [("auto", 3600.0), ("legacy", 0.1), ("legacy", 3600.0)])
async def test_a_server_over_http_that_has_restarted_is_called_again_in_a_new_session(era, ping_interval, monkeypatch):
    monkeypatch.setattr(connection, "Client", partial(connection.Client, mode=era))
    monkeypatch.setattr(connection, "PING_INTERVAL", ping_interval)
    is_noticed = (era, ping_interval) != ("legacy", 3600.0)  # by its stream, or by a ping; else by the next call
    port, holder = held_port()
    with closing(holder):
        with over_http(port):
            host = McpHost([McpServer(name="web", url=f"http://127.0.0.1:{port}/mcp")], ToolRegistry())
            await host.start()
            there = Mounted(host)
            assert "1" == (await there.call("mcp__web__echo", text="1")).content
        if is_noticed:
            await there.until(lambda: "mcp__web__echo" in there.hidden)
        with over_http(port):
            assert "2" == (await there.call("mcp__web__echo", text="2")).content
            monkeypatch.setattr(connection, "PING_INTERVAL", 3600.0)
            await there.until(lambda: not there.hidden)
        await host.aclose()
