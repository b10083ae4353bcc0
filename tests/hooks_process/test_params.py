"""Parameters for a hook process at each point follow the contract: spec/hooks.md, sections 3, 4 and 9."""

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
    "AgentID": "main",
    "TurnID": "main-turn-1",
    "ParentTurnID": "",
    "SessionKey": "chat:1",
    "Iteration": 2,
    "TracePath": "turn.tool.before",
    "Source": "runTurn",
}


def sent(point, view, **options):
    return encode_params(point, params_of(point, view, **options))


def written(told):
    return json.loads(request_line(1, "m", told))["params"]


def test_call_is_sent_with_contract_fields_and_without_empty_ones():
    assert {"meta": META, "tool": "rm", "call_id": "call-1", "source": ""} == written(sent("before_tool", view_builders.call()))


def test_empty_request_has_only_the_model():
    assert {"meta": META, "model": ""} == written(sent("before_llm", view_builders.request(model="")))


def test_response_always_has_four_fields_and_others_if_set():
    empty = {"content": "", "finish_reason": "", "reasoning": "", "reasoning_details": None}
    assert empty == written(sent("after_llm", view_builders.response(usage={"prompt_tokens": 0})))["response"]
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    view = view_builders.response(content="x", finish_reason="stop", reasoning="y", tool_calls=[call], usage=usage)
    outcome = written(sent("after_llm", view))["response"]
    expected = {
        "content": "x",
        "finish_reason": "stop",
        "reasoning": "y",
        "reasoning_details": None,
        "tool_calls": [call],
        "usage": usage,
    }
    assert expected == outcome


def test_result_always_has_flags_and_its_duration_in_nanoseconds():
    outcome = written(sent("after_tool", view_builders.result(ToolOutput("done"), duration=0.0015)))
    assert ({"for_llm": "done", "silent": False, "is_error": False, "async": False}, 1_500_000) == (
        outcome["result"],
        outcome["duration"],
    )


CONTEXT = {"inbound": {"channel": "telegram", "chat_id": "7", "sender_id": "9"}, "route": {}, "scope": {"version": 1}}


def test_the_context_is_sent_as_it_is_its_empty_parts_left_out():
    outcome = written(sent("before_tool", view_builders.call(context=CONTEXT)))
    assert {"inbound": CONTEXT["inbound"], "scope": {"version": 1}} == outcome["context"]
    assert "channel" not in outcome


def test_old_hooks_get_channel_and_chat_flat_too():
    outcome = written(sent("before_tool", view_builders.call(context=CONTEXT), flat=True))
    assert ("telegram", "7") == (outcome["channel"], outcome["chat_id"])


@pytest.mark.parametrize(("content", "expected"), rows(__file__, "contents.jsonl"))
def test_the_content_of_a_message_is_always_a_text(content, expected):
    view = view_builders.request(messages=[{"role": "user", "content": content, "name": "", "tool_calls": []}])
    assert [{"role": "user", **expected}] == written(sent("before_llm", view))["messages"]


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
