"""Requests of other protocols as chat completions: what each item becomes, and what damaged ones do."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.errors import InvalidRequestError
from patchbay.formats.events import CallArguments, CallEnd, CallStart
from patchbay.frontends import AnthropicMessages, GenerateContent, OpenAIResponses
from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange
from patchbay.models.options import TextOptions
from patchbay.models.wire import encode
from patchbay.types import ToolCall

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
MESSAGES, RESPONSES, GEMINI = json.loads(Path(__file__).with_name("requests.json").read_text(encoding="utf-8")).values()
"""A request of each protocol with each kind of item."""
PATH = "/v1beta/models/m:streamGenerateContent"
HI = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


def decode(given):
    if given is GEMINI or "contents" in given:
        return GenerateContent().decode(encode(given), PATH).body
    if "input" in given:
        return OpenAIResponses().decode(encode(given), "").body
    return AnthropicMessages().decode(encode(given), "").body


def answer_to(frontend, given, message, *, path="", **options):
    """The client's whole answer where the model's server sends ``message``."""
    decoded = frontend.decode(encode(given), path)
    exchange = Exchange(encode(decoded.body), TextOptions(**options), Capabilities(), decoded.encoder)
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    return json.loads(exchange.read_whole(encode({"choices": [{"message": message, "finish_reason": reason}]}))[0])


def names(body):
    return [tool["function"]["name"] for tool in body["tools"]]


def test_anthropic_messages():
    body = decode(MESSAGES)
    system, question, answer, again, call, first, second, rest, late = body["messages"]
    assert {"role": "system", "content": "Be brief."} == system
    assert ["user", "assistant", "user"] == [question["role"], answer["role"], again["role"]]
    assert "reasoning_content" not in answer
    assert {"type": "image_url", "image_url": {"url": "http://x/i.png"}} == again["content"][1]
    assert ("Reading.", "I read.") == (call["content"], call["reasoning_content"])
    assert [("a", "read", '{"path": "n"}'), ("b", "search", "{}")] == [
        (each["id"], each["function"]["name"], each["function"]["arguments"]) for each in call["tool_calls"]
    ]
    assert [("a", "blue"), ("b", "This tool can be called from now on: later")] == [
        (each["tool_call_id"], each["content"]) for each in (first, second)
    ]
    assert ["text", "image_url", "text"] == [part["type"] for part in rest["content"]]
    assert {"role": "system", "content": "Mind the time."} == late
    assert ["read", "later"] == names(body)
    assert ("auto", False, ["END"], 100) == (body["tool_choice"], body["parallel_tool_calls"], body["stop"], body["max_tokens"])
    assert {"include_usage": True} == body["stream_options"]


def test_openai_responses():
    body = decode(RESPONSES)
    system, question, call, first, second, shown, search, found = body["messages"]
    assert {"role": "system", "content": "Be brief."} == system
    assert "image_url" == question["content"][1]["type"]
    assert ("Reading.", ["files__read", "patch"]) == (call["content"], [each["function"]["name"] for each in call["tool_calls"]])
    assert {"input": "*** x"} == json.loads(call["tool_calls"][1]["function"]["arguments"])
    assert [("a", "blue"), ("b", "done")] == [(each["tool_call_id"], each["content"]) for each in (first, second)]
    assert ["text", "image_url"] == [part["type"] for part in shown["content"]]
    assert ("tool_search", "tool") == (search["tool_calls"][0]["function"]["name"], found["role"])
    assert ["files__read", "patch", "tool_search", "later"] == names(body)
    assert "lark" in body["tools"][1]["function"]["parameters"]["properties"]["input"]["description"]
    assert {"name": "n", "schema": SCHEMA, "strict": True} == body["response_format"]["json_schema"]


def test_tools_that_a_search_found_are_those_of_their_request_alone():
    searched = [item for item in RESPONSES["input"] if item.get("type") == "tool_search_output"]
    assert searched
    without = {**RESPONSES, "input": [item for item in RESPONSES["input"] if item not in searched]}
    for _ in range(2):
        assert "later" in names(decode(RESPONSES))
        assert "later" not in names(json.loads(encode(decode(without))))


def test_gemini():
    body = decode(GEMINI)
    system, question, call, result = body["messages"]
    assert {"role": "system", "content": "Be brief."} == system
    assert "data:image/png;base64,AA==" == question["content"][1]["image_url"]["url"]
    assert ("call_0", "read") == (call["tool_calls"][0]["id"], call["tool_calls"][0]["function"]["name"])
    assert ("call_0", "blue") == (result["tool_call_id"], result["content"])
    assert {"type": "object", "properties": {"path": {"type": ["string", "null"]}}} == body["tools"][0]["function"]["parameters"]
    assert "allowed_tools" == body["tool_choice"]["type"]
    assert (0, 100) == (body["temperature"], body["max_tokens"])
    assert {"type": "object"} == body["response_format"]["json_schema"]["schema"]


def test_a_custom_tool_gets_its_text_and_a_nested_one_its_namespace():
    made = [("patch", '{"input": "*** y"}'), ("files__read", "{}"), ("tool_search", '{"query": "q"}')]
    calls = [{"id": str(at), "function": {"name": name, "arguments": given}} for at, (name, given) in enumerate(made)]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    output = answer_to(OpenAIResponses(), {**RESPONSES, "stream": False}, message, tools="native")["output"]
    assert ("custom_tool_call", "patch", "*** y") == (output[0]["type"], output[0]["name"], output[0]["input"])
    assert ("function_call", "read", "files") == (output[1]["type"], output[1]["name"], output[1]["namespace"])
    assert ("tool_search_call", {"query": "q"}) == (output[2]["type"], output[2]["arguments"])


CUSTOM = {
    "model": "m",
    "stream": True,
    "input": [
        {"role": "user", "content": "Patch it."},
        {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": '-"a\\b"\n+c\n'},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "done"},
    ],
    "tools": [{"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}}],
}


def test_a_text_model_reads_and_writes_the_text_of_a_custom_tool_as_it_is():
    decoded = OpenAIResponses().decode(encode(CUSTOM), "")
    exchange = Exchange(encode(decoded.body), TextOptions(tools="text"), Capabilities(), decoded.encoder)
    asked = json.loads(exchange.request)["messages"]
    assert "```tool_call patch\n<the text>\n```" in asked[0]["content"]
    assert "start: x" in asked[0]["content"]
    assert '```tool_call patch\n-"a\\b"\n+c\n\n```' == asked[2]["content"]
    patch = '*** Begin \U0001f600 "x\\y"\n+\té\n*** End'
    answer = [{"content": piece} for piece in ("On it.\n\n```tool_call patch\n", *patch, "\n```")]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in answer]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    stream = b"".join(b"data: " + encode(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    out = exchange.feed(stream)
    events = [json.loads(line[6:]) for line in (out + exchange.end_attempt()[0]).split(b"\n") if line.startswith(b"data: ")]
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert patch == "".join(deltas)
    assert len(deltas) > len(patch) / 2
    (done,) = [event["input"] for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert patch == done == events[-1]["response"]["output"][1]["input"]


@pytest.mark.parametrize(
    ("arguments", "text", "status"),
    [
        ('{"input": "a\\u00e9\\ud83d\\ude00\\n\\"b"}', 'aé\U0001f600\n"b', "completed"),
        ('{"input": "*** Begin\\n+x', "*** Begin\n+x", "incomplete"),
        ("no JSON", "no JSON", "incomplete"),
        ('{"other": 1}', '{"other": 1}', "completed"),
        ('{"input": "\\ud83d lone"}', "\ud83d lone", "completed"),
        ('{"input": "\\q' + "x" * 300, '{"input": "\\q' + "x" * 300, "incomplete"),
    ],
)
def test_text_in_arguments_is_streamed_in_any_split(arguments, text, status):
    for size in range(1, 9):
        encoder = OpenAIResponses().decode(encode(CUSTOM), "").encoder
        out = encoder.part(0, CallStart(0, "a", "patch"))
        for at in range(0, len(arguments), size):
            out += encoder.part(0, CallArguments(0, arguments[at : at + size]))
        if status == "completed":
            out += encoder.part(0, CallEnd(0, ToolCall("a", "patch", arguments)))
        out += encoder.finish(0, "length")
        events = [json.loads(line[6:]) for line in out.split(b"\n") if line.startswith(b"data: ")]
        deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
        item = events[-1]["item"]
        assert (text, text, status) == ("".join(deltas), item["input"], item["status"])


def places(value, path=()):
    """Each place in a JSON value."""
    yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in members:
        yield from places(inner, (*path, key))


JUNK = [None, True, 7, -1.5, "", "x", [], [None], ["x"], {}, {"type": "x"}, {"type": ["x"]}, [[]], [{}]]


@pytest.mark.parametrize("request_", [MESSAGES, RESPONSES, GEMINI], ids=["messages", "responses", "gemini"])
def test_a_damaged_request_is_decoded_or_a_clear_error(request_):
    """Junk at each place of a request: an InvalidRequestError, or a body; never another error."""
    for path in [path for path in places(request_) if path]:
        for junk in JUNK:
            damaged = copy.deepcopy(request_)
            holder = damaged
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = junk
            with contextlib.suppress(InvalidRequestError):
                encode(decode(damaged))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_json_is_decoded_or_a_clear_error(value):
    for frontend in (AnthropicMessages(), OpenAIResponses(), GenerateContent()):
        with contextlib.suppress(InvalidRequestError):
            frontend.decode(encode(value), PATH)


def test_gemini_accepts_snake_case():
    part = {"inline_data": {"mime_type": "image/png", "data": "AA=="}}
    (question,) = decode({"contents": [{"role": "user", "parts": [part]}]})["messages"]
    assert "data:image/png;base64,AA==" == question["content"][0]["image_url"]["url"]


TOOLS_WITHOUT_PROPERTIES = {
    "messages": {**MESSAGES, "tools": [{"name": "now", "input_schema": {"type": "object"}}]},
    "responses": {
        **RESPONSES,
        "tools": [{"type": "function", "name": "now", "parameters": {"type": "object"}}],
        "tool_choice": "auto",
    },
    "gemini": {**GEMINI, "tools": [{"functionDeclarations": [{"name": "now", "parametersJsonSchema": {"type": "object"}}]}]},
}


@pytest.mark.parametrize("protocol", TOOLS_WITHOUT_PROPERTIES)
def test_a_tool_without_properties_gets_an_empty_object_of_them(protocol):
    tools = json.loads(encode(decode(TOOLS_WITHOUT_PROPERTIES[protocol])))["tools"]
    assert ("now", {"type": "object", "properties": {}}) == (tools[0]["function"]["name"], tools[0]["function"]["parameters"])


def test_messages_in_place_of_input_are_refused():
    with pytest.raises(InvalidRequestError, match="input") as caught:
        OpenAIResponses().decode(encode({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}), "")
    assert "input" == caught.value.param


@pytest.mark.parametrize("call_id", ["functions.weather:0", "toolu_b64_x", "call_1", "é"])
def test_an_id_that_anthropic_does_not_allow_comes_back_as_the_servers(call_id):
    given = {**HI, "tools": [{"name": "now", "input_schema": {}}]}
    message = {"content": None, "tool_calls": [{"id": call_id, "function": {"name": "now", "arguments": "{}"}}]}
    (block,) = answer_to(AnthropicMessages(), given, message, tools="native")["content"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"])
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block["id"], "content": "noon"}]}
    asked, answered = decode({**HI, "messages": [{"role": "assistant", "content": [block]}, result]})["messages"]
    assert [call_id, call_id] == [asked["tool_calls"][0]["id"], answered["tool_call_id"]]


@pytest.mark.parametrize(("thinking", "kinds"), [(None, ["text"]), ("disabled", ["text"]), ("adaptive", ["thinking", "text"])])
def test_anthropics_clients_get_thinking_only_if_they_ask_for_it(thinking, kinds):
    given = HI if thinking is None else {**HI, "thinking": {"type": thinking}}
    message = {"role": "assistant", "content": "<think>Hm.</think>Hi.", "reasoning_content": "So."}
    assert kinds == [block["type"] for block in answer_to(AnthropicMessages(), given, message)["content"]]


@pytest.mark.parametrize(("config", "thoughts"), [({}, []), ({"thinkingConfig": {"includeThoughts": True}}, [True])])
def test_geminis_clients_get_thoughts_only_if_they_ask_for_them(config, thoughts):
    given = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "generationConfig": config}
    message = {"role": "assistant", "content": "Hi.", "reasoning_content": "So."}
    path = "/v1beta/models/m:generateContent"
    parts = answer_to(GenerateContent(), given, message, path=path)["candidates"][0]["content"]["parts"]
    assert thoughts == [part["thought"] for part in parts if "thought" in part]
    assert "Hi." == parts[-1]["text"]
