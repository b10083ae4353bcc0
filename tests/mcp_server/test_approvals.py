"""Calls over MCP that await approval: progress for the client, the decision, and withdrawal with the client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from mcp_server.rig import ERAS, connected, run
from patchbay import tool
from patchbay.server.app import create_tools_app
from patchbay.server.governance import Governance, GovernanceSettings
from patchbay.server.settings import ToolsSettings
from tools_server.rig import Server, serving

POLICY = """
[[approvals.rules]]
tools = ["delete_file"]
outcome = "ask"
"""
WAITING = "Waiting for a person to approve this call."


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    who = getattr(request, "param", None)
    (tmp_path / "policy.toml").write_text(POLICY + (f"who = {who}\n" if who else ""))
    governance = Governance(GovernanceSettings(config=tmp_path / "policy.toml"))
    app = create_tools_app(("ann",), settings=ToolsSettings(lease=0.0), governance=governance)

    @tool(annotations={"destructive": True})
    def delete_file(path: str) -> str:
        return f"deleted {path}"

    app.managers["ann"].register_tool(delete_file)
    with serving(app=app) as running:
        yield running


async def pending(server: Server) -> dict[str, Any]:
    """Wait for the one request, and return it."""
    while not (found := (await asyncio.to_thread(server.ask, "GET", "/api/approvals")).json["approvals"]):
        await asyncio.sleep(0.01)
    [request] = found
    return dict(request)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("decision", "text"), [("approve", "deleted /tmp/a"), ("deny", "not that file")])
async def test_pending_approval_is_reported_as_progress_to_the_client(server: Server, era: str, decision: str, text: str) -> None:
    received: list[str | None] = []

    async def note(_progress: float, _total: float | None, message: str | None) -> None:
        received.append(message)

    async with connected(server.port, era) as client:
        call = asyncio.create_task(client.call_tool("delete_file", {"path": "/tmp/a"}, progress_callback=note))
        request = await pending(server)
        while not received:
            await asyncio.sleep(0.01)
        body = {"decision": decision, "reason": "not that file"}
        await asyncio.to_thread(server.ask, "POST", f"/api/approvals/{request['id']}", body)
        done = await call
    assert ("delete_file", {"path": "/tmp/a"}, "ann") == (request["tool"], request["arguments"], request["role"])
    assert [WAITING] == received
    assert decision == ("deny" if done.is_error else "approve")
    assert text in done.content[0].text


@pytest.mark.parametrize("era", ERAS)
def test_cancelled_client_request_withdraws_its_approval(server: Server, era: str) -> None:
    async def ask() -> str:
        async with connected(server.port, era) as client:
            call = asyncio.create_task(client.call_tool("delete_file", {"path": "/tmp/a"}))
            request = await pending(server)
            call.cancel()
            while True:
                found = (await asyncio.to_thread(server.ask, "GET", f"/api/approvals/{request['id']}")).json["approval"]
                if found["state"] != "pending":
                    return str(found["state"])
                await asyncio.sleep(0.01)

    assert "withdrawn" == run(ask())


@pytest.mark.parametrize("server", ['["mcp"]', '["http", "mcp"]'], indirect=True)
@pytest.mark.parametrize(("action", "text"), [("accept", "deleted /tmp/a"), ("decline", "the user's answer was decline")])
async def test_rule_can_let_the_clients_user_decide(server: Server, action: Any, text: str) -> None:
    asked: list[str] = []

    async def answer(_context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action=action, content={} if action == "accept" else None)

    async with connected(server.port, "legacy", elicitation_callback=answer) as client:
        done = await client.call_tool("delete_file", {"path": "/tmp/a"})
    assert ['May the tool delete_file run with {"path": "/tmp/a"}?'] == asked
    assert (action == "decline", True) == (done.is_error, text in done.content[0].text)
    [decided] = server.ask("GET", "/api/approvals?all=1").json["approvals"]
    assert decided["by"].startswith("mcp ")


@pytest.mark.parametrize("server", ['["mcp"]'], indirect=True)
@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_only_a_client_without_a_user_could_decide_is_denied(server: Server, era: str) -> None:
    async with connected(server.port, era) as client:
        assert "its MCP client cannot ask its user" in (await client.call_tool("delete_file", {"path": "/tmp/a"})).content[0].text
