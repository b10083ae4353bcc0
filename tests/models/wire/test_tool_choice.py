"""``tool_choice`` and ``parallel_tool_calls`` are enforced, invalid arguments are retried on request, legacy functions work."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from patchbay import ToolChoiceError
from patchbay.testing.script import Message, Raw, error
from support.fenced_texts import OSLO, ROME, TOOLS, block

SEARCH = '{"name": "search", "arguments": {"q": "x"}}'
WEATHER_CALL = [("get_weather", '{"city": "Rome"}')]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
FUNCTIONS = [tool["function"] for tool in TOOLS]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """OpenAI's ``allowed_tools`` choice."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("options", "texts", "calls"),
    [
        ({"parallel_tool_calls": False}, [f"Sure.\n{block(ROME)}\n{block(OSLO)}\n"], WEATHER_CALL),
        ({"tool_choice": "none"}, ["It is sunny."], []),
        ({"tool_choice": "none"}, [block(ROME), "It is sunny."], []),
    ],
    ids=["one call at a time", "none", "a call despite none"],
)
def test_response_has_the_calls_that_the_request_allows(wire, stream, options, texts, calls):
    answer = wire.ask(*texts, stream=stream, **options).first
    assert (calls, "tool_calls" if calls else "stop") == (answer.calls, answer.finish_reason)
    assert ("Sure." if calls else "It is sunny.") == (answer.content or "").strip()


@pytest.mark.parametrize(
    ("choice", "disobeying"),
    [
        ("required", "It is sunny."),
        (NAMED, "It is sunny."),
        (NAMED, block(SEARCH)),
        (allowed("auto", "get_weather"), block(SEARCH)),
        (allowed("required", "get_weather"), "It is sunny."),
        ("required", block('{"name": "no_such_tool", "arguments": {}}')),
    ],
    ids=["required", "named-text", "named-other", "allowed-other", "allowed-required-text", "required-unknown"],
)
def test_response_that_violates_tool_choice_is_discarded_and_retried(wire, stream, choice, disobeying):
    answer = wire.ask(disobeying, block(ROME), stream=stream, tool_choice=choice).first
    assert (WEATHER_CALL, "tool_calls", "") == (answer.calls, answer.finish_reason, (answer.content or "").strip())
    assert 2 == len(wire.requests)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_unmet_tool_choice_is_an_error_after_three_attempts_and_not_retried_by_the_client(wire, stream, choice):
    with pytest.raises((ToolChoiceError, openai.APIError)) as caught:
        wire.ask("It is sunny.", stream=stream, retries=2, tool_choice=choice)
    assert ("tool_choice_unmet", 3) == (caught.value.code, len(wire.requests))


def test_upstream_failure_is_retried_by_the_client(wire):
    page = Raw([b"<html>"], content_type="text/html")
    assert WEATHER_CALL == wire.ask(page, block(ROME), stream=False, retries=1).first.calls


def test_legacy_functions_are_supported(wire, stream):
    answer = wire.ask(block(ROME), stream=stream, functions=FUNCTIONS)
    assert "get_weather" in wire.requests[0].prompt()
    if stream:
        deltas = [c.choices[0].delta.function_call for c in answer.chunks if c.choices and c.choices[0].delta.function_call]
        found = "".join(delta.name or "" for delta in deltas), "".join(delta.arguments or "" for delta in deltas)
    else:
        called = answer.raw.choices[0].message.function_call
        found = called.name, called.arguments
    assert (WEATHER_CALL, "function_call") == ([found], answer.first.finish_reason)


def test_native_function_call_keeps_its_finish_reason(wire, stream):
    called = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    message = Message({"role": "assistant", "content": None, "function_call": called}, finish_reason="function_call")
    answer = wire.ask(message, stream=stream, mode="native", functions=FUNCTIONS).first
    assert ("function_call", called) == (answer.finish_reason, answer.extra["function_call"])


def test_function_call_of_the_history_is_sent_to_the_model(wire):
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": '{"city": "Xanadu"}'}},
        {"role": "function", "name": "get_weather", "content": "sunny in paradise"},
    ]
    wire.ask("Sunny.", stream=False, messages=messages)
    (sent,) = wire.requests
    assert all(words in sent.prompt() for words in ("Xanadu", "sunny in paradise"))
    assert {"system", "user", "assistant"} >= {message["role"] for message in sent.json["messages"]}
    assert not [message for message in sent.json["messages"] if "function_call" in message]


BAD = block('{"name": "get_weather", "arguments": {"town": "Rome"}}')


@pytest.mark.parametrize(
    ("options", "texts", "arguments", "requests"),
    [
        ({"repair_rounds": 1}, [BAD, block(ROME)], '{"city": "Rome"}', 2),
        ({"repair_rounds": 1}, [BAD], '{"town": "Rome"}', 2),
        ({}, [BAD], '{"town": "Rome"}', 1),
    ],
    ids=["repaired", "not repaired", "by default"],
)
def test_invalid_arguments_are_retried_in_repair_rounds_only(wire, stream, options, texts, arguments, requests):
    answer = wire.ask(*texts, stream=stream, options=options).first
    assert ([("get_weather", arguments)], "tool_calls") == (answer.calls, answer.finish_reason)
    assert requests == len(wire.requests)
    assert "'city'" in wire.requests[-1].prompt() or requests == 1


@pytest.mark.parametrize("refuses", [True, False], ids=["400", "ignore"])
def test_auto_mode_serves_a_model_without_native_tools(wire, stream, refuses):
    refusal = [error(400, f"{wire.model} does not support tools", kind="invalid_request_error")] if refuses else []
    answer = wire.ask(*refusal, block(ROME), stream=stream, mode="auto").first
    assert (WEATHER_CALL, "tool_calls") == (answer.calls, answer.finish_reason)
    assert not refuses or "tools" not in wire.requests[-1].json
