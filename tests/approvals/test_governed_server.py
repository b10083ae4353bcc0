"""Approvals of calls from each entry point of a server: their origin is shown, and they are withdrawn with their caller."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chat_server.rig import ChatServer, call, calls, serve_chat, text_of
from patchbay.approvals import ApprovalService
from patchbay.server import Governance, GovernanceSettings, admin_api
from patchbay.tools import ToolDefinition
from tools_server.rig import BOUND, Server, calling_back, json_response, poll_until

SCRIPT = [calls(call("delete", '{"path": "/a"}')), "It is gone."]


def pending(server: Server, count: int = 1) -> list[dict[str, Any]]:
    poll_until(lambda: len(server.ask("GET", "/api/approvals").json["approvals"]) == count)
    return server.ask("GET", "/api/approvals").json["approvals"]


def states(server: Server) -> list[str]:
    return [each["state"] for each in server.ask("GET", "/api/approvals?all=1").json["approvals"]]


def decide(server: Server, request_id: str, decision: str = "approve") -> None:
    assert 200 == server.ask("POST", f"/api/approvals/{request_id}", {"decision": decision}).status


@pytest.fixture
def deleted() -> list[str]:
    return []


@pytest.fixture
def guarded_server(tmp_path, deleted) -> Iterator[ChatServer]:
    """A server that asks about each call of its tool ``delete``."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"approvals": {"rules": [{"name": "deleting", "tools": ["delete"], "outcome": "ask"}]}}))
    with serve_chat(SCRIPT * 2, governance=Governance(GovernanceSettings(config=file))) as running:

        def delete(arguments: dict[str, Any]) -> str:
            deleted.append(arguments["path"])
            return "deleted"

        for manager in running.server.app.managers.values():
            manager.register_tool(ToolDefinition("delete", handler=delete, parameters={"type": "object"}))
        yield running


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Do the work in a thread; what it returns comes into the list."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    return thread, found


@pytest.mark.parametrize("streamed", [False, True])
def test_chat_waits_for_approval_and_its_role_and_session_are_shown(guarded_server, deleted, streamed):
    headers = {"X-Patchbay-Role": "ben", "X-Patchbay-Session": "s1"}
    if streamed:
        thread, found = in_thread(lambda: text_of(guarded_server.stream(extra_headers=headers)))
    else:
        thread, found = in_thread(lambda: guarded_server.ask(extra_headers=headers).choices[0].message.content)
    [request] = pending(guarded_server.server)
    assert ("ben", "s1", "deleting", {"path": "/a"}) == tuple(
        request[key] for key in ("role", "session_key", "rule", "arguments")
    )
    assert [] == deleted
    decide(guarded_server.server, request["id"])
    thread.join(BOUND)
    assert (["It is gone."], ["/a"]) == (found, deleted)


def test_a_call_by_hand_waits_too(guarded_server, deleted):
    thread, found = in_thread(lambda: guarded_server.server.call("delete", arguments={"path": "/b"}, role="ann"))
    [request] = pending(guarded_server.server)
    decide(guarded_server.server, request["id"], "deny")
    thread.join(BOUND)
    [answer] = found
    assert (False, "tool_denied", []) == (answer["ok"], answer["code"], deleted)
    assert ("ann", "never") == (request["role"], request["session"])


def test_approval_request_of_a_remote_tool_shows_source_and_endpoint(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"approvals": {"rules": [{"annotations": ["destructive"], "outcome": "ask"}]}}))
    text = json_response({"output": "sent", "is_error": False})
    with (
        serve_chat([], governance=Governance(GovernanceSettings(config=file))) as running,
        calling_back(text) as callback,
    ):
        server = running.server
        server.register("send", callback.url, source="mail", annotations={"destructiveHint": True})
        raw = '{"to": "nobody", "to": "ann"}'
        thread, found = in_thread(lambda: server.call("send", raw_arguments=raw))
        [request] = pending(server)
        assert ("mail", callback.url, {"to": "ann"}) == tuple(request[key] for key in ("source", "endpoint", "arguments"))
        assert {"destructive": True} == request["meta"]["annotations"]
        assert [] == callback.calls
        decide(server, request["id"])
        thread.join(BOUND)
        assert "sent" == found[0]["output"]
        [received] = callback.calls
        assert ({"to": "ann"}, '{"to": "ann"}') == (received.json["arguments"], received.json["raw_arguments"])


def request_and_leave(server: Server, path: str, body: Any) -> None:
    """Make a request, and leave as soon as its call waits."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), BOUND) as client:
        client.sendall(head.encode() + data)
        pending(server)


@pytest.mark.parametrize("streamed", [False, True])
def test_disconnected_client_withdraws_its_request(guarded_server, deleted, streamed):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": streamed}
    request_and_leave(guarded_server.server, "/v1/chat/completions", body)
    poll_until(lambda: states(guarded_server.server) == ["withdrawn"])
    assert [] == deleted


def test_watchers_of_events_that_leave_are_forgotten(guarded_server, monkeypatch):
    monkeypatch.setattr(admin_api, "PING", 0.05)
    watch, watching = ApprovalService.watch, []

    async def counted(service):
        watching.append(service)
        try:
            async for change in watch(service):
                yield change
        finally:
            watching.pop()

    monkeypatch.setattr(ApprovalService, "watch", counted)
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            connection = http.client.HTTPConnection("127.0.0.1", guarded_server.server.port, timeout=BOUND)
            stack.callback(connection.close)
            connection.request("GET", "/api/approvals/events")
            assert 200 == connection.getresponse().status
        poll_until(lambda: len(watching) == 5)
    poll_until(lambda: not watching)
