"""Deciding over HTTP: the routes before a real server, who may, what is refused, and servers that are killed and stopped."""

from __future__ import annotations

import http.client
import json
import threading
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI

from patchbay.server import make_approvals_router
from support.served import BOUND

from .approval_calls import ask, service_at
from .serving import TOKEN, ran, serving


def test_call_is_listed_read_and_approved(server):
    outcomes = []
    server.run("/a", outcomes)
    [listed] = server.pending()
    status, found = server.ask("GET", f"/api/approvals/{listed['id']}")
    assert (200, True, listed) == (status, found["ok"], found["approval"])
    expected = {
        "tool": "delete",
        "arguments": {"path": "/a"},
        "arguments_text": '{"path": "/a"}',
        "is_cut": False,
        "state": "pending",
    }
    expected |= {"agent": "helper", "session_key": "s1", "rule": "all", "session": "tool", "who": ["terminal", "http"]}
    assert expected == {name: listed[name] for name in expected}
    status, decided = server.decide(listed["id"], "approve", by="ann", reason="fine", digest=listed["digest"])
    assert (200, True, "approved", "ann", "fine") == (
        status,
        decided["ok"],
        *(decided["approval"][name] for name in ("state", "by", "reason")),
    )
    server.ended()
    assert (["deleted /a"], ["/a"], []) == (outcomes, server.ran(), server.pending(0))
    _, everything = server.ask("GET", "/api/approvals?all=1")
    assert ["approved"] == [each["state"] for each in everything["approvals"]]


def test_second_decision_is_a_conflict_that_names_the_first(server):
    server.run("/a")
    [listed] = server.pending()
    results = []
    deciders = [
        threading.Thread(target=lambda name=name: results.append(server.decide(listed["id"], "approve", by=name)))
        for name in "ab"
    ]
    for decider in deciders:
        decider.start()
    for decider in deciders:
        decider.join(BOUND)
    server.ended()
    (good, first), (bad, second) = sorted(results, key=lambda result: result[0])
    assert (200, 409, False, "approval_conflict") == (good, bad, second["ok"], second["error_code"])
    assert first["approval"]["by"] == second["approval"]["by"]
    assert f"The request is approved by {first['approval']['by']} already." == second["detail"]
    assert ["/a"] == server.ran()


@pytest.mark.parametrize(
    "request_id",
    ["x", "000000000000", "%00%00", "..%2f..%2fetc", "'; DROP TABLE--".replace(" ", "%20"), "%f0%28%8c%28", "0" * 2000],
)
def test_invalid_id_is_not_found(server, request_id):
    for status, body in (server.ask("GET", f"/api/approvals/{request_id}"), server.decide(request_id, "approve")):
        assert 404 == status
        assert body.get("error_code", "approval_not_found") == "approval_not_found"


MISFITS = [
    [], "approve", 1, {}, {"decision": None}, {"decision": "Approve"}, {"decision": ["approve"]},
    {"decision": "approve", "reason": 1}, {"decision": "approve", "reason": "x" * 3000}, {"decision": "approve", "by": "x" * 200},
    {"decision": "approve", "bye": "ann"}, {"decision": "approve", "reason": "", "scope": "session"},
]  # fmt: skip
INVALID = [b"", b"{", b"\xff\xfe", b"[" * 10_000, b'{"decision": "approve"', b"decision=approve"]


def test_a_body_that_does_not_fit_or_is_invalid_json_decides_nothing(server):
    server.run("/a")
    [listed] = server.pending()
    for body in (*(json.dumps(each).encode() for each in MISFITS), *INVALID):
        assert 422 == server.ask("POST", f"/api/approvals/{listed['id']}", body)[0], body
    assert [listed] == server.pending()
    server.decide(listed["id"], "deny")
    server.ended()


def test_approvals_api_requires_the_token(tmp_path):
    with serving(tmp_path, token=TOKEN) as server:
        server.run("/a")
        [listed] = server.pending()
        path = f"/api/approvals/{listed['id']}"
        for token in (None, "another-token-of-some-length"):
            for method, where, body in (
                ("GET", "/api/approvals", None),
                ("GET", "/api/approvals/events", None),
                ("GET", path, None),
                ("POST", path, {"decision": "approve"}),
            ):
                status, text = server.ask(method, where, body, token=token)
                assert (401, "wrong_token") == (status, text["error_code"])
        assert [listed] == server.pending()
        assert 200 == server.decide(listed["id"], "approve")[0]
        server.ended()
    assert ["/a"] == ran(tmp_path)


async def test_rule_that_excludes_http_is_not_decided_over_it():
    import httpx

    from patchbay.approvals import ApprovalPolicy, Rule

    from .test_service import SilentTerminal

    policy = ApprovalPolicy(otherwise=Rule(who=("terminal",)))
    async with service_at(policy=policy, terminal=SilentTerminal()) as service:
        api = FastAPI()
        api.include_router(make_approvals_router(service, needs_token=False))
        task, request = await ask(service)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://x") as client:
            answer = await client.post(f"/api/approvals/{request.id}", json={"decision": "approve"})
        task.cancel()
        assert (403, "approval_forbidden") == (answer.status_code, answer.json()["error_code"])


def events_of(server):
    """The data of the server's events, as they come."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=BOUND)
    connection.request(
        "GET", "/api/approvals/events", headers={"authorization": f"Bearer {server.token}"} if server.token else {}
    )
    response = connection.getresponse()
    assert "text/event-stream; charset=utf-8" == response.getheader("content-type")
    try:
        while line := response.readline():
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))
    finally:
        connection.close()


def test_event_stream_lists_pending_and_new_requests_and_ends_with_the_server(tmp_path):
    with serving(tmp_path) as server:
        server.run("/a")
        [first] = server.pending()
        events = events_of(server)
        assert first == next(events)
        server.run("/b")
        second = next(events)
        assert ("/b", "pending") == (second["arguments"]["path"], second["state"])
        server.decide(second["id"], "deny")
        denied = next(events)
        assert (second["id"], "denied") == (denied["id"], denied["state"])
        assert 0 == server.stop()
        assert all(each["id"] == first["id"] for each in events)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_request_survives_a_killed_server_and_is_not_repeated(kind, tmp_path, request):
    database = None
    if kind == "postgres":
        database = request.getfixturevalue("postgres_url")
    with serving(tmp_path, database=database) as server:
        server.run("/a")
        [before] = server.pending()
        server.kill()
    with serving(tmp_path, database=database) as server:
        assert [{**before, "awaited": False}] == server.pending()
        server.run("/a")  # the run is taken up again before anybody has decided
        server.awaited(before["id"])
        assert [before] == server.pending()
        assert 200 == server.decide(before["id"], "approve", by="ann")[0]
        server.ended()
    assert ["/a"] == ran(tmp_path)
