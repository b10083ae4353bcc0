"""Approvers edit a call's arguments: they are validated, run exactly, and shown to the model and in the audit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from patchbay.approvals import parse_policy
from patchbay.approvals.terminal import parse_answer
from patchbay.errors import InvalidRequestError
from patchbay.executor import Executor
from patchbay.hooks import Approval, HookManager, Respond
from patchbay.hooks.events import digest_of
from support.tables import rows

from .approval_calls import ASK, Files, ask, call_of, service_at, stop

EDITED = {"path": "/tmp/b"}
NOTE = '[An approver changed the arguments of this call, which was approved with: {"path": "/tmp/b"}]'


class Hook:
    def __init__(self, **answers: Any) -> None:
        self.seen: list[Any] = []
        for name, answer in answers.items():
            setattr(self, name, self.asked(answer))

    def asked(self, answer: Any) -> Any:
        async def method(call: Any) -> Any:
            self.seen.append((call.arguments, call.digest))
            return answer(call) if callable(answer) else answer

        return method


async def decided(
    policy: Any = ASK, hooks: dict[str, Hook] | None = None, arguments: Any = EDITED
) -> tuple[Any, Files, Any, list[Any]]:
    """Approve a call with other arguments; return its execution, the files, its request and its records."""
    files, records = Files(), []
    async with service_at(policy=policy) as service:
        manager = HookManager()
        manager.recorders.append(records.append)
        for name, hook in (hooks or {}).items():
            manager.mount(name, hook)
        service.mount(manager)
        task, request = await ask(service, call_of("/etc/a"), executor=Executor(files.tools(), hooks=manager))
        request = await service.decide(request.id, "approve", by="ann", arguments=arguments)
        [execution] = await task
        return execution, files, request, records


async def test_edited_arguments_run_and_the_result_notes_it():
    execution, files, request, [record] = await decided()
    assert (["/tmp/b"], f"{NOTE}\ndeleted /tmp/b") == (files.deleted, execution.content)
    assert ('{"path": "/etc/a"}', EDITED) == (request.arguments, request.edited)
    assert ("ann", "approve_tool", 'edited the arguments: {"path": "/etc/a"} became {"path": "/tmp/b"}') in record.decisions
    assert record.digest not in ("", request.digest)
    assert {"path": "/etc/a"} == execution.call.arguments


async def test_edited_arguments_with_half_of_a_surrogate_pair_run_as_they_were_approved():
    edited = {"path": "/tmp/\ud800b"}
    execution, files, request, [record] = await decided(arguments=edited)
    assert ([edited["path"]], edited) == (files.deleted, request.edited)
    assert digest_of("delete", edited, {}) == record.digest
    assert r'became {"path": "/tmp/\ud800b"}' in record.decisions[-1][2]
    assert "deleted /tmp/\ufffdb" in execution.content  # what a model is sent can be encoded


async def test_unchanged_arguments_are_not_an_edit():
    execution, files, _, [record] = await decided(arguments={"path": "/etc/a"})
    assert (["/etc/a"], "deleted /etc/a") == (files.deleted, execution.content)
    assert (("ann", "approve_tool", "approved"),) == record.decisions


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *rows(__file__, "edits.jsonl"),
        ({"path": "x" * 300_000}, "at most 262144 characters"),
        ({"path": float("nan")}, "not JSON"),
    ],
)
async def test_invalid_edited_arguments_are_refused_and_the_call_stays_pending(arguments, words):
    files = Files()
    async with service_at() as service:
        task, request = await ask(service, files=files)
        with pytest.raises(InvalidRequestError) as refused:
            await service.decide(request.id, "approve", arguments=arguments)
        assert words in str(refused.value)
        assert [request] == await service.pending()
        for verdict in ("deny", "approve_session"):
            with pytest.raises(InvalidRequestError, match="cannot be given other arguments"):
                await service.decide(request.id, verdict, arguments=EDITED)
        await service.decide(request.id, "deny")
        await task
        assert [] == files.deleted


async def test_denying_rule_applies_to_edited_arguments():
    policy = parse_policy({"default": "ask", "rules": [{"when": {"path": "/tmp/*"}, "outcome": "deny"}]})
    execution, files, _, [record] = await decided(policy)
    assert ("tool_denied", []) == (execution.result.code, files.deleted)
    words = 'denied: the policy does not allow the call as it was edited by ann: {"path": "/tmp/b"}'
    assert (("policy (1)", "approve_tool", words),) == record.decisions
    assert words.partition(": ")[2] in execution.content


@pytest.mark.parametrize(("second", "ran"), [(True, ["/tmp/b"]), (False, [])])
async def test_earlier_approvers_review_edited_arguments(second, ran):
    other = Hook(approve_tool=lambda call: call.arguments["path"] == "/etc/a" or second)
    _, files, _, [record] = await decided(hooks={"other": other})
    assert ([{"path": "/etc/a"}, EDITED], ran) == ([arguments for arguments, _ in other.seen], files.deleted)
    assert other.seen[1][1] == record.digest


async def test_conflicting_edits_of_two_approvers_deny_the_call():
    other = Hook(approve_tool=lambda _: Approval(approved=True, arguments={"path": "/other"}))
    execution, files, _, _ = await decided(hooks={"other": other})
    assert ("tool_denied", []) == (execution.result.code, files.deleted)


async def test_earlier_hook_answer_does_not_apply_to_edited_arguments():
    execution, files, _, _ = await decided(hooks={"other": Hook(before_tool=Respond("mine"))})
    assert ("tool_denied", []) == (execution.result.code, files.deleted)


async def test_arguments_can_be_edited_at_a_terminal():
    async with service_at() as service:
        task, request = await ask(service)
        await stop(task)
    assert ("approve", EDITED) == ((answer := parse_answer(f"e {json.dumps(EDITED)}", request)).verdict, answer.arguments)
    assert "required property 'path'" in parse_answer("e {}", request)
    assert "Expecting" in parse_answer("e {path", request)
    assert parse_answer("e", request).startswith("answer ")
