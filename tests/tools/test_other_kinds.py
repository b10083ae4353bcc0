"""Tools as classes with a declaration, and as definitions with a handler, which are sendable or refused at creation."""

from __future__ import annotations

import threading
from datetime import date
from typing import Any

import pytest

from patchbay.errors import ConfigurationError, ToolArgumentsError
from patchbay.tools import BaseTool, FunctionTool, Tool, ToolContext, ToolDefinition, Validation, collect_tools
from support.running import run

SQL = {"type": "object", "properties": {"sql": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["sql"]}


class Query(BaseTool):
    """A tool whose declaration uses its own name and description."""

    def __init__(self, *, timeout: float = 10.0) -> None:
        super().__init__(name="query_database", description="Execute a SQL query.", timeout=timeout)
        self.declared = 0

    def get_declaration(self) -> dict[str, Any] | None:
        self.declared += 1
        return {"name": self.name, "description": self.description, "parameters": SQL}

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return {"rows": [args["sql"]], "call": tool_context.call_id}


class Declared(BaseTool):
    def __init__(self, declaration: Any) -> None:
        super().__init__("declared", "given")
        self.declaration = declaration

    def get_declaration(self) -> Any:
        return self.declaration

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return args


def call(item: Tool, raw: str) -> Any:
    return run(item.run(item.validate(raw, Validation()), ToolContext(call_id="c1", name=item.name)))


def test_a_class_with_a_declaration_is_a_tool():
    query = Query(timeout=30.0)
    assert isinstance(query, Tool)
    assert ("query_database", 30.0) == (query.name, query.timeout)
    function = {"name": "query_database", "description": "Execute a SQL query.", "parameters": SQL}
    assert {"type": "function", "function": function} == query.spec.to_openai()
    assert {"rows": ["SELECT 1"], "call": "c1"} == call(query, '{"sql": "SELECT 1"}')


def test_arguments_are_validated_against_a_declaration_read_once():
    query = Query()
    for _ in range(3):
        with pytest.raises(ToolArgumentsError, match="required property 'sql'"):
            call(query, '{"limit": 3}')
        _ = query.spec, query.parameters, query.offered
    query.check()
    assert 1 == query.declared


def test_tool_without_a_declaration_is_not_offered():
    assert Query().offered
    hidden = Declared(None)
    assert not hidden.offered
    assert {"a": 1} == call(hidden, '{"a": 1}')
    assert {"type": "object", "properties": {}} == dict(hidden.parameters)


@pytest.mark.parametrize(
    "declaration",
    [
        {"type": "function", "function": {"name": "declared", "parameters": SQL}},
        {"name": "other", "description": "said", "parameters": SQL},
    ],
)
def test_a_declaration_may_be_wrapped_and_its_name_is_the_tools(declaration):
    item = Declared(declaration)
    assert ("declared", SQL) == (item.spec.name, item.spec.parameters)
    assert item.spec.description in ("given", "said")


@pytest.mark.parametrize("declaration", ["declared", ["declared"], {"parameters": [1]}])
def test_invalid_declaration_is_refused(declaration):
    with pytest.raises(ConfigurationError, match="'declared'"):
        Declared(declaration).check()


def test_run_async_may_be_a_plain_function():
    class Plain(Declared):
        def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:  # type: ignore[override]
            return "plain"

    assert "plain" == call(Plain({}), "{}")


def test_a_function_tool_checks_its_arguments_without_an_executor_too():
    async def search_web(query: str, max_results: int = 5) -> list[str]:
        return [query] * max_results

    item = FunctionTool(search_web)
    assert isinstance(item, BaseTool)
    assert ["q", "q"] == run(item.run_async(args={"query": "q", "max_results": "2"}))
    assert "required property 'query'" in run(item.run_async(args={}))["error"]


def test_a_limit_may_be_set_later_and_is_checked_then_too():
    item = FunctionTool(print)
    item.timeout = 5.0
    with pytest.raises(ConfigurationError, match="positive number of seconds"):
        item.timeout = 0
    assert 5.0 == item.timeout


def test_a_description_may_be_set():
    def f():
        """Not this."""

    item = FunctionTool(f)
    item.description = "This."
    assert "This." == item.spec.description
    query = Query()
    query.description = "Ask."
    assert "Ask." == query.spec.description


def test_definition_has_a_handler_that_takes_one_dict():
    async def handle(args: dict) -> dict:
        return {"temp_c": 22, **args}

    weather = ToolDefinition(
        name="get_weather",
        description="Tell the weather.",
        parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        handler=handle,
        metadata={"source": "my_extension"},
    )
    assert {"temp_c": 22, "city": "Rome"} == call(weather, '{"city": "Rome"}')
    assert {"source": "my_extension"} == weather.metadata
    with pytest.raises(ToolArgumentsError):
        call(weather, "{}")


def test_sync_handler_runs_in_a_thread():
    item = ToolDefinition("where", handler=lambda args: threading.current_thread() is threading.main_thread())
    assert call(item, "{}") is False
    assert not item.interruptible


def test_list_can_hold_all_kinds_of_tools():
    def plain(): ...

    async def asynchronous(): ...

    listed = collect_tools([plain, asynchronous, Query(), ToolDefinition("d", handler=lambda args: args)])
    assert ["plain", "asynchronous", "query_database", "d"] == list(listed)


DEEP: dict = {}
for _ in range(100_000):
    DEEP = {"properties": DEEP}


def schema(**about: object) -> dict:
    return {"type": "object", "properties": {"a": {"type": "string", **about}}}


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        ({"handler": None}, "handler="),
        ({"metadata": {"annotations": ["destructive"]}}, "annotations of tool 'odd' must be a mapping"),
        ({"metadata": {"output_schema": ["object"]}}, "output_schema of tool 'odd' must be a JSON Schema object"),
        ({"description": "half \ud83d"}, "lone surrogate"),
        ({"name": "half \ud83d"}, "lone surrogate"),
        ({"parameters": schema(description="half \ud83d")}, "lone surrogate"),
        ({"parameters": schema(default=float("nan"))}, "not JSON"),
        ({"parameters": schema(default=date(2026, 1, 1))}, "not JSON: there is a date in it"),
        ({"parameters": schema(examples={1, 2})}, "not JSON: there is a set in it"),
        ({"parameters": DEEP}, "not JSON"),
    ],
    ids=lambda each: each if isinstance(each, str) else next(iter(each)),
)
def test_invalid_tool_definition_is_rejected_at_creation(expected, why):
    with pytest.raises(ConfigurationError, match=why):
        ToolDefinition(**{"name": "odd", "handler": dict, **expected})


def test_unicode_text_and_huge_numbers_are_accepted():
    tool = ToolDefinition("猫", "🐈 \x00", schema(maximum=10**40, default="🐈"), dict)
    assert ("🐈 \x00", 10**40) == (tool.spec.description, tool.spec.parameters["properties"]["a"]["maximum"])
