"""Approvals on a governed server: the origin of a remote tool is shown, and watchers that leave are forgotten."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chat_server.rig import serve_chat
from patchbay.approvals import ApprovalService
from patchbay.server import Governance, GovernanceSettings, admin_api
from tools_server.rig import BOUND, Server, calling_back, json_response, poll_until


def pending(server: Server, count: int = 1) -> list[dict[str, Any]]:
    poll_until(lambda: len(server.ask("GET", "/api/approvals").json["approvals"]) == count)
    return server.ask("GET", "/api/approvals").json["approvals"]


def decide(server: Server, request_id: str, decision: str = "approve") -> None:
    assert 200 == server.ask("POST", f"/api/approvals/{request_id}", {"decision": decision}).status


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Do the work in a thread; what it returns comes into the list."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    return thread, found


@pytest.fixture
def governed(tmp_path) -> Iterator[Server]:
    """A server that asks about each call of a destructive tool."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"approvals": {"rules": [{"annotations": ["destructive"], "outcome": "ask"}]}}))
    with serve_chat([], governance=Governance(GovernanceSettings(config=file))) as running:
        yield running.server


def test_approval_request_of_a_remote_tool_shows_source_and_endpoint(governed):
    server = governed
    with calling_back(json_response({"output": "sent", "is_error": False})) as callback:
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


def test_watchers_of_events_that_leave_are_forgotten(governed, monkeypatch):
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
            connection = http.client.HTTPConnection("127.0.0.1", governed.port, timeout=BOUND)
            stack.callback(connection.close)
            connection.request("GET", "/api/approvals/events")
            assert 200 == connection.getresponse().status
        poll_until(lambda: len(watching) == 5)
    poll_until(lambda: not watching)
