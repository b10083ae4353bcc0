"""Fields of ``LlmAgent``: their effects and validation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from patchbay.agents import GenerateContentConfig, InMemorySessionService, LlmAgent, LlmRequest, RunConfig
from patchbay.errors import ConfigurationError
from patchbay.models.chat_model import ChatRequest, ModelEvent
from patchbay.testing import ScriptedModel
from patchbay.tools import BaseTool, FunctionTool, ToolContext, ToolDefinition
from patchbay.types import ToolCall

from .turns import Chat, agent, kinds, response_of, run_agent, said_to


async def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


def greet(name: str) -> str:
    """Greet."""
    return f"hello {name}"


class Query(BaseTool):
    """A tool with a declaration."""

    def __init__(self) -> None:
        super().__init__(name="query", description="Ask.", timeout=10.0)

    def get_declaration(self) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]}
        return {"name": self.name, "description": self.description, "parameters": parameters}

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return {"rows": [args["sql"]], "count": 1}


def test_functions_and_tools_of_all_kinds_go_into_one_list():
    other = ToolDefinition("define", "Define.", {"type": "object", "properties": {}}, lambda arguments: arguments)
    renamed = FunctionTool(greet, name="hail")
    calls = [
        ToolCall("1", "add", '{"a": "41"}'),
        ToolCall("2", "greet", '{"name": "Ann"}'),
        ToolCall("3", "query", '{"sql": "x"}'),
        ToolCall("4", "define", "{}"),
        ToolCall("5", "hail", '{"name": "Bob"}'),
    ]
    with ScriptedModel([calls, "done"]) as model:
        events = run_agent(model, add, greet, Query(), other, renamed)
    (_, responses, _) = events
    assert [{"result": 42}, {"result": "hello Ann"}, {"rows": ["x"], "count": 1}, {}, {"result": "hello Bob"}] == [
        each.response for each in responses.get_function_responses()
    ]
    assert ["1", "2", "3", "4", "5"] == [each.id for each in responses.get_function_responses()]
    assert ["add", "greet", "query", "define", "hail"] == [spec.name for spec in model.requests[0].tools]
    assert ("user", "a") == (responses.content.role, responses.author)


async def test_tools_can_be_added_and_removed_during_the_agents_lifetime():
    one = agent(
        [ToolCall("1", "add", '{"a": 1}'), "a", ToolCall("2", "greet", '{"name": "Ann"}'), "b", ToolCall("3", "add"), "c"]
    )
    chat = Chat(one)
    assert ["?add", "!add", "a"] == kinds(events := await chat.say())
    assert "add" in response_of(events, "add")["error"], "an unknown tool"
    one.tools.append(greet)
    assert {"result": "hello Ann"} == response_of(await chat.say(), "greet")
    one.tools.append(add)
    one.tools.remove(greet)
    assert "required" in response_of(await chat.say(), "add")["error"]
    assert [[], [], ["greet"], ["greet"], ["add"], ["add"]] == [[spec.name for spec in r.tools] for r in one.model.requests]


def test_tool_added_later_under_a_taken_name_ends_the_run_with_an_event():
    one = agent(["never asked"], add)
    one.tools.append(FunctionTool(greet, name="add"))
    (event,) = asyncio.run(Chat(one).say())
    assert "CONFIGURATION" == event.error_code
    assert "Two tools are named 'add'" in event.error_message


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"name": "no name"}, ConfigurationError, "identifier"),
        ({"name": ""}, ConfigurationError, "identifier"),
        ({"name": "1st"}, ConfigurationError, "identifier"),
        ({"name": None}, ConfigurationError, "identifier"),
        ({"name": "user"}, ConfigurationError, "user"),
        ({"instruction": 5}, ConfigurationError, "instruction"),
        ({"instruction": None}, ConfigurationError, "instruction"),
        ({"include_contents": "all"}, ConfigurationError, "include_contents"),
        ({"tool_mode": "best"}, ConfigurationError, "tool_mode"),
        ({"attachments": ["video"]}, ConfigurationError, "attachments"),
        ({"attachments": "image"}, ConfigurationError, "attachments"),
        ({"output_key": 5}, ConfigurationError, "output_key"),
        ({"output_key": ""}, ConfigurationError, "output_key"),
        ({"generate_content_config": {"temperature": 1}}, ConfigurationError, "generate_content_config"),
        ({"model": 5}, TypeError, "int"),
        ({"model": ScriptedModel([]), "tool_mode": "text"}, ConfigurationError, "tool_mode"),
        ({"output_schema": lambda: None}, ConfigurationError, "output_schema"),
        ({"before_agent_callback": 5}, ConfigurationError, "before_agent_callback"),
        ({"after_agent_callback": [5]}, ConfigurationError, "after_agent_callback"),
        ({"before_model_callback": "f"}, ConfigurationError, "before_model_callback"),
        ({"after_model_callback": {}}, ConfigurationError, "after_model_callback"),
        ({"before_tool_callback": [None]}, ConfigurationError, "before_tool_callback"),
        ({"after_tool_callback": 1.5}, ConfigurationError, "after_tool_callback"),
        ({"sub_agents": ["b"]}, TypeError, "sub_agents"),
        ({"tools": [add, add]}, ConfigurationError, "Two tools are named 'add'"),
        ({"tools": [max]}, ConfigurationError, "max"),
        ({"tools": [5]}, TypeError, "int"),
        ({"tools": "add"}, TypeError, "list"),
        (
            {"sub_agents": [LlmAgent(name="b")], "tools": [FunctionTool(add, name="transfer_to_agent")]},
            ConfigurationError,
            "transfer_to_agent",
        ),
        ({"output_schema": int, "tools": [FunctionTool(add, name="give_answer")]}, ConfigurationError, "give_answer"),
    ],
)
def test_a_field_that_cannot_work_is_refused_when_the_agent_is_made(fields, error, words):
    with pytest.raises(error, match=words):
        LlmAgent(**{"name": "a", "model": "m", **fields})


def test_names_are_unique_in_a_tree_and_an_agent_has_one_parent():
    leaf = LlmAgent(name="leaf")
    with pytest.raises(ConfigurationError, match="named 'leaf'"):
        LlmAgent(name="leaf", sub_agents=[leaf])
    with pytest.raises(ConfigurationError, match="named 'leaf'"):
        LlmAgent(name="a", sub_agents=[leaf, leaf])
    middle = LlmAgent(name="middle", sub_agents=[leaf])
    with pytest.raises(ConfigurationError, match="named 'leaf'"):
        LlmAgent(name="a", sub_agents=[middle, LlmAgent(name="leaf")])
    with pytest.raises(ConfigurationError, match="has a parent already, 'middle'"):
        LlmAgent(name="a", sub_agents=[leaf])
    root = LlmAgent(name="a", sub_agents=[middle])
    assert (root, middle, root, leaf) == (leaf.root_agent, leaf.parent_agent, middle.parent_agent, root.find_agent("leaf"))
    root.model = "m"
    assert "m" == leaf.canonical_model
    assert (None, leaf, root) == (middle.find_sub_agent("a"), middle.find_sub_agent("leaf"), middle.find_agent("a"))


def test_sub_agents_of_an_agent_that_was_refused_are_free_for_another_one():
    sub = LlmAgent(name="b", model="m")
    for fields in ({"tools": [5]}, {"instruction": 5}, {"output_schema": lambda: None}, {"sub_agents": [sub, "c"]}):
        with pytest.raises((TypeError, ConfigurationError)):
            LlmAgent(**{"name": "a", "model": "m", "sub_agents": [sub], **fields})
    assert sub.parent_agent is None
    assert LlmAgent(name="a", model="m", sub_agents=[sub]) is sub.parent_agent


async def read_state(ctx: Any) -> str:
    return f"Mood: {ctx.session.state['mood']}; {{user:name}}"


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("", None),
        ("Be {mood}.", "Be kind."),
        ("Be {missing}.", "Be {missing}."),
        ("Be {missing?}.", "Be ."),
        ("Be {mood?}.", "Be kind."),
        ("{{mood}}", "{kind}"),
        ('Say {"a": {"b": [1]}} {} { mood } {mood!}', 'Say {"a": {"b": [1]}} {} { mood } {mood!}'),
        ("{user:name}, {app:name?}, {n}, {none}", "Ann, , 0, {none}"),
        ("{nested}", "{mood}"),
        (lambda ctx: f"I am {ctx.agent.name}, {{mood}}", "I am a, kind"),
        (lambda ctx: None, None),
        (lambda ctx: 5, "5"),
        (read_state, "Mood: kind; Ann"),
    ],
)
async def test_instruction_contains_state_values(instruction, expected):
    one = agent(["done"], instruction=instruction)
    service = InMemorySessionService()
    state = {"mood": "kind", "user:name": "Ann", "n": 0, "nested": "{mood}"}
    await service.create_session("app", "u", session_id="s", state=state)
    assert ["done"] == kinds(await Chat(one, service).say())
    system = [{"role": "system", "content": expected}] if expected is not None else []
    assert [*system, {"role": "user", "content": "hi"}] == said_to(one.model)


def test_an_instruction_that_raises_ends_the_run_with_an_event():
    def instruction(ctx: Any) -> str:
        raise KeyError("mood")

    (event,) = run_agent(["never"], instruction=instruction)
    assert ("AGENT_ERROR", "KeyError: 'mood'") == (event.error_code, event.error_message)


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("default", ["hi", "one", "more", "two", "last"]),
        ("current_turn", ["last"]),
        ("none", []),
    ],
)
async def test_history_sent_to_the_model_is_configurable(include, expected):
    one = agent(["one", "two", "three"], include_contents=include, instruction="Be so.")
    chat = Chat(one)
    for message in ("hi", "more", "last"):
        await chat.say(message)
    assert ["Be so.", *expected] == [message["content"] for message in said_to(one.model)]


def test_parameters_are_sent_under_openai_names():
    config = GenerateContentConfig(temperature=0, max_output_tokens=10, top_p=0.5, stop_sequences=["END"], extra={"seed": 1})
    one = agent(["a", "b"], generate_content_config=config)
    asyncio.run(Chat(one).say())
    assert {"temperature": 0, "max_tokens": 10, "top_p": 0.5, "stop": ["END"], "seed": 1} == one.model.requests[0].parameters
    one.generate_content_config = None
    asyncio.run(Chat(one).say())
    assert {} == one.model.requests[1].parameters


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": True}, "top_p"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1.5}, "max_output_tokens"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [1]}, "stop_sequences"),
    ],
)
def test_invalid_model_settings_are_refused(fields, words):
    with pytest.raises(ConfigurationError, match=words):
        GenerateContentConfig(**fields)


COUNTS = ("max_llm_calls", "max_tool_calls", "max_history_events", "max_message_length")
TIMES = ("run_timeout", "llm_timeout", "tool_timeout")


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in COUNTS for value in (0, -1, True, 1.5, "3")]
    + [(name, value) for name in TIMES for value in (0, -1.0, True, "3", float("inf"), float("nan"))],
)
def test_unenforceable_limit_is_refused(name, value):
    with pytest.raises(ConfigurationError, match=name):
        RunConfig(**{name: value})


def test_a_run_config_is_frozen_and_its_context_reaches_callbacks_and_tools():
    seen = []

    async def look(tool_context: ToolContext) -> None:
        seen.append(tool_context.invocation_context.run_config.context)

    def before(ctx: Any, request: Any) -> None:
        seen.append(ctx.run_config.context)

    run_agent([ToolCall("1", "look"), "done"], look, before_model_callback=before, settings={"context": {"tenant": 7}})
    assert [{"tenant": 7}] * 3 == seen
    with pytest.raises(AttributeError):
        RunConfig().streaming = True


async def test_tool_context_has_agent_session_and_call():
    received: dict[str, Any] = {}

    async def look(tool_context: ToolContext) -> None:
        received.update(
            agent=tool_context.agent_name,
            session=tool_context.session.id,
            run=tool_context.invocation_id,
            call=tool_context.call_id,
            state=tool_context.state.get("mood"),
            messages=[message["role"] for message in tool_context.messages],
        )

    one = agent([ToolCall("c", "look"), "done"], look, output_key="mood")
    chat = Chat(one)
    events = await chat.say()
    assert {"agent": "a", "session": "s", "run": events[0].invocation_id, "call": "c", "state": None} | {
        "messages": ["user", "assistant"]
    } == received
    assert 1 == len({event.invocation_id for event in (await chat.session()).events})


async def test_edits_of_requests_and_events_do_not_change_the_history():
    def edit(ctx: Any, request: LlmRequest) -> None:
        for content in request.contents:
            content.parts[0].text = "edited"
        del request.contents[1:]

    class Edits(ScriptedModel):
        async def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
            async for event in super().respond(request):
                yield event
            for message in request.messages:
                message["content"] = "edited by the model"

    chat = Chat(agent(Edits([ToolCall("1", "add", '{"a": 1}'), "done", "again"]), add, before_model_callback=edit))
    async for event in chat.begin("hi"):
        for call in event.get_function_calls():
            call.args["a"] = 666
        for response in event.get_function_responses():
            assert {"result": 2} == response.response, "the tool got what the model wrote"
            response.response.clear()
    events = (await chat.session()).events
    assert ["hi", "?add", "!add", "done"] == kinds(events)
    assert ({"a": 1}, {"result": 2}) == (
        events[1].get_function_calls()[0].args,
        events[2].get_function_responses()[0].response,
    )
