"""``patchbay local`` with the real model: every protocol, the models that it lists, its key, its memory, its end."""

from __future__ import annotations

import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import google.genai
import openai
import pytest

from patchbay.cli.children import Child
from patchbay.cli.llama_server import LlamaSettings
from patchbay.cli.local import MEMORY_MIB
from patchbay.cli.model_files import SMOLLM2
from support.processes import listening
from support.scripted_server import PATIENCE

from .conftest import get_json, require_packages

pytestmark = pytest.mark.timeout(600)
QUESTION = "What is the weather in Paris?"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DESCRIPTION = "Get the weather of a city."
MOST_TOKENS = 12
CACHE_MIB = 6
FLAGS = ("--prompt-cache", str(CACHE_MIB), "--prompt-threads", "1")


@pytest.fixture(scope="module")
def local() -> Iterator[Child]:
    require_packages()
    command = [sys.executable, "-m", "patchbay", "local", "--port", "0", *FLAGS]
    with listening(command, name="patchbay local", timeout=PATIENCE) as child:
        yield child


@pytest.fixture(scope="module")
def origin(local: Child) -> str:
    return local.url.removesuffix("/v1")


def test_chat_completion_is_answered(local: Child) -> None:
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA}}]
    with openai.OpenAI(base_url=local.url, api_key="any", max_retries=0, timeout=PATIENCE) as client:
        answer = client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": QUESTION}], tools=tools, max_tokens=MOST_TOKENS, temperature=0
        )
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= MOST_TOKENS


def test_response_is_answered(local: Child) -> None:
    tools: Any = [{"type": "function", "name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA, "strict": False}]
    with openai.OpenAI(base_url=local.url, api_key="any", max_retries=0, timeout=PATIENCE) as client:
        answer = client.responses.create(model="any", input=QUESTION, tools=tools, max_output_tokens=MOST_TOKENS, temperature=0)
    assert answer.status in ("completed", "incomplete")
    assert answer.output_text or any(item.type == "function_call" for item in answer.output)
    assert answer.usage is not None
    assert 0 < answer.usage.output_tokens <= MOST_TOKENS


def test_message_is_answered(origin: str) -> None:
    tools: Any = [{"name": "get_weather", "description": DESCRIPTION, "input_schema": SCHEMA}]
    with anthropic.Anthropic(base_url=origin, api_key="any", max_retries=0, timeout=PATIENCE) as client:
        answer = client.messages.create(
            model="any", messages=[{"role": "user", "content": QUESTION}], tools=tools, max_tokens=MOST_TOKENS
        )
    assert answer.stop_reason in ("end_turn", "max_tokens", "tool_use")
    assert answer.content[0].type == "tool_use" or (answer.content[0].type == "text" and answer.content[0].text)
    assert 0 < answer.usage.output_tokens <= MOST_TOKENS


def test_generated_content_is_answered(origin: str) -> None:
    declared: Any = {"name": "get_weather", "description": DESCRIPTION, "parameters_json_schema": SCHEMA}
    with google.genai.Client(api_key="any", vertexai=False, http_options={"base_url": origin}) as client:
        answer = client.models.generate_content(
            model="any",
            contents=QUESTION,
            config={"tools": [{"function_declarations": [declared]}], "max_output_tokens": MOST_TOKENS, "temperature": 0},
        )
    assert answer.candidates is not None
    assert str(answer.candidates[0].finish_reason) in ("FinishReason.STOP", "FinishReason.MAX_TOKENS")
    assert answer.function_calls or answer.text
    assert answer.usage_metadata is not None
    assert 0 < (answer.usage_metadata.candidates_token_count or 0) <= MOST_TOKENS


def test_models_are_listed_by_name(local: Child) -> None:
    assert [SMOLLM2.name] == [each["id"] for each in get_json(f"{local.url}/models")["data"]]


def test_programs_without_the_key_reach_only_the_proxy(local: Child) -> None:
    (upstream,) = [line.split()[1] for line in local.printed if "upstream" in line]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get_json(f"{upstream}/models")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_server_takes_the_memory_that_the_help_states(local: Child) -> None:
    (server,) = [each for task in Path(f"/proc/{local.pid}/task").iterdir() for each in (task / "children").read_text().split()]

    def resident() -> float:
        status = Path(f"/proc/{server}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    least, most = MEMORY_MIB
    most -= LlamaSettings().prompt_cache - CACHE_MIB
    assert 0.9 * least < resident() < most
    with openai.OpenAI(base_url=local.url, api_key="any", max_retries=0, timeout=PATIENCE) as client:
        for number in range(3):  # conversations of about 200 tokens, of which the cache holds one
            content = f"{number} " + "word and other things " * 45
            client.chat.completions.create(model="any", messages=[{"role": "user", "content": content}], max_tokens=1)
    assert 0.9 * least < resident() < most
