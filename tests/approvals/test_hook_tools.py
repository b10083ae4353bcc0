"""The policy applies to tools that hooks add to a turn, unless configured otherwise."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from patchbay.approvals import ApprovalPolicy, ApprovalService, parse_policy
from patchbay.errors import ConfigurationError
from patchbay.executor import Executor
from patchbay.hooks import HookManager, HookPolicy, HookScope, Modify, Respond
from patchbay.hooks.config import parse_hooks_config
from patchbay.loop import turn
from patchbay.testing import ScriptedModel
from patchbay.types import ToolCall
from support.running import run

from .approval_calls import waiting

LOOKUP = {"type": "function", "function": {"name": "lookup_ticket", "parameters": {"type": "object"}}}
SCRIPT = [[ToolCall("1", "lookup_ticket", '{"id": 7}')], "done"]


class Tickets:
    """A hook with a tool of its own, and what it has looked up."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    async def before_llm(self, request):
        return Modify({"tools": [*request.tools, LOOKUP]})

    async def before_tool(self, call):
        if call.tool == "lookup_ticket":
            self.found.append(call.arguments["id"])
            return Respond("a ticket")
        return None


def hooked(policy: ApprovalPolicy, hooks_policy: HookPolicy | None = None) -> tuple[HookManager, ApprovalService, Tickets]:
    hooks, tickets = HookManager(policy=hooks_policy), Tickets()
    hooks.mount("tickets", tickets)
    service = ApprovalService(policy)
    service.accept_decisions("http")
    service.mount(hooks)
    return hooks, service, tickets


async def run_hook_tool(hooks: HookManager) -> str:
    """Run a turn whose model calls the hook's tool; return the result for the model."""
    model = ScriptedModel(SCRIPT)
    bound = Executor([], hooks=hooks).begin_run(scope=HookScope("helper", "t1", "", "s1"))
    async for _ in turn(model, bound, [{"role": "user", "content": "hi"}]):
        pass
    return model.requests[1].messages[-1]["content"]


def outcome_of(policy: dict[str, Any], hooks_policy: HookPolicy | None = None) -> tuple[str, list[Any]]:
    async def main():
        hooks, _, tickets = hooked(parse_policy(policy), hooks_policy)
        text = await run_hook_tool(hooks)
        await hooks.aclose()
        return text, tickets.found

    return run(main())


@pytest.mark.parametrize(
    "policy",
    [
        {"rules": [{"tools": ["lookup_*"], "outcome": "deny"}]},
        {"default": "deny"},
        {"rules": [{"sources": ["hook:tickets"], "outcome": "deny"}]},
        {"default": "deny", "rules": [{"tools": ["other"], "outcome": "allow"}]},
    ],
    ids=json.dumps,
)
def test_a_rule_that_denies_denies_a_hooks_own_tool_too(policy):
    expected = "Tool execution denied by approval hook: the policy does not allow it"
    assert (expected, []) == outcome_of(policy)


@pytest.mark.parametrize(
    "policy", [{"default": "ask"}, {"rules": [{"tools": ["lookup_ticket"], "outcome": "ask"}]}], ids=json.dumps
)
async def test_approval_precedes_the_hooks_answer(policy):
    hooks, service, tickets = hooked(parse_policy(policy))
    going = asyncio.create_task(run_hook_tool(hooks))
    [request] = await waiting(service)
    before = list(tickets.found)
    await service.decide(request.id, "approve")
    text = await going
    await hooks.aclose()
    assert ("hook:tickets", [], "a ticket", [7]) == (request.source, before, text, tickets.found)


def test_call_without_a_matching_rule_runs():
    policy = {"rules": [{"tools": ["lookup_*"], "outcome": "allow"}, {"tools": ["*"], "outcome": "deny"}]}
    assert ("a ticket", [7]) == outcome_of(policy)
    assert ("a ticket", [7]) == outcome_of({})


STRICT = {"rules": [{"name": "looking", "tools": ["lookup_*"], "outcome": "deny"}], "default": "deny"}


@pytest.mark.parametrize("message", ["foreign", "never"])
@pytest.mark.parametrize("by", ["approvals", "hooks"])
def test_explicit_respond_approval_wins_and_logs_rules_not_about_hook_tools(message, by, caplog):
    if by == "approvals":
        outcome = outcome_of({**STRICT, "respond_approval": message})
    else:
        outcome = outcome_of(STRICT, parse_hooks_config({"hooks": {"policy": {"respond_approval": message}}}).policy)
    assert ("a ticket", [7]) == outcome
    [reported] = [each.getMessage() for each in caplog.records if "respond_approval" in each.getMessage()]
    assert f"respond_approval is {message!r}: " in reported
    assert reported.endswith(": looking, default")


@pytest.mark.parametrize("message", ["foreign", "never"])
def test_hook_tool_rule_without_approval_is_rejected(message):
    policy = {"rules": [{"name": "mine", "sources": ["hook:*"], "outcome": "ask"}]}
    for made, hooks in (({**policy, "respond_approval": message}, None), (policy, HookPolicy(respond_approval=message))):
        with pytest.raises(ConfigurationError, match="rule 'mine' is about tools that hooks add"):
            hooked(parse_policy(made), hooks)
    assert "always" == parse_policy(policy).apply_to(HookPolicy()).respond_approval
