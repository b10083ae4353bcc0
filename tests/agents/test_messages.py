"""Conversion between contents and messages."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.agents import Blob, Content, FunctionCall, FunctionResponse, Part
from patchbay.agents.convert import from_messages, response_text, to_messages
from patchbay.testing import ScriptedModel
from patchbay.tools import ToolContext
from patchbay.types import Attachment, Reply, ToolCall

from .turns import Chat, agent, assert_settled, kinds, run_agent, said_to

PNG = Attachment(b"\x89PNG", "image/png", "a.png")


def call(**fields: Any) -> Part:
    return Part(function_call=FunctionCall("look", {"at": 1}, "1", **fields))


def test_contents_become_messages():
    contents = [
        Content("user", [Part("hi"), Part("there")]),
        Content("model", [Part("hm", thought=True), Part("let "), Part("me see"), call()]),
        Content("user", [Part(function_response=FunctionResponse("look", {"result": [1]}, "1"))]),
        Content("model", [Part("done")], {"reasoning_content": "hm"}),
    ]
    assert [
        {"role": "user", "content": "hi\nthere"},
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "[1]"},
        {"reasoning_content": "hm", "role": "assistant", "content": "done"},
    ] == to_messages(contents)


def test_text_of_the_model_and_its_view_are_sent_unchanged():
    contents = [
        Content("model", [call(written='{ "at": 1 }')]),
        Content("user", [Part(function_response=FunctionResponse("look", {"error": "no"}, "1", "Error: no. Try this."))]),
    ]
    assistant, tool = to_messages(contents)
    assert ('{ "at": 1 }', "Error: no. Try this.") == (assistant["tool_calls"][0]["function"]["arguments"], tool["content"])


@pytest.mark.parametrize(
    ("written", "expected"), [('{"at', "{}"), ("[1]", "{}"), ("", "{}"), ("null", "{}"), ('{"at": NaN}', "{}"), (" {} ", " {} ")]
)
def test_unreadable_arguments_are_not_sent(written, expected):
    (message,) = to_messages([Content("model", [call(written=written)])])
    assert expected == message["tool_calls"][0]["function"]["arguments"]


def test_unusual_names_are_sent_if_they_are_names_of_tools():
    part = Part(function_call=FunctionCall("files.look", {}, "1"))
    for tools, expected in (((), "files_look"), ({"files.look"}, "files.look")):
        (message,) = to_messages([Content("model", [part])], tools)
        assert expected == message["tool_calls"][0]["function"]["name"]


@pytest.mark.parametrize(
    "content", [Content("model", [Part("hm", thought=True)]), Content("model"), Content("model", [Part("")]), Content("user")]
)
def test_empty_contents_become_no_messages(content):
    assert [] == to_messages([content])


def test_call_and_response_without_ids_are_matched_by_name():
    contents = [
        Content("model", [Part(function_call=FunctionCall("look", {}, ""))]),
        Content("user", [Part(function_response=FunctionResponse("look", {"result": 1}))]),
    ]
    assert_settled(to_messages(contents))


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({"result": "text"}, "text"),
        ({"result": None}, "null"),
        ({"result": 1, "more": 2}, '{"result": 1, "more": 2}'),
        ({"error": "no"}, "Error: no"),
        ({"error": "Error: no"}, "Error: no"),
        ({"error": {"code": 1}}, '{"error": {"code": 1}}'),
        ({}, "{}"),
    ],
)
def test_response_without_text_has_a_default_text(response, expected):
    assert expected == response_text(response)


TEXT = st.text(max_size=5)
JSON = st.dictionaries(TEXT, TEXT | st.integers() | st.none() | st.lists(st.booleans(), max_size=2), max_size=2)
BLOB = st.builds(
    Blob,
    st.sampled_from(["image/png", "audio/wav", "audio/x-wav", "audio/mpeg", "text/plain", "application/pdf"]),
    st.binary(max_size=4),
)
USER = st.builds(
    lambda parts: Content("user", parts),
    st.lists(st.builds(Part, TEXT) | BLOB.map(lambda b: Part(inline_data=b)), min_size=1, max_size=3),
)
ROUND = st.builds(
    lambda text, arguments, results, extra: [
        Content(
            "model",
            [
                *([Part(text)] if text is not None else []),
                *(Part(function_call=FunctionCall("f", each, str(n)), extra_content=extra) for n, each in enumerate(arguments)),
            ],
            extra,
        ),
        Content("user", [Part(function_response=FunctionResponse("f", results, str(n))) for n in range(len(arguments))]),
    ],
    st.none() | TEXT,
    st.lists(JSON, min_size=1, max_size=3),
    JSON,
    st.none() | st.just({"extra_content": {"signature": "x"}}),
)


@given(st.lists(USER.map(lambda content: [content]) | ROUND, max_size=4))
def test_messages_read_back_and_written_again_are_the_same(rounds):
    messages = to_messages([content for contents in rounds for content in contents])
    again = to_messages(from_messages(messages))
    assert json.dumps(messages) == json.dumps(again)


async def draw() -> Attachment:
    return PNG


async def test_user_message_can_hold_images(local_service):
    model = ScriptedModel(["done", "again"])
    chat = Chat(agent(model), local_service)
    text = Content("user", [Part("what is this?"), Part(inline_data=Blob("image/png", PNG.data, "a.png"))])
    await chat.say(text)
    assert [{"type": "text", "text": "what is this?"}, PNG.to_openai()] == said_to(model)[0]["content"]
    await chat.say("more")
    assert said_to(model, 0) == said_to(model)[:1]


async def test_reasoning_and_provider_fields_are_stored_and_only_the_latter_are_sent(local_service):
    signed = {"extra_content": {"google": {"thought_signature": "sig"}}}
    asking = Reply("see", reasoning="hm", tool_calls=(ToolCall("1", "draw", "{}", signed),), extra={"reasoning_content": "hm"})
    model = ScriptedModel([asking, Reply("done", reasoning="so", extra={"reasoning_content": "so"}), "again"])
    chat = Chat(agent(model, draw), local_service)
    await chat.say()
    events = (await chat.session()).events
    assert [("hm", True), ("see", False)] == [(part.text, part.thought) for part in events[1].content.parts[:2]]
    assert {"reasoning_content": "hm"} == events[1].content.extra_content
    assert signed == events[1].content.parts[2].extra_content
    assert "done" == events[-1].content.text
    await chat.say("more")
    _, call, _, done, _ = said_to(model)
    assert ("hm", "see") == (call["reasoning_content"], call["content"])
    assert signed["extra_content"] == call["tool_calls"][0]["extra_content"]
    assert {"reasoning_content": "so", "role": "assistant", "content": "done"} == done
    assert said_to(model, 1) == said_to(model)[: len(said_to(model, 1))]


def test_result_too_long_for_the_model_is_too_long_for_the_log(local_service):
    async def long(kind: str) -> Any:
        return "x" * 200_000 if kind == "text" else ["x" * 1000] * 200

    for kind in ("text", "list"):
        chat = Chat(agent([ToolCall("1", "long", json.dumps({"kind": kind})), "done"], long), local_service, session_id=kind)

        async def main(chat: Chat = chat) -> None:
            await chat.say()
            event = (await chat.session()).events[2]
            assert 60_000 > len(event.to_json())
            assert "left out" in event.get_function_responses()[0].response["result"]

        asyncio.run(main())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": 1}, {"a": 1}),
        ([1, 2], {"result": [1, 2]}),
        (None, {"result": None}),
        (1.5, {"result": 1.5}),
        ("[1]", {"result": "[1]"}),
        ('{"a": 1}', {"result": '{"a": 1}'}),
        ({1, 2}, {"result": [1, 2]}),
        ({1: {2: 3}}, {"1": {"2": 3}}),
        ((1, (2,)), {"result": [1, [2]]}),
        (float("nan"), {"result": None}),
        (2**80, {"result": 2**80}),
    ],
)
def test_tool_result_is_a_dict_in_its_response(value, expected):
    async def give() -> Any:
        return value

    events = run_agent([ToolCall("1", "give"), "done"], give)
    assert expected == events[1].get_function_responses()[0].response
    assert ["?give", "!give", "done"] == kinds(events)


def test_iterator_is_consumed_once_and_stored():
    async def give(tool_context: ToolContext) -> Any:
        return iter([1, 2])

    from patchbay.tools import tool

    class Gives:
        async def __call__(self) -> Any:
            return map(str, [1, 2])

    for each in (give, tool(Gives(), name="give")):
        model = ScriptedModel([ToolCall("1", "give"), "done"])
        events = asyncio.run(Chat(agent(model, each)).say())
        shown = json.loads(said_to(model)[-1]["content"])
        assert {"result": shown} == events[1].get_function_responses()[0].response
        assert 2 == len(shown)
