"""What an exchange adds to a request so that the model's server samples valid calls only, and what it learns of the server."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from patchbay._redaction import Redactor
from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.formats.render import render_calls
from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange, Step, UpstreamRejection
from patchbay.models.options import TextOptions
from patchbay.models.request_record import RequestRecord
from patchbay.server.turns import Turn, TurnStore, record_of
from patchbay.types import ToolCall

FIELDS = {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}}
WEATHER = {"type": "object", "properties": FIELDS, "required": ["city"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]
PROPS = {"chat_template_caps": {"supports_tools": False}, "chat_template": "no reasoning"}
DESCRIPTIONS = {
    "grammar": PROPS,
    "structured_outputs": {"data": [{"id": "m", "owned_by": "vllm"}]},
    "ebnf": {"data": [{"id": "m", "owned_by": "sglang"}]},
    "response_format": {"data": [{"id": "m", "owned_by": "library"}]},
}
UNKNOWN = {"data": [{"id": "m", "owned_by": "me"}]}
REFUSAL = '{"error": {"message": "Unrecognized request argument supplied: grammar"}}'
CALL = '```tool_call\n{"name": "weather", "arguments": {"city": "Rome"}}\n```'


def known(description: Any) -> Capabilities:
    """What is known of a server that has described itself."""
    memory = Capabilities()
    memory.learn_description(description)
    return memory


def exchange(memory: Capabilities, *, options: dict[str, Any] | None = None, **fields: Any) -> Exchange[bytes]:
    body = {"model": "m", "messages": [{"role": "user", "content": "How is Rome?"}], "tools": TOOLS, **fields}
    return Exchange(json.dumps(body).encode(), TextOptions(**{"tools": "text", **(options or {})}), memory)


def record(asked: Exchange[bytes]) -> RequestRecord:
    """What the record of a request says after the attempt that comes next."""
    asked.attempt_log = turn = asked.attempt_log or TurnStore().begin("t", "chat", b"{}", Redactor())
    assert isinstance(turn, Turn)
    asked._log_attempt(turn)
    return record_of(turn)


def sent(memory: Capabilities, **given: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(exchange(memory, **given).request)
    return body


def grammar(**given: Any) -> str:
    """The grammar that llama.cpp is sent."""
    return str(sent(known(PROPS), **given)["grammar"])


def document(content: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return json.dumps({"id": "c", "created": 7, "model": "m", "choices": [choice]}).encode()


def added(body: dict[str, Any]) -> set[str]:
    """The fields of a body that constrain what is sampled."""
    return set(DESCRIPTIONS) & body.keys()


# what each server is sent


@pytest.mark.parametrize("field", DESCRIPTIONS)
def test_each_server_gets_the_field_that_it_takes_and_no_other(field: str) -> None:
    body = sent(known(DESCRIPTIONS[field]), tool_choice="required")
    assert {field} == added(body)
    assert not {"tools", "tool_choice", "patchbay"} & body.keys()
    value = body[field]
    if field == "response_format":
        assert ("json_schema", True) == (value["type"], value["json_schema"]["strict"])
        schemas = value["json_schema"]["schema"]["anyOf"]
        assert [["weather"], ["clock"]] == [schema["properties"]["name"]["enum"] for schema in schemas]
    else:
        text = value["grammar"] if field == "structured_outputs" else value
        assert text.startswith("root ::=")
        assert '\\"weather\\"' in text


def test_server_that_takes_a_schema_only_is_sent_one_where_a_call_is_demanded() -> None:
    memory = known(DESCRIPTIONS["response_format"])
    assert set() == added(sent(memory))
    named = sent(memory, tool_choice={"type": "function", "function": {"name": "clock"}})
    assert ["clock"] == named["response_format"]["json_schema"]["schema"]["properties"]["name"]["enum"]
    demanded = exchange(memory, tool_choice="required")
    assert "schema" == record(demanded).constraint
    out, again = demanded.read_whole(document('{"name": "weather", "arguments": {"city": "Rome"}}'))
    assert ("weather", False) == (json.loads(out)["choices"][0]["message"]["tool_calls"][0]["function"]["name"], again)
    reasons = record(exchange(memory)).reasons
    assert ["calls are not constrained: the server takes a schema only, which has no place for text beside calls"] == [
        *reasons[1:]
    ]


@pytest.mark.parametrize("description", [None, {}, UNKNOWN, {"data": "x"}, {"data": [{"owned_by": 7}, None]}])
def test_server_that_is_not_recognised_is_sent_no_constraint(description: Any) -> None:
    assert set() == added(sent(known(description), tool_choice="required"))


def test_native_tools_are_not_constrained() -> None:
    memory = known({"chat_template_caps": {"supports_tools": True}})
    body = sent(memory, options={"tools": "auto"})
    assert ({"tools"}, set()) == ({"tools"} & body.keys(), added(body))


def test_model_is_asked_for_its_tools_in_the_prompt_and_constrained_once_its_server_is_recognised() -> None:
    steps = (asked := exchange(Capabilities(), options={"tools": "auto"})).steps()
    assert Step.DESCRIBE is next(steps)
    assert Step.SEND is steps.send(PROPS)
    assert {"grammar"} == added(json.loads(asked.request))


# which calls are allowed


def test_grammar_follows_tool_choice() -> None:
    free = grammar()
    assert free == grammar(tool_choice="auto")
    only_clock = [{"type": "function", "function": {"name": "clock"}}]
    choices = {
        "required": "required",
        "named": {"type": "function", "function": {"name": "clock"}},
        "none": "none",
        "allowed": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": only_clock}},
        "demanded": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": only_clock}},
    }
    made = {name: grammar(tool_choice=choice) for name, choice in choices.items()}
    assert 6 == len({free, *made.values()})
    weather = {name for name, text in made.items() if "weather" in text}
    assert {"required"} == weather
    assert {"none"} == {name for name, text in made.items() if "clock" not in text}
    assert {"none", "allowed"} == {name for name, text in made.items() if "prose" in text}
    assert "prose" in free


@pytest.mark.parametrize("fields", [{"parallel_tool_calls": False}, {"patchbay": {"copy_arguments": True}}])
def test_single_call_is_one_call_in_the_grammar(fields: dict[str, Any]) -> None:
    several = '"\\n\\n" call' in grammar(tool_choice="required")
    assert (True, False) == (several, '"\\n\\n" call' in grammar(tool_choice="required", **fields))


def test_legacy_functions_are_constrained_to_one_call() -> None:
    functions = [tool["function"] for tool in TOOLS]
    body = sent(known(PROPS), tools=None, functions=functions, function_call={"name": "clock"})
    assert ("clock" in body["grammar"], "weather" in body["grammar"]) == (True, False)


def test_several_answers_are_asked_for_with_one_grammar() -> None:
    body = sent(known(PROPS), n=3)
    assert (3, grammar()) == (body["n"], body["grammar"])


def test_response_format_is_part_of_the_grammar_while_calls_are_possible() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": {"degrees": 21}}}}
    body = sent(known(PROPS), response_format=wanted)
    assert "response_format" not in body
    assert "degrees" in body["grammar"]
    assert "prose" not in body["grammar"]
    assert "degrees" not in grammar(response_format=wanted, tool_choice="required")


def test_answer_that_is_asked_for_alone_is_constrained_by_response_format_itself() -> None:
    body = sent(known(PROPS), response_format={"type": "json_object"}, tool_choice="none")
    assert {"response_format"} == added(body)


@pytest.mark.parametrize(
    "own", [{"grammar": 'root ::= "x"'}, {"guided_json": {}}, {"response_format": {"type": "structural_tag", "format": {}}}]
)
def test_grammar_of_the_client_is_sent_as_it_is(own: dict[str, Any]) -> None:
    body = sent(known(PROPS), **own)
    assert own == {name: body[name] for name in body.keys() & (set(DESCRIPTIONS) | {"guided_json"})}


def test_copied_arguments_come_from_the_user_and_from_results() -> None:
    messages = [
        {"role": "system", "content": "Berlin"},
        {"role": "user", "content": "How is Rome?"},
        {"role": "assistant", "content": "Paris"},
        {"role": "user", "content": "In Oslo, I mean"},
    ]
    copied = grammar(messages=messages, tool_choice="required", patchbay={"copy_arguments": True})
    assert [False, True, False, True] == [f'"{name}"' in copied for name in ("Berlin", "Rome", "Paris", "Oslo")]


# options


def test_nothing_is_added_where_constraints_are_off() -> None:
    assert set() == added(sent(known(PROPS), options={"constrain": "off"}, tool_choice="required"))
    assert set() == added(sent(known(PROPS), patchbay={"constrain": "off"}))
    assert {"grammar"} == added(sent(known(PROPS), options={"constrain": "off"}, patchbay={"constrain": "auto"}))


def test_forced_constraint_puts_the_tools_into_the_prompt() -> None:
    memory = known({"chat_template_caps": {"supports_tools": True}})
    forced = exchange(memory, options={"tools": "auto", "constrain": "force"})
    body = json.loads(forced.request)
    assert ({"grammar"}, False) == (added(body), "tools" in body)
    assert ("constrain=force was chosen",) == record(forced).reasons


@pytest.mark.parametrize(
    ("description", "why"),
    [
        (UNKNOWN, "is none that is known to take grammars"),
        ({}, "is none that is known to take grammars"),
        (None, "is none that is known to take grammars"),
        (DESCRIPTIONS["response_format"], "takes a schema only"),
    ],
)
def test_forced_constraint_is_an_error_before_anything_is_sent_where_the_server_takes_none(description: Any, why: str) -> None:
    steps = exchange(Capabilities(), options={"constrain": "force"}).steps()
    assert Step.DESCRIBE is next(steps)
    with pytest.raises(InvalidRequestError, match=f"{why}.*Use constrain=auto"):
        steps.send(description)


def test_forced_constraint_that_the_server_refuses_is_an_error_that_says_what_the_server_said() -> None:
    steps = exchange(known(PROPS), options={"constrain": "force"}).steps()
    assert Step.SEND is next(steps)
    with pytest.raises(InvalidRequestError, match=r"refuses the grammar \(HTTP 400: Unrecognized .*Use constrain=auto"):
        steps.send(UpstreamRejection(400, REFUSAL, ValueError()))


def test_forced_constraint_asks_what_the_server_is_although_another_request_does() -> None:
    memory = Capabilities()
    for _ in range(3):
        assert Step.DESCRIBE is next(exchange(memory, options={"constrain": "force"}).steps())


def test_forced_constraint_of_native_tools_is_refused_when_it_is_set() -> None:
    with pytest.raises(ConfigurationError, match="needs the tools in the prompt"):
        TextOptions(tools="native", constrain="force")
    with pytest.raises(InvalidRequestError, match="'patchbay': constrain='force' needs the tools in the prompt"):
        exchange(known(PROPS), options={"tools": "native"}, patchbay={"constrain": "force"})


def test_forced_constraint_of_a_tool_that_is_no_function_is_an_error() -> None:
    with pytest.raises(InvalidRequestError, match="only 'function' tools"):
        exchange(known(PROPS), options={"constrain": "force"}, tools=[*TOOLS, {"type": "custom", "custom": {"name": "x"}}])


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ("auto", "patchbay"),
        ([], "patchbay"),
        ({"format": "hermes"}, "patchbay"),
        ({"tools": "never"}, "patchbay"),
        ({"tools": True}, "patchbay.tools"),
        ({"constrain": "always"}, "patchbay"),
        ({"constrain": ["auto"]}, "patchbay.constrain"),
        ({"constrain": None}, "patchbay.constrain"),
        ({"copy_arguments": 1}, "patchbay.copy_arguments"),
    ],
)
def test_wrong_value_of_the_requests_own_options_is_named(given: Any, param: str) -> None:
    for tools in (TOOLS, None):
        with pytest.raises(InvalidRequestError, match=f"'{param}") as error:
            exchange(Capabilities(), patchbay=given, tools=tools)
        assert param == error.value.param


@pytest.mark.parametrize(("mode", "own"), [("native", "text"), ("text", "native")])
def test_a_request_says_itself_how_the_model_gets_its_tools(mode: str, own: str) -> None:
    without, given = (sent(known(PROPS), options={"tools": mode}, **fields) for fields in ({}, {"patchbay": {"tools": own}}))
    assert (mode == "native", own == "native") == ("tools" in without, "tools" in given)


@pytest.mark.parametrize("given", [None, {}, {"constrain": "off"}, {"copy_arguments": True}])
@pytest.mark.parametrize("mode", ["text", "native"])
@pytest.mark.parametrize("tools", [TOOLS, None])
def test_own_options_of_a_request_are_never_sent_on(given: Any, mode: str, tools: Any) -> None:
    assert "patchbay" not in sent(known(PROPS), options={"tools": mode}, patchbay=given, tools=tools)


# a server that refuses


def test_refused_grammar_is_left_out_from_then_on_for_this_model_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "patchbay.models")
    memory = known(PROPS)
    refused = exchange(memory)
    assert "grammar" == record(refused).constraint
    assert refused.on_upstream_error(400, REFUSAL)
    again = record(refused)
    assert (set(), "") == (added(json.loads(refused.request)), again.constraint)
    assert ("HTTP 400: the server refuses the grammar",) == again.reasons
    assert {"grammar"} == added(sent(memory))  # (not learnt before the server has accepted the request without)
    assert not refused.read_whole(document(CALL))[1]
    for _ in range(2):
        later = exchange(memory)
        assert set() == added(json.loads(later.request))
        later.read_whole(document(CALL))
    assert {"grammar"} == added(sent(memory, model="another"))
    said = [record.getMessage() for record in caplog.records if "grammar" in record.getMessage()]
    assert ["The server of the model m refuses a grammar: calls are not constrained"] == said


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (500, "An unexpected error occurred."),
        (500, '{"error": "internal error: unknown"}'),
        (400, "extra fields not permitted: logit_bias"),
        (429, "too many requests with a grammar"),
        (503, "Loading model"),
    ],
)
def test_error_about_something_else_is_the_clients_and_nothing_is_learnt_from_it(status: int, text: str) -> None:
    memory = known(PROPS)
    assert not exchange(memory).on_upstream_error(status, text)
    assert {"grammar"} == added(sent(memory))


@pytest.mark.parametrize(
    "text",
    [
        "Failed to initialize samplers: failed to parse grammar",
        "[{'type': 'extra_forbidden', 'loc': ('body', 'structured_outputs'), 'msg': 'Extra inputs are not permitted'}]",
        "response_format is not supported",
        "Invalid ebnf",
    ],
)
def test_refusals_of_constraints_are_recognised(text: str) -> None:
    assert exchange(known(PROPS)).on_upstream_error(400, text)


# answers are checked all the same


@pytest.mark.parametrize("content", ["I will not call.", '```tool_call\n{"name": "weather", "arguments": [1]}\n```'])
def test_constrained_answer_that_is_wrong_is_asked_for_again_with_the_grammar(content: str) -> None:
    memory = known(PROPS)
    asked = exchange(memory, tool_choice="required")
    assert asked.read_whole(document(content))[1]
    assert {"grammar"} == added(json.loads(asked.request))
    out, again = asked.read_whole(document(CALL))
    assert ("tool_calls", False) == (json.loads(out)["choices"][0]["finish_reason"], again)
    assert "grammar" == record(asked).constraint


def test_arguments_outside_of_the_schema_are_repaired_with_the_grammar() -> None:
    asked = exchange(known(PROPS), options={"repair_rounds": 1})
    assert asked.read_whole(document(CALL.replace('"Rome"', "7")))[1]
    assert {"grammar"} == added(json.loads(asked.request))


def test_keywords_that_no_grammar_enforces_are_logged_once_for_the_same_tools(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "patchbay.models")
    even = {"type": "object", "properties": {"even": {"type": "integer", "multipleOf": 2}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "count", "parameters": even}}]
    for choice in ("auto", "required", "auto"):
        sent(known(PROPS), tools=tools, tool_choice=choice)
    said = [record.getMessage() for record in caplog.records if "enforce" in record.getMessage()]
    assert 1 == len(said)
    assert "count: /even/multipleOf" in said[0]
    assert "weather" not in said[0]


# reasoning that the prompt has opened


THOUGHT = f"I may call:\n{CALL.replace('Rome', 'Oslo')}\n"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["fenced", "hermes", "llama3_json", "react"])
def test_call_in_reasoning_that_the_prompt_opened_is_not_called(name: str, stream: bool) -> None:
    memory = opened_reasoning()
    asked = exchange(memory, options={"format": name}, tool_choice="required", stream=stream)
    assert "grammar" == record(asked).constraint
    called = render_calls(name, [ToolCall("call_0", "weather", '{"city": "Rome"}')])
    calls, reasoning = answered(asked, f"{THOUGHT}</think>\n\n{called}")
    assert [{"city": "Rome"}] == calls
    assert THOUGHT.strip() == reasoning


def opened_reasoning() -> Capabilities:
    """What is known of llama.cpp once two answers have closed a reasoning that they had not opened."""
    memory = known(PROPS)
    for _ in range(2):
        memory.of("m").note_reasoning(unopened=True)
    return memory


def answered(asked: Exchange[bytes], text: str) -> tuple[list[Any], str]:
    """The arguments of the calls and the reasoning that a client gets for a model's text."""
    if not asked.client_streams:
        message = json.loads(asked.read_whole(document(text))[0])["choices"][0]["message"]
        calls = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
        return calls, (message.get("reasoning_content") or "").strip()
    chunk = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    data = asked.feed(b"data: " + json.dumps({"id": "c", "created": 7, "model": "m", "choices": [chunk]}).encode() + b"\n\n")
    data += asked.feed(b"data: [DONE]\n\n") + asked.end_attempt()[0]
    events = [json.loads(line[6:]) for line in data.decode().split("\n\n") if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    written: dict[int, str] = {}
    for part in [part for delta in deltas for part in delta.get("tool_calls") or ()]:
        written[part["index"]] = written.get(part["index"], "") + part["function"].get("arguments", "")
    reasoning = "".join(delta.get("reasoning_content") or "" for delta in deltas).strip()
    return [json.loads(arguments) for arguments in written.values()], reasoning
