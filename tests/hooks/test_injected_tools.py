"""Tools that hooks add to a request (P1, P3, P10): their owners, the tools of others, and their calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from patchbay import ToolRunner
from patchbay.errors import ConfigurationError
from patchbay.hooks import AbortTurn, DenyTool, HookPolicy, HookTimeouts, Modify, Respond
from patchbay.testing import ScriptedModel
from patchbay.types import Reply

from .turns import called, hook, managed, play_turn, run_turn

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
OSLO = called("get_weather", '{"city": "Oslo"}')


def named(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**WEATHER["function"], "name": name, **function}}


def hook_with_tools(*tools: Any, **methods: Any) -> Any:
    """Return a hook that adds tools in every round, as those of the seed do, and answers their calls."""
    names = [tool["function"].get("name") for tool in tools if isinstance(tool, dict) and "function" in tool]

    def before_llm(request):
        request.tools.extend(tools)
        return Modify(request)

    def before_tool(call):
        return Respond({"for_llm": f"sunny in {call.arguments['city']}"}) if call.tool in names else None

    return hook(**{"before_llm": before_llm, "before_tool": before_tool, **methods})


def test_a_tool_that_a_hook_adds_is_offered_called_and_answered(caplog):
    turned = play_turn(managed(hook_with_tools(WEATHER)), OSLO, OSLO, "done")
    assert [["add", "rm", "get_weather"]] * 3 == [turned.offered(number) for number in range(3)]
    assert WEATHER == turned.requests[0].tools[2].to_openai()
    assert ["sunny in Oslo", "sunny in Oslo"] == turned.results
    assert "" == caplog.text, "from the second round on the tool is there already"


async def test_tool_choice_is_enforced_for_injected_tools():
    model = ScriptedModel([OSLO, "done"])
    await ToolRunner(model, hooks=managed(hook_with_tools(WEATHER))).run("hi", tool_choice="required")
    assert ["required", "auto"] == [request.tool_choice for request in model.requests]


def test_first_owner_keeps_a_tool_name(caplog):
    turned = play_turn(managed(hook_with_tools(named("add", description="mine"))))
    assert ["add", "rm"] == turned.offered()
    assert "mine" not in str(turned.requests[0].tools)
    assert "changed tools that are not its own" in caplog.text


def test_a_hook_that_offers_one_name_twice_offers_the_first(caplog):
    turned = play_turn(managed(hook_with_tools(WEATHER, named("get_weather", description="other"))), OSLO, "done")
    assert ("The weather.", ["sunny in Oslo"]) == (turned.requests[0].tools[2].description, turned.results)
    assert "two tools of the name 'get_weather'" in caplog.text


EDITS = {
    "edited": lambda tools: tools[0]["function"].update(description="mine"),
    "renamed": lambda tools: tools[0]["function"].update(name="mine2"),
    "removed": lambda tools: tools.pop(0),
    "reordered": lambda tools: tools.reverse(),
    "emptied": lambda tools: tools.clear(),
    "doubled": lambda tools: tools.append(tools[0]),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_changes_to_tools_of_other_owners_are_undone_and_logged(edit, caplog):
    before = play_turn(None, "done").requests[0].tools

    def before_llm(request):
        edit(request.tools)
        return Modify(request)

    turned = play_turn(managed(hook(before_llm=before_llm, before_tool=None)), "done")
    assert before == turned.requests[0].tools[:2]
    assert "changed tools that are not its own" in caplog.text


def test_only_the_owner_can_redescribe_its_tool():
    texts = iter(["one", "two", "three"])

    def before_llm(request):
        text = next(texts)
        request.tools = [tool for tool in request.tools if tool["function"]["name"] != "get_weather"]
        request.tools.append(named("get_weather", description=text))
        return Modify(request)

    def meddles(request):
        request.tools[-1]["function"]["description"] = "meddled"
        return Modify(request)

    turned = play_turn(managed(hook_with_tools(WEATHER, before_llm=before_llm), hook(before_llm=meddles)), OSLO, OSLO, "done")
    assert ["one", "two", "three"] == [request.tools[-1].description for request in turned.requests]
    assert [["add", "rm", "get_weather"]] * 3 == [turned.offered(number) for number in range(3)]


def test_a_tool_stays_offered_for_the_turn_though_its_hook_fails_later():
    """The list of tools is what a server's prompt cache begins with."""
    rounds = []

    def before_llm(request):
        rounds.append(1)
        if len(rounds) > 1:
            raise TimeoutError
        request.tools.append(WEATHER)
        return Modify(request)

    turned = play_turn(managed(hook_with_tools(WEATHER, before_llm=before_llm)), OSLO, OSLO, "done")
    assert ["sunny in Oslo"] * 2 == turned.results
    assert "get_weather" in turned.offered(2)


