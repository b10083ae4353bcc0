"""Declaring facts on functions, methods and classes, and calling such tools without an executor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from patchbay.errors import ConfigurationError, ToolDeniedError
from patchbay.executor import Executor
from patchbay.tools import BaseTool, FunctionTool, Tool, ToolContext, ToolDefinition, tool
from patchbay.tools.tool import find_facts
from patchbay.types import ToolCall
from support.running import run


def where(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"path": f"/srv/{arguments['path']}"}


def facts(item: Tool, **arguments: Any) -> Any:
    return run(find_facts(item, arguments))


def called(item: Tool, raw: str = '{"path": "a"}') -> str:
    return run(Executor([item]).run([ToolCall("1", item.name, raw)]))[0].content


def test_tool_has_no_facts_by_default():
    assert (None, {}) == (tool(where).facts, facts(tool(where), arguments={}))


class Shop:
    name = "shop"

    @tool(facts=where)
    def use(self, path: str, tool_context: ToolContext) -> str:
        return f"{self.name}: {tool_context.facts['path']}"


class Folder:
    def __init__(self, root: str) -> None:
        self.root = root

    def where(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"path": f"{self.root}/{arguments['path']}"}


def test_functions_methods_and_handlers_may_have_facts():
    @tool(facts=where)
    def use(path: str, tool_context: ToolContext) -> str:
        return tool_context.facts["path"]

    items = [
        use,
        FunctionTool(use.function, facts=where),
        tool(handler=use.function, facts=where),
        Shop().use,
        tool(handler=use.function, facts=Folder("/home").where),
    ]
    assert ["/srv/a", "/srv/a", "/srv/a", "shop: /srv/a", "/home/a"] == [called(each) for each in items]
    assert "/srv/a" == run(use.run_async(args={"path": "a"}))


def test_tool_class_may_define_facts_as_sync_or_async_method():
    class Use(BaseTool):
        def get_declaration(self):
            return {"name": self.name, "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}

        def facts(self, arguments):
            return where(arguments)

        async def run_async(self, *, args, tool_context):
            return tool_context.facts["path"]

    class UseLater(Use):
        async def facts(self, arguments):
            await asyncio.sleep(0)
            return where(arguments)

    assert ["/srv/a", "/srv/a"] == [called(each) for each in (Use("use"), UseLater("use"))]


def test_facts_may_be_set_later():
    given = ToolDefinition("use", handler=lambda args: args["path"])
    given.facts = where
    assert ({"path": "/srv/a"}, "a") == (facts(given, path="a"), called(given))


@pytest.mark.parametrize("facts", ["path", {"path": 1}, 0])
def test_non_callable_facts_are_refused(facts):
    with pytest.raises(ConfigurationError, match="facts of tool 'where' must be a function of a call's arguments"):
        FunctionTool(where, facts=facts)


def test_failing_facts_deny_the_call_with_the_cause():
    with pytest.raises(ToolDeniedError, match="could not be found: KeyError: 'path'") as caught:
        facts(FunctionTool(where, facts=where))
    assert isinstance(caught.value.__cause__, KeyError)


def test_tool_that_calls_another_keeps_its_own_facts():
    """The state, the actions and the end of the call are the one call's."""

    @tool(facts=lambda arguments: {"path": "/inner"})
    def inner(tool_context: ToolContext) -> str:
        tool_context.state["inner"] = 1
        tool_context.actions.escalate = True
        return tool_context.facts["path"]

    @tool(facts=where)
    async def outer(path: str, tool_context: ToolContext) -> str:
        outcome = await inner.run_async(args={}, tool_context=tool_context)
        return f"{outcome} {tool_context.facts['path']} {tool_context.state['inner']}"

    [execution] = run(Executor([outer]).run([ToolCall("1", "outer", '{"path": "a"}')]))
    assert ("/inner /srv/a 1", {"inner": 1}, True) == (
        execution.content,
        execution.actions.state_delta,
        execution.actions.escalate,
    )
    context = ToolContext(call_id="1", name="outer")
    other = context.with_facts({"path": "/inner"})
    context.stop()
    assert ({}, True) == (dict(context.facts), other.cancelled.is_set())
