"""A tool's facts about a call are part of the approval: shown, stored and in its digest, and no decision covers other facts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import sqlalchemy as sa

from patchbay.approvals import ApprovalRequest, ApprovalService, SessionGrant
from patchbay.approvals.store import REQUESTS, call_key, grant_key, row_of
from patchbay.approvals.terminal import render, render_grant, render_question, render_revoked
from patchbay.errors import ApprovalConflictError
from patchbay.executor import Executor
from patchbay.hooks import HookManager
from patchbay.hooks.events import digest_of
from patchbay.tools import ToolContext, tool
from support.tables import rows

from .approval_calls import Files, ask, call_of, decided, engine_of, executor_of, running_calls, service_at, stop, waiting
from .test_terminal import request

LEADS = {"/a": "/srv/data", "/b": "/srv/data", "/c": "/etc"}


class LinkedFiles:
    """A tool that knows where paths lead, and what it has done."""

    def __init__(self, **leads: str) -> None:
        self.leads = {**LEADS, **leads}
        self.deleted: list[str] = []

    def executor(self, service: ApprovalService, **observers: object) -> Executor:
        @tool(facts=lambda arguments: {"path": self.leads[arguments["path"]]})
        def delete(path: str, tool_context: ToolContext) -> str:
            self.deleted.append(tool_context.facts["path"])
            return f"deleted {path}"

        hooks = HookManager()
        for name, observer in observers.items():
            hooks.mount(name, observer)
        service.mount(hooks)
        return Executor([delete], hooks=hooks, max_repeats=None)


async def test_a_request_has_the_facts_and_its_digest_is_of_them_too(url):
    files = LinkedFiles()
    async with service_at(url) as service:
        task, asked = await ask(service, executor=files.executor(service))
        await service.decide(asked.id, "approve", digest=asked.digest)
        await task
        kept, deleted = await service.get(asked.id), files.deleted
    facts = {"path": "/srv/data"}
    assert (facts, digest_of("delete", {"path": "/a"}, facts), True) == (asked.facts, asked.digest, asked.is_genuine)
    assert (facts, ["/srv/data"]) == (kept.facts, deleted)


async def test_approved_call_is_denied_if_its_facts_changed():
    files = LinkedFiles()
    async with service_at() as service:
        task, asked = await ask(service, executor=files.executor(service))
        files.leads["/a"] = "/etc"
        await service.decide(asked.id, "approve")
        assert ("tool_denied", []) == ((await task)[0].result.code, files.deleted)


async def test_a_session_approval_does_not_cover_other_facts(url):
    """Every call of the tool with any arguments, as long as it comes to the same."""
    files = LinkedFiles()
    async with service_at(url) as service:
        await decided(service, "approve_session", call_of("/a"), executor=files.executor(service), by="ann")
        await running_calls(files.executor(service), call_of("/b"))
        other, asked = await ask(service, call_of("/c"), executor=files.executor(service))
        await stop(other)
        files.leads["/a"] = "/etc"
        turned, again = await ask(service, call_of("/a"), executor=files.executor(service))
        await stop(turned)
        assert (["/srv/data", "/srv/data"], {"path": "/etc"}, {"path": "/etc"}) == (files.deleted, asked.facts, again.facts)


@pytest.mark.parametrize("facts", [{}, {"path": "/tmp"}, {"path": "/srv/data", "more": 1}])
async def test_request_with_tampered_facts_is_not_decided(facts):
    async with service_at() as service:
        task, asked = await ask(service, executor=LinkedFiles().executor(service))
        get = service.store.get

        async def changed(request_id):
            return replace(await get(request_id), facts=facts)

        service.store.get = changed
        with pytest.raises(ApprovalConflictError, match="not what the call would run with"):
            await service.decide(asked.id, "approve")
        await stop(task)


async def test_a_row_of_before_there_were_facts_is_read_and_its_decision_holds(url):
    """Digests, and what decisions are found by, are what they were for calls without facts."""
    files = Files()
    async with service_at(url) as service:
        service.leave()
        task, _ = await ask(service, files=files)
        await stop(task)
    with engine_of(url).begin() as connection:
        body = json.loads(connection.execute(sa.select(REQUESTS.c.body)).scalar_one())
        assert {} == body.pop("facts")
        connection.execute(REQUESTS.update().values(body=json.dumps(body)))
    async with service_at(url) as service:
        [asked] = await waiting(service)
        await service.decide(asked.id, "approve")
        await running_calls(executor_of(service, files), call_of())
        assert ({}, ["/a"]) == (asked.facts, files.deleted)


def test_lookup_key_of_calls_without_facts_is_unchanged():
    """The keys of rows that servers have kept."""
    asked = ApprovalRequest(
        id="1", created=0.0, deadline=1.0, tool="delete", arguments="{}", digest=digest_of("delete", {}), session_key="s1",
        session="tool", rule="all", who=("http",), agent="helper",
    )  # fmt: skip
    assert "sha256:a6d3ebde6fb9776a5052d4b3cc0793adb270e1ee0f78b411c0b9f1e949e7adb3" == asked.digest
    assert "636398c78a21b3d68ee4d3e8e13fa9c46e56f776848b3022ec0d6b8037cd8c25" == call_key(asked)
    covers = [grant_key(replace(asked, session=session)) for session in ("tool", "call", "never")]
    tool = "3821aaaaf5cab064190fa6f05a7c9816604739d9d09467f71018376ebcff1c8b"
    assert [tool, "2bc3f969c697a6f64ba4b4b7a3265bbaa65072240385f0edb08ed2fed549bd97", ""] == covers
    assert {} == json.loads(row_of(asked)["body"])["facts"]


def test_request_json_without_facts_is_read_and_invalid_facts_are_rejected():
    outcome = request().as_json()
    assert {} == ApprovalRequest.from_json({name: value for name, value in outcome.items() if name != "facts"}).facts
    with pytest.raises(ValueError, match="facts"):
        ApprovalRequest.from_json({**outcome, "facts": "none"})


async def test_approval_event_includes_the_facts():
    seen = []

    class Sees:
        async def on_runtime_event(self, event):
            seen.append((event.kind, event.payload.get("Facts")))

    async with service_at() as service:
        executor = LinkedFiles().executor(service, sees=Sees())
        task, _ = await ask(service, executor=executor)
        await stop(task)
        await executor.hooks.events.flush()
    assert ("agent.approval.requested", {"path": "/srv/data"}) in seen


@pytest.mark.parametrize(
    ("facts", "line"),
    [*rows(__file__, "fact_lines.jsonl"), ({"path": "\x1b[2J\u202e\n\ud800"}, 'really: path="\\u001b[2J\\u202e\\n\\ud800"')],
)
def test_facts_are_shown_on_one_line_and_cannot_imitate_each_other(facts, line):
    assert line in [each.strip() for each in render(request(facts=facts)).split("\n")]


def test_the_scope_of_a_session_approval_is_rendered():
    asked = request(facts={"path": "/etc"}, session_key="s1")
    words = "every call of delete that is really about the same"
    grant = SessionGrant(asked, 100.0)
    assert all(words in text for text in (render_question(asked, 0.0), render_grant(grant, 0.0), render_revoked(grant)))
    assert words not in render_question(request(), 0.0)
    assert "[s] this call whenever" in render_question(request(facts={"path": "/etc"}, session="call"), 0.0)
