"""Typed answers: as a call or JSON text, beside other tools, and corrected if invalid."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

from patchbay.agents import LlmAgent
from patchbay.agents.agent_tools import ANSWER_TOOL, REMINDER
from patchbay.errors import ConfigurationError
from patchbay.models.chat_model import ModelReply
from patchbay.testing import ScriptedModel
from patchbay.types import Reply, ToolCall, Usage

from .turns import Chat, agent, assert_settled, kinds, run_agent, said_to


class Street(BaseModel):
    name: str


class Address(BaseModel):
    street: Street
    number: int = Field(ge=1, alias="no")


@dataclass
class Point:
    x: int
    y: int = 0


class Entry(TypedDict):
    word: str


class Node(BaseModel):
    value: int
    next: Node | None = None


def answer_call(value: Any, call_id: str = "") -> ToolCall:
    return ToolCall(call_id, ANSWER_TOOL, json.dumps(value))


async def look() -> str:
    """Look."""
    return "seen"


SHAPES = [
    (Address, {"street": {"name": "Elm"}, "no": 5}, None),
    (Point, {"x": 1, "y": 0}, {"x": "1"}),
    (Entry, {"word": "w"}, None),
    (Node, {"value": 1, "next": {"value": 2, "next": None}}, {"value": 1, "next": {"value": 2}}),
    (list[int], [1, 2], ["1", 2]),
    (dict[str, int], {"a": 1}, None),
    (int, 5, None),
    (Literal["a", "b"], "b", None),
    (Address | Point, {"x": 1, "y": 2}, None),
]


def is_object(schema: Any) -> bool:
    return schema in (Address, Point, Entry, dict[str, int])


@pytest.mark.parametrize(("schema", "expected", "written"), SHAPES)
async def test_typed_answer_is_a_call_of_the_answer_tool(schema, expected, written):
    value = written if written is not None else expected
    call = answer_call(value if is_object(schema) else {"answer": value})
    chat = Chat(agent([call], output_schema=schema, output_key="out"))
    events = await chat.say()
    assert [f"?{ANSWER_TOOL}", f"!{ANSWER_TOOL}"] == kinds(events)[:2]
    assert expected == json.loads(events[-1].content.text)
    assert events[-1].is_final_response()
    assert {"out": expected} == events[-1].actions.state_delta
    assert {"out": expected} == (await chat.session()).state
    assert 3 == len(events)


@pytest.mark.parametrize(("schema", "expected", "written"), SHAPES)
@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", " ```\n{}``` "])
async def test_json_text_is_accepted_as_the_typed_answer(schema, expected, written, form):
    text = form.replace("{}", json.dumps(written if written is not None else expected))
    model = ScriptedModel([ModelReply(Reply(text, reasoning="hm"), "stop", Usage(1, 2, 3))])
    chat = Chat(agent(model, output_schema=schema, output_key="out"))
    (event,) = await chat.say()
    assert expected == json.loads(event.content.text)
    assert {"out": expected} == (await chat.session()).state
    assert ({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}, "stop") == (event.usage, event.finish_reason)
    assert [("hm", True)] == [(part.text, part.thought) for part in event.content.parts[:-1]]


def test_structured_output_forces_the_answer_tool():
    model = ScriptedModel([answer_call({"x": 1})])
    asyncio.run(Chat(agent(model, output_schema=Point, instruction="Be so.")).say())
    (request,) = model.requests
    assert [ANSWER_TOOL] == [spec.name for spec in request.tools]
    assert {"type": "function", "function": {"name": ANSWER_TOOL}} == request.tool_choice
    assert f"Be so.\n\n{REMINDER}" == request.messages[0]["content"]
    assert {"x", "y"} == set(request.tools[0].parameters["properties"])


def test_references_of_the_schema_resolve():
    import jsonschema_rs

    model = ScriptedModel([answer_call({"answer": {"value": 1}})])
    asyncio.run(Chat(agent(model, output_schema=Node)).say())
    validator = jsonschema_rs.validator_for(dict(model.requests[0].tools[0].parameters))
    assert validator.is_valid({"answer": {"value": 1, "next": {"value": 2}}})
    assert not validator.is_valid({"answer": {"value": 1, "next": {"value": "x"}}})


GIVEN = [f"?{ANSWER_TOOL}", f"!{ANSWER_TOOL}", '{"x": 1, "y": 0}']


@pytest.mark.parametrize(
    ("steps", "settings", "expected"),
    [
        ([ToolCall("1", "look"), answer_call({"x": 1})], {}, ["?look", "!look", *GIVEN]),
        ([[answer_call({"x": 1}), ToolCall("1", "look")]], {}, [f"{GIVEN[0]}?look", f"{GIVEN[1]}!look", GIVEN[2]]),
        (['{"x": 1}'], {"streaming": True}, ['~{"x"', "~: 1}", GIVEN[2]]),
        ([Reply(None)], {}, ["[NO_RESPONSE]"]),
        ([answer_call({"x": number}) for number in "abcde"], {"max_llm_calls": 4}, [*GIVEN[:2] * 4, "[MAX_LLM_CALLS]"]),
    ],
    ids=["after another tool", "beside another call", "streamed", "no answer", "wrong without end"],
)
def test_the_events_of_a_typed_answer_beside_a_tool(steps, settings, expected):
    model = ScriptedModel(steps)
    assert expected == kinds(asyncio.run(Chat(agent(model, look, output_schema=Point)).say(**settings)))
    assert {None} == {request.tool_choice for request in model.requests}


def test_invalid_structured_answer_is_refused_with_its_errors():
    model = ScriptedModel([answer_call({"x": "one"}), answer_call({"x": 1})])
    events = asyncio.run(Chat(agent(model, output_schema=Point)).say())
    (refused,) = events[1].get_function_responses()
    assert "/x" in refused.response["error"]
    assert '{"x": 1, "y": 0}' == kinds(events)[-1]
    assert_settled(said_to(model))


@pytest.mark.parametrize("words", ["The point is (1, 0).", '{"x": "one"}', '{"y": 1}', "5", "[" * 100_000, "NaN"])
async def test_text_answer_is_followed_by_a_reminder(words):
    model = ScriptedModel([words, answer_call({"x": 1})])
    chat = Chat(agent(model, output_schema=Point, output_key="out"))
    events = await chat.say()
    assert [f"?{ANSWER_TOOL}", f"!{ANSWER_TOOL}", '{"x": 1, "y": 0}'] == kinds(events), "words are no answer"
    assert [words, REMINDER] == [message["content"] for message in said_to(model)[-2:]]
    assert {"type": "function", "function": {"name": ANSWER_TOOL}} == model.requests[1].tool_choice
    kept = kinds((await chat.session()).events)
    assert [f"{words}[OUTPUT_INVALID]", REMINDER] == kept[1:3], "and they are not lost"
    assert {"out": {"x": 1, "y": 0}} == (await chat.session()).state


async def test_repeated_invalid_answers_end_the_run_with_an_event():
    replies = [ModelReply(Reply(text), "stop", Usage(1, 1, 2)) for text in ("no", "no idea", "really not")]
    model = ScriptedModel([*replies, answer_call({"x": 1})])
    chat = Chat(agent(model, output_schema=Point, output_key="out"))
    (event,) = await chat.say()
    assert ("OUTPUT_INVALID", "really not") == (event.error_code, event.content.text)
    assert "does not fit output_schema" in event.error_message
    assert Usage(3, 3, 6) == chat.runs[0].usage
    session = await chat.session()
    assert {} == session.state
    assert 6 == sum(each.usage["total_tokens"] for each in session.events if each.usage is not None)
    assert '{"x": 1, "y": 0}' == kinds(await chat.say("again"))[-1]


async def test_view_of_the_model_is_the_same_in_later_turns():
    model = ScriptedModel(
        ["words", answer_call({"x": "no"}), ToolCall("", "look"), answer_call({"x": 1}), '{"x": 2}', answer_call({"x": 3})]
    )
    chat = Chat(agent(model, look, output_schema=Point))
    for message in ("one", "two", "three"):
        await chat.say(message)
    for before, after in itertools.pairwise(model.requests):
        assert before.messages == after.messages[: len(before.messages)]
        assert_settled(after.messages)
    model.assert_consumed()


def test_answer_tool_is_not_a_tool_of_the_caller_and_triggers_no_callbacks():
    asked = []
    events = run_agent(
        [ToolCall("1", "look"), answer_call({"answer": [1]})],
        look,
        output_schema=list[int],
        before_tool_callback=lambda ctx, name, args: asked.append(name),
        after_tool_callback=lambda ctx, name, result: {"result": result, "audited": True},
    )
    assert (["look"], "[1]") == (asked, kinds(events)[-1])


@pytest.mark.parametrize("schema", [lambda: None, type("Odd", (), {}), 5, "Unknown"])
def test_a_type_that_json_cannot_express_is_refused_when_the_agent_is_made(schema):
    with pytest.raises(ConfigurationError, match="output_schema"):
        LlmAgent(name="a", model="m", output_schema=schema)


async def test_the_schema_may_be_changed_later():
    one = agent([answer_call({"x": 1}), answer_call({"answer": 5})], output_schema=Point)
    chat = Chat(one)
    assert '{"x": 1, "y": 0}' == kinds(await chat.say())[-1]
    one.output_schema = int
    assert "5" == kinds(await chat.say())[-1]
    one.output_schema = None
    one.model = ScriptedModel(["words"])
    assert ["words"] == kinds(await chat.say())
