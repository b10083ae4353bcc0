"""The ``google-genai`` package over a real socket through a real proxy, to models that only write text."""

from __future__ import annotations

from contextlib import contextmanager

import httpx
import pytest
from google import genai
from google.genai import types
from google.genai.errors import APIError

from frontends.failing_stream import HALF, failing_proxy
from patchbay.frontends import GenerateContent
from support import two_tools
from support.two_tools import ANSWER, CALLS, run_tool

TOOLS = [
    types.Tool(
        function_declarations=[
            types.FunctionDeclaration(name="multiply", description="Multiply two integers.", parameters=types.Schema(
                type="OBJECT", properties={"a": types.Schema(type="INTEGER"), "b": types.Schema(type="INTEGER")}, required=["a", "b"]
            )),
            types.FunctionDeclaration(name="measure", description="Measure the length of a text.", parameters_json_schema={
                "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]
            }),
        ]
    )
]  # fmt: skip
TOO_LONG = r"The input token count \(120\) exceeds the maximum"
QUESTION = types.Content(role="user", parts=[types.Part(text=two_tools.QUESTION)])


@contextmanager
def connected(proxied):
    base = proxied.url.removesuffix("/v1")
    yield genai.Client(api_key="unused", vertexai=False, http_options=types.HttpOptions(base_url=base))


def run(call) -> types.Part:
    response = types.FunctionResponse(id=call.id, name=call.name, response=run_tool(call.name, call.args))
    return types.Part(function_response=response)


def ask(client, contents, *, stream, tools=TOOLS) -> tuple[list[types.Part], str]:
    """The parts of an answer, and its finish reason."""
    config = types.GenerateContentConfig(
        tools=tools, automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True)
    )
    request = {"model": "org/small:4b", "contents": contents, "config": config}
    answers = client.models.generate_content_stream(**request) if stream else [client.models.generate_content(**request)]
    candidates = [answer.candidates[0] for answer in answers]
    parts = [part for candidate in candidates for part in candidate.content.parts or ()]
    return parts, candidates[-1].finish_reason.value


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_two_calls(proxied, stream):
    with connected(proxied) as client:
        first, reason = ask(client, [QUESTION], stream=stream)
        calls = [part.function_call for part in first if part.function_call]
        assert ("STOP", CALLS) == (reason, [(call.name, call.args) for call in calls])
        assert "(scripted model) I use multiply and measure for this." == "".join(part.text or "" for part in first)
        model = types.Content(role="model", parts=first)
        results = types.Content(role="user", parts=[run(call) for call in calls])
        last, reason = ask(client, [QUESTION, model, results], stream=stream)
    assert ("STOP", ANSWER) == (reason, "".join(part.text or "" for part in last))


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_without_tools(proxied, stream):
    with connected(proxied) as client:
        answer, reason = ask(client, "Hello.", stream=stream, tools=None)
        counted = client.models.count_tokens(model="org/small:4b", contents="Hello.")
    assert "STOP" == reason
    assert "".join(part.text or "" for part in answer)
    assert counted.total_tokens > 0


async def test_a_stream_that_fails_after_a_silence_gives_its_half_and_raises():
    seen: list[str | None] = []

    async def read(client: genai.Client) -> None:
        async for answer in await client.aio.models.generate_content_stream(model="m", contents="Hi."):
            seen.append(answer.text)  # noqa: PERF401  (kept when the stream fails)

    with failing_proxy(GenerateContent.heartbeat) as url:
        async with httpx.AsyncClient() as http:
            options = types.HttpOptions(base_url=url, httpx_async_client=http)
            with pytest.raises(APIError, match=TOO_LONG) as caught:
                await read(genai.Client(api_key="k", vertexai=False, http_options=options))
    assert ([HALF], 400, "INVALID_ARGUMENT") == (seen, caught.value.code, caught.value.status)


def test_a_blocking_stream_that_fails_after_a_silence_gives_its_half_and_raises():
    seen: list[str | None] = []
    with failing_proxy(GenerateContent.heartbeat) as url:
        client = genai.Client(api_key="k", vertexai=False, http_options=types.HttpOptions(base_url=url))
        with pytest.raises(APIError, match=TOO_LONG):
            seen.extend(answer.text for answer in client.models.generate_content_stream(model="m", contents="Hi."))
    assert [HALF] == seen
