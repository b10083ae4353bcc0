"""Defects 19 and 20: tool_choice and parallel_tool_calls are kept, not only asked for; bad arguments are asked again when wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from patchbay import ToolChoiceError
from patchbay.testing.script import Message, Raw, error

from .doors import Proxy, ask, http_request
from .reading import OSLO, ROME, TOOLS, block
from .upstream import Upstream

Door = Callable[..., openai.OpenAI]

SEARCH = '{"name": "search", "arguments": {"q": "x"}}'
WEATHER_CALL = [("get_weather", '{"city": "Rome"}')]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """OpenAI's ``allowed_tools`` choice."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_d19_parallel_tool_calls_false_gives_one_call(door: Door, upstream: Upstream, model: str, stream: bool) -> None:
    upstream.on(model, f"Sure.\n{block(ROME)}\n{block(OSLO)}\n")
    answer = ask(door(), model, stream=stream, tools=TOOLS, parallel_tool_calls=False)
    assert (WEATHER_CALL, "tool_calls") == (answer.first.calls, answer.first.finish_reason)


def test_d19_parallel_calls_are_all_kept_by_default(door: Door, upstream: Upstream, model: str, stream: bool) -> None:
    upstream.on(model, f"Sure.\n{block(ROME)}\n{block(OSLO)}\n")
    answer = ask(door(), model, stream=stream, tools=TOOLS)
    assert ["get_weather", "get_weather"] == [name for name, _ in answer.first.calls]


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
def test_d19_an_answer_that_breaks_tool_choice_is_asked_again_unseen(
    door: Door, upstream: Upstream, model: str, stream: bool, choice: Any, disobeying: str
) -> None:
    upstream.on(model, disobeying, block(ROME))
    answer = ask(door(), model, stream=stream, tools=TOOLS, tool_choice=choice)
    assert (WEATHER_CALL, "tool_calls") == (answer.first.calls, answer.first.finish_reason)
    assert not (answer.first.content or "").strip()
    assert 2 == len(upstream.seen[model])


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_d19_a_choice_that_is_never_met_is_a_clear_error(
    upstream: Upstream, proxies: Callable[..., Proxy], model: str, stream: bool, choice: Any
) -> None:
    upstream.on(model, "It is sunny.")
    request = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "stream": stream}
    response = http_request(proxies("--tools", "text").port, "POST", "/v1/chat/completions", {**request, "tool_choice": choice})
    assert (502, "tool_choice_unmet") == (response.status, response.json["error"]["code"])
    assert 3 == len(upstream.seen[model])


def test_d19_a_choice_that_is_never_met_raises_from_a_wrapped_client(upstream: Upstream, model: str, stream: bool) -> None:
    from .doors import wrapped_client

    upstream.on(model, "It is sunny.")
    with wrapped_client(upstream.url, tools="text") as client, pytest.raises((ToolChoiceError, openai.APIError)) as caught:
        ask(client, model, stream=stream, tools=TOOLS, tool_choice="required")
    assert "tool_choice_unmet" == caught.value.code
    assert 3 == len(upstream.seen[model])


def test_a_client_that_repeats_failed_requests_does_not_repeat_an_unmet_choice(
    door: Door, upstream: Upstream, model: str, stream: bool
) -> None:
    upstream.on(model, "It is sunny.")
    with pytest.raises((ToolChoiceError, openai.APIError)):
        ask(door().with_options(max_retries=2), model, stream=stream, tools=TOOLS, tool_choice="required")
    assert 3 == len(upstream.seen[model])


def test_a_client_may_repeat_what_the_upstream_failed_at(door: Door, upstream: Upstream, model: str) -> None:
    upstream.on(model, Raw([b"<html>"], content_type="text/html"), block(ROME))
    answer = ask(door().with_options(max_retries=1), model, stream=False, tools=TOOLS)
    assert WEATHER_CALL == answer.first.calls


def test_d19_choice_none_gives_no_call_and_shows_no_contract(door: Door, upstream: Upstream, model: str, stream: bool) -> None:
    upstream.on(model, "It is sunny.")
    answer = ask(door(), model, stream=stream, tools=TOOLS, tool_choice="none")
    assert ("It is sunny.", [], "stop") == (answer.first.content, answer.first.calls, answer.first.finish_reason)


