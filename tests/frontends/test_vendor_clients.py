"""The vendors' packages over real sockets through a real proxy, to models that only write text."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, ClassVar

import httpx
import openai
import pydantic
import pytest
from google import genai
from google.genai import types
from google.genai.errors import APIError

from frontends.failing_stream import HALF, failing_proxy
from patchbay.frontends import GenerateContent
from patchbay.proxy import create_app
from patchbay.testing import ScriptedUpstream
from structured import QUESTION as WARMTH
from structured import RESULT, TOOL, WeatherModel
from support import two_tools
from support.http_server import BOUND, serving
from support.two_tools import ANSWER, CALLS, SPECS, run_tool

SAID = "(scripted model) I use multiply and measure for this."


def schema_of(properties: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


class Client(ABC):
    """One vendor's package: asks for an answer, whole or as a stream, and reads its calls and its text."""

    question: ClassVar[Any] = {"role": "user", "content": two_tools.QUESTION}
    ends: tuple[str, str]
    """How an answer with calls and one without any end."""

    @abstractmethod
    def connected(self, url: str) -> AbstractContextManager[Any]:
        """A client of the package for the proxy at ``url``."""

    @abstractmethod
    def ask(self, client: Any, conversation: list[Any], *, stream: bool) -> Any:
        """An answer in the package's form."""

    @abstractmethod
    def read(self, answer: Any) -> tuple[str, list[tuple[str, Any]], str]:
        """The text of an answer, its calls, and its end."""

    @abstractmethod
    def answered(self, answer: Any) -> list[Any]:
        """An answer as it stands in the conversation, with the results of its calls."""


class Anthropic(Client):
    ends = "tool_use", "end_turn"
    tools = tuple({"name": name, "description": text, "input_schema": schema_of(given)} for name, text, given in SPECS)

    def connected(self, url: str) -> AbstractContextManager[Any]:
        import anthropic  # which takes half a second: not in each worker

        return anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0, timeout=BOUND)

    def ask(self, client: Any, conversation: list[Any], *, stream: bool) -> Any:
        request = {"model": "small", "max_tokens": 1000, "messages": conversation, "tools": self.tools}
        if not stream:
            return client.messages.create(**request)
        with client.messages.stream(**request) as events:
            return events.get_final_message()

    def read(self, answer: Any) -> tuple[str, list[tuple[str, Any]], str]:
        text = "".join(block.text for block in answer.content if block.type == "text")
        return text, [(block.name, block.input) for block in answer.content if block.type == "tool_use"], answer.stop_reason

    def answered(self, answer: Any) -> list[Any]:
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": json.dumps(run_tool(block.name, block.input))}
            for block in answer.content
            if block.type == "tool_use"
        ]
        return [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]


class Responses(Client):
    ends = "completed", "completed"
    tools = tuple(
        {
            "type": "function", "name": name, "description": text, "strict": True,
            "parameters": schema_of(given, additionalProperties=False),
        }
        for name, text, given in SPECS
    )  # fmt: skip

    def connected(self, url: str) -> AbstractContextManager[Any]:
        return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=BOUND)

    def ask(self, client: Any, conversation: list[Any], *, stream: bool) -> Any:
        request = {"model": "small", "input": conversation, "tools": self.tools, "store": False}
        if not stream:
            return client.responses.create(**request)
        with client.responses.stream(**request) as events:
            return events.get_final_response()

    def read(self, answer: Any) -> tuple[str, list[tuple[str, Any]], str]:
        calls = [(item.name, json.loads(item.arguments)) for item in answer.output if item.type == "function_call"]
        return answer.output_text, calls, answer.status

    def answered(self, answer: Any) -> list[Any]:
        results = [
            {
                "type": "function_call_output", "call_id": item.call_id,
                "output": json.dumps(run_tool(item.name, json.loads(item.arguments))),
            }
            for item in answer.output
            if item.type == "function_call"
        ]  # fmt: skip
        return [*(item.to_dict() for item in answer.output), *results]


