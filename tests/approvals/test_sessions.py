"""Session approvals are listed and revoked: by the service, over HTTP, and at a terminal."""

from __future__ import annotations

import json
import re

import pytest

from patchbay.approvals import ApprovalRequest, SessionGrant
from patchbay.errors import ApprovalNotFoundError

from .approval_calls import SCOPE, Clock, Files, ask, call_of, decided, executor_of, running_calls, service_at, stop
from .serving import TOKEN, ran, serving
from .test_commands import patchbay
from .test_service import OTHER


async def approved_for_the_session(service, executor, path="/a", scope=SCOPE, **decision):
    request, _ = await decided(service, "approve_session", call_of(path), executor=executor, scope=scope, **decision)
    return request


async def test_session_grants_are_listed_with_approver_and_expiry(url):
    clock = Clock()
    async with service_at(url, clock=clock, session=100) as service:
        executor = executor_of(service, Files())
        assert [] == await service.sessions()
        first = await approved_for_the_session(service, executor, by="ann", reason="fine")
        clock.now += 60
        second = await approved_for_the_session(service, executor, scope=OTHER, by="ben")
        listed = await service.sessions()
        clock.now += 40
        later = await service.sessions()
    assert [(first.id, "ann", "fine", "s1"), (second.id, "ben", "", "s2")] == [
        (each.request.id, each.request.by, each.request.reason, each.request.session_key) for each in listed
    ]
    assert [first.created + 100, second.created + 100] == [each.until for each in listed]
    assert [second.id] == [each.request.id for each in later]


async def test_revoked_approval_is_requested_again_and_others_stay(url):
    files = Files()
    async with service_at(url) as service:
        executor = executor_of(service, files)
        first = await approved_for_the_session(service, executor)
        await approved_for_the_session(service, executor, scope=OTHER)
        revoked = await service.revoke(first.id)
        task, asked = await ask(service, call_of("/b"), executor=executor)
        await running_calls(executor, call_of("/c"), scope=OTHER)
        await stop(task)
        left = [each.request.session_key for each in await service.sessions()]
        with pytest.raises(ApprovalNotFoundError):
            await service.revoke(first.id)
        assert (True, {"path": "/b"}, ["s2"], ["/a", "/a", "/c"]) == (
            first.id == revoked.request.id,
            json.loads(asked.arguments),
            left,
            files.deleted,
        )


async def test_revocation_in_one_process_applies_to_all(url):
    async with service_at(url) as here, service_at(url) as there:
        request = await approved_for_the_session(here, executor_of(here, Files()))
        await there.revoke(request.id)
        task, _ = await ask(here, call_of("/b"))
        await stop(task)
        assert [] == await here.sessions()


@pytest.mark.parametrize("verdict", ["approve", "deny"])
async def test_decision_for_a_single_call_is_not_listed_as_a_session_approval(url, verdict):
    async with service_at(url) as service:
        task, request = await ask(service)
        await service.decide(request.id, verdict)
        await task
        for request_id in (request.id, "0" * 12, "", "\x00", "x" * 9999):
            with pytest.raises(ApprovalNotFoundError):
                await service.revoke(request_id)
        assert [] == await service.sessions()


async def test_a_long_session_approval_is_listed_after_the_history_limit(url):
    clock = Clock()
    async with service_at(url, clock=clock, session=30 * 86400) as service:
        executor = executor_of(service, Files())
        first = await approved_for_the_session(service, executor)
        clock.now += 20 * 86400
        await approved_for_the_session(service, executor, scope=OTHER)
        listed = [each.request.id for each in await service.sessions()]
        await service.revoke(first.id)
        assert listed[0] == first.id


async def test_audit_names_session_approvals_and_the_calls_that_used_them(url):
    """The decisions of a call, as the audit keeps them."""
    async with service_at(url) as service:
        executor, records = executor_of(service, Files()), []
        executor.hooks.recorders.append(records.append)
        first = await approved_for_the_session(service, executor, by="root", reason="all of them")
        await running_calls(executor, call_of("/b"))
        request_id, decisions = first.id, [each.decisions for each in records]
    assert [
        (("root", "approve_tool", "approved: for the session: all of them"),),
        (("root", "approve_tool", f"approved: for the session, by {request_id}"),),
    ] == decisions


def test_session_grant_round_trips_through_json_and_rejects_invalid_fields():
    request = ApprovalRequest(id="1", created=0.0, deadline=1.0, tool="t", arguments="{}", digest="d")
    grant = SessionGrant(request, 5.0)
    assert grant == SessionGrant.from_json(grant.as_json())
    for until in (None, "5", True):
        with pytest.raises(ValueError, match="until must be"):
            SessionGrant.from_json({**grant.as_json(), "until": until})


def test_session_approvals_are_listed_and_revoked_over_http(tmp_path):
    with serving(tmp_path, token=TOKEN) as server:
        assert (200, {"ok": True, "sessions": []}) == server.ask("GET", "/api/approvals/sessions")
        server.run("/a")
        [pending] = server.pending()
        server.decide(pending["id"], "approve_session", by="ann")
        server.ended()
        status, outcome = server.ask("GET", "/api/approvals/sessions")
        [grant] = outcome["sessions"]
        assert (200, pending["id"], "ann", "s1", True) == (
            status,
            *(grant[name] for name in ("id", "by", "session_key", "for_session")),
        )
        assert 24 * 3600 == pytest.approx(grant["until"] - grant["decided"])
        path = f"/api/approvals/sessions/{pending['id']}"
        for token in (None, "another-token-of-some-length"):
            assert [401, 401] == [
                server.ask("DELETE", path, token=token)[0],
                server.ask("GET", "/api/approvals/sessions", token=token)[0],
            ]
        assert (200, {"ok": True, "revoked": grant}) == server.ask("DELETE", path)
        status, outcome = server.ask("DELETE", path)
        assert (404, "approval_not_found") == (status, outcome["error_code"])
        server.run("/b")
        [again] = server.pending()
        server.decide(again["id"], "deny")
        server.ended()
    assert ["/a"] == ran(tmp_path)


def test_session_approvals_are_listed_and_revoked_at_a_terminal(tmp_path):
    with serving(tmp_path) as server:
        nothing = patchbay("sessions", url=server.url)
        assert (0, "", "No session approvals.\n") == (nothing.returncode, nothing.stdout, nothing.stderr)
        server.run("/a")
        [pending] = server.pending()
        patchbay("approve", pending["id"], "--session", "--by", "ann", url=server.url)
        server.ended()
        listed = patchbay("sessions", url=server.url)
        assert 0 == listed.returncode
        assert f"{pending['id']}  delete\n" in listed.stdout
        assert re.search(
            r"^  every call of delete in this session is approved by ann, for 2[34] h more$", listed.stdout, re.MULTILINE
        )
        [outcome] = json.loads(patchbay("sessions", "--json", url=server.url).stdout)
        assert pending["id"] == outcome["id"]
        done = patchbay("revoke", pending["id"], url=server.url)
        expected = f"{pending['id']}  delete  taken back: every call of delete in session s1 is asked about again\n"
        assert (0, expected) == (done.returncode, done.stdout)
        again = patchbay("revoke", pending["id"], url=server.url)
        assert (1, True) == (
            again.returncode,
            f"There is no session approval or standing permission {pending['id']}" in again.stderr,
        )