async def test_injected_tool_exists_for_one_turn():
    manager = managed(hook_with_tools(WEATHER))
    await run_turn(manager, [OSLO, "done"])
    manager.unmount("hook0")
    then = await run_turn(manager, [OSLO, "done"])
    assert (["unknown_tool"], ["add", "rm"]) == (then.codes, then.offered())


NO_TOOLS = {
    "no object": "get_weather",
    "no function": {"type": "function"},
    "no name": {"type": "function", "function": {"description": "x"}},
    "another type": {"type": "retrieval"},
    "an empty name": named(" "),
    "a name that is none": named(5),  # type: ignore[arg-type]
    "a schema that can not be used": named("bad", parameters={"type": "object", "properties": {"a": {"type": "odd"}}}),
}


@pytest.mark.parametrize("tool", NO_TOOLS.values(), ids=NO_TOOLS)
def test_invalid_hook_tool_is_left_out(tool, caplog):
    turned = play_turn(managed(hook_with_tools(tool)), "done")
    assert ["add", "rm"] == turned.offered()
    assert [] != caplog.records


def test_a_hook_that_could_not_answer_adds_no_tool(caplog):
    def before_llm(request):
        request.tools.append(WEATHER)
        return Modify(request)

    assert ["add", "rm"] == play_turn(managed(hook(before_llm=before_llm)), "done").offered()
    assert "has no before_tool to answer its calls" in caplog.text


def test_a_protected_name_is_not_a_hooks():
    turned = play_turn(managed(hook_with_tools(named("fs_read")), policy=HookPolicy(protected=frozenset({"fs_*"}))), "done")
    assert ["add", "rm"] == turned.offered()


def test_policy_off_prevents_added_tools(caplog):
    turned = play_turn(managed(hook_with_tools(WEATHER), policy=HookPolicy(tool_injection="off")), OSLO, "done")
    assert (["add", "rm"], ["unknown_tool"]) == (turned.offered(), turned.codes)
    assert "hooks.policy.tool_injection forbids" in caplog.text


def test_echoed_tools_are_no_change_with_policy_off(caplog):
    """U8: also where a schema holds what JSON has no word for."""

    async def given() -> None: ...

    from patchbay.tools import tool

    parameters = {"type": "object", "properties": {"a": {"enum": ("x", "y")}}, "required": ("a",)}
    odd = tool(handler=given, name="odd", parameters=parameters)
    for injection in ("off", "additive"):
        play_turn(
            managed(
                hook(before_llm=lambda request: request.tools and Modify(request)), policy=HookPolicy(tool_injection=injection)
            ),
            "done",
            tools=[odd],
        )
    assert [] == caplog.records


def test_policy_full_accepts_the_list_unchanged():
    def before_llm(request):
        request.tools = [named("add", description="mine"), WEATHER]
        return Modify(request)

    turned = play_turn(
        managed(hook_with_tools(WEATHER, before_llm=before_llm), policy=HookPolicy(tool_injection="full")),
        [OSLO, called()],
        "done",
    )
    assert (["add", "get_weather"], "mine") == (turned.offered(), turned.requests[0].tools[0].description)
    assert "sunny in Oslo" == turned.results[0]


# their calls


@pytest.mark.parametrize("validate", [True, False])
async def test_arguments_are_validated_before_the_owner_is_called(validate):
    """P10, also where a program does not have its own tools' arguments checked."""
    asked = []
    manager = managed(hook_with_tools(WEATHER, before_tool=lambda call: asked.append(call.arguments) or Respond("ok")))
    runner = ToolRunner(ScriptedModel([called("get_weather", '{"town": 1}'), "done"]), validate=validate, hooks=manager)
    result = await runner.run("hi")
    assert ([], "invalid_arguments") == (asked, result.tool_executions[0].result.code)


async def for_ever(_call):
    await asyncio.Event().wait()


def breaks(_call):
    raise OSError("gone")


