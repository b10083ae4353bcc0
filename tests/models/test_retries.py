"""Retries of a model, and their effect on the client: the exchange alone, without a wire."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from patchbay import wrap
from patchbay.errors import ConfigurationError, ToolChoiceError
from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange
from patchbay.models.options import TextOptions

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    for name in ("get_weather", "get_time")
]
CALL = '```tool_call\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```'


def make(
    memory: Capabilities | None = None, *, stream: bool = False, options: TextOptions | None = None, **fields: Any
) -> Exchange:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "stream": stream, **fields}
    return Exchange(json.dumps(body).encode(), options or TextOptions(tools="text"), memory or Capabilities())


def completion(content: str, **usage: Any) -> bytes:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({"id": "c", "model": "m", "choices": [choice], "usage": usage or None}).encode()


def ask(exchange: Exchange, *contents: str) -> dict[str, Any]:
    """Answer each of the exchange's requests with the next content; the client's answer."""
    for content in contents:
        out, again = exchange.read_whole(completion(content))
        if not again:
            return json.loads(out)
    raise AssertionError("the exchange asks on")


def test_a_demand_for_a_call_outlives_the_question_whether_tools_were_ignored() -> None:
    """The answer that was kept while that was in question is none that the client may have."""
    exchange = make(options=TextOptions(), tool_choice="required")
    with pytest.raises(ToolChoiceError):
        ask(exchange, *["It is sunny."] * 9)
    assert exchange.fallback_response() is None


def test_the_same_demand_is_met_by_the_contract() -> None:
    answer = ask(make(options=TextOptions(), tool_choice="required"), "It is sunny.", CALL)
    assert "get_weather" == answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"]


def test_disallowed_call_is_a_tool_choice_error() -> None:
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    exchange = make(tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    with pytest.raises(ToolChoiceError, match="called a tool that tool_choice does not allow"):
        ask(exchange, CALL, CALL, CALL)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields", [{"parallel_tool_calls": False}, {"tool_choice": TOOLS[0] | {"function": {"name": "get_weather"}}}]
)
def test_text_after_a_single_wanted_call_is_dropped(stream: bool, fields: dict[str, Any]) -> None:
    out, again = make(stream=stream, **fields).read_whole(completion(f"Sure.\n{CALL}\nDone.\n{CALL}"))
    assert not again
    if stream:
        chunks = [json.loads(line[6:]) for line in out.decode().split("\n\n") if line.startswith("data: {")]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert "Sure." == "".join(delta.get("content") or "" for delta in deltas)
        assert 1 == sum("id" in call for delta in deltas for call in delta.get("tool_calls", ()))
    else:
        message = json.loads(out)["choices"][0]["message"]
        assert ("Sure.", 1) == (message["content"], len(message["tool_calls"]))


@pytest.mark.parametrize(("prompt_tokens", "requests"), [(400, 1), (5, 2), (60, 2)])
def test_prompt_tokens_decide_whether_the_tools_were_dropped(prompt_tokens: int, requests: int) -> None:
    """Far more than the messages can take: they were. Far fewer than the tools need: they were not. Else it is asked."""
    exchange = make(options=TextOptions(), messages=[{"role": "user", "content": "What is the weather in Paris?"}])
    count, again = 1, exchange.read_whole(completion("It is sunny.", prompt_tokens=prompt_tokens))[1]
    while again:
        count, again = count + 1, exchange.read_whole(completion("It is sunny."))[1]
    assert requests == count


def test_undecided_probe_is_sent_with_answers_one_two_four_and_eight() -> None:
    memory, asked = Capabilities(), []
    for number in range(1, 10):
        exchange = make(memory, options=TextOptions())
        if exchange.read_whole(completion("Hello."))[1]:
            asked.append(number)
            assert ("Hello.", False) == (
                json.loads(exchange.read_whole(completion("Other."))[0])["choices"][0]["message"]["content"],
                False,
            )
    assert [1, 2, 4, 8] == asked


def test_usage_includes_discarded_answers() -> None:
    exchange = make(tool_choice="required")
    used = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    assert exchange.read_whole(completion("No.", **used))[1]
    total = json.loads(exchange.read_whole(completion(CALL, **used))[0])["usage"]
    assert {"prompt_tokens": 20, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 8}} == total


def test_contract_is_constant_and_tool_choice_follows_in_the_last_message() -> None:
    def system(**fields: Any) -> str:
        return str(json.loads(make(**fields).request)["messages"][0]["content"])

    assert system() == system(tool_choice="required") == system(parallel_tool_calls=False)
    last = json.loads(make(tool_choice="required").request)["messages"][-1]
    assert ("user", True) == (last["role"], last["content"].startswith("Hi\n\n"))


@pytest.mark.parametrize(
    "options", [{"generate_id": 3}, {"template": "x"}, {"include_examples": "no"}, {"tools": "z"}, {"foo": 1}]
)
def test_an_option_that_cannot_work_is_refused_when_it_is_set(options: dict[str, Any]) -> None:
    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k")
    with client, pytest.raises(ConfigurationError, match=next(iter(options))):
        wrap(client, **options)


def test_native_model_stays_native_after_one_refused_tool_choice() -> None:
    memory = Capabilities()
    memory.of("m").learn_mode("native", "it called a tool by itself")
    exchange = make(memory, options=TextOptions(), tool_choice="required")
    assert exchange.on_upstream_error(400, "tool_choice 'required' is not supported: tool_choice is not supported")
    assert "get_weather" == ask(exchange, CALL)["choices"][0]["message"]["tool_calls"][0]["function"]["name"]
    assert "native" == memory.of("m").mode


def test_native_calls_get_ids_and_text_arguments() -> None:
    body = json.loads(completion(""))
    body["choices"][0]["message"] = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "get_time", "arguments": {"a": 1}}}],
    }
    out, again = make(options=TextOptions(tools="native")).read_whole(json.dumps(body).encode())
    call = json.loads(out)["choices"][0]["message"]["tool_calls"][0]
    assert ("get_time", '{"a": 1}', "tool_calls") == (
        call["function"]["name"],
        call["function"]["arguments"],
        json.loads(out)["choices"][0]["finish_reason"],
    )
    assert call["id"]
    assert not again


@pytest.mark.parametrize("usage_in", ["whole", "usage along", "usage apart"])
@pytest.mark.parametrize("second", ["stands", "fails"])
def test_usage_includes_the_probe_if_the_first_answer_is_kept(usage_in: str, second: str) -> None:
    used = {"prompt_tokens": 60, "completion_tokens": 2, "total_tokens": 62}
    if usage_in == "whole":
        exchange = make(options=TextOptions())
        assert exchange.read_whole(completion("Hello.", **used))[1]
        out = exchange.read_whole(completion("Other.", **used))[0] if second == "stands" else exchange.fallback_response()
        usages = [json.loads(out or b"{}")["usage"]]
    else:
        exchange = make(options=TextOptions(), stream=True, stream_options={"include_usage": usage_in == "usage apart"})
        choice = {"index": 0, "delta": {"content": "Hello."}, "finish_reason": "stop"}
        apart = {"choices": [choice]}, {"choices": [], "usage": used}
        events = apart if usage_in == "usage apart" else ({"choices": [choice], "usage": used},)
        wire = b"".join(b"data: " + json.dumps({"id": "c", **event}).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
        assert exchange.feed(wire) == b""
        assert exchange.end_attempt() == (b"", True)
        if second == "stands":
            assert exchange.feed(wire.replace(b"Hello.", b"Other.")) == b""
            out, again = exchange.end_attempt()
            assert not again
        else:
            out = exchange.fallback_response()
        lines = [json.loads(line[6:]) for line in (out or b"").decode().split("\n\n") if line.startswith("data: {")]
        assert "Hello." == "".join(c["delta"].get("content") or "" for line in lines for c in line["choices"])
        usages = [line["usage"] for line in lines if line.get("usage")]
    factor = 2 if second == "stands" else 1
    assert [{name: factor * count for name, count in used.items()}] == usages
