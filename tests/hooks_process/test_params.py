"""Requests to a hook process, row by row of ``requests.jsonl``, and events: contract sections 3, 4 and 9."""

from __future__ import annotations

import json

import pytest

from hooks_process import view_builders
from patchbay.hooks import Event, ToolOutput
from patchbay.hooks.process.client import encode_params, params_of
from patchbay.hooks.process.protocol import encode_event
from patchbay.hooks.process.wire import request_line
from support.tables import rows

META = {
    "AgentID": "main", "TurnID": "main-turn-1", "ParentTurnID": "", "SessionKey": "chat:1", "Iteration": 2,
    "TracePath": "turn.tool.before", "Source": "runTurn",
}  # fmt: skip
BUILDERS = {"before_llm": view_builders.request, "after_llm": view_builders.response}


@pytest.mark.parametrize("row", rows(__file__, "requests.jsonl"), ids=lambda row: row["about"])
def test_request_has_the_members_of_the_contract(row):
    members = dict(row["view"])
    if row["point"] == "after_tool":
        view = view_builders.result(ToolOutput(**members.pop("output")), **members)
    else:
        view = BUILDERS.get(row["point"], view_builders.call)(**members)
    params = encode_params(params_of(row["point"], view, flat=row.get("flat", False)))
    assert {"meta": META, **row["params"]} == json.loads(request_line(1, "m", params))["params"]


CONTEXT = {"inbound": {"channel": "telegram", "chat_id": "7", "sender_id": "9"}, "route": {}, "scope": {"version": 1}}


def event(**members):
    return Event(**{"id": "evt-1", "kind": "agent.turn.end", "time": 0.25, "meta": view_builders.META, "context": {}, "severity": "info",
                    "payload": {}, "attrs": {}, **members})  # fmt: skip


def test_an_event_is_sent_as_an_envelope():
    outcome = encode_event(event(context=CONTEXT, payload={"Status": "completed"}, attrs={"responded_by": "x"}, severity="warn"))
    expected = {
        "id": "evt-1",
        "kind": "agent.turn.end",
        "time": "1970-01-01T00:00:00.250000000Z",
        "source": {"component": "agent", "name": "main"},
        "scope": {
            "agent_id": "main",
            "session_key": "chat:1",
            "turn_id": "main-turn-1",
            "channel": "telegram",
            "chat_id": "7",
            "sender_id": "9",
        },
        "correlation": {"trace_id": "turn.tool.before"},
        "severity": "warn",
        "payload": {"Status": "completed"},
        "attrs": {"agent_source": "runTurn", "iteration": 2, "responded_by": "x"},
    }
    assert expected == outcome


def test_scope_and_correlation_are_sent_even_if_empty():
    outcome = encode_event(event(meta=type(view_builders.META)(source="")))
    assert ({}, {}) == (outcome["scope"], outcome["correlation"])
    assert "attrs" not in outcome
    assert "payload" not in outcome
