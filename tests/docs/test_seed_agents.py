"""The examples of the agents' contract (seed 003) run as printed, except for the import line."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Optional

import pytest
from pydantic import BaseModel

from patchbay.agents import (
    AgentTool,
    BusEvent,
    EventBus,
    InMemoryChatHistoryService,
    LlmAgent,
    RunConfig,
    Runner,
    TransferToAgentTool,
    history_tool,
)
from patchbay.testing import Message, ScriptedModel, ScriptedUpstream
from patchbay.tools import BaseTool, FunctionTool, ToolContext
from patchbay.types import ToolCall


async def search_web(query: str, max_results: int = 5) -> list[str]:
    """Search the web and return URLs.
    :param query: The search query string
    :param max_results: Maximum number of results to return
    """
    return ["https://example.com"]


class DatabaseQueryTool(BaseTool):
    def __init__(self, db_connection, *, timeout: float = 10.0):
        super().__init__(
            name="query_database",
            description="Execute a SQL query against the database.",
            timeout=timeout,
        )
        self.db = db_connection

    def get_declaration(self) -> dict:
        return {
            "name": self.name,
            "description": self.description,
            "parameters": {
                "type": "object",
                "properties": {
                    "sql": {"type": "string", "description": "SQL query"},
                    "limit": {"type": "integer", "description": "Max rows"},
                },
                "required": ["sql"],
            },
        }

    async def run_async(self, *, args: dict, tool_context) -> Any:
        sql = args["sql"]
        limit = args.get("limit", 100)
        rows = await self.db.execute(sql, limit=limit)
        return {"rows": rows, "count": len(rows)}


async def my_tool(query: str, tool_context: ToolContext) -> dict:
    tool_context.state["last_query"] = query
    prev = tool_context.state.get("history", [])
    tool_context.actions.transfer_to_agent = "specialist_agent"
    tool_context.actions.escalate = True
    agent_name = tool_context.agent_name
    session = tool_context.session
    invocation_id = tool_context.invocation_id
    SEEN.append((prev, agent_name, session, invocation_id, tool_context.invocation_context))
    return {"result": "done"}


SEEN: list[Any] = []

SCHEMA = {
    "name": "search_web",
    "description": "Search the web and return URLs.",
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "The search query string"},
            "max_results": {"type": "integer", "description": "Maximum number of results to return"},
        },
        "required": ["query"],
    },
}


class Database:
    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def execute(self, sql: str, *, limit: int) -> list[str]:
        self.asked.append((sql, limit))
        return ["a row", "another"]


def calls(*named: tuple[str, dict[str, Any]]) -> Message:
    """A model's answer that calls these, with the ids fc-0, fc-1, ..."""
    written = [
        {"id": f"fc-{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for number, (name, arguments) in enumerate(named)
    ]
    return Message({"tool_calls": written}, finish_reason="tool_calls")


def call(name: str, call_id: str = "1", **arguments: Any) -> ToolCall:
    return ToolCall(call_id, name, json.dumps(arguments))


@pytest.fixture
def openai_at(monkeypatch):
    """Let OpenAI's models be those of a scripted server."""

    def point(upstream: ScriptedUpstream) -> None:
        monkeypatch.setenv("OPENAI_BASE_URL", upstream.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")

    return point


def run_agent(agent: LlmAgent, message: str = "hello", *, loop: Any = None, **options: Any) -> tuple[list[Any], Any]:
    """Run one turn; returns its events, and the session."""

    async def turn() -> tuple[list[Any], Any]:
        async with asyncio.timeout(60), Runner(agent, "app", **options) as runner:
            events = runner.run(
                user_id="u1", session_id="s1", message=message,
                run_config=RunConfig(tool_timeout=10.0),
            )  # fmt: skip
            taken = [event async for event in events]
            return taken, await runner.session_service.get_session("app", "u1", "s1")

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(turn())


def responses(events: list[Any]) -> list[Any]:
    return [response for event in events for response in event.get_function_responses()]


def texts(events: list[Any]) -> list[str]:
    return [event.content.text for event in events if event.is_final_response()]


def without_defaults(declaration: dict[str, Any]) -> dict[str, Any]:
    """A declaration without what ours says beyond the printed one: the defaults."""
    parameters = declaration["parameters"]
    properties = {
        name: {key: value for key, value in schema.items() if key != "default"}
        for name, schema in parameters["properties"].items()
    }
    return {**declaration, "parameters": {**parameters, "properties": properties}}


def test_a_function_becomes_a_tool_with_the_schema_that_is_printed_and_is_called(openai_at):
    agent = LlmAgent(
        name="researcher",
        model="gpt-4o-mini",
        tools=[search_web],
    )
    assert isinstance(agent.tools[0], FunctionTool)
    declaration = agent.tools[0].get_declaration()
    assert SCHEMA == without_defaults(declaration)
    assert 5 == declaration["parameters"]["properties"]["max_results"]["default"]
    with ScriptedUpstream([calls(("search_web", {"query": "otters"})), "One page."]) as upstream:
        openai_at(upstream)
        events, session = run_agent(agent)
    asked = upstream.chats
    assert ["gpt-4o-mini"] * 2 == [request.json["model"] for request in asked]
    assert "Bearer a-key" == asked[0].headers["authorization"]
    assert [SCHEMA] == [without_defaults(item["function"]) for item in asked[0].json["tools"]]
    (response,) = responses(events)
    assert ("search_web", "fc-0", {"result": ["https://example.com"]}) == (response.name, response.id, response.response)
    assert ["user", "model", "user", "model"] == [event.content.role for event in session.events]
    assert ["One page."] == texts(events)
    assert {"role": "tool", "tool_call_id": "fc-0", "content": '["https://example.com"]'} == asked[1].json["messages"][-1]


def test_custom_tool_class_runs_with_its_constructor_arguments(openai_at):
    db_conn = Database()
    agent = LlmAgent(
        name="analyst",
        model="gpt-4o-mini",
        tools=[DatabaseQueryTool(db_conn, timeout=30.0)],
    )
    assert 30.0 == agent.tools[0].timeout
    with ScriptedUpstream([calls(("query_database", {"sql": "SELECT 1"})), "Two rows."]) as upstream:
        openai_at(upstream)
        events, _ = run_agent(agent)
    assert [{"rows": ["a row", "another"], "count": 2}] == [response.response for response in responses(events)]
    assert [("SELECT 1", 100)] == db_conn.asked
    assert ["SQL query", "Max rows"] == [
        schema["description"] for schema in upstream.chats[0].json["tools"][0]["function"]["parameters"]["properties"].values()
    ]


def test_a_list_of_tools_may_be_mixed(openai_at):
    def my_sync_function(text: str) -> str:
        return text.upper()

    db = Database()
    agent = LlmAgent(
        name="assistant",
        model="gpt-4o-mini",
        tools=[search_web, DatabaseQueryTool(db), my_sync_function],
    )
    assert [None, 10.0, None] == [item.timeout for item in agent.tools]
    answer = calls(
        ("search_web", {"query": "otters"}),
        ("query_database", {"sql": "SELECT 2", "limit": 7}),
        ("my_sync_function", {"text": "loud"}),
    )
    with ScriptedUpstream([answer, "All three."]) as upstream:
        openai_at(upstream)
        events, _ = run_agent(agent)
    assert [
        ("fc-0", {"result": ["https://example.com"]}),
        ("fc-1", {"rows": ["a row", "another"], "count": 2}),
        ("fc-2", {"result": "LOUD"}),
    ] == [(response.id, response.response) for response in responses(events)]
    assert [("SELECT 2", 7)] == db.asked


class Model(BaseModel):
    a: int


def test_types_of_the_documented_table_are_mapped():
    def f(s: str, i: int, f: float, b: bool, items: list[int], d: dict, m: Model, o: Optional[int]) -> str:  # noqa: UP045
        return f"{type(m).__name__} {o}"

    agent = LlmAgent(name="typist", tools=[FunctionTool(f)])
    schema = agent.tools[0].get_declaration()["parameters"]
    kinds = {name: item.get("type") for name, item in schema["properties"].items() if name in "sifb" or name in ("items", "d")}
    assert {"s": "string", "i": "integer", "f": "number", "b": "boolean", "items": "array", "d": "object"} == kinds
    assert {"type": "integer"} == schema["properties"]["items"]["items"]
    assert "o" not in schema["required"]
    arguments = {"s": "", "i": 1, "f": 1.5, "b": True, "items": [1], "d": {}, "m": {"a": 1}}
    agent.model = ScriptedModel([call("f", **arguments), "Done."])
    events, _ = run_agent(agent)
    assert [{"result": "Model None"}] == [response.response for response in responses(events)]


def test_tool_context_writes_state_transfers_and_has_its_session():
    SEEN.clear()
    specialist = LlmAgent(name="specialist_agent", model=ScriptedModel(["A specialist speaks."]))
    model = ScriptedModel([call("my_tool", query="why")])
    agent = LlmAgent(name="front", model=model, tools=[my_tool], sub_agents=[specialist])
    events, session = run_agent(agent)
    assert ["query"] == list(agent.tools[0].get_declaration()["parameters"]["properties"])
    assert [{"result": "done"}] == [response.response for response in responses(events)]
    assert ("specialist_agent", ["A specialist speaks."]) == (events[-1].author, texts(events))
    assert {"last_query": "why"} == session.state
    actions = events[1].actions
    assert ({"last_query": "why"}, "specialist_agent", True) == (
        actions.state_delta,
        actions.transfer_to_agent,
        actions.escalate,
    )
    ((prev, agent_name, its_session, invocation_id, context),) = SEEN
    assert ([], "front", "s1") == (prev, agent_name, its_session.id)
    assert events[0].invocation_id == invocation_id == context.invocation_id


class TurnedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be turned on, so that nothing waits for seconds."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


async def slow_function() -> None:
    """Turn the clock on past every limit, and wait for ever."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TurnedLoop)
    loop.ahead += 20.0
    await asyncio.Event().wait()


class MyTool(BaseTool):
    def __init__(self):
        super().__init__(name="my_tool", timeout=5.0)

    def get_declaration(self) -> dict:
        return {"name": self.name, "description": self.description, "parameters": {"type": "object", "properties": {}}}

    async def run_async(self, *, args: dict, tool_context) -> Any:
        await slow_function()


def own_limit() -> BaseTool:
    tool = FunctionTool(slow_function)
    tool.timeout = 5.0
    return tool


@pytest.mark.parametrize(
    ("tool", "name", "seconds"),
    [(slow_function, "slow_function", 10.0), (own_limit(), "slow_function", 5.0), (MyTool(), "my_tool", 5.0)],
)
def test_a_timeout_is_an_error_dict_that_the_model_sees(tool, name, seconds):
    model = ScriptedModel([call(name), "It is too slow."])
    events, _ = run_agent(LlmAgent(name="patient", model=model, tools=[tool]), loop=TurnedLoop)
    (response,) = responses(events)
    text = f"Tool '{name}' timed out after {seconds}s"
    assert {"error": text} == response.response
    assert text in model.requests[1].messages[-1]["content"]
    assert ["It is too slow."] == texts(events)


def test_callbacks_of_tools_stop_one_and_add_to_another():
    ran = []

    def my_tool() -> dict:
        ran.append("my_tool")
        return {"a": 1}

    def dangerous() -> dict:
        ran.append("dangerous")
        return {}

    agent = LlmAgent(
        name="my_agent",
        model="gpt-4o-mini",
        tools=[my_tool],
        before_tool_callback=lambda ctx, name, args: {"blocked": True} if name == "dangerous" else None,
        after_tool_callback=lambda ctx, name, result: {**result, "audited": True},
    )
    agent.tools.append(dangerous)
    agent.model = ScriptedModel([[call("my_tool", "1"), call("dangerous", "2")], "Done."])
    events, _ = run_agent(agent)
    assert [{"a": 1, "audited": True}, {"blocked": True}] == [response.response for response in responses(events)]
    assert ["my_tool"] == ran


def test_bundled_tools_exist_under_their_names():
    helper = LlmAgent(name="helper", description="Helps.", model=ScriptedModel(["Helped."]))
    asked = AgentTool(helper).get_declaration()
    assert ("helper", ["request"]) == (asked["name"], asked["parameters"]["required"])
    search = FunctionTool(history_tool(InMemoryChatHistoryService(), default_agent="helper"))
    assert "search_history" == search.name
    parent = LlmAgent(name="parent", model=ScriptedModel([call("transfer_to_agent", agent_name="helper")]), sub_agents=[helper])
    assert isinstance(parent.executor.tools["transfer_to_agent"], TransferToAgentTool)
    events, _ = run_agent(parent)
    assert ["Helped."] == texts(events)


async def test_bus_gets_calls_and_results_with_their_data():
    received: list[BusEvent] = []

    async def on_tool(event: BusEvent) -> None:
        received.append(event)

    bus = EventBus()
    bus.subscribe("tool.*", on_tool)
    model = ScriptedModel([call("search_web", query="otters"), "Done."])
    agent = LlmAgent(name="researcher", model=model, tools=[search_web])
    async with asyncio.timeout(60):
        async for _ in Runner(agent, "app", bus=bus).run("u1", "s1", "hello"):
            pass
        await bus.drain()
    first, second = received
    assert ("tool.call", "tool.result") == (first.type, second.type)
    assert {"tool": "search_web", "args": {"query": "otters"}}.items() <= first.data.items()
    assert {"tool": "search_web", "response": {"result": ["https://example.com"]}}.items() <= second.data.items()
