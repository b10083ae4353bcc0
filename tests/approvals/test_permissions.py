"""Standing permissions: what they cover is what the person was shown, they are kept, listed, revoked, and named in the audit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import sqlalchemy as sa

from patchbay.approvals import ApprovalPolicy, ApprovalService, Permission, Rule
from patchbay.approvals.permissions import make_permission, steps_of
from patchbay.approvals.store import PERMISSIONS
from patchbay.errors import ApprovalConflictError, ApprovalNotFoundError, InvalidRequestError
from patchbay.executor import Executor
from patchbay.hooks import HookManager
from patchbay.types import ToolCall
from support.tables import rows

from .approval_calls import SCOPE, Files, ask, call_of, decided, engine_of, executor_of, running_calls, service_at, stop, waiting
from .serving import serving
from .test_commands import patchbay
from .test_facts import LinkedFiles
from .test_service import OTHER
from .test_terminal import request

ABOUT = {
    "source": "plugin:files",
    "endpoint": "http://127.0.0.1:1/",
    "role": "desk",
    "agent": "ann",
    "rule": "all",
    "who": ("http",),
}


def asked(arguments, **about):
    return request(**{"always": "tool", "arguments": json.dumps(arguments), **ABOUT, **about})


def permission_of(asked, arguments=None, facts=None):
    chosen = {"arguments": arguments or {}, "facts": facts or {}}
    return make_permission(asked, chosen, by="ann", now=1.0)


@pytest.mark.parametrize(("criterion", "value", "is_covered"), rows(__file__, "permissions.jsonl"))
def test_a_criterion_covers_these_values_and_no_others(criterion, value, is_covered):
    permission = replace(permission_of(asked({"path": "/x"})), arguments={"path": criterion})
    assert is_covered is permission.covers(asked({"path": value}))


def test_the_narrowest_permission_covers_this_call_alone_and_each_step_is_wider():
    call = asked({"path": "/srv/data/a.txt", "days": 3})
    assert [{"is": "/srv/data/a.txt"}, {"below": "/srv/data"}, {"below": "/srv"}, {"any": True}] == steps_of(call)["arguments"][
        "path"
    ]
    assert [{"is": 3}, {"any": True}] == steps_of(call)["arguments"]["days"]
    others = [asked({"path": path, "days": 3}) for path in ("/srv/data/a.txt", "/srv/data/b", "/srv/b", "/etc/b")]
    covered = []
    for step in steps_of(call)["arguments"]["path"]:
        permission = permission_of(call, {"path": step})
        covered.append([permission.covers(each) for each in others])
        assert not permission.covers(asked({"path": "/srv/data/a.txt", "days": 4}))
    assert [[True, False, False, False], [True, True, False, False], [True, True, True, False], [True] * 4] == covered


@pytest.mark.parametrize(
    "path", ["/a", "a", "", "../a/b", "/srv/../etc/x", "/srv/%2e%2e/x", "https://example.com/a/b", "~/a/b", "/srv/*/x"]
)
def test_no_folder_is_offered_for_what_is_no_plain_path(path):
    assert [{"is": path}, {"any": True}] == steps_of(asked({"path": path}))["arguments"]["path"]


def test_a_call_with_more_arguments_or_less_is_not_covered():
    permission = permission_of(asked({"path": "/a", "mode": "x"}), {"mode": {"any": True}})
    assert [True, True, False, False] == [
        permission.covers(asked(each))
        for each in ({"path": "/a", "mode": 1}, {"path": "/a"}, {"mode": "x"}, {"path": "/a", "mode": "x", "more": 1})
    ]


@pytest.mark.parametrize("name", ["tool", *ABOUT])
def test_only_calls_of_the_same_tool_source_role_agent_and_rule_are_covered(name):
    permission = permission_of(asked({}))
    other = ("http", "terminal") if name == "who" else "other"
    assert (True, False) == (permission.covers(asked({})), permission.covers(asked({}, **{name: other})))


@pytest.mark.parametrize(
    ("arguments", "schema"),
    [
        ({"token": "hunter2"}, {}),
        ({"login": {"user": "ann", "password": "hunter2"}}, {}),
        ({"text": "Bearer abcDEF123456hunter2"}, {}),
        ({"text": "hunter2"}, {"properties": {"text": {"format": "password"}}}),
        ({"text": "hunter2" * 1000}, {}),
        ({"lines": [2**53 + 1]}, {}),
    ],
)
def test_secrets_and_long_values_are_matched_and_not_written_out(arguments, schema):
    [name] = arguments
    call = asked(arguments, parameters=schema)
    permission = permission_of(call, {name: {"same": True}})
    kept = json.dumps([permission.as_json(), permission.arguments])
    assert "hunter2" not in kept
    assert {name: {"same": True}} == permission.as_json()["arguments"]
    assert permission.covers(call)
    assert not permission.covers(asked({name: "hunter3"}, parameters=schema))
    assert [{"same": True}, {"any": True}] == steps_of(call)["arguments"][name]


@pytest.mark.parametrize(
    "chosen",
    [
        {"arguments": {"path": {"below": "/"}}}, {"arguments": {"path": {"below": "/etc"}}}, {"arguments": {"path": {"is": "/b"}}},
        {"arguments": {"path": {"any": 1}}}, {"arguments": {"path": {"any": True, "is": 1}}}, {"arguments": {"other": {"any": True}}},
        {"arguments": {"path": "any"}}, {"arguments": []}, {"tool": {"any": True}}, {"facts": {"path": {"any": True}}},
    ],
)  # fmt: skip
def test_a_permission_that_was_not_offered_is_refused(chosen):
    with pytest.raises(InvalidRequestError):
        make_permission(asked({"path": "/srv/a"}), chosen, by="", now=0.0)


async def test_a_permitted_call_runs_without_a_question_in_any_session_and_others_are_asked_about(url):
    files = Files()
    async with service_at(url) as service:
        executor, records = executor_of(service, files), []
        executor.hooks.recorders.append(records.append)
        chosen = {"arguments": {"path": {"below": "/srv"}}}
        first, _ = await decided(service, "approve_always", call_of("/srv/a"), executor=executor, by="ann", permission=chosen)
        await running_calls(executor, call_of("/srv/b"), scope=OTHER)
        for other in (call_of("/srv/../etc/b"), call_of("/srv/b", name="show")):
            task, _ = await ask(service, other, executor=executor)
            await stop(task)
            await waiting(service, 0)
        decisions = [each.decisions for each in records[:2]]
        [permission] = await service.permissions()
    assert ["/srv/a", "/srv/b"] == files.deleted
    assert [("ann", "approve_tool", "approved: always")] == [*decisions[0]]
    assert [("ann", "approve_tool", f"approved: by the standing permission {first.id}")] == [*decisions[1]]
    assert (first.id, "ann", {"path": {"below": "/srv"}}) == (permission.id, permission.by, permission.arguments)


async def test_a_permission_survives_a_restart_and_ends_when_it_is_revoked(url):
    files = Files()
    async with service_at(url) as service:
        request, _ = await decided(service, "approve_always", files=files)
    async with service_at(url) as service:
        executor = executor_of(service, files)
        await running_calls(executor, call_of())
        revoked = await service.revoke_permission(request.id)
        task, _ = await ask(service, executor=executor)
        await stop(task)
        with pytest.raises(ApprovalNotFoundError):
            await service.revoke_permission(request.id)
        assert (request.id, [], ["/a", "/a"]) == (revoked.id, await service.permissions(), files.deleted)


async def test_a_new_permission_decides_the_other_calls_that_wait_and_that_it_covers(url):
    files = Files()
    async with service_at(url) as service:
        executor = executor_of(service, files)
        runs = [
            running_calls(executor, call_of(path), scope=scope)
            for path, scope in (("/s/a", SCOPE), ("/s/b", OTHER), ("/b", OTHER))
        ]
        first = next(each for each in await waiting(service, 3) if json.loads(each.arguments) == {"path": "/s/a"})
        await service.decide(first.id, "approve_always", permission={"arguments": {"path": {"below": "/s"}}})
        for run in runs[:2]:
            await run
        [left] = await waiting(service, 1)
        await stop(runs[2])
    assert ({"path": "/b"}, ["/s/a", "/s/b"]) == (json.loads(left.arguments), sorted(files.deleted))


@pytest.mark.parametrize("scope", ["tool", "call", "never"])
async def test_a_rule_says_how_far_a_permission_may_go(scope):
    async with service_at(policy=ApprovalPolicy(otherwise=Rule(name="all", session=scope))) as service:
        task, asked = await ask(service, call_of("/srv/a"))
        if scope == "never":
            with pytest.raises(ApprovalConflictError, match="session = never"):
                await service.decide(asked.id, "approve_always")
        else:
            folders = [{"below": "/srv"}, {"any": True}] if scope == "tool" else []
            assert [{"is": "/srv/a"}, *folders] == steps_of(asked)["arguments"]["path"]
            await service.decide(asked.id, "approve_always")
        await stop(task)


def test_a_wide_permission_ends_with_the_rule_that_allowed_one():
    wide = permission_of(asked({"path": "/srv/a"}), {"path": {"any": True}})
    narrow = permission_of(asked({"path": "/srv/a"}))
    calls = [asked({"path": "/srv/a"}, always=scope) for scope in ("tool", "call", "never")]
    assert [[True, False, False], [True, True, False]] == [[each.covers(call) for call in calls] for each in (wide, narrow)]


async def test_a_permission_covers_the_same_facts_unless_it_was_widened_there():
    files = LinkedFiles()
    async with service_at() as service:
        chosen = {"arguments": {"path": {"any": True}}}
        await decided(service, "approve_always", call_of("/a"), executor=files.executor(service), permission=chosen)
        await running_calls(files.executor(service), call_of("/b"))
        task, other = await ask(service, call_of("/c"), executor=files.executor(service))
        await service.decide(other.id, "approve_always", permission={**chosen, "facts": {"path": {"any": True}}})
        await task
        files.leads["/d"] = "/root"
        await running_calls(files.executor(service), call_of("/d"))
    assert ["/srv/data", "/srv/data", "/etc", "/root"] == files.deleted


async def test_a_rule_that_denies_is_stronger_than_a_permission():
    files = Files()
    async with service_at() as service:
        executor = executor_of(service, files)
        await decided(service, "approve_always", executor=executor)
        service.policy = ApprovalPolicy(
            rules=[Rule(name="none", tools=("delete",), outcome="deny")], otherwise=service.policy.otherwise
        )
        [execution] = await running_calls(executor, call_of())
    assert ("tool_denied", ["/a"]) == (execution.result.code, files.deleted)


async def test_a_store_keeps_so_many_permissions_and_refuses_the_next(monkeypatch):
    monkeypatch.setattr("patchbay.approvals.store.MAX_PERMISSIONS", 1)
    async with service_at() as service:
        executor = executor_of(service, Files())
        await decided(service, "approve_always", executor=executor)
        task, asked = await ask(service, call_of("/b"), executor=executor)
        with pytest.raises(ApprovalConflictError, match="revoke some"):
            await service.decide(asked.id, "approve_always")
        assert [asked.id] == [each.id for each in await service.pending()]  # nothing is decided
        await stop(task)


async def test_names_that_a_database_cannot_hold_are_kept(url):
    ran = []
    name = "delete\x00\ud800"

    def delete(path: str) -> str:
        ran.append(path)
        return path

    from patchbay.tools import tool

    async with service_at(url) as service:
        hooks = HookManager()
        service.mount(hooks)
        executor = Executor([tool(handler=delete, name="delete")], hooks=hooks, max_repeats=None)
        call = ToolCall("1", "delete", json.dumps({"path": name}))
        await decided(service, "approve_always", call, executor=executor)
        await running_calls(executor, call)
        [kept] = await service.permissions()
    with engine_of(url).begin() as connection:
        assert 1 == connection.execute(sa.select(sa.func.count()).select_from(PERMISSIONS)).scalar_one()
    assert ([name, name], {"path": {"is": name}}) == (ran, kept.arguments)


def test_permissions_are_proposed_written_listed_and_revoked_over_http(tmp_path):
    with serving(tmp_path) as server:
        server.run("/srv/a")
        [pending] = server.pending()
        status, proposal = server.ask("GET", f"/api/approvals/{pending['id']}/permission")
        assert (200, {"path": {"is": "/srv/a"}}, True) == (
            status,
            proposal["permission"]["arguments"],
            proposal["outlives_server"],
        )
        assert [{"is": "/srv/a"}, {"below": "/srv"}, {"any": True}] == proposal["steps"]["arguments"]["path"]
        assert 400 == server.decide(pending["id"], "approve_always", permission={"arguments": {"path": {"below": "/"}}})[0]
        assert 400 == server.decide(pending["id"], "approve", permission={})[0]
        assert 422 == server.decide(pending["id"], "approve_always", permission={"arguments": {"path": "any"}})[0]
        chosen = {"arguments": {"path": {"below": "/srv"}}}
        status, decided = server.decide(pending["id"], "approve_always", by="ann", permission=chosen)
        assert (200, True) == (status, decided["approval"]["for_always"])
        server.ended()
        outcomes = []
        server.run("/srv/b", outcomes, session="s2")
        server.ended()
        assert ["deleted /srv/b"] == outcomes
        [kept] = server.ask("GET", "/api/approvals/permissions")[1]["permissions"]
        assert (pending["id"], "ann", chosen["arguments"]) == (kept["id"], kept["by"], kept["arguments"])
        assert kept == Permission.from_json(kept).as_json()
        gone = server.ask("DELETE", f"/api/approvals/permissions/{kept['id']}")
        assert (200, {"ok": True, "revoked": kept}) == gone
        assert 404 == server.ask("DELETE", f"/api/approvals/permissions/{kept['id']}")[0]
        assert 404 == server.ask("GET", "/api/approvals/000000000000/permission")[0]


def test_a_permission_is_shown_in_the_terminal_before_it_is_written_and_revoked_there(tmp_path):
    with serving(tmp_path) as server:
        server.run("/srv/data/a")
        [pending] = server.pending()
        always = ("approve", pending["id"], "--always", "--by", "ann")
        refused = patchbay(*always, "--below", "path=/srv/data", url=server.url, stdin="n\n")
        rule = f"{pending['id']}  delete  always allowed\n  agent helper, rule all\n  path: a path below /srv/data\n  and no other arguments\n"
        assert (130, True) == (refused.returncode, refused.stderr.startswith(rule))
        assert "--yes writes it" in patchbay(*always, url=server.url, stdin="").stderr
        assert 2 == patchbay(*always, "--any", "nothing", url=server.url).returncode
        outside = patchbay(*always, "--below", "path=/etc", url=server.url, stdin="y\n")
        choices = 'path can be one of: "/srv/data/a"; a path below /srv/data; a path below /srv; any value, or none'
        assert (2, True) == (outside.returncode, choices in outside.stderr), outside.stderr
        assert [] == server.ran()
        done = patchbay(*always, "--below", "path=/srv/data/", url=server.url, stdin="y\n")
        assert (0, f"{pending['id']}  delete  approved and always allowed by ann\n") == (done.returncode, done.stdout)
        server.ended()
        listed = patchbay("permissions", url=server.url)
        assert (0, rule.replace("allowed", "allowed by ann")) == (listed.returncode, listed.stdout)
        [as_json] = json.loads(patchbay("permissions", "--json", url=server.url).stdout)
        assert {"path": {"below": "/srv/data"}} == as_json["arguments"]
        revoked = patchbay("revoke", pending["id"], url=server.url)
        assert (0, True) == (revoked.returncode, revoked.stdout.endswith("taken back\n"))
        assert "No standing permissions.\n" == patchbay("permissions", url=server.url).stderr
        assert "standing permission" in patchbay("revoke", pending["id"], url=server.url).stderr


@pytest.mark.parametrize("flags", [("--below", "path=/a"), ("--any", "path"), ("--yes",), ("--always", "--session")])
def test_flags_that_do_not_go_together_are_a_usage_error(flags):
    assert 2 == patchbay("approve", "000000000000", *flags, url="http://127.0.0.1:9").returncode


async def test_a_call_that_a_hook_asks_about_is_never_permitted():
    service = ApprovalService(ApprovalPolicy(otherwise=Rule(name="all")))
    asked_by_hook = request(always="never", why="guard: it is large")
    with pytest.raises(ApprovalConflictError, match="a hook asked for a person \\(guard: it is large\\)"):
        steps_of(asked_by_hook)
    await service.aclose()