FAILS = {
    "too slow": (for_ever, "plugin tool timed out after 50 ms"),
    "an error": (breaks, "the tool failed: OSError: gone"),
    "no answer": (None, "the tool failed: the call was not answered"),
    "a change": (Modify({"arguments": {}}), "the tool failed: the call was not answered"),
    "an answer that is none": (Respond({"for_llm": 5}), "the tool failed: for_llm must be a text, not int"),
    "an answer in other words": (
        Respond({"forLLM": "7"}),
        "the tool failed: a tool's result without for_llm, with 'forLLM' in its place",
    ),
    "a class": (lambda _call: Respond, "the tool failed: the call was not answered"),
    "something else": ("sunny", "the tool failed: the call was not answered"),
    "a cancellation of its own": (lambda _call: asyncio.CancelledError(), "the tool failed: CancelledError"),
    "an error of ours": (lambda _call: ConfigurationError("it is not set up"), "the tool failed: it is not set up"),
}


@pytest.mark.parametrize(("before_tool", "message"), FAILS.values(), ids=FAILS)
def test_tool_whose_owner_does_not_answer_fails_as_known(before_tool, message):
    """P3."""
    limit = 0.05 if before_tool is for_ever else 60.0
    turned = play_turn(
        managed(hook_with_tools(WEATHER, before_tool=before_tool), timeouts=HookTimeouts(interceptor=limit)), OSLO, "done"
    )
    assert ([f"Error: {message}"], ["hook_failed"], "done") == (turned.results, turned.codes, turned.final.content)


def test_unknown_result_fields_are_skipped_with_a_warning(caplog):
    turned = play_turn(
        managed(hook_with_tools(WEATHER, before_tool=Respond({"for_llm": "x", "forUser": "y", "colour": 1}))), OSLO, "done"
    )
    assert ["x"] == turned.results
    known = "for_llm, for_user, silent, is_error, is_async, media, artifact_tags, response_handled"
    assert [
        f"The hook 'hook0' gave a result with {name!r}, which means nothing there: there are {known}"
        for name in ("forUser", "colour")
    ] == caplog.messages


def test_hook_can_deny_its_own_tool_or_end_the_turn():
    assert ["Tool execution denied by hook: closed"] == play_turn(
        managed(hook_with_tools(WEATHER, before_tool=DenyTool("closed"))), OSLO, "done"
    ).results
    turned = play_turn(managed(hook_with_tools(WEATHER, before_tool=AbortTurn("closed"))), OSLO, "done")
    assert ("abort_turn", ["hook_abort"]) == (turned.final.finish_reason, turned.codes)


def test_other_hooks_review_the_call_and_its_owner_runs_it_once():
    asked = []
    owner = hook_with_tools(WEATHER, before_tool=lambda call: asked.append("owner") or Respond("sunny"))
    other = hook(before_tool=lambda call: asked.append("other"), after_tool=lambda result: asked.append("after"))
    assert ["sunny"] == play_turn(managed(owner, other), OSLO, "done").results
    assert ["other", "owner"] == asked


def test_call_can_be_redirected_to_an_injected_tool():
    other = hook(
        before_tool=lambda call: Modify({"tool": "get_weather", "arguments": {"city": "Rome"}}) if call.tool == "add" else None
    )
    turned = play_turn(managed(hook_with_tools(WEATHER), other))
    assert (["sunny in Rome"], []) == (turned.results, turned.ran)


async def test_calls_of_a_hooks_tools_run_side_by_side():
    both = asyncio.Barrier(2)

    async def before_tool(call):
        await asyncio.wait_for(both.wait(), 60)
        return Respond(call.call_id)

    calls = [OSLO, called("get_weather", '{"city": "Rome"}', "c2")]
    assert ["c1", "c2"] == (await run_turn(managed(hook_with_tools(WEATHER, before_tool=before_tool)), [calls, "done"])).results


def test_hook_cannot_change_its_tool_afterwards():
    kept = []

    def before_llm(request):
        tool = named("get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
        kept.append(tool)
        request.tools.append(tool)
        return Modify(request)

    def spoil(_request):
        for tool in kept:
            tool["function"]["parameters"]["properties"]["city"]["type"] = "integer"
        return Reply(None, tool_calls=(OSLO,))

    turned = play_turn(managed(hook_with_tools(WEATHER, before_llm=before_llm)), spoil, "done")
    assert ["sunny in Oslo"] == turned.results
    assert {"city": {"type": "string"}} == turned.requests[0].tools[2].parameters["properties"]
