"""The context of a call: its call, agent, state, progress and idempotency key."""

from __future__ import annotations

import pytest

from patchbay.tools import AgentScope, Context, Progress, ToolContext


def make(**given) -> ToolContext:
    return ToolContext(call_id="c1", name="f", **given)


def test_the_context_has_the_seeds_names():
    session, invocation = object(), object()
    around = AgentScope(agent_name="boss", session=session, invocation_id="i1", invocation_context=invocation, state={"k": 1})
    context = make(agent_scope=around)
    assert Context is ToolContext
    assert ("c1", "c1", "f") == (context.call_id, context.function_call_id, context.name)
    assert ("boss", "i1", 1) == (context.agent_name, context.invocation_id, context.state["k"])
    assert (session, invocation) == (context.session, context.invocation_context)


def test_state_without_an_agent_is_private():
    first, second = make(), make()
    first.state["k"] = 1
    first.actions.escalate = True
    assert ("", None, "", None) == (first.agent_name, first.session, first.invocation_id, first.invocation_context)
    assert ({}, None) == (second.state.to_dict(), second.actions.escalate)
    assert not first.cancelled.is_set()


def test_outcome_has_requested_actions_and_state_changes():
    context = make(agent_scope=AgentScope(state={"n": 1, "list": [1]}))
    assert not context.outcome()
    context.state["n"] += 1
    context.state["list"].append(2)
    context.actions.state_delta["direct"] = True
    context.actions.transfer_to_agent = "other"
    context.actions.escalate = True
    made = context.outcome()
    assert ("other", True) == (made.transfer_to_agent, made.escalate)
    assert {"direct": True, "n": 2, "list": [1, 2]} == made.state_delta
    assert {"n": 1, "list": [1]} == made.state_found


def test_idempotency_key_is_equal_after_resumption():
    def key(call_id: str, invocation_id: str) -> str:
        return ToolContext(call_id=call_id, name="f", agent_scope=AgentScope(invocation_id=invocation_id)).idempotency_key

    assert key("c1", "i1") == key("c1", "i1")
    assert 3 == len({key("c1", "i1"), key("c2", "i1"), key("c1", "i2")})
    assert 32 == len(key("\ud800", "i"))
    alone = make()
    assert alone.idempotency_key == alone.idempotency_key != make().idempotency_key


def test_progress_is_normalised_and_ignored_after_the_call():
    received: list[Progress] = []
    context = make(on_progress=received.append)
    context.progress("half", fraction=0.5, data={"n": 1})
    context.progress(fraction=7)
    context.progress(fraction=-1)
    context.progress(fraction=float("nan"))
    context.cancelled.set()
    context.progress("too late")
    assert [Progress("half", 0.5, {"n": 1}), Progress(fraction=1.0), Progress(fraction=0.0), Progress()] == received
    make().progress("no listener")


@pytest.mark.parametrize("name", ["agent_name", "session", "invocation_id", "state"])
def test_tool_cannot_change_its_call_context(name):
    with pytest.raises(AttributeError):
        setattr(make(), name, "mine")
