"""Hook functions and the responses to the host, by ``Hook.answer`` without a process."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

import pytest

from hooks.turns import decision
from patchbay import Attachment, ToolContext, ToolRetry
from patchbay.errors import ConfigurationError
from patchbay.hooks.process.protocol import decode_params
from patchbay.hooks.sdk import (
    DenyTool,
    Event,
    Hook,
    Modify,
    ToolOutput,
    ToolRequest,
)
from patchbay.hooks.sdk.hook import UnknownMethodError
from support.tables import rows

META = {
    "AgentID": "main",
    "TurnID": "main-turn-1",
    "ParentTurnID": "p",
    "SessionKey": "s",
    "Iteration": 2,
    "TracePath": "turn.tool.before",
    "Source": "runTurn",
}
CALL = {"meta": META, "context": {"inbound": {"chat_id": "7"}}, "tool": "rm", "arguments": {"path": "/"}, "call_id": "c1"}
REQUEST = {
    "meta": META,
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "rm", "description": "", "parameters": {}}}],
    "options": {"max_tokens": 5},
}
RESPONSE = {"content": "old", "finish_reason": "stop", "reasoning": "", "reasoning_details": None, "usage": {"total_tokens": 3}}
RESULT = {"for_llm": "old", "silent": False, "is_error": False, "async": False}


def merging(hook: Hook) -> Hook:
    """Say hello as our own host does."""
    hook.answer("hook.hello", {"name": "h", "version": 1, "modes": ["tool"], "merges": True})
    return hook


def hook_response(point: str, params: dict[str, Any], *functions: Any) -> Any:
    """Return the response to the host of these functions."""
    hook = merging(Hook())
    for function in functions:
        getattr(hook, point)(function)
    return hook.answer(f"hook.{point}", params)


def test_the_hello_names_the_hook_and_its_tools():
    hook = Hook("weather")
    assert {"ok": True, "name": "weather"} == hook.answer("hook.hello", {"name": "configured", "version": 1})

    @hook.tool
    def get_weather(city: str, days: int = 1) -> str:
        """Say how the weather is.

        :param city: its name
        """
        return city * days

    assert "xx" == get_weather("x", 2)
    (tool,) = hook.answer("hook.hello", {})["tools"]
    assert ("get_weather", "Say how the weather is.") == (tool["function"]["name"], tool["function"]["description"])
    properties = tool["function"]["parameters"]["properties"]
    assert ({"type": "string", "description": "its name"}, 1) == (properties["city"], properties["days"]["default"])
    assert "configured" == Hook().answer("hook.hello", {"name": "configured"})["name"]


def test_a_tool_may_be_named_and_described_otherwise():
    hook = Hook()
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}

    @hook.tool(name="search", description="Searches.", parameters=schema)
    def anything(arguments):
        return arguments["q"]

    (tool,) = hook.answer("hook.hello", {})["tools"]
    assert {"name": "search", "description": "Searches.", "parameters": schema} == tool["function"]
    assert "x" == hook.answer("hook.before_tool", {"tool": "search", "arguments": {"q": "x"}})["result"]["for_llm"]


def test_two_tools_of_one_name_are_refused():
    hook = Hook()
    hook.tool(lambda_named("a"))
    with pytest.raises(ConfigurationError, match="has a tool 'a' already"):
        hook.tool(lambda_named("a"))


def lambda_named(name: str) -> Any:
    def function() -> None: ...

    function.__name__ = name
    return function


def called(function: Any, arguments: dict[str, Any], **params: Any) -> dict[str, Any]:
    """Call a tool; return its result."""
    hook = merging(Hook())
    hook.tool(function)
    answer = hook.answer("hook.before_tool", {"meta": META, "tool": function.__name__, "arguments": arguments, **params})
    assert "respond" == answer["action"]
    return answer["result"]


class City(Enum):
    ROME = "Rome"


def test_tool_gets_validated_arguments_and_returns_text():
    def tool(city: City, days: int = 2) -> dict[str, Any]:
        return {"city": city, "days": days}

    assert '{"city": "Rome", "days": 3}' == called(tool, {"city": "Rome", "days": "3"})["for_llm"]
    refused = called(tool, {"city": "Oslo"})
    assert refused["is_error"]
    assert "invalid arguments for 'tool'" in refused["for_llm"]


def test_tools_can_be_async_generators_or_return_awaitables():
    async def coroutine() -> str:
        await asyncio.sleep(0)
        return "a"

    def generator():
        yield 1
        yield 2

    async def async_generator():
        yield 3

    def awaitable() -> Any:
        return coroutine()

    assert ["a", "[1, 2]", "[3]", "a"] == [
        called(each, {})["for_llm"] for each in (coroutine, generator, async_generator, awaitable)
    ]


def test_hook_tool_may_return_separate_output_for_the_user():
    def tool() -> ToolOutput:
        return ToolOutput("drawn", "Here it is.", media=("media://1",), response_handled=True)

    expected = {**RESULT, "for_llm": "drawn", "for_user": "Here it is.", "media": ["media://1"], "response_handled": True}
    assert expected == called(tool, {})


def test_image_is_sent_as_a_data_url():
    def tool() -> Attachment:
        return Attachment(b"\x00", "image/png")

    assert ["data:image/png;base64,AA=="] == called(tool, {})["media"]


def test_an_image_is_left_in_the_hosts_folder_where_it_has_one(tmp_path):
    hook = Hook()
    hook.answer("hook.hello", {"name": "h", "media_dir": str(tmp_path)})
    assert tmp_path == hook.media_dir

    @hook.tool
    def draw() -> Attachment:
        return Attachment(b"\x00", "image/png")

    (path,) = hook.answer("hook.before_tool", {"tool": "draw"})["result"]["media"]
    (left,) = tmp_path.iterdir()
    assert (str(left), b"\x00", ".png") == (path, left.read_bytes(), left.suffix)


def test_exception_of_a_tool_is_an_error_for_the_model():
    def tool() -> None:
        raise ValueError("no such city")

    def again() -> None:
        raise ToolRetry("use a city")

    result = called(tool, {})
    assert (True, "Error: tool 'tool' failed: ValueError: no such city") == (result["is_error"], result["for_llm"])
    assert called(again, {})["for_llm"].startswith("Error: use a city. Fix the arguments")


def test_call_of_another_owners_tool_of_the_same_name_is_not_answered():
    hook = merging(Hook())
    hook.tool(lambda_named("rm"))
    assert {} == hook.answer("hook.before_tool", {**CALL, "arguments": {}, "source": ""})
    assert {} == hook.answer("hook.before_tool", {**CALL, "arguments": {}, "source": "hook:other"})
    assert "respond" == hook.answer("hook.before_tool", {**CALL, "arguments": {}, "source": "hook:h"})["action"]
    assert "respond" == hook.answer("hook.before_tool", {**CALL, "arguments": {}})["action"]


def test_hosts_without_tool_registration_get_tools_in_each_request():
    hook = Hook()
    hook.tool(lambda_named("mine"))
    answer = hook.answer("hook.before_llm", REQUEST)
    assert ["rm", "mine"] == [tool["function"]["name"] for tool in answer["request"]["tools"]]
    assert REQUEST["messages"] == answer["request"]["messages"]
    assert {} == hook.answer("hook.before_llm", {**REQUEST, "tools": answer["request"]["tools"]})
    assert {} == hook.answer("hook.before_llm", {**REQUEST, "graceful_terminal": True})


def test_tools_of_a_hook_without_call_points_are_not_offered(capsys):
    hook = Hook()
    hook.tool(lambda_named("mine"))
    assert "tools" not in hook.answer("hook.hello", {"name": "h", "modes": ["llm"]})
    assert {} == hook.answer("hook.before_llm", REQUEST)
    assert "put before_tool into its 'intercept'" in capsys.readouterr().err
    assert "tools" in hook.answer("hook.hello", {"name": "h", "modes": ["tool"]})


# What functions are given.


@pytest.mark.parametrize("point", ["before_llm", "after_llm", "before_tool", "approve_tool", "after_tool"])
def test_omitted_members_of_a_view_are_empty(point):
    view = decode_params(point, {})
    for name in type(view).__annotations__:
        assert not getattr(view, name) or name in ("meta", "result")
    assert 0 == view.meta.iteration


# What functions decide.


PARAMS = {
    "before_llm": REQUEST, "before_tool": CALL, "approve_tool": CALL, "after_tool": {**CALL, "result": RESULT, "duration": 1},
}  # fmt: skip


@pytest.mark.parametrize("row", rows(__file__, "decisions.jsonl"), ids=lambda row: row["about"])
def test_decisions_become_a_reply(row):
    hook = Hook()
    hook.answer("hook.hello", {"name": "h", "merges": True, "asks": row.get("asks", True)})
    for each in row["decisions"]:
        made = decision(each)
        getattr(hook, row["point"])(made if callable(made) else lambda _view, made=made: made)
    if "error" in row:
        with pytest.raises(TypeError) as caught:
            hook.answer(f"hook.{row['point']}", PARAMS[row["point"]])
        assert row["error"] in str(caught.value)
    else:
        assert row["reply"] == hook.answer(f"hook.{row['point']}", PARAMS[row["point"]])


def test_a_view_that_was_changed_is_a_decision():
    def change(call: ToolRequest) -> Modify:
        call.arguments["path"] = "/tmp"
        return Modify(call)

    assert {"action": "modify", "call": {"arguments": {"path": "/tmp"}}} == hook_response("before_tool", CALL, change)


def test_modify_sends_all_fields_to_hosts_without_merge():
    hook = Hook()
    hook.answer("hook.hello", {"name": "h", "version": 1})
    hook.before_llm(lambda _: Modify({"model": "n"}))
    hook.after_llm(lambda _: Modify({"content": "new"}))
    hook.before_tool(lambda _: Modify({"tool": "ls"}))
    hook.after_tool(lambda _: Modify({"result": "new"}))
    assert {**REQUEST, "model": "n"} == hook.answer("hook.before_llm", REQUEST)["request"]
    params = {"meta": META, "model": "m", "response": RESPONSE}
    assert {**params, "response": {**RESPONSE, "content": "new"}} == hook.answer("hook.after_llm", params)["response"]
    assert {**CALL, "tool": "ls"} == hook.answer("hook.before_tool", CALL)["call"]
    params = {**CALL, "result": RESULT, "duration": 1}
    assert {**params, "result": {**RESULT, "for_llm": "new"}} == hook.answer("hook.after_tool", params)["result"]


def test_functions_of_a_point_run_in_order_and_see_changes():
    seen = []

    def first(call: ToolRequest) -> Modify:
        return Modify({"arguments": {"path": "/tmp"}})

    async def second(call: ToolRequest) -> Modify:
        seen.append(call.arguments)
        return Modify({"tool": "ls"})

    assert {"action": "modify", "call": {"arguments": {"path": "/tmp"}, "tool": "ls"}} == hook_response(
        "before_tool", CALL, first, second
    )
    assert [{"path": "/tmp"}] == seen


def test_guard_precedes_the_hooks_own_tool():
    hook = merging(Hook())
    hook.tool(lambda_named("rm"))
    hook.before_tool(lambda call: DenyTool("no"))
    assert {"action": "deny_tool", "reason": "no"} == hook.answer("hook.before_tool", CALL)


def test_hook_without_approval_reports_it():
    with pytest.raises(UnknownMethodError, match="no function for approve_tool"):
        Hook().answer("hook.approve_tool", CALL)


@pytest.mark.parametrize("method", ["hook.nonsense", "before_tool", "hook.", "hook.hook.before_tool", "tools/list"])
def test_an_unknown_method_is_refused(method):
    with pytest.raises(UnknownMethodError, match="unknown method"):
        Hook().answer(method, {})


# Events.


def observed_event(params: dict[str, Any]) -> Event:
    seen: list[Event] = []
    hook = Hook()
    hook.observer(seen.append)
    hook.answer("hook.runtime_event", params)
    (event,) = seen
    return event


def test_events_of_old_hosts_and_without_members_are_understood():
    event = observed_event({"Kind": 3, "Time": "x", "Meta": {"AgentID": "main"}, "Context": {"inbound": {}}, "Payload": None})
    assert ("3", 0.0, "main", {"inbound": {}}, {}) == (event.kind, event.time, event.meta.agent_id, event.context, event.payload)
    event = observed_event({})
    assert ("", 0.0, "info", {}) == (event.kind, event.time, event.severity, event.payload)


def test_decorators_reject_non_functions():
    with pytest.raises(TypeError, match="@before_tool marks functions, not str"):
        Hook().before_tool("x")  # type: ignore[type-var]


def test_a_tool_may_ask_for_the_calls_context():
    def tool(tool_context: ToolContext) -> list[Any]:
        return [tool_context.call_id, tool_context.name, tool_context.iteration]

    assert '["c9", "tool", 2]' == called(tool, {}, call_id="c9")["for_llm"]
