"""``tool_choice`` and ``parallel_tool_calls`` are enforced, invalid arguments are retried on request, legacy functions work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from patchbay import ToolChoiceError
from patchbay.testing.script import Message, Raw, error
from support.chat_clients import Proxy, chat, http_request
from support.fenced_texts import OSLO, ROME, TOOLS, block
from support.scripted_server import SharedUpstream

Connect = Callable[..., openai.OpenAI]

SEARCH = '{"name": "search", "arguments": {"q": "x"}}'
WEATHER_CALL = [("get_weather", '{"city": "Rome"}')]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


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
def test_response_has_the_calls_that_the_request_allows(
    connect: Connect, upstream: SharedUpstream, model: str, stream: bool, options: Any, texts: list[str], calls: Any
) -> None:
    upstream.on(model, *texts)
    answer = chat(connect(), model, stream=stream, tools=TOOLS, **options)
    assert (calls, "tool_calls" if calls else "stop") == (answer.first.calls, answer.first.finish_reason)
    assert (answer.first.content or "").strip() == ("Sure." if calls else "It is sunny.")


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
def test_response_that_violates_tool_choice_is_discarded_and_retried(
    connect: Connect, upstream: SharedUpstream, model: str, stream: bool, choice: Any, disobeying: str
) -> None:
    upstream.on(model, disobeying, block(ROME))
    answer = chat(connect(), model, stream=stream, tools=TOOLS, tool_choice=choice)
    assert (WEATHER_CALL, "tool_calls") == (answer.first.calls, answer.first.finish_reason)
    assert not (answer.first.content or "").strip()
    assert 2 == len(upstream.seen[model])


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_unmet_tool_choice_is_502_after_three_attempts(
    upstream: SharedUpstream, proxies: Callable[..., Proxy], model: str, stream: bool, choice: Any
) -> None:
    upstream.on(model, "It is sunny.")
    request = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "stream": stream}
    response = http_request(proxies("--tools", "text").port, "POST", "/v1/chat/completions", {**request, "tool_choice": choice})
    assert (502, "tool_choice_unmet") == (response.status, response.json["error"]["code"])
    assert 3 == len(upstream.seen[model])


def test_unmet_tool_choice_is_not_retried_by_the_client(
    connect: Connect, upstream: SharedUpstream, model: str, stream: bool
) -> None:
    upstream.on(model, "It is sunny.")
    with pytest.raises((ToolChoiceError, openai.APIError)) as caught:
        chat(connect().with_options(max_retries=2), model, stream=stream, tools=TOOLS, tool_choice="required")
    assert "tool_choice_unmet" == caught.value.code
    assert 3 == len(upstream.seen[model])


def test_upstream_failure_is_retried_by_the_client(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    upstream.on(model, Raw([b"<html>"], content_type="text/html"), block(ROME))
    answer = chat(connect().with_options(max_retries=1), model, stream=False, tools=TOOLS)
    assert WEATHER_CALL == answer.first.calls


def test_legacy_functions_are_supported(connect: Connect, upstream: SharedUpstream, model: str, stream: bool) -> None:
    upstream.on(model, block(ROME))
    functions = [tool["function"] for tool in TOOLS]
    answer = chat(connect(), model, stream=stream, functions=functions)
    assert "get_weather" in upstream.seen[model][0].prompt()
    if stream:
        deltas = [c.choices[0].delta.function_call for c in answer.chunks if c.choices and c.choices[0].delta.function_call]
        name = "".join(delta.name or "" for delta in deltas)
        arguments = "".join(delta.arguments or "" for delta in deltas)
    else:
        called = answer.raw.choices[0].message.function_call
        name, arguments = called.name, called.arguments
    assert WEATHER_CALL == [(name, arguments)]
    assert "function_call" == answer.first.finish_reason


def test_native_function_call_keeps_its_finish_reason(
    connect: Connect, upstream: SharedUpstream, model: str, stream: bool
) -> None:
    called = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    upstream.on(model, Message({"role": "assistant", "content": None, "function_call": called}, finish_reason="function_call"))
    answer = chat(connect("native"), model, stream=stream, functions=[tool["function"] for tool in TOOLS])
    assert "function_call" == answer.first.finish_reason
    assert called == answer.first.extra["function_call"]


def test_function_call_of_the_history_is_sent_to_the_model(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    upstream.on(model, "Sunny.")
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": '{"city": "Xanadu"}'}},
        {"role": "function", "name": "get_weather", "content": "sunny in paradise"},
    ]
    chat(connect(), model, stream=False, tools=TOOLS, messages=messages)
    sent = upstream.seen[model][0]
    assert "Xanadu" in sent.prompt()
    assert "sunny in paradise" in sent.prompt()
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
def test_invalid_arguments_are_retried_in_repair_rounds_only(
    connect: Connect, upstream: SharedUpstream, model: str, stream: bool, options: Any, texts: Any, arguments: str, requests: int
) -> None:
    upstream.on(model, *texts)
    answer = chat(connect(**options), model, stream=stream, tools=TOOLS)
    assert ([("get_weather", arguments)], "tool_calls") == (answer.first.calls, answer.first.finish_reason)
    assert requests == len(upstream.seen[model])
    assert "'city'" in upstream.seen[model][-1].prompt() or requests == 1


@pytest.mark.parametrize("refuses", [True, False], ids=["400", "ignore"])
def test_auto_mode_serves_a_model_without_native_tools(
    connect: Connect, upstream: SharedUpstream, model: str, stream: bool, refuses: bool
) -> None:
    refusal = [error(400, f"{model} does not support tools", kind="invalid_request_error")] if refuses else []
    upstream.on(model, *refusal, block(ROME))
    answer = chat(connect("auto"), model, stream=stream, tools=TOOLS)
    assert (WEATHER_CALL, "tool_calls") == (answer.first.calls, answer.first.finish_reason)
    assert not refuses or "tools" not in upstream.seen[model][-1].json
