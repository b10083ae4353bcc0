"""Tools of mounted MCP servers: both eras of the protocol, both transports, real servers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from patchbay.mcp import McpHost
from patchbay.mcp.call_results import describe_tool
from patchbay.tools import tool
from patchbay.tools.registry import Registration, ToolRegistry
from patchbay.types import ToolCall

from .rig import mounted, raw_server, sdk_server


@pytest.fixture(params=["stdio", "http"])
def server(request):
    return sdk_server("ref") if request.param == "stdio" else replace(request.getfixturevalue("http_server"), name="ref")


async def test_a_server_of_each_transport_has_its_tools_called(server, tmp_path):
    async with mounted(server) as there:
        assert {"mcp__ref__add", "mcp__ref__echo", "mcp__ref__wait"} <= set(there.tools)
        add = there.registry.snapshot("default").tools["mcp__ref__add"]
        assert ("mcp:ref", "Add", {"read_only": True, "destructive": False}) == (add.source, add.title, add.annotations)
        icon = {"src": "data:image/png;base64,iVBORw0KGgo=", "mimeType": "image/png", "sizes": ["16x16"]}
        assert [icon] == [
            each.model_dump(by_alias=True, exclude_none=True) for each in describe_tool(add).icons
        ]  # for our clients
        assert {"total": 3} == (await there.call("mcp__ref__add", a=1, b=2)).value
        assert {"total": 2} == (await there.call("mcp__ref__add", a=1)).value
        misfit = await there.call("mcp__ref__add", a="one")
        assert ("invalid_arguments", "no") == (misfit.result.code, misfit.ran)
        assert "hi\nthere" == (await there.call("mcp__ref__echo", text="hi\nthere")).content

        everything = (await there.call("mcp__ref__everything")).value
        assert "some text\n[resource mem://notes]\na note\n[resource mem://more: more: the rest]" == everything.output
        assert [("image/png", 8), ("audio/wav", 4)] == [(each.media_type, len(each.data)) for each in everything.attachments]

        failed = await there.call("mcp__ref__fail")
        assert ("mcp_tool_error", "yes", True) == (failed.result.code, failed.ran, failed.content.startswith("Error: "))

        assert "done" == (await there.call("mcp__ref__work", steps=3)).content
        assert [("step 1", 1 / 3), ("step 2", 2 / 3), ("step 3", 1.0)] == there.progress

        await there.call("mcp__ref__grow", name=f"new_{server.transport}")
        await there.until(lambda: f"mcp__ref__new_{server.transport}" in there.tools)

        mark = tmp_path / "mark"
        waiting = asyncio.create_task(there.call("mcp__ref__wait", mark=str(mark)))
        await there.until(lambda: there.host.running_calls == 1)
        await asyncio.sleep(0.1)  # (the server has begun)
        waiting.cancel()
        await there.until(mark.exists)
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_server_of_the_handshake_era_has_its_tools_called_side_by_side(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    async with mounted(raw_server()) as there:
        calls = [ToolCall(f"c{n}", "mcp__raw__say", json.dumps({"n": n})) for n in range(20)]
        slow = ToolCall("slow", "mcp__raw__slow", "{}")
        results = await there.executor().run([slow, *calls])
        assert ["slow", *(f"said {n}" for n in range(20))] == [each.content for each in results]
        about = json.loads((await there.call("mcp__raw__env")).content)
        assert (about["pid"], True) == (about["pgid"], "OPENAI_API_KEY" not in about["env"] and "PATH" in about["env"])


async def test_tool_names_are_valid_for_every_provider_and_unique():
    async with mounted(raw_server("names", name="my server"), raw_server("names", name="a__b")) as there:
        assert 12 == len(there.tools)  # one of seven stands twice in the list of each server
        assert all(
            len(name) <= 64 and name.replace("_", "").replace("-", "").isalnum() and name.isascii() for name in there.tools
        )
    async with mounted(raw_server("names", name="raw", prefix="r_")) as there:
        assert "r_a_b" in there.tools


async def test_tool_of_another_source_keeps_its_name():
    @tool(name="r_say")
    def say() -> str:
        """Say something else."""
        return "else"

    registry = ToolRegistry()
    registry.register(Registration.of(say, source="plugin:mine"), inside=True)
    host = McpHost([raw_server(prefix="r_")], registry)
    await host.start()
    try:
        assert "plugin:mine" == registry.snapshot("default").registrations["r_say"].source
        assert "r_pid" in registry.snapshot("default").tools
    finally:
        await host.aclose()
    assert ["r_say"] == list(registry.snapshot("default").tools)


async def test_roles_and_filters_select_tools():
    registry = ToolRegistry(("ann", "ben"))
    host = McpHost([raw_server(roles=("ann",), allow=("s*",), deny=("slow",))], registry)
    await host.start()
    try:
        assert (["mcp__raw__say"], []) == (list(registry.snapshot("ann").tools), list(registry.snapshot("ben").tools))
    finally:
        await host.aclose()


async def test_unusable_schema_leaves_out_only_its_tool(caplog):
    async with mounted(raw_server("schemas")) as there:
        offered = [name for name, each in there.registry.snapshot("default").tools.items() if each.offered]
        assert ["mcp__raw__good"] == offered
    assert ["bad", "remote"] == [line.split("'")[1] for line in caplog.messages if "server 'raw'" in line]


async def test_a_result_that_does_not_fit_the_output_schema_is_an_error():
    """Its pattern takes exponential time in the SDK's own check."""
    async with mounted(raw_server("liar-of-schemas")) as there:
        lied = await there.call("mcp__raw__lie")
        assert ("mcp_call_failed", "yes") == (lied.result.code, lied.ran)
        assert "/total must be integer; /slow must match pattern" in lied.content