def test_d19_a_call_against_choice_none_is_no_call(door: Door, upstream: Upstream, model: str, stream: bool) -> None:
    upstream.on(model, block(ROME), "It is sunny.")
    answer = ask(door(), model, stream=stream, tools=TOOLS, tool_choice="none")
    assert ([], "stop") == (answer.first.calls, answer.first.finish_reason)


def test_d19_legacy_functions_are_served(door: Door, upstream: Upstream, model: str, stream: bool) -> None:
    upstream.on(model, block(ROME))
    functions = [tool["function"] for tool in TOOLS]
    answer = ask(door(), model, stream=stream, functions=functions)
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


def test_d19_a_native_function_call_keeps_its_finish_reason(door: Door, upstream: Upstream, model: str, stream: bool) -> None:
    called = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    upstream.on(model, Message({"role": "assistant", "content": None, "function_call": called}, finish_reason="function_call"))
    answer = ask(door("native"), model, stream=stream, functions=[tool["function"] for tool in TOOLS])
    assert "function_call" == answer.first.finish_reason
    assert called == answer.first.extra["function_call"]


def test_d19_a_function_call_in_the_history_is_shown_to_the_model(door: Door, upstream: Upstream, model: str) -> None:
    upstream.on(model, "Sunny.")
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": '{"city": "Xanadu"}'}},
        {"role": "function", "name": "get_weather", "content": "sunny in paradise"},
    ]
    ask(door(), model, stream=False, tools=TOOLS, messages=messages)
    sent = upstream.seen[model][0]
    assert "Xanadu" in sent.prompt()
    assert "sunny in paradise" in sent.prompt()
    assert {"system", "user", "assistant"} >= {message["role"] for message in sent.json["messages"]}
    assert not [message for message in sent.json["messages"] if "function_call" in message]


def test_d19_custom_tools_are_the_clients_mistake(upstream: Upstream, proxies: Callable[..., Proxy], model: str) -> None:
    tools = [{"type": "custom", "custom": {"name": "grep", "description": "Greps."}}]
    request = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": tools}
    response = http_request(proxies("--tools", "text").port, "POST", "/v1/chat/completions", request)
    assert (400, "invalid_request_error") == (response.status, response.json["error"]["type"])


BAD = block('{"name": "get_weather", "arguments": {"town": "Rome"}}')


def test_d20_bad_arguments_are_asked_again_when_wanted(door: Door, upstream: Upstream, model: str, stream: bool) -> None:
    upstream.on(model, BAD, block(ROME))
    answer = ask(door(repair_rounds=1), model, stream=stream, tools=TOOLS)
    assert (WEATHER_CALL, "tool_calls") == (answer.first.calls, answer.first.finish_reason)
    assert 2 == len(upstream.seen[model])
    assert "city" in upstream.seen[model][1].prompt()


def test_d20_bad_arguments_that_stay_bad_reach_the_client(door: Door, upstream: Upstream, model: str, stream: bool) -> None:
    upstream.on(model, BAD)
    answer = ask(door(repair_rounds=1), model, stream=stream, tools=TOOLS)
    assert [("get_weather", '{"town": "Rome"}')] == answer.first.calls
    assert 2 == len(upstream.seen[model])


def test_d20_nothing_is_asked_again_by_default(door: Door, upstream: Upstream, model: str, stream: bool) -> None:
    upstream.on(model, BAD)
    ask(door(), model, stream=stream, tools=TOOLS)
    assert 1 == len(upstream.seen[model])


@pytest.mark.parametrize("refusal", ["400", "ignore"])
def test_d20_auto_mode_serves_a_model_without_tools(
    door: Door, upstream: Upstream, model: str, stream: bool, refusal: str
) -> None:
    if refusal == "400":
        upstream.on(model, error(400, f"{model} does not support tools", kind="invalid_request_error"), block(ROME))
        answer = ask(door("auto"), model, stream=stream, tools=TOOLS)
        assert (WEATHER_CALL, "tool_calls") == (answer.first.calls, answer.first.finish_reason)
        assert "tools" not in upstream.seen[model][-1].json
    else:
        upstream.on(model, block(ROME))
        answer = ask(door("auto"), model, stream=stream, tools=TOOLS)
        assert WEATHER_CALL == answer.first.calls
