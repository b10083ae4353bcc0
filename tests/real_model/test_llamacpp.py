"""The proxy before llama.cpp: how it finds out that the model takes no tools, and what a text model costs the server."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from patchbay import wrap
from patchbay.cli.children import Child
from patchbay.models.chat_model import ChatRequest
from patchbay.models.openai import OpenAIChatModel
from patchbay.models.options import TextOptions
from patchbay.types import read_specs
from support.chat_clients import running_proxy, sdk_client
from support.scripted_server import PATIENCE

from .conftest import get_json

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]},
        },
    }
    for name, description, parameter in (
        ("get_weather", "Get the weather of a city.", "city"),
        ("send_mail", "Send a mail.", "to"),
        ("add", "Add numbers.", "a"),
    )
]
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
RESULT: list[Any] = [
    *QUESTION,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": '{"celsius": 21, "sky": "clear"}'},
]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxy") / "log.jsonl"


@pytest.fixture(scope="module")
def proxy(llama: str, log: Path) -> Iterator[Child]:
    with running_proxy("--upstream", f"{llama}/v1", "--log-file", str(log)) as started:
        yield started


def requests_of(log: Path, model: str) -> list[dict[str, Any]]:
    """The upstream's requests for a model, in order."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    bodies = [line["body"] for line in lines if line["event"] == "upstream_request"]
    decoded = [json.loads(body) if isinstance(body, str) else body for body in bodies]
    return [body for body in decoded if body["model"] == model]


def test_description_of_the_server_decides_before_the_first_request(proxy: Child, log: Path) -> None:
    with sdk_client(proxy.url) as client:
        client.chat.completions.create(model="first", messages=QUESTION, tools=TOOLS, max_tokens=8, temperature=0)
    only = requests_of(log, "first")
    assert 1 == len(only)
    assert "tools" not in only[0]
    assert ["```tool_result"] == only[0]["stop"]


@contextmanager
def recorded(llama: str, *, described: bool = True) -> Iterator[tuple[openai.OpenAI, list[Any]]]:
    """A client of the server, and the bodies of its requests; ``described``: it may ask the server what it is."""

    def record(request: Any) -> None:
        if request.method == "POST":
            bodies.append(json.loads(request.content))
        elif not described:
            raise ConnectionError

    bodies: list[Any] = []
    with sdk_client(f"{llama}/v1") as client:
        client._client.event_hooks["request"].append(record)
        yield client, bodies


def test_wrapped_client_reads_that_the_template_has_no_tools_and_constrains_its_first_request(llama: str) -> None:
    with recorded(llama) as (plain, bodies):
        answer = wrap(plain).chat.completions.create(
            model="wrapped", messages=QUESTION, tools=TOOLS, tool_choice="required", max_tokens=100, temperature=0
        )
    [body] = bodies
    assert {"grammar"} == {"tools", "grammar"} & body.keys()
    assert answer.choices[0].message.tool_calls


def test_chat_model_reads_that_the_template_has_no_tools_and_constrains_its_first_request(llama: str) -> None:
    async def ask(model: OpenAIChatModel) -> Any:
        request = ChatRequest(QUESTION, read_specs(TOOLS), "required", {"max_tokens": 100, "temperature": 0})
        async with asyncio.timeout(PATIENCE):
            return [event async for event in model.respond(request)][-1]

    with recorded(llama) as (plain, bodies):
        answer = asyncio.run(ask(OpenAIChatModel(plain, model="modelled", options=TextOptions())))
    [body] = bodies
    assert {"grammar"} == {"tools", "grammar"} & body.keys()
    assert answer.reply.tool_calls


def test_count_of_the_prompt_decides_where_nothing_describes_the_server(llama: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "patchbay"), recorded(llama, described=False) as (plain, _):
        answer = wrap(plain).chat.completions.create(model="counted", messages=QUESTION, tools=TOOLS, max_tokens=8, temperature=0)
    assert "The server of the model counted takes no tools" in caplog.text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 37 + 200  # that of the question alone, and that with the contract


def test_grammar_goes_with_the_contract_and_is_refused_once(llama: str) -> None:
    with recorded(llama, described=False) as (plain, bodies):
        client = wrap(plain)
        for _ in range(2):
            answer = client.chat.completions.create(
                model="g", messages=QUESTION, tools=TOOLS, max_tokens=8, extra_body={"grammar": 'root ::= "yes" | "no"'}
            )
            assert answer.choices[0].message.content in ("yes", "no")
    assert [True, False, False] == ["tools" in body for body in bodies]


def test_whole_answer_has_all_that_it_had_before_it_was_streamed(proxy: Child, log: Path) -> None:
    with sdk_client(proxy.url) as client:
        for _ in range(2):
            answer = client.chat.completions.create(
                model="whole", messages=QUESTION, tools=TOOLS, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2
            )
    assert [None, True] == [body.get("stream") for body in requests_of(log, "whole")][-2:]
    assert answer.usage is not None
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert answer.usage.completion_tokens == len(answer.choices[0].logprobs.content)
    assert {"timings", "id", "created", "model", "system_fingerprint", "object"} <= answer.model_dump(exclude_unset=True).keys()
    assert answer.choices[0].message.content


def test_client_that_leaves_a_whole_answer_frees_the_slot(proxy: Child, llama: str) -> None:
    body = {"model": "leaving", "messages": QUESTION, "tools": TOOLS, "max_tokens": 4}
    with sdk_client(proxy.url) as client:  # (the server's first answer shows that it is llama.cpp)
        client.chat.completions.create(**body)
    address = urlsplit(proxy.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)
    endless = json.dumps({**body, "max_tokens": 3300, "ignore_eos": True, "stop": []})
    connection.request("POST", "/v1/chat/completions", endless, {"content-type": "application/json"})
    assert wait_for_slot(llama, until=lambda decoded: decoded > 0) < 3000
    connection.close()
    assert wait_for_slot(llama, until=lambda decoded: decoded < 0) < 3000


def wait_for_slot(llama: str, *, until: Callable[[int], bool]) -> int:
    """Wait for a number of tokens, -1 once the server's slot does not work; return the last one that is not negative."""
    pause, last = threading.Event(), 0
    for _ in range(600):
        slot = get_json(f"{llama}/slots")[0]
        decoded = slot["next_token"][0]["n_decoded"] if slot["is_processing"] else -1
        last = max(last, decoded)
        if until(decoded):
            return last
        pause.wait(0.05)
    raise AssertionError(f"the slot has {last} tokens")


def test_model_writes_no_result_of_its_own(proxy: Child) -> None:
    with sdk_client(proxy.url) as client:
        for _ in range(2):
            answer = client.chat.completions.create(model="after", messages=RESULT, tools=TOOLS, max_tokens=60, temperature=0)
            assert "tool_result" not in (answer.choices[0].message.content or "")


def test_next_turn_finds_the_prompt_of_the_last_one_in_the_cache(proxy: Child) -> None:
    with sdk_client(proxy.url) as client:
        first = client.chat.completions.create(model="turns", messages=QUESTION, tools=TOOLS, max_tokens=4, temperature=0)
        second = client.chat.completions.create(model="turns", messages=RESULT, tools=TOOLS, max_tokens=4, temperature=0)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 0.95 * first.usage.prompt_tokens
