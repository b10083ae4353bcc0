"""The registry over MCP: lists, calls, results and changes, as the official SDK's client sees them in both eras."""

from __future__ import annotations

import asyncio
import base64
import http.client
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from mcp_server.rig import ERAS, PIXEL, SUM, add, answer_the_user, connected, files, run, step_by_step, wrong_sum
from patchbay import tool
from patchbay.hooks import HookManager
from patchbay.server.app import create_tools_app
from patchbay.server.governance import Governance, GovernanceSettings
from patchbay.server.settings import ToolsSettings
from patchbay.tools.context import ToolContext
from tools_server.rig import BOUND, Server, poll_until, serving

TOOLS = (add, wrong_sum, files, answer_the_user, step_by_step)


class Notes:
    """A hook that records the calls it sees, and replaces nothing."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def before_tool(self, call: Any) -> None:
        self.calls.append(call)

    def after_tool(self, result: Any) -> None:
        pass


@pytest.fixture(scope="module")
def notes() -> Notes:
    return Notes()


@pytest.fixture(scope="module")
def server(notes: Notes, tmp_path_factory: pytest.TempPathFactory) -> Any:
    hooks = HookManager()
    hooks.mount("notes", notes)
    audit = f"sqlite:///{tmp_path_factory.mktemp('audit') / 'audit.db'}"
    governance = Governance(GovernanceSettings(audit=audit), hooks=hooks)
    app = create_tools_app(("ann", "ben"), settings=ToolsSettings(lease=0.0), governance=governance)
    for each in TOOLS:
        app.managers["ann"].register_tool(each)
    with serving(app=app) as running:
        yield running


def only_text(result: Any) -> str:
    [block] = result.content
    return str(block.text)


@pytest.mark.parametrize("era", ERAS)
def test_tools_of_a_role_are_listed_with_their_annotations(server: Server, era: str) -> None:
    async def ask(query: str) -> Any:
        async with connected(server.port, era, query=query) as client:
            assert client.server_capabilities.tools.list_changed is True
            return client.server_info.name, (await client.list_tools()).tools

    name, listed = run(ask(""))
    assert "patchbay" == name
    assert [each.name for each in TOOLS] == [each.name for each in listed]
    first = listed[0]
    assert ("Sum", "Add two integers.", SUM) == (first.title, first.description, first.output_schema)
    assert (True, None) == (first.annotations.read_only_hint, first.annotations.destructive_hint)
    assert ["a"] == first.input_schema["required"]
    assert listed == run(ask("?role=ann"))[1]
    assert [] == run(ask("?role=ben"))[1]


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_returns_text_structured_content_and_errors_for_the_model(server: Server, era: str) -> None:
    async with connected(server.port, era) as client:
        done = await client.call_tool("add", {"a": 1})
        assert ('{"sum": 3}', {"sum": 3}, False) == (only_text(done), done.structured_content, done.is_error)

        wrong = await client.call_tool("add", {"a": "x"})
        assert wrong.is_error
        assert "/a" in only_text(wrong)
        assert ("invalid_arguments", "no") == (wrong.meta["patchbay/code"], wrong.meta["patchbay/ran"])

        mismatch = await client.session.call_tool("wrong_sum", {})
        assert mismatch.is_error
        assert "/sum must be integer" in only_text(mismatch)

        with pytest.raises(MCPError, match="Unknown tool: nothing"):
            await client.call_tool("nothing", {})


@pytest.mark.parametrize("era", ERAS)
async def test_files_of_a_result_are_content_of_their_kind(server: Server, era: str) -> None:
    async with connected(server.port, era) as client:
        [text, image, sound, note, paper] = (await client.call_tool("files", {})).content
        [shown, to_user, picture] = (await client.call_tool("answer_the_user", {})).content
    assert "four files" in text.text
    assert ("image/png", PIXEL) == (image.mime_type, base64.b64decode(image.data))
    assert ("audio/wav", b"RIFF----WAVE") == (sound.mime_type, base64.b64decode(sound.data))
    assert ("attachment:///a%20note.txt", "{'é': 1}") == (note.resource.uri, note.resource.text)
    assert ("application/pdf", b"\x00\xff") == (paper.resource.mime_type, base64.b64decode(paper.resource.blob))
    assert shown.text.startswith("shown")
    assert ("Here it is.", ["user"]) == (to_user.text, to_user.annotations.audience)
    assert (PIXEL, ["user"]) == (base64.b64decode(picture.data), picture.annotations.audience)


@pytest.mark.parametrize("era", ERAS)
async def test_progress_reaches_the_client_in_numbers_that_grow(server: Server, era: str) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with connected(server.port, era) as client:
        assert "done" == only_text(await client.call_tool("step_by_step", {}, progress_callback=note))
    assert [(0.0, None, "begun"), (50.0, 100.0, "half"), (50.001, 100.0, "back"), (100.0, 100.0, None)] == seen


@pytest.mark.parametrize("era", ERAS)
async def test_hooks_and_audit_see_a_call_with_its_role_client_and_session(server: Server, notes: Notes, era: str) -> None:
    async with connected(server.port, era) as client:
        await client.call_tool("add", {"a": 40})
    call = notes.calls[-1]
    assert ("add", {"a": 40, "b": 2}, "ann") == (call.tool, call.arguments, call.meta.agent_id)
    assert ("mcp", "ann") == (call.context["inbound"]["channel"], call.context["scope"]["role"])
    client = call.context["inbound"]["sender_id"]
    assert client.startswith("mcp ")
    assert ("mcp-" if era == "legacy" else "") == call.meta.session_key[:4]
    turn = call.meta.turn_id
    entries = poll_until(lambda: server.ask("GET", f"/api/audit?turn={turn}").json["entries"])
    assert [("add", "mcp", client)] == [(entry["tool"], entry["channel"], entry["sender"]) for entry in entries]


@pytest.mark.parametrize("era", ERAS)
async def test_cancelled_call_stops_its_tool(server: Server, era: str) -> None:
    started, stopped = [], []

    @tool
    async def wait_long(tool_context: ToolContext) -> None:
        started.append(tool_context)
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.append(tool_context)

    server.app.managers["ann"].register_tool(wait_long)

    async with connected(server.port, era) as client:
        call = asyncio.create_task(client.call_tool("wait_long", {}))
        while not started:
            await asyncio.sleep(0.01)
        call.cancel()
        while not stopped:
            await asyncio.sleep(0.01)
        assert 3 == (await client.call_tool("add", {"a": 1})).structured_content["sum"]
    server.app.managers["ann"].unregister_tool("wait_long")


@pytest.mark.parametrize("era", ERAS)
async def test_a_change_of_the_list_is_announced_to_the_clients_of_its_role_alone(server: Server, era: str) -> None:
    seen: dict[str, list[Any]] = {"ann": [], "ben": []}

    async def listen(role: str, ready: asyncio.Event) -> None:
        async def note(message: Any) -> None:
            if "ListChanged" in type(message).__name__ or "ListChanged" in type(getattr(message, "root", None)).__name__:
                seen[role].append(message)

        async with connected(server.port, era, query=f"?role={role}", message_handler=note) as client:
            ready.set()
            if era == "legacy":
                await asyncio.Event().wait()
            async with client.listen(tools_list_changed=True) as events:
                async for event in events:
                    seen[role].append(event)

    ready = [asyncio.Event(), asyncio.Event()]
    listening = [asyncio.create_task(listen(role, each)) for role, each in zip(seen, ready, strict=True)]
    for each in ready:
        await each.wait()
    number = 0
    while not seen["ann"]:  # the client's stream opens after its handshake: what changes before is not told
        number += 1
        server.app.managers["ann"].register_tool(tool(add.function, name=f"add_{number}"))
        await asyncio.sleep(0.1)
    assert [] == seen["ben"]
    for each in listening:
        each.cancel()
    await asyncio.wait(listening)
    for each in range(1, number + 1):
        server.app.managers["ann"].unregister_tool(f"add_{each}")


@pytest.mark.parametrize("era", ERAS)
def test_hidden_tool_is_not_listed_and_its_call_reports_when_it_returns(server: Server, era: str) -> None:
    async def ask() -> tuple[list[str], Any]:
        async with connected(server.port, era) as client:
            return [each.name for each in (await client.list_tools()).tools], await client.session.call_tool("far", {})

    server.register("far", source="elsewhere", role="ann")
    server.app.registry.hide("elsewhere")
    names, refused = run(ask())
    assert "far" not in names
    assert (True, "tool_hidden", "no") == (refused.is_error, refused.meta["patchbay/code"], refused.meta["patchbay/ran"])
    assert "when that takes connections again" in only_text(refused)
    server.app.registry.clear("elsewhere", inside=True)


def test_a_server_that_stops_ends_open_streams_and_does_not_wait_for_them() -> None:
    with serving(("ann",)) as server:
        handshake = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        both = {"accept": "application/json, text/event-stream"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": handshake}
        begun = server.ask("POST", "/mcp", body, **both)
        assert 200 == begun.status
        session = begun.headers["mcp-session-id"]
        done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert 202 == server.ask("POST", "/mcp", done, mcp_session_id=session, **both).status
        stream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=BOUND)
        stream.request("GET", "/mcp", headers={"accept": "text/event-stream", "mcp-session-id": session})
        opened = stream.getresponse()
        assert 200 == opened.status
        server.app.stopping()
        assert b"" == opened.read()
        stream.close()


@pytest.mark.parametrize("era", ERAS)
def test_a_tool_may_ask_the_clients_user_and_raise_errors_of_the_protocol(server: Server, era: str) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}

    @tool
    async def ask_city(tool_context: ToolContext) -> Any:
        request = tool_context.invocation_context
        if era == "legacy":
            answer = await request.session.elicit_form("Which city?", schema, related_request_id=request.request_id)
            return answer.content["city"]
        if (answers := request.params.get("inputResponses")) is None:
            form = types.ElicitRequest(params=types.ElicitRequestFormParams(message="Which city?", requested_schema=schema))
            return types.InputRequiredResult(input_requests={"city": form}, request_state="asked")
        assert "asked" == request.params["requestState"]
        return answers["city"]["content"]["city"]

    @tool
    def refuse() -> None:
        raise MCPError(types.INVALID_PARAMS, "not this one")

    async def answer(_context: Any, params: Any) -> types.ElicitResult:
        assert "Which city?" == params.message
        return types.ElicitResult(action="accept", content={"city": "Rome"})

    async def ask() -> str:
        async with connected(server.port, era, elicitation_callback=answer) as client:
            with pytest.raises(MCPError, match="not this one"):
                await client.call_tool("refuse", {})
            return only_text(await client.call_tool("ask_city", {}))

    for each in (ask_city, refuse):
        server.app.managers["ann"].register_tool(each)
    assert "Rome" == run(ask())
    for each in (ask_city, refuse):
        server.app.managers["ann"].unregister_tool(each.name)
