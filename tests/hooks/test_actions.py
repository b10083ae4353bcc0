"""Decisions of hooks at each point, and their effects (section 5 of the contract)."""

from __future__ import annotations

import logging

import pytest

from patchbay.errors import ToolDeniedError
from patchbay.hooks import AbortTurn, DenyTool, HardAbort, HookPolicy, Modify, Respond, ToolOutput
from patchbay.models import ModelReply
from patchbay.types import Reply, Usage

from .turns import HI, called, hook, managed, play_turn

INTERCEPTORS = ["before_llm", "after_llm", "before_tool", "after_tool"]


# before_llm


def test_messages_that_a_hook_changes_are_those_of_the_request_and_not_of_the_conversation():
    def before_llm(request):
        request.messages.append({"role": "user", "content": "be short"})
        return Modify(request)

    turned = play_turn(managed(hook(before_llm=before_llm)))
    assert ["hi", "be short"] == [message["content"] for message in turned.requests[0].messages]
    assert "be short" == turned.requests[1].messages[-1]["content"]
    assert "be short" not in [message.get("content") for message in turned.final.messages]


def test_changes_to_the_view_alone_have_no_effect():
    def before_llm(request):
        request.messages.clear()
        request.tools.clear()
        request.options["temperature"] = 9
        request.model = "other"

    turned = play_turn(managed(hook(before_llm=before_llm)), "done", parameters={"model": "m"})
    (request,) = turned.requests
    assert (HI, {"model": "m"}, ["add", "rm"]) == (request.messages, request.parameters, turned.offered())


def test_messages_edited_by_a_hook_are_valid_for_a_server():
    """Law 1: a result that a hook leaves out is said to be missing, and one without its call is left out."""

    def before_llm(request):
        if len(request.messages) == 3:
            del request.messages[2]
        elif len(request.messages) > 3:
            del request.messages[1]
        return Modify(request)

    turned = play_turn(managed(hook(before_llm=before_llm)), called(), called(call_id="c2"), "done")
    assert "(The result of this call is not shown.)" == turned.requests[1].messages[2]["content"]
    assert ["user", "assistant", "tool"] == [message["role"] for message in turned.requests[2].messages]
    assert ["3", "3"] == turned.results


def test_next_hook_sees_the_request_changed_by_the_previous_one():
    seen = []
    turned = play_turn(
        managed(
            hook(before_llm=Modify({"model": "one", "options": {"top_p": 1}})),
            hook(before_llm=lambda request: seen.append((request.model, request.options))),
        ),
        "done",
        parameters={"model": "m"},
    )
    assert [("one", {"top_p": 1})] == seen
    assert "one" == turned.requests[0].parameters["model"]


def test_invalid_json_in_options_is_kept():
    passed_on = object()

    def before_llm(request):
        request.options["temperature"] = 0
        return Modify(request)

    turned = play_turn(managed(hook(before_llm=before_llm)), "done", parameters={"timeout": passed_on})
    assert {"timeout": passed_on, "temperature": 0} == turned.requests[0].parameters


# after_llm


def test_the_text_of_an_answer_can_be_changed():
    reply = ModelReply(Reply("secret"), "stop", Usage(1, 2, 3))
    turned = play_turn(managed(hook(after_llm=lambda answer: Modify({"content": answer.content.upper()}))), reply)
    assert ("SECRET", Usage(1, 2, 3)) == (turned.final.content, turned.final.usage)
    assert "SECRET" == turned.final.messages[-1]["content"]


def test_unchanged_finish_reason_keeps_the_calls_of_an_answer():
    def after_llm(answer):
        answer.content += "" if answer.finish_reason else "..."
        return Modify(answer)

    turned = play_turn(managed(hook(after_llm=after_llm)), Reply("I will add", tool_calls=(called(),)), "done")
    assert ["3"] == turned.results


