"""``Ask``: a person decides about a call and sees the hook's reason; if no person can be asked, the call is denied."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from patchbay.approvals import ApprovalService, parse_policy
from patchbay.hooks import Ask, DenyTool, HookManager, HookPolicy, Modify, Respond

from .turns import called, hook, managed, play_turn, run_turn

RM = called("rm", '{"path": "/srv"}')


async def decided(
    manager: HookManager, verdict: Any = "approve", *, policy: Any = None, stands_by: bool = False, steps: Any = (RM, "done")
) -> tuple[Any, Any]:
    """Run a turn whose one request for approval is decided so; return both."""
    service = ApprovalService(parse_policy(policy))
    service.accept_decisions("http")
    (service.stand_by if stands_by else service.mount)(manager)
    turn = asyncio.create_task(run_turn(manager, steps))
    try:
        async with asyncio.timeout(60):
            while not (pending := await service.pending()) and not turn.done():
                await asyncio.sleep(0.005)
        [request] = pending or [None]
        if request is not None:
            await service.decide(request.id, verdict, by="ann")
        return await turn, request
    finally:
        await service.aclose()


@pytest.mark.parametrize("stands_by", [False, True])
@pytest.mark.parametrize("point", ["before_tool", "approve_tool"])
@pytest.mark.parametrize(("verdict", "ran"), [("approve", [("rm", "/srv")]), ("deny", [])])
async def test_call_pending_approval_by_a_hook_waits_for_a_person(point, verdict, ran, stands_by):
    turned, request = await decided(managed(guard=hook(**{point: Ask("it is large")})), verdict, stands_by=stands_by)
    assert ("hook guard", "guard: it is large", "rm") == (request.rule, request.why, request.tool)
    assert ran == turned.ran


def test_call_is_denied_with_the_reason_if_no_person_can_decide():
    turned = play_turn(managed(guard=hook(before_tool=Ask("it is large"))), RM, "done")
    words = "the hook 'guard' wants a person to decide (it is large), and no person can be asked here"
    assert ([f"Tool execution denied by approval hook: {words}"], ["tool_denied"], []) == (
        turned.results,
        turned.codes,
        turned.ran,
    )


async def test_where_the_service_cannot_reach_a_person_the_call_is_denied():
    manager = managed(guard=hook(before_tool=Ask()))
    ApprovalService().mount(manager)
    assert "no person can be asked here" in (await run_turn(manager, (RM, "done"))).results[0]


@pytest.mark.parametrize(
    ("rule", "asked", "ran"),
    [
        ({"outcome": "allow"}, "hook guard", True),
        ({"outcome": "deny"}, None, False),
        ({"name": "removing", "outcome": "ask", "session": "never"}, "removing", True),
        ({"outcome": "ask", "who": ["hooks"]}, "hook guard", True),
    ],
)
async def test_hook_that_requests_approval_does_not_weaken_the_policy(rule, asked, ran):
    manager = managed(guard=hook(before_tool=Ask()), other=hook(approve_tool=True))
    turned, request = await decided(manager, policy={"rules": [{"tools": ["rm"], **rule}]})
    assert (asked, ran) == (request.rule if request else None, bool(turned.ran))


async def test_approver_sees_the_call_after_hooks_and_every_reason():
    hooks = {
        "a": hook(before_tool=Ask("one")),
        "b": hook(before_tool=Modify({"arguments": {"path": "/tmp"}})),
        "c": hook(before_tool=Ask("two")),
    }
    turned, request = await decided(managed(**hooks))
    assert ('{"path": "/tmp"}', "a: one; c: two", [("rm", "/tmp")]) == (request.arguments, request.why, turned.ran)


async def test_denial_by_another_hook_precedes_the_approval_request():
    turned, request = await decided(managed(a=hook(before_tool=Ask()), b=hook(before_tool=DenyTool("no"))))
    assert (None, ["Tool execution denied by hook: no"]) == (request, turned.results)


async def test_an_answer_in_the_tools_place_waits_for_the_person_too():
    manager = managed(a=hook(before_tool=Ask()), b=hook(before_tool=Respond("mine")), policy=HookPolicy(respond_approval="never"))
    turned, request = await decided(manager, "deny", stands_by=True)
    assert ("hook a", ["tool_denied"]) == (request.rule, turned.codes)


async def test_standby_approval_service_ignores_calls_without_an_ask():
    turned, request = await decided(managed(guard=hook(before_tool=None)), stands_by=True)
    assert (None, [("rm", "/srv")]) == (request, turned.ran)


async def test_record_has_the_asking_hook_and_the_persons_decision():
    records: list[Any] = []
    manager = managed(guard=hook(before_tool=Ask("it is large")))
    manager.recorders.append(records.append)
    await decided(manager)
    assert (("guard", "before_tool", "asked a person: it is large"), ("ann", "approve_tool", "approved")) == records[0].decisions
