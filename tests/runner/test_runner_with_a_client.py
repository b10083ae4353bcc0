"""ToolRunner over real ``openai`` clients and a model that only writes text: the whole way, over a socket."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import openai
import pytest

from patchbay import ResponseFormatError, ToolRunner
from patchbay.testing import ScriptedUpstream
from structured import RESPONSE_FORMAT, RESULT, WeatherModel


def block(name: str, **arguments: Any) -> str:
    return f"```tool_call\n{json.dumps({'name': name, 'arguments': arguments})}\n```\n"


def get_weather(city: str) -> str:
    """Tell the weather."""
    return f"sunny in {city}"


async def get_time(zone: str = "UTC") -> dict[str, str]:
    """Tell the time."""
    return {"zone": zone, "time": "noon"}


TOOLS = [get_weather, get_time]
SCRIPT = ["Let me look.\n" + block("get_weather", city="Rome") + block("get_time"), "Sunny, and it is noon."]


def run(client: Any, coroutine: Any) -> Any:
    async def bounded() -> Any:
        try:
            return await asyncio.wait_for(coroutine, 60)
        finally:
            closing = client.close()
            if closing is not None:
                await closing

    return asyncio.run(bounded())


@pytest.fixture(params=["sync", "async"])
def client_class(request: pytest.FixtureRequest) -> Any:
    return openai.AsyncOpenAI if request.param == "async" else openai.OpenAI


def test_a_text_only_model_calls_two_tools_and_answers(client_class):
    with ScriptedUpstream(SCRIPT) as upstream:
        client = client_class(base_url=upstream.url, api_key="unused")
        result = run(client, ToolRunner(client, TOOLS).run("?", model="m"))
    assert ("Sunny, and it is noon.", "stop", 2) == (result.content, result.finish_reason, result.iterations)
    assert ["sunny in Rome", '{"zone": "UTC", "time": "noon"}'] == [execution.content for execution in result.tool_executions]
    assert result.usage.total_tokens > 0
    assert "sunny in Rome" in json.dumps(upstream.chats[-1].json["messages"])


def test_the_same_as_a_stream(client_class):
    async def collect(client: Any) -> list[Any]:
        return [event async for event in ToolRunner(client, TOOLS).run_stream("?", model="m")]

    with ScriptedUpstream(SCRIPT) as upstream:
        client = client_class(base_url=upstream.url, api_key="unused")
        outcome = run(client, collect(client))
    text = "".join(event.delta for event in outcome if event.type == "text")
    assert "Let me look." in text
    assert text.endswith("Sunny, and it is noon.")
    assert "tool_call\n" not in text
    assert ["get_weather", "get_time"] == [event.tool_call.name for event in outcome if event.type == "tool_call"]
    assert ("Sunny, and it is noon.", 2) == (outcome[-1].content, len(outcome[-1].tool_executions))


def test_run_sync_serves_one_async_client_again_and_again():
    with ScriptedUpstream(SCRIPT * 2) as upstream:
        client = openai.AsyncOpenAI(base_url=upstream.url, api_key="unused")
        runner = ToolRunner(client, TOOLS)
        assert ["Sunny, and it is noon."] * 2 == [runner.run_sync("?", model="m").content for _ in range(2)]

        from patchbay.background import run_blocking

        run_blocking(client.close())


def test_making_a_runner_of_a_chat_model_imports_no_third_party_package():
    code = (
        "import sys, patchbay.runner, patchbay.testing.models\n"
        "heavy = {'pydantic', 'openai', 'jsonschema_rs', 'httpx', 'httpx2', 'aiohttp', 'msgspec'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert (
        "[]"
        == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    )


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", ["enforces", "ignores"])
def test_run_ends_with_the_requested_json(client_class, kind, streamed):
    def get_degrees(city: str) -> str:
        """Tell the temperature."""
        return f"{RESULT} in {city}"

    async def answer(runner: ToolRunner) -> Any:
        request = {"messages": "How warm is Rome?", "model": "m", "response_format": RESPONSE_FORMAT}
        if not streamed:
            return await runner.run(**request)
        return [event async for event in runner.run_stream(**request)][-1]

    with ScriptedUpstream(WeatherModel(kind)) as upstream:
        client = client_class(base_url=upstream.url, api_key="unused")
        final = run(client, answer(ToolRunner(client, [get_degrees])))
    assert {"city": "Rome", "degrees": 21} == json.loads(final.content)
    assert ["21.0 degrees in Rome"] == [execution.content for execution in final.tool_executions]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_never_fits_ends_the_run_with_an_error(client_class, streamed):
    async def answer(runner: ToolRunner) -> Any:
        request = {"messages": RESULT, "model": "m", "response_format": RESPONSE_FORMAT}
        return [event async for event in runner.run_stream(**request)] if streamed else await runner.run(**request)

    with ScriptedUpstream(["<think>Hm.</think>It is warm."] * 4) as upstream:
        client = client_class(base_url=upstream.url, api_key="unused")
        with pytest.raises(ResponseFormatError, match="asked 3 times"):
            run(client, answer(ToolRunner(client, [get_weather], tool_mode="text")))
        assert 4 == len(upstream.chats)