def test_calls_added_by_a_hook_run():
    def after_llm(answer):
        if answer.content == "done":
            return None
        call = {"id": "c1", "function": {"name": "add", "arguments": {"a": 5, "b": 5}}}
        return Modify({"tool_calls": [call, {"function": {"name": "rm"}}, called(call_id="c3")]})

    turned = play_turn(managed(hook(after_llm=after_llm)), "text", "done")
    assert [("add", 5, 5), ("add", 1, 2)] == turned.ran
    assert "10" == turned.results[0]
    assert [None, "invalid_arguments", None] == turned.codes


def test_observed_answer_is_the_same_object():
    """A call that was cut off is no call that a hook sees, and must not get lost because it looked."""
    from patchbay.types import IncompleteCall

    def after_llm(answer):
        assert [] == answer.tool_calls
        return Modify(answer)

    cut = Reply("x", incomplete=(IncompleteCall("c9", "add", '{"a":', '{"a":'),))
    turned = play_turn(managed(hook(after_llm=after_llm)), cut, "done")
    assert ["incomplete_call"] == turned.codes


# before_tool


def test_changed_arguments_are_checked_again_and_are_those_that_run():
    turned = play_turn(managed(hook(before_tool=Modify({"arguments": {"a": "40", "b": 2}}))))
    assert [("add", 40, 2)] == turned.ran
    assert '{"a": 1, "b": 2}' == turned.final.tool_executions[0].call.raw_arguments
    assert {"a": 40, "b": 2} == turned.final.tool_executions[0].arguments


def test_true_is_another_argument_than_one():
    async def keep(value: object) -> str:
        return repr(value)

    turned = play_turn(
        managed(hook(before_tool=Modify({"arguments": {"value": True}}))), called("keep", '{"value": 1}'), "done", tools=[keep]
    )
    assert ["True"] == turned.results


def test_hook_response_replaces_the_tool():
    asked = []
    turned = play_turn(
        managed(
            hook(before_tool=Respond({"for_llm": "from the hook"})),
            hook(before_tool=lambda call: asked.append(call.tool), after_tool=lambda result: asked.append("after")),
        )
    )
    assert (["from the hook"], [], []) == (turned.results, turned.ran, asked)


def test_denied_call_has_the_reason_and_the_turn_continues():
    asked = []
    turned = play_turn(
        managed(
            hook(before_tool=DenyTool("not today")),
            hook(before_tool=lambda call: asked.append("next"), approve_tool=lambda call: asked.append("approver")),
        )
    )
    assert (["Tool execution denied by hook: not today"], [], []) == (turned.results, turned.ran, asked)
    assert ("done", ["tool_denied"]) == (turned.final.content, turned.codes)
    error = turned.final.tool_executions[0].error
    assert isinstance(error, ToolDeniedError)
    assert ("not today", "hook0") == (error.reason, error.by)


# after_tool


def test_unchanged_parts_of_a_result_are_kept():
    async def show() -> ToolOutput:
        return ToolOutput("for you", for_user="for him", artifact_tags=("/a",))

    turned = play_turn(
        managed(hook(after_tool=Modify({"result": {"for_llm": "changed"}}))), called("show", "{}"), "done", tools=[show]
    )
    output = turned.final.tool_executions[0].output
    assert ToolOutput("changed", for_user="for him", artifact_tags=("/a",)) == output


def test_result_view_has_arguments_and_duration():
    seen = {}

    async def spoil(items: list[int]) -> str:
        items.append(9)
        return "ok"

    def after_tool(result):
        seen.update(tool=result.tool, arguments=result.arguments, call_id=result.call_id)
        assert result.duration >= 0

    play_turn(managed(hook(after_tool=after_tool)), called("spoil", '{"items": [1]}'), "done", tools=[spoil])
    assert {"tool": "spoil", "arguments": {"items": [1]}, "call_id": "c1"} == seen


def test_failed_call_does_not_reach_after_tool_hooks():
    asked = []

    async def fails() -> None:
        raise ValueError("no")

    play_turn(managed(hook(after_tool=lambda result: asked.append(result.tool))), called("fails", "{}"), "done", tools=[fails])
    assert [] == asked


# what a point does not know


