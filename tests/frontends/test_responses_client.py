"""The ``openai`` package's Responses over a real socket through a real proxy, to models that only write text."""

from __future__ import annotations

import json
from contextlib import contextmanager

import openai
import pydantic
import pytest

from patchbay.proxy import create_app
from patchbay.testing import ScriptedUpstream
from structured import QUESTION as WARMTH
from structured import RESULT, TOOL, WeatherModel
from support import two_tools
from support.http_server import BOUND, serving
from support.two_tools import ANSWER, SPECS, run_tool

TOOLS = [
    {
        "type": "function",
        "name": name,
        "description": description,
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        },
    }
    for name, description, properties in SPECS
]
QUESTION = {"role": "user", "content": two_tools.QUESTION}
CALLS = [(name, json.dumps(arguments)) for name, arguments in two_tools.CALLS]


@contextmanager
def connected(proxied):
    with openai.OpenAI(base_url=proxied.url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def run(call) -> dict:
    output = json.dumps(run_tool(call.name, json.loads(call.arguments)))
    return {"type": "function_call_output", "call_id": call.call_id, "output": output}


def ask(client, items, *, stream, **options):
    request = {"model": "small", "input": items, "tools": TOOLS, "store": False, **options}
    if not stream:
        return client.responses.create(**request)
    with client.responses.stream(**request) as events:
        return events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_two_calls(proxied, stream):
    with connected(proxied) as client:
        first = ask(client, [QUESTION], stream=stream)
        calls = [item for item in first.output if item.type == "function_call"]
        assert ("completed", CALLS) == (first.status, [(item.name, item.arguments) for item in calls])
        assert "(scripted model) I use multiply and measure for this." == first.output_text
        items = [QUESTION, *(item.to_dict() for item in first.output), *map(run, calls)]
        last = ask(client, items, stream=stream)
    assert ("completed", ANSWER) == (last.status, last.output_text)
    assert "small" == last.model


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_without_tools(proxied, stream):
    with connected(proxied) as client:
        answer = ask(client, "Hello.", stream=stream, tools=[])
    assert "completed" == answer.status
    assert answer.output_text


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["takes", "refuses", "enforces"])
def test_typed_answer_beside_tools_is_parsed(kind, stream):
    tool = {"type": "function", **TOOL["function"]}

    def parse(items):
        request = {"model": "m", "input": items, "tools": [tool], "text_format": Weather}
        if not stream:
            return client.responses.parse(**request)
        with client.responses.stream(**request) as events:
            return events.get_final_response()

    with (
        ScriptedUpstream(WeatherModel(kind)) as upstream,
        serving(create_app(upstream.url)) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="unused", max_retries=0, timeout=BOUND) as client,
    ):
        first = parse([WARMTH])
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert {"city": "Rome"} == json.loads(call.arguments)
        made = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
        assert Weather(city="Rome", degrees=21) == parse([WARMTH, made, result]).output_parsed
