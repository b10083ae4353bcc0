"""The ``anthropic`` package over a real socket through a real proxy, to models that only write text."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

from support import two_tools
from support.two_tools import ANSWER, CALLS, SPECS, run_tool

TOOLS = [
    {
        "name": name,
        "description": description,
        "input_schema": {"type": "object", "properties": properties, "required": list(properties)},
    }
    for name, description, properties in SPECS
]
QUESTION = {"role": "user", "content": two_tools.QUESTION}


@contextmanager
def connected(proxied):
    import anthropic  # which takes half a second: not in each worker

    base = proxied.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=base, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def run(block) -> dict:
    return {"type": "tool_result", "tool_use_id": block.id, "content": json.dumps(run_tool(block.name, block.input))}


def ask(client, messages, *, stream, **options):
    request = {"model": "small", "max_tokens": 1000, "messages": messages, "tools": TOOLS, **options}
    if not stream:
        return client.messages.create(**request)
    with client.messages.stream(**request) as events:
        return events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_two_calls(proxied, stream):
    with connected(proxied) as client:
        first = ask(client, [QUESTION], stream=stream)
        calls = [block for block in first.content if block.type == "tool_use"]
        assert ("tool_use", CALLS) == (first.stop_reason, [(block.name, block.input) for block in calls])
        assert "(scripted model) I use multiply and measure for this." == first.content[0].text
        messages = [
            QUESTION,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [run(block) for block in calls]},
        ]
        last = ask(client, messages, stream=stream)
    assert ("end_turn", [ANSWER]) == (last.stop_reason, [block.text for block in last.content])
    assert "small" == last.model


@pytest.mark.parametrize("stream", [False, True])
def test_tool_runner_of_the_package_reaches_the_answer(proxied, stream):
    import anthropic

    @anthropic.beta_tool
    def multiply(a: int, b: int) -> str:
        """Multiply two integers."""
        return json.dumps({"product": a * b})

    @anthropic.beta_tool
    def measure(text: str) -> str:
        """Measure the length of a text."""
        return json.dumps({"length": len(text)})

    with connected(proxied) as client:
        runner = client.beta.messages.tool_runner(
            model="small", max_tokens=1000, messages=[QUESTION], tools=[multiply, measure], stream=stream
        )
        last = runner.until_done()
    assert ("end_turn", [ANSWER]) == (last.stop_reason, [block.text for block in last.content])


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_without_tools(proxied, stream):
    with connected(proxied) as client:
        answer = ask(client, [{"role": "user", "content": "Hello."}], stream=stream, tools=[])
    assert "end_turn" == answer.stop_reason
    assert answer.content[0].text
