"""The ``openai`` package, sync and async, over a real socket through a real proxy: tools work as with OpenAI itself."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager

import openai
import pytest

from support.two_tools import SPECS, run_tool

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            # The package's own stream helper puts only strict tools together.
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
        },
    }
    for name, description, properties in SPECS
]
QUESTION = {"role": "user", "content": "Please multiply 12345678901234567890 by 3, and measure the length of `patchbay`."}
CALLS = [("multiply", '{"a": 12345678901234567890, "b": 3}'), ("measure", '{"text": "patchbay"}')]
ANSWER = "(scripted model) The tools say: product 37037036703703703670; length 8."


def run(call) -> dict:
    content = json.dumps(run_tool(call.function.name, json.loads(call.function.arguments)))
    return {"role": "tool", "tool_call_id": call.id, "content": content}


@contextmanager
def connected(proxied):
    with openai.OpenAI(base_url=proxied.url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def called(message) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls]


def test_a_conversation_with_two_calls(proxied):
    with connected(proxied) as client:
        first = client.chat.completions.create(model="small", messages=[QUESTION], tools=TOOLS)
        message = first.choices[0].message
        assert ("tool_calls", CALLS) == (first.choices[0].finish_reason, called(message))
        assert "(scripted model) I use multiply and measure for this." == message.content
        assert 2 == len({call.id for call in message.tool_calls})
        messages = [QUESTION, message, *(run(call) for call in message.tool_calls)]
        last = client.chat.completions.create(model="small", messages=messages, tools=TOOLS).choices[0]
        assert ("stop", ANSWER, None) == (last.finish_reason, last.message.content, last.message.tool_calls)
        chunks = list(client.chat.completions.create(model="small", messages=messages, tools=TOOLS, stream=True))
    assert ANSWER == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert "stop" == chunks[-1].choices[0].finish_reason


async def converse(proxied, *, stream: bool) -> tuple[list, str]:
    async with openai.AsyncOpenAI(base_url=proxied.url, api_key="unused", max_retries=0, timeout=60) as client:

        async def ask(messages):
            if not stream:
                return (await client.chat.completions.create(model="small", messages=messages, tools=TOOLS)).choices[0].message
            async with client.chat.completions.stream(model="small", messages=messages, tools=TOOLS) as events:
                return (await events.get_final_completion()).choices[0].message

        message = await ask([QUESTION])
        results = [run(call) for call in message.tool_calls]
        answer = await ask([QUESTION, message.model_dump(exclude_none=True), *results])
        return called(message), answer.content


async def test_several_async_conversations_at_once_do_not_mix(proxied):
    assert [(CALLS, ANSWER)] * 6 == await asyncio.gather(*(converse(proxied, stream=bool(number % 2)) for number in range(6)))


def test_a_stream_brings_a_call_by_its_name_first_and_its_arguments_as_they_are_written(proxied):
    with connected(proxied) as client:
        stream = client.chat.completions.create(model="small", messages=[QUESTION], tools=TOOLS, stream=True)
        deltas = [call for chunk in stream for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    heads = [delta for delta in deltas if delta.id]
    assert ["multiply", "measure"] == [delta.function.name for delta in heads]
    assert [0, 1] == [delta.index for delta in heads]
    for index, (_, arguments) in enumerate(CALLS):
        written = [delta.function.arguments for delta in deltas if delta.index == index and delta.function.arguments]
        assert arguments == "".join(written)
        assert len(written) > 1


def test_model_is_probed_once_and_then_prompted_with_the_contract(proxied):
    with connected(proxied) as client:
        for _ in range(3):
            client.chat.completions.create(model="small", messages=[QUESTION], tools=TOOLS)
    with_tools = ["tools" in request.json for request in proxied.upstream.chats]
    assert [True, False, False, False] == with_tools
    prompts = {request.json["messages"][0]["content"] for request in proxied.upstream.chats[1:]}
    assert 1 == len(prompts)


def test_request_without_tools_reaches_the_model_unchanged(proxied):
    with connected(proxied) as client:
        answer = client.chat.completions.create(model="small", messages=[QUESTION], seed=7)
    assert {"messages": [QUESTION], "model": "small", "seed": 7} == proxied.upstream.chats[0].json
    assert answer.choices[0].message.content.endswith(QUESTION["content"])


def test_the_models_are_listed_through_the_proxy(proxied):
    with connected(proxied) as client:
        assert ["scripted-model"] == [model.id for model in client.models.list()]


def test_a_mistake_of_the_client_is_its_own_error_class(proxied):
    with connected(proxied) as client, pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(model="small", messages=[QUESTION], tools="all of them")
