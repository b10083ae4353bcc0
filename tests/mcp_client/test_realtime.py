"""Tools of a real MCP server in realtime sessions: of a program, and of ``patchbay serve``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from patchbay.loop import ToolProgressEvent, ToolResultEvent
from patchbay.mcp import McpHost, McpServer
from patchbay.mcp.config import ServersFile
from patchbay.testing.realtime import Call, FakeOpenAI, FakeRealtime, Quote
from patchbay.tools.manager import LLMSessionManager
from realtime.core.playing import Played, playing
from realtime.server.rig import serving
from support.realtime_fakes import FakeGemini

PROVIDERS = [FakeOpenAI, FakeGemini]


@asynccontextmanager
async def realtime_session(server: McpServer, fake: FakeRealtime) -> AsyncIterator[Played]:
    """A realtime session with the tools of the server, which follows their changes."""
    manager = LLMSessionManager()
    host = McpHost([server], manager.registry, on_change=lambda _: manager.sync_later())
    try:
        await host.start()
        async with playing(fake) as played:
            await manager.prepare(played.session)
            await manager.swap()
            yield played
            manager.leave(played.session)
    finally:
        await host.aclose()


@pytest.mark.parametrize(("provider", "how"), [(FakeOpenAI, "interrupt"), (FakeGemini, "text")])
async def test_call_reports_progress_and_is_cancelled_at_the_server_by_an_interruption(http_server, provider, how, tmp_path):
    calls = [Call("mcp__sdk__work", {"steps": 2}), Call("mcp__sdk__add", {"a": 1, "b": 2}), Call("mcp__sdk__fail", {})]
    mark = tmp_path / "mark"
    with provider([calls, Quote(), Call("mcp__sdk__wait", {"mark": str(mark)}), "Well.", "Well."]) as fake:
        async with realtime_session(http_server, fake) as played:
            await played.session.send_text("Work.")
            await played.until(lambda: "done" in played.text)
            assert ["step 1", "step 2"] == [each.progress.message for each in played.of(ToolProgressEvent)]
            results = {each.execution.call.name: each.execution for each in played.of(ToolResultEvent)}
            assert ("done", {"total": 3}) == (results["mcp__sdk__work"].content, results["mcp__sdk__add"].value)
            assert results["mcp__sdk__fail"].is_error
            await played.session.send_text("Wait.")
            await played.until((tmp_path / "mark.began").exists)
            await (played.session.interrupt() if how == "interrupt" else played.session.send_text("Never mind."))
            await played.until(lambda: mark.exists() and mark.read_text() == "cancelled")
            await played.idle()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_sessions_of_a_server_have_the_tools_of_its_file_and_follow_their_changes(http_server, provider, tmp_path):
    file = ServersFile(tmp_path / "mcp.json")
    file.put(http_server)
    script = ["Ready.", Call("mcp__sdk__grow", {"name": "later"}), "Grown.", Call("mcp__sdk__later", {}), Quote("It says ")]
    with provider(script) as fake, serving(fake, "--mcp-config", str(file.path)) as server, server.session() as client:
        asyncio.run(fake.until(lambda: "mcp__sdk__grow" in fake.tools))
        client.answer("Hello.")
        client.answer("Grow.")
        asyncio.run(fake.until(lambda: "mcp__sdk__later" in fake.tools))
        assert "It says " in client.answer("Say it.")
        assert "later" == client.of("tool_result")[-1]["content"]
        assert [] == client.of("error")
    assert [] == fake.violations
