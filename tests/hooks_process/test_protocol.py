"""The host's and the SDK's side of the protocol agree: what one encodes the other decodes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hooks_process import view_builders
from patchbay.hooks import (
    AbortTurn,
    Approval,
    Ask,
    DenyTool,
    Event,
    HardAbort,
    Meta,
    Modify,
    Respond,
    ToolOutput,
)
from patchbay.hooks.process import client, replies
from patchbay.hooks.process.protocol import decode_event, decode_params, encode_decision, encode_event
from patchbay.hooks.process.wire import request_line

TOOL = view_builders.tool("look", description="Looks.")
CONTEXT = {"inbound": {"channel": "cli", "chat_id": "1"}, "scope": {"a": [1, "ä<"]}}
OUTPUT = ToolOutput(
    "for the model", for_user="for you", media=("a.png",), artifact_tags=("x",), response_handled=True, is_async=True
)
VIEWS: dict[str, Any] = {
    "before_llm": view_builders.request(
        context=CONTEXT,
        messages=[{"role": "user", "content": "hi"}],
        tools=[TOOL],
        options={"max_tokens": 5},
        graceful_terminal=True,
    ),
    "after_llm": view_builders.response(
        content="x", reasoning="y", finish_reason="stop", usage={"total_tokens": 3}, tool_calls=[{"id": "1", "function": {}}]
    ),
    "before_tool": view_builders.call(
        arguments={"path": "/tmp <&>"}, source="s", endpoint="http://x", annotations={"read_only": True}
    ),
    "after_tool": view_builders.result(OUTPUT, arguments={"n": 1}, duration=0.5),
    "approve_tool": view_builders.call(arguments={"n": 1}, digest="sha256:0", facts={"size": 9}),
}


def encoded(point: str) -> dict[str, Any]:
    """Return the params that the host sends for the view of a point."""
    line = request_line(1, f"hook.{point}", client.encode_params(client.params_of(point, VIEWS[point])))
    sent: dict[str, Any] = json.loads(line)["params"]
    return sent


@pytest.mark.parametrize("point", VIEWS)
def test_view_round_trips(point):
    sent, received = VIEWS[point], decode_params(point, encoded(point))
    names = set(type(sent).__annotations__) - {"approvers", "asks", "parameters"}  # not on the wire
    assert {name: getattr(sent, name) for name in names} == {name: getattr(received, name) for name in names}


def decoded(point: str, reply: dict[str, Any]) -> Any:
    """Return the decision that the host reads, which must find nothing odd."""
    findings: dict[str, str] = {}
    decision = replies.read_decision(point, json.loads(json.dumps(reply)), findings, encoded(point), VIEWS[point])
    assert {} == findings
    return decision


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize(
    ("point", "decision"),
    [
        ("before_llm", Modify({"model": "other", "options": {"max_tokens": 6}})),
        ("before_llm", Modify({"messages": [{"role": "user", "content": "other"}]})),
        ("before_llm", Modify({"tools": [TOOL, view_builders.tool("more", description="More.")]})),
        ("after_llm", Modify({"content": "other"})),
        ("before_tool", Modify({"arguments": {"path": "/srv"}})),
        ("before_tool", Modify({"tool": "ls"})),
        ("before_tool", DenyTool("no")),
        ("before_tool", Ask("large")),
        ("approve_tool", Ask("large")),
        ("approve_tool", Approval(approved=True)),
        ("approve_tool", Approval(approved=False, reason="no")),
        *((point, end) for point in VIEWS if point != "approve_tool" for end in (AbortTurn("why"), HardAbort("why"))),
    ],
)
def test_decision_round_trips(point, decision, merges):
    reply = encode_decision(point, decision, VIEWS[point], encoded(point), merges=merges)
    assert decision == decoded(point, reply)


@pytest.mark.parametrize("merges", [False, True])
def test_result_round_trips(merges):
    respond = decoded(
        "before_tool",
        encode_decision("before_tool", Respond(OUTPUT), VIEWS["before_tool"], encoded("before_tool"), merges=merges),
    )
    assert isinstance(respond, Respond)
    modify = Modify({"result": {"for_llm": "other"}})
    changed = decoded(
        "after_tool", encode_decision("after_tool", modify, VIEWS["after_tool"], encoded("after_tool"), merges=merges)
    )
    assert ("for the model", "for you", "other") == (
        respond.result["for_llm"],
        respond.result["for_user"],
        changed.changes["result"]["for_llm"],
    )


def test_event_round_trips():
    meta = Meta("agent", "turn-1", "turn-0", "chat:1", 2, "turn.start", "runTurn")
    sent = Event("evt-1", "agent.turn.start", 1_700_000_000.5, meta, CONTEXT, "warn", {"UserMessage": "hi"}, {"call_id": "c"})
    received = decode_event(json.loads(json.dumps(encode_event(sent))))
    assert sent == replace(received, context=sent.context, attrs=sent.attrs)
    assert ("c", "1") == (received.attrs["call_id"], received.context["inbound"]["chat_id"])