class Gemini(Client):
    ends = "STOP", "STOP"
    question = types.Content(role="user", parts=[types.Part(text=two_tools.QUESTION)])
    INTEGER = types.Schema(type="INTEGER")
    tools = types.Tool(
        function_declarations=[
            types.FunctionDeclaration(
                name="multiply",
                description="Multiply two integers.",
                parameters=types.Schema(type="OBJECT", properties={"a": INTEGER, "b": INTEGER}, required=["a", "b"]),
            ),
            types.FunctionDeclaration(
                name="measure",
                description="Measure the length of a text.",
                parameters_json_schema=schema_of({"text": {"type": "string"}}),
            ),
        ]
    )

    @contextmanager
    def connected(self, url: str) -> Iterator[Any]:
        with closing(gemini_client(url)) as client:
            yield client

    def ask(self, client: Any, conversation: list[Any], *, stream: bool) -> Any:
        calling = types.AutomaticFunctionCallingConfig(disable=True)
        config = types.GenerateContentConfig(tools=[self.tools], automatic_function_calling=calling)
        request = {"model": "org/small:4b", "contents": conversation, "config": config}
        answers = client.models.generate_content_stream(**request) if stream else [client.models.generate_content(**request)]
        return [answer.candidates[0] for answer in answers]

    @staticmethod
    def parts(answer: Any) -> list[types.Part]:
        return [part for candidate in answer for part in candidate.content.parts or ()]

    def read(self, answer: Any) -> tuple[str, list[tuple[str, Any]], str]:
        calls = [(part.function_call.name, part.function_call.args) for part in self.parts(answer) if part.function_call]
        return "".join(part.text or "" for part in self.parts(answer)), calls, answer[-1].finish_reason.value

    def answered(self, answer: Any) -> list[Any]:
        results = [
            types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response=run_tool(call.name, call.args)))
            for part in self.parts(answer)
            if (call := part.function_call)
        ]  # fmt: skip
        return [types.Content(role="model", parts=self.parts(answer)), types.Content(role="user", parts=results)]


def gemini_client(url: str, **options: Any) -> genai.Client:
    return genai.Client(api_key="unused", vertexai=False, http_options=types.HttpOptions(base_url=url, **options))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("vendor", [Anthropic(), Responses(), Gemini()], ids=lambda vendor: type(vendor).__name__)
def test_a_conversation_with_two_calls(proxied, vendor, stream):
    with vendor.connected(proxied.url.removesuffix("/v1")) as client:
        first = vendor.ask(client, [vendor.question], stream=stream)
        assert (SAID, CALLS, vendor.ends[0]) == vendor.read(first)
        last = vendor.ask(client, [vendor.question, *vendor.answered(first)], stream=stream)
        assert (ANSWER, [], vendor.ends[1]) == vendor.read(last)
        if isinstance(vendor, Gemini):
            assert client.models.count_tokens(model="org/small:4b", contents="Hello.").total_tokens > 0
        else:
            assert "small" == last.model


@pytest.mark.parametrize("stream", [False, True])
def test_messages_of_anthropic_have_ids_of_their_own_where_the_upstream_repeats_its_own(proxied, stream):
    vendor = Anthropic()
    with vendor.connected(proxied.url.removesuffix("/v1")) as client:
        ids = {vendor.ask(client, [vendor.question], stream=stream).id for _ in range(2)}
    assert [2, True] == [len(ids), all(each.startswith("msg_") for each in ids)]


def test_anthropics_tool_runner_reaches_the_answer(proxied):
    import anthropic

    @anthropic.beta_tool
    def multiply(a: int, b: int) -> str:
        """Multiply two integers."""
        return json.dumps({"product": a * b})

    @anthropic.beta_tool
    def measure(text: str) -> str:
        """Measure the length of a text."""
        return json.dumps({"length": len(text)})

    with Anthropic().connected(proxied.url.removesuffix("/v1")) as client:
        tools, question = [multiply, measure], [Anthropic.question]
        runner = client.beta.messages.tool_runner(model="small", max_tokens=1000, messages=question, tools=tools, stream=True)
        last = runner.until_done()
    assert ("end_turn", [ANSWER]) == (last.stop_reason, [block.text for block in last.content])


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["takes", "refuses", "enforces"])
def test_typed_answer_of_responses_beside_tools_is_parsed(kind, stream):
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
        Responses().connected(f"http://127.0.0.1:{port}") as client,
    ):
        (call,) = [item for item in parse([WARMTH]).output if item.type == "function_call"]
        assert {"city": "Rome"} == json.loads(call.arguments)
        made = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
        assert Weather(city="Rome", degrees=21) == parse([WARMTH, made, result]).output_parsed


TOO_LONG = r"The input token count \(120\) exceeds the maximum"


async def test_a_stream_of_gemini_that_fails_after_a_silence_gives_its_half_and_raises():
    seen: list[str | None] = []

    async def read(client: genai.Client) -> None:
        async for answer in await client.aio.models.generate_content_stream(model="m", contents="Hi."):
            seen.append(answer.text)  # noqa: PERF401  (kept when the stream fails)

    with failing_proxy(GenerateContent.heartbeat) as url:
        async with httpx.AsyncClient() as http:
            with pytest.raises(APIError, match=TOO_LONG) as caught:
                await read(gemini_client(url, httpx_async_client=http))
    assert ([HALF], 400, "INVALID_ARGUMENT") == (seen, caught.value.code, caught.value.status)


def test_a_blocking_stream_of_gemini_that_fails_after_a_silence_gives_its_half_and_raises():
    seen: list[str | None] = []
    with (
        failing_proxy(GenerateContent.heartbeat) as url,
        closing(gemini_client(url)) as client,
        pytest.raises(APIError, match=TOO_LONG),
    ):
        seen.extend(answer.text for answer in client.models.generate_content_stream(model="m", contents="Hi."))
    assert [HALF] == seen