async def test_idle_connection_closes_and_reopens_with_the_next_call():
    async with mounted(raw_server(idle_timeout=0.2)) as there:
        first = (await there.call("mcp__raw__pid")).content
        await there.until(lambda: there.host.status[0].state == "idle")
        assert "mcp__raw__pid" in there.tools
        await there.until(lambda: not Path(f"/proc/{first}").exists())
        assert first != (await there.call("mcp__raw__pid")).content


async def test_resources_are_listed_and_read_by_an_optional_tool(http_server):
    async with mounted(replace(http_server, resources=True), raw_server(resources=True)) as there:  # the second one has none
        assert ["mcp__sdk__mcp_read_resource"] == [name for name in there.tools if "resource" in name]
        listed = (await there.call("mcp__sdk__mcp_read_resource")).value
        assert ["mem://notes", "mem://pictures/{number}"] == [each["uri"] for each in listed]
        read = await there.call("mcp__sdk__mcp_read_resource", uri="mem://notes")
        assert "[resource mem://notes]\na note" == read.content
        (picture,) = (await there.call("mcp__sdk__mcp_read_resource", uri="mem://pictures/7")).value.attachments
        assert ("image/png", b"7") == (picture.media_type, picture.data[-1:])
        assert "mcp_call_failed" == (await there.call("mcp__sdk__mcp_read_resource", uri="mem://none")).result.code
    async with mounted(http_server) as there:
        assert [] == [name for name in there.tools if "resource" in name]


async def test_prompts_are_listed_and_rendered_by_an_optional_tool(http_server):
    async with mounted(replace(http_server, prompts=True), raw_server(prompts=True)) as there:  # the second one has none
        assert ["mcp__sdk__mcp_get_prompt"] == [name for name in there.tools if "prompt" in name]
        listed = (await there.call("mcp__sdk__mcp_get_prompt")).value
        assert [{"name": "greet", "description": "Greet a person.", "arguments": ["name", "tone?"]}] == listed
        filled = await there.call("mcp__sdk__mcp_get_prompt", name="greet", arguments={"name": "Ann"})
        assert "user: Write a warm greeting to Ann." == filled.content
        assert "mcp_call_failed" == (await there.call("mcp__sdk__mcp_get_prompt", name="none")).result.code
