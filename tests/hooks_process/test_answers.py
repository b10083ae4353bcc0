"""Replies become decisions as spec/hooks.md, sections 4 and 5, has it, with the policies P5 (merge) and P6 (diagnostics)."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks_process import view_builders
from patchbay.hooks import Approval, Ask, DenyTool, Respond, ToolOutput
from patchbay.hooks.process import client, replies
from patchbay.hooks.process.replies import Findings, WrongTypeError

IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE], "name": "Ann"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}}],
    },
]
TOOLS = [view_builders.tool("add", strict=True), view_builders.tool("sub", description="Subtracts.")]
OPTIONS = {"max_tokens": 100, "temperature": 0.5}


def request_decision(reply):
    """Return the decision on what ``reply(params)`` answers, and what was odd."""
    view = view_builders.request(messages=MESSAGES, tools=TOOLS, options=OPTIONS)
    params = client.params_of("before_llm", view)
    wire = json.loads(json.dumps({name: params[name] for name in ("model", "messages", "tools", "options")}))
    findings = Findings()
    return replies.read_decision("before_llm", json.loads(json.dumps(reply(wire))), findings, params, view), findings


def _decision(point, view, result):
    findings = Findings()
    params = client.params_of(point, view)
    return replies.read_decision(point, result, findings, params, view), findings


def request_changes(reply):
    decision, findings = request_decision(reply)
    assert {} == findings.found
    return decision.changes if decision is not None else None


def response_decision(result, **members):
    return _decision("after_llm", view_builders.response(content="old", finish_reason="stop", **members), result)


def call_decision(result):
    return _decision("before_tool", view_builders.call(arguments={"path": "/"}), result)


def result_decision(result, output=ToolOutput("old")):  # noqa: B008  (frozen)
    return _decision("after_tool", view_builders.result(output), result)


# P5: what is left out, or comes back as it went out, is unchanged.


@pytest.mark.parametrize("action", ["", "continue", "modify", None])
def test_echoed_request_is_unchanged(action):
    assert request_changes(lambda sent: {"action": action, "request": sent}) is None


@pytest.mark.parametrize(
    "result", [{}, None, {"action": "continue"}, {"request": {}}, {"request": None}, {"request": {"messages": None}}]
)
def test_omitted_parts_of_a_request_are_unchanged(result):
    assert request_changes(lambda _: result) is None


def test_added_tool_leaves_the_others_unchanged():
    mine = view_builders.tool("mine")
    changes = request_changes(lambda sent: {"action": "modify", "request": {**sent, "tools": [*sent["tools"], mine]}})
    assert {"tools": [*TOOLS, mine]} == changes


def test_echoed_messages_are_the_hosts_objects():
    more = {"role": "user", "content": "And now?"}
    changes = request_changes(lambda sent: {"request": {"messages": [*sent["messages"][1:], more]}})
    assert {"messages": [*MESSAGES[1:], more]} == changes


def test_changed_message_keeps_its_image():
    def reply(sent):
        sent["messages"][1]["content"] = "What is it?"
        return {"request": {"messages": sent["messages"]}}

    message = request_changes(reply)["messages"][1]
    assert {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "What is it?"}, IMAGE]} == message


def test_an_image_that_a_hook_adds_by_its_url_becomes_a_part_and_a_ref_stays_a_ref():
    added = {"role": "user", "content": "", "media": ["data:image/png;base64,AA==", "media://1"]}
    message = request_changes(lambda _: {"request": {"messages": [added]}})["messages"][0]
    assert [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}] == message["content"]
    assert ["media://1"] == message["media"]


def test_a_changed_reply_with_calls_and_no_text_has_no_content():
    def reply(sent):
        sent["messages"][2]["tool_calls"][0]["function"]["name"] = "b"
        return {"request": {"messages": sent["messages"]}}

    assert request_changes(reply)["messages"][2]["content"] is None


def test_options_are_replaced_and_integers_stay_integers():
    changes = request_changes(lambda _: {"request": {"options": {"max_tokens": 50.0, "temperature": 1.0, "stop": ["x"]}}})
    assert {"max_tokens": 50, "temperature": 1.0, "stop": ["x"]} == changes["options"]
    assert int is type(changes["options"]["max_tokens"])
    assert request_changes(lambda _: {"request": {"options": {"max_tokens": 100.0, "temperature": 0.5}}}) is None


def test_blank_model_is_no_change():
    assert request_changes(lambda _: {"request": {"model": ""}}) is None
    assert {"model": "n"} == request_changes(lambda _: {"request": {"model": "n"}})


def test_only_different_parts_of_a_response_are_changed():
    inner = {"content": "new", "finish_reason": "stop", "reasoning": "", "reasoning_details": None, "usage": {"total_tokens": 1}}
    decision, findings = response_decision({"response": {"meta": {}, "model": "m", "response": inner}})
    assert ({"content": "new"}, {}) == (decision.changes, findings.found)


def test_empty_list_removes_all_calls():
    call = {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
    decision, _ = response_decision({"response": {"response": {"tool_calls": []}}}, tool_calls=[call])
    assert {"tool_calls": []} == decision.changes
    decision, _ = response_decision({"response": {"response": {"content": "old"}}}, tool_calls=[call])
    assert decision is None


@pytest.mark.parametrize(
    "result", [{}, {"call": {"tool": "rm", "arguments": {"path": "/"}}}, {"call": {"tool": ""}}, {"call": {}}]
)
def test_echoed_call_is_unchanged(result):
    assert call_decision(result)[0] is None


def test_only_different_parts_of_a_result_are_changed():
    received = {"for_llm": "old", "for_user": "", "silent": False, "is_error": True, "async": False, "media": []}
    decision, findings = result_decision({"result": {"tool": "rm", "result": received, "duration": 1}})
    assert ({"result": {"is_error": True}}, {}) == (decision.changes, findings.found)


def test_parts_of_a_result_can_be_removed():
    decision, _ = result_decision(
        {"result": {"result": {"for_user": "", "media": []}}}, ToolOutput("x", "y", media=("media://1",))
    )
    assert {"result": {"for_user": "", "media": []}} == decision.changes


def test_background_work_is_named_async_on_the_wire():
    decision, _ = result_decision({"result": {"result": {"async": True}}})
    assert {"result": {"is_async": True}} == decision.changes


# Actions.


ASKED = {
    "before_llm": lambda result: request_decision(lambda _: result),
    "after_llm": response_decision,
    "before_tool": call_decision,
    "after_tool": result_decision,
}


def test_before_a_tool_a_hook_may_refuse_and_answer():
    assert DenyTool("no") == call_decision({"action": "deny_tool", "reason": "no"})[0]
    answer = {"for_llm": "x", "async": True, "media": ["media://1"]}
    assert (
        Respond({"for_llm": "x", "is_async": True, "media": ["media://1"]})
        == call_decision({"action": "respond", "result": answer})[0]
    )
    assert Respond({"for_llm": "y"}) == call_decision({"action": "respond", "call": {"hook_result": {"for_llm": "y"}}})[0]
    assert Respond({}) == call_decision({"action": "respond", "result": {}})[0]


def test_a_long_reason_is_cut():
    assert DenyTool("x" * replies.MAX_REASON) == call_decision({"action": "deny_tool", "reason": "x" * 100_000})[0]
    assert replies.MAX_REASON == len(_decision("approve_tool", view_builders.call(), {"reason": "x" * 100_000})[0].reason)


def test_answer_without_a_result_continues():
    decision, findings = call_decision({"action": "respond", "call": {"tool": "ls"}})
    assert decision is None
    assert {"respond"} == findings.lost


@pytest.mark.parametrize(
    ("point", "action"),
    [
        ("before_llm", "respond"),
        ("after_llm", "deny_tool"),
        ("after_tool", "respond"),
        ("before_tool", "ABORT_TURN"),
        ("before_tool", "x"),
    ],
)
def test_action_invalid_at_its_point_is_skipped_entirely(point, action):
    decision, findings = ASKED[point](
        {"action": action, "result": {"result": {}}} if point == "after_tool" else {"action": action}
    )
    assert decision is None
    assert [f"action {action}"] == list(findings.found)
    assert "is not known there" in findings.found[f"action {action}"]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"approved": True}, Approval(approved=True)),
        ({"approved": True, "reason": "fine"}, Approval(approved=True, reason="fine")),
        ({"Approved": True}, Approval(approved=True)),
        ({"approved": False, "reason": "no"}, Approval(approved=False, reason="no")),
        ({}, Approval(approved=False)),
        (None, Approval(approved=False)),
        ({"approved": None}, Approval(approved=False)),
        ({"action": "ask", "reason": "large"}, Ask("large")),
        ({"approved": True, "action": "ask"}, Ask()),
        ({"approved": True, "action": ""}, Approval(approved=True)),
    ],
)
def test_approver_must_answer_true(result, expected):
    assert expected == _decision("approve_tool", view_builders.call(), result)[0]


# Types and names.


@pytest.mark.parametrize(
    ("point", "result", "where"),
    [
        (
            "before_llm",
            {"action": "abort_turn", "request": {"messages": [{"role": 1}]}},
            "request.messages[0].role must be a string",
        ),
        (
            "before_llm",
            {"request": {"messages": [{"content": {}}]}},
            "request.messages[0].content must be a string, not an object",
        ),
        ("before_llm", {"request": {"messages": "x"}}, "request.messages must be a list"),
        ("before_llm", {"request": {"messages": [{"role": "user", "parts": 1}]}}, "request.messages[0].parts must be a list"),
        ("before_llm", {"request": {"tools": [[]]}}, "request.tools[0] must be an object"),
        ("before_llm", {"request": {"tools": [{"function": {"name": 1}}]}}, "request.tools[0].function.name must be a string"),
        ("before_llm", {"request": {"options": []}}, "request.options must be an object"),
        ("before_llm", {"request": []}, "request must be an object"),
        ("before_llm", {"action": 1}, "action must be a string"),
        ("before_llm", [], "the result must be an object, not a list"),
        (
            "after_llm",
            {"response": {"response": {"content": None, "tool_calls": {}}}},
            "response.response.tool_calls must be a list",
        ),
        ("before_tool", {"action": "respond", "result": {"for_llm": 1}}, "result.for_llm must be a string"),
        ("before_tool", {"action": "respond", "result": {"silent": "yes"}}, "result.silent must be true or false"),
        ("before_tool", {"action": "respond", "result": {"media": [1]}}, "result.media[0] must be a string, not a number"),
        ("before_tool", {"call": {"arguments": "{}"}}, "call.arguments must be an object"),
        ("before_tool", {"reason": [], "action": "hard_abort"}, "reason must be a string"),
        ("after_tool", {"result": "x"}, "result must be an object"),
        ("approve_tool", {"approved": "true"}, "approved must be true or false"),
        ("approve_tool", {"approved": 1}, "approved must be true or false"),
    ],
)
def test_wrong_type_anywhere_invalidates_the_reply(point, result, where):
    with pytest.raises(WrongTypeError) as caught:
        replies.parse_reply(point, result, Findings())
    assert str(caught.value).startswith(where)


_NAMES = st.sampled_from([
    "action", "reason", "request", "response", "result", "call", "messages", "tools", "options", "tool", "arguments", "for_llm",
    "media", "content", "tool_calls", "function", "name", "parameters", "parts", "image_url", "url", "type", "text", "Tool",
])  # fmt: skip
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["", "x", "respond", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(_VALUES)
def test_any_answer_is_a_decision_or_a_type_error(value):
    message, call = {"role": "user", "content": "x", "parts": value, "media": []}, {"id": "1", "function": {"name": value}}
    tries = [
        *((ask, value) for ask in (call_decision, result_decision, response_decision)),
        (request_decision, lambda _sent: value),
        (request_decision, lambda _sent: {"request": {"messages": [message]}}),
        (request_decision, lambda _sent: {"request": {"tools": [{"function": value}]}}),
        (request_decision, lambda _sent: {"request": {"messages": [value], "options": {"n": value}}}),
        (response_decision, {"response": {"response": {"tool_calls": [call]}}}),
        (call_decision, {"action": "respond", "call": {"hook_result": value}}),
    ]
    for ask, answer in tries:
        with suppress(WrongTypeError):
            ask(answer)


def test_field_names_are_case_insensitive():
    decision, findings = call_decision({"Action": "respond", "RESULT": {"For_LLM": "x", "Is_Error": True}})
    assert (Respond({"for_llm": "x", "is_error": True}), {}) == (decision, findings.found)
    decision, findings = call_decision({"CALL": {"Tool": "ls"}})
    assert ({"tool": "ls"}, {}) == (decision.changes, findings.found)


@pytest.mark.parametrize(
    ("point", "result", "about", "meant"),
    [
        ("before_tool", {"decision": "deny"}, "decision", "action"),
        ("before_tool", {"action": "modify", "args": {}}, "args", "call.arguments"),
        ("before_tool", {"tool_name": "ls"}, "tool_name", "call.tool"),
        ("before_tool", {"call": {"args": {}}}, "call.args", "call.arguments"),
        ("before_tool", {"action": "respond", "for_llm": "x"}, "for_llm", "result.for_llm"),
        ("before_llm", {"action": "modify", "tools": []}, "tools", "request.tools"),
        ("after_llm", {"content": "x"}, "content", "response.response.content"),
        ("after_tool", {"for_llm": "x"}, "for_llm", "result.result.for_llm"),
        ("approve_tool", {"action": "continue"}, "action", "approved"),
    ],
)
def test_a_member_in_the_wrong_place_is_reported_with_the_likely_one(point, result, about, meant):
    findings = Findings()
    replies.parse_reply(point, result, findings)
    assert [about] == list(findings.found)
    assert f"{meant!r} is meant" in findings.found[about]
    assert {about} == findings.lost


def test_an_unknown_member_is_reported_and_ignored():
    decision, findings = call_decision({"action": "deny_tool", "why": "x"})
    assert (DenyTool(""), {"why": "the member 'why' is not known there; it is passed over"}, set()) == (
        decision,
        findings.found,
        findings.lost,
    )


def test_extra_fields_of_messages_and_tools_are_kept():
    message = {"role": "user", "content": "x", "cache": True}
    odd = {**view_builders.tool("mine", strict=False), "vendor": 1}
    changes = request_changes(lambda _: {"request": {"messages": [message], "tools": [odd]}})
    assert {"messages": [message], "tools": [odd]} == changes


def test_the_flat_forms_are_accepted_and_reported():
    decision, findings = response_decision({"action": "modify", "response": {"content": "new"}})
    assert ({"content": "new"}, ["flat response"]) == (decision.changes, list(findings.found))
    decision, findings = result_decision({"action": "modify", "result": {"for_llm": "new"}})
    assert ({"result": {"for_llm": "new"}}, ["flat result"]) == (decision.changes, list(findings.found))
    assert set() == findings.lost


def test_nested_result_is_not_read_as_the_flat_form():
    decision, findings = result_decision({"result": {"tool": "other"}})
    assert (None, {}) == (decision, findings.found)


@pytest.mark.parametrize(
    "result", [{"forLLM": "7"}, {"for-llm": "7", "silent": False}, {"content": "7"}, {"output": "7", "is_error": False}]
)
def test_result_with_its_text_under_another_name_is_invalid(result):
    """Taken as one it would be empty, and the model be told that all went well."""
    decision, findings = call_decision({"action": "respond", "result": result})
    name = next(iter(result))
    assert (None, {f"result.{name}", "respond"}) == (decision, findings.lost)
    assert (
        f"the member 'result.{name}' is not known there: 'result.for_llm' is meant; it is passed over"
        == findings.found[f"result.{name}"]
    )


def test_result_with_its_text_and_extra_fields_is_valid():
    decision, findings = call_decision({"action": "respond", "result": {"for_llm": "7", "forUser": "x"}})
    assert (Respond({"for_llm": "7"}), {"result.forUser"}) == (decision, findings.lost)
    assert "'result.for_user' is meant" in findings.found["result.forUser"]