def test_meaningless_field_is_warned_about_once(caplog):
    turned = play_turn(
        managed(hook(before_tool=Modify({"args": {"a": 5}}))), [called(call_id="1"), called(call_id="2")], called(), "done"
    )
    assert ["3", "3", "3"] == turned.results
    (text,) = [record.getMessage() for record in caplog.records if "'args'" in record.getMessage()]
    assert text.endswith("expected are arguments, tool")


def test_meta_and_context_sent_back_by_a_hook_are_ignored_silently(caplog):
    seen = []

    def before_llm(request):
        seen.append((request.meta.trace_path, request.context))
        request.meta, request.context = None, {"mine": 1}
        return Modify(request)

    play_turn(managed(hook(before_llm=before_llm), hook(before_llm=before_llm)), "done")
    assert [("turn.llm.request", {})] * 2 == seen
    assert [] == caplog.records


# system messages

SYSTEM = [{"role": "system", "content": "obey"}, *HI]


def append_and_edit(request):
    request.messages[0]["content"] = "disobey"
    request.model = "other"
    return Modify(request)


def test_a_hook_can_not_edit_the_system_prompt_and_the_rest_of_its_answer_holds(caplog):
    turned = play_turn(managed(hook(before_llm=append_and_edit)), "done", messages=SYSTEM)
    assert (SYSTEM, "other") == (turned.requests[0].messages, turned.requests[0].parameters["model"])
    assert "changed a system message" in caplog.text


def test_policy_can_allow_edits_of_the_system_prompt():
    turned = play_turn(managed(hook(before_llm=append_and_edit), policy=HookPolicy(edit_system=True)), "done", messages=SYSTEM)
    assert "disobey" == turned.requests[0].messages[0]["content"]


# the end of a turn


@pytest.mark.parametrize("hard", [False, True], ids=["abort_turn", "hard_abort"])
@pytest.mark.parametrize("point", INTERCEPTORS)
def test_a_hook_can_end_the_turn_at_every_point_and_its_reason_reaches_the_caller(point, hard, caplog):
    caplog.set_level(logging.WARNING)
    turned = play_turn(managed(hook(**{point: (HardAbort if hard else AbortTurn)("enough")})))
    final = turned.final
    assert ("hard_abort" if hard else "abort_turn", None) == (final.finish_reason, final.content)
    assert final.aborted is not None
    assert ("enough", "hook0", point, hard) == (final.aborted.reason, final.aborted.hook, final.aborted.point, final.aborted.hard)
    assert "hook requested turn abort: enough" == str(final.aborted)
    assert (1, 0 if point == "before_llm" else 1) == (final.iterations, len(turned.requests))
    assert (HI if hard else HI + final.messages[1:]) == final.messages
    assert ([("add", 1, 2)] if point == "after_tool" else []) == turned.ran


def test_executed_calls_keep_their_results_and_others_get_one():
    """U10: nothing dangles, and what has been done is not forgotten."""
    calls = [called(call_id="1"), called("rm", '{"path": "/"}', "2"), called(call_id="3")]

    async def alone() -> str:
        return "not run"

    from patchbay.tools import tool

    def before_tool(call):
        return AbortTurn("no rm") if call.tool == "rm" else None

    turned = play_turn(
        managed(hook(before_tool=before_tool)),
        [*calls, called("last", "{}", "4")],
        tools=[tool(handler=alone, name="last", sequential=True)],
    )
    assert "abort_turn" == turned.final.finish_reason
    assert ["1", "2", "3", "4"] == [message["tool_call_id"] for message in turned.final.messages if message["role"] == "tool"]
    assert "3" == turned.results[0]
    assert ("hook_abort", "cancelled") == (turned.codes[1], turned.codes[3])
    assert "It had not begun." in turned.results[3]
    assert turned.final.tool_executions[0] is not None


def test_result_of_a_call_followed_by_an_abort_states_that_it_ran():
    turned = play_turn(managed(hook(after_tool=AbortTurn("stop"))))
    assert ["Error: hook requested turn abort: stop. (The tool itself had run: its effects stand.)"] == turned.results
