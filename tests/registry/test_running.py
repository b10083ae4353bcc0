"""Registered tools in the executor and the loop: whole turns over a snapshot."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from patchbay import ToolCall, ToolRunner
from patchbay.executor import Executor
from patchbay.testing import ScriptedModel
from patchbay.tools import ToolDefinition, tool
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.registry import ToolRegistry
from support.running import run

from .registering import remote

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


def weather_of(kind: str, given: list[Any]) -> ToolDefinition:
    def handle(args: dict) -> dict:
        given.append((args, threading.current_thread() is threading.main_thread()))
        return {"temp_c": 22, "weather": "sunny"}

    async def handle_async(args: dict) -> dict:
        return handle(args)

    handler = handle if kind == "sync" else handle_async
    return ToolDefinition("get_weather", "Tell it.", CITY, handler, {"source": "my_extension"})


def carry_out(registry: ToolRegistry, role: str, *calls: ToolCall) -> Any:
    return run(Executor(registry.snapshot(role).tools.values()).run(calls))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_registered_handler_is_called_with_one_dict(kind):
    given: list[Any] = []
    manager = LLMSessionManager("ann")
    manager.register_tool(weather_of(kind, given))
    model = ScriptedModel([ToolCall("c1", "get_weather", '{"city": "Rome"}'), "It is sunny."])
    result = run(ToolRunner(model, manager.snapshot().tools.values()).run("How is the weather in Rome?"))
    assert "It is sunny." == result.content
    assert [({"city": "Rome"}, kind == "async")] == given  # a sync handler does not hold up the loop
    assert {"temp_c": 22, "weather": "sunny"} == json.loads(result.tool_executions[0].content)


def test_without_arguments_a_handler_gets_an_empty_dict():
    given: list[Any] = []
    manager = LLMSessionManager("ann")
    manager.register_tool(weather_of("async", given))
    carry_out(manager.registry, "ann", ToolCall("c1", "get_weather", ""))
    assert [({}, True)] == given


def failing(args: dict) -> Any:
    answers: dict[str, Any] = {
        "raise": ValueError("no such city"),
        "reported": {"output": None, "is_error": True, "error": "city not found"},
        "with output": {"output": {"reason": "gone"}, "is_error": True, "error": "NOT_FOUND"},
        "with text": {"output": "half of it", "is_error": "true", "error": "CUT"},
        "silent": {"is_error": True},
        "around it": {"is_error": True, "error": "no", "hint": "try again"},
        "fine": {"output": [1], "is_error": False},
        "not quite": {"output": 5, "is_error": "false"},
        "with images": {"output": 3, "images": ["aGVsbG8="]},
        "plain": {"output": 1},
        "plain images": {"images": []},
        "plain error": {"error": "x"},
        "odd": {"output": 7, "is_error": 1},
    }
    answer = answers[args["how"]]
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.mark.parametrize(
    ("how", "is_error", "shown"),
    [
        ("raise", True, "Error: tool 'f' failed: ValueError: no such city"),
        ("reported", True, '{"error": "city not found"}'),  # W1
        ("with output", True, '{"error": "NOT_FOUND", "reason": "gone"}'),
        ("with text", True, '{"error": "CUT", "output": "half of it"}'),
        ("silent", True, '{"error": "the tool failed and did not say why"}'),
        ("around it", True, '{"error": "no", "hint": "try again"}'),
        ("fine", False, "[1]"),
        ("not quite", False, "5"),  # W10
        ("with images", False, '{"result": 3, "_image_warnings": ["image 1: it is neither JPEG nor PNG"]}'),
        ("plain", False, '{"output": 1}'),
        ("plain images", False, '{"images": []}'),
        ("plain error", False, '{"error": "x"}'),
    ],
)
def test_failure_text_of_a_handler_reaches_the_model(how, is_error, shown):
    manager = LLMSessionManager("ann")
    manager.register_tool(ToolDefinition("f", handler=failing))
    (done,) = carry_out(manager.registry, "ann", ToolCall("c1", "f", json.dumps({"how": how})))
    assert (is_error, shown) == (done.is_error, done.content)


def test_non_boolean_annotations_are_skipped_and_logged(caplog):  # W10
    manager = LLMSessionManager("ann")
    manager.register_tool(ToolDefinition("f", handler=failing))
    (done,) = carry_out(manager.registry, "ann", ToolCall("c1", "f", '{"how": "odd"}'))
    assert (False, "7", True) == (done.is_error, done.content, "is_error=1" in caplog.text)


def test_a_name_that_is_not_registered_is_an_error_that_lists_those_that_are():
    (done,) = carry_out(ToolRegistry(["ann"]), "ann", ToolCall("c1", "nope"))
    assert done.is_error
    manager = LLMSessionManager("ann")
    manager.register_tool(ToolDefinition("f", handler=failing))
    (done,) = carry_out(manager.registry, "ann", ToolCall("c1", "g"))
    assert ("unknown_tool", True) == (done.result.code, "Available tools: f." in done.content)


def test_remote_tool_without_a_dispatcher_is_an_error():
    registry = ToolRegistry(["ann"])
    registry.register(remote("t"))
    (done,) = carry_out(registry, "ann", ToolCall("c1", "t"))
    assert (True, True) == (done.is_error, "tool 't' is remote but no dispatcher is bound" in done.content)


def test_a_remote_tool_is_made_once_of_its_registration():
    made = []

    def make_remote(registration):
        made.append(registration)
        return tool(handler=lambda: f"from {registration.callback_url}", name=registration.name)

    registry = ToolRegistry(["ann", "ben"], make_remote)
    registry.register(remote("t", secret="x"))
    registry.unregister("t", "ben")
    (done,) = carry_out(registry, "ann", ToolCall("c1", "t"))
    assert ("from http://127.0.0.1:9/call", ["x"]) == (done.content, [each.secret for each in made])


def test_turn_keeps_its_tools():
    manager = LLMSessionManager("ann")

    async def leave(_args: dict) -> str:
        manager.clear_tools()
        return "cleared"

    manager.register_tool(ToolDefinition("leave", handler=leave))
    manager.register_tool(ToolDefinition("f", handler=lambda _args: "still here"))
    model = ScriptedModel([ToolCall("c1", "leave"), ToolCall("c2", "f"), "Done."])
    result = run(ToolRunner(model, manager.snapshot().tools.values()).run("Go."))
    assert ["cleared", "still here"] == [each.content for each in result.tool_executions]
    assert [] == manager.list_tools()
