"""Constraints on real sockets: in every protocol, over the proxy, the tool server and the ``openai`` clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from aiohttp import web
from proxy_rig import Script, Upstream, proxied, running_upstream

from chat_server.rig import PROTOCOLS, request_of
from patchbay import ToolRunner, wrap
from patchbay.models.chat_model import ChatRequest
from patchbay.models.openai import OpenAIChatModel
from patchbay.models.options import TextOptions
from patchbay.models.request_record import RequestRecord
from patchbay.proxy import create_app
from patchbay.types import ToolSpec
from support.http_server import BOUND, ask, serving

CALL = '```tool_call\n{"name": "weather", "arguments": {"city": "Rome"}}\n```'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
QUESTION = [{"role": "user", "content": "How is Rome?"}]


def llama_cpp(*, content: str = CALL, refuses: bool = False) -> Script:
    """A server that describes itself as llama.cpp does, and answers with this content; ``refuses``: no grammar is taken."""

    async def script(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/props"):
            return web.json_response({"chat_template_caps": {"supports_tools": False}, "chat_template": ""})
        if request.path.endswith("/models"):
            return web.json_response({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "llamacpp"}]})
        body = json.loads(await request.read())
        if refuses and "grammar" in body:
            return web.json_response({"error": {"message": "failed to parse grammar"}}, status=400)
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        return web.json_response({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})

    return script


def paths(upstream: Upstream) -> list[str]:
    return [f"{request.method} {request.path.removeprefix('/up')}" for request in upstream.seen]


def chats(upstream: Upstream) -> list[dict[str, Any]]:
    """The bodies of the requests to the model."""
    return [json.loads(request.body) for request in upstream.seen if request.method == "POST"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_own_options_reach_the_exchange_in_every_protocol_and_never_the_model(protocol: str) -> None:
    with proxied(llama_cpp(), make_exchange=None) as (upstream, port):
        for constrain in ("auto", "off"):
            path, body = request_of(protocol, model="m", tool="weather")
            assert 200 == ask(port, "POST", path, {**body, "patchbay": {"constrain": constrain}}).status
        path, body = request_of(protocol, model="m")
        assert 200 == ask(port, "POST", path, {**body, "patchbay": {"constrain": "force"}}).status
        path, body = request_of(protocol, model="m", tool="weather")
        wrong = ask(port, "POST", path, {**body, "patchbay": {"constrain": "never"}})
    assert [True, False, False] == ["grammar" in body for body in chats(upstream)]
    assert not any("patchbay" in body for body in chats(upstream))
    assert (400, True) == (wrong.status, "'patchbay': constrain is 'never'" in wrong.json["error"]["message"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_forced_constraint_on_another_server_is_one_clear_error(protocol: str) -> None:
    async def unknown(request: web.Request) -> web.StreamResponse:
        return web.Response(status=404)

    with proxied(unknown, make_exchange=None, constrain="force") as (upstream, port):
        answer = ask(port, "POST", *request_of(protocol, model="m", tool="weather"))
    assert (400, []) == (answer.status, chats(upstream))
    why = "constrain=force: the model's server is none that is known to take grammars. Use constrain=auto, or another server."
    assert why == answer.json["error"]["message"]


def test_record_says_what_constrained_the_answer() -> None:
    records: list[RequestRecord] = []
    with running_upstream(llama_cpp(refuses=True)) as upstream:
        app = create_app(upstream.url)
        app.observers.append(records.append)
        with serving(app) as port:
            for _ in range(2):
                answer = ask(port, "POST", *request_of("chat", model="m", tool="weather"))
                assert "weather" == answer.json["choices"][0]["message"]["tool_calls"][0]["function"]["name"]
        upstream.script = llama_cpp()
        again = create_app(upstream.url)
        again.observers.append(records.append)
        with serving(again) as port:
            ask(port, "POST", *request_of("chat", model="m", tool="weather"))
    assert [True, False, False, True] == ["grammar" in body for body in chats(upstream)]
    assert ["", "", "grammar"] == [record.constraint for record in records]
    assert ("HTTP 400: the server refuses the grammar",) == records[0].reasons


@contextmanager
def wrapped(upstream: Upstream, kind: str, **options: Any) -> Iterator[Any]:
    """A wrapped client, as a function that asks."""
    if kind == "sync":
        with openai.OpenAI(base_url=upstream.url, api_key="a-key", max_retries=0) as client:
            yield wrap(client, **options).chat.completions.create
        return
    with asyncio.Runner() as runner:
        client = openai.AsyncOpenAI(base_url=upstream.url, api_key="a-key", max_retries=0)
        create = wrap(client, **options).chat.completions.create
        yield lambda **given: runner.run(create(**given))
        runner.run(client.close())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_wrapped_client_asks_its_server_once_what_it_is(kind: str) -> None:
    with running_upstream(llama_cpp()) as upstream, wrapped(upstream, kind, tools="text") as create:
        for _ in range(2):
            answer = create(model="m", messages=QUESTION, tools=[TOOL])
            assert "weather" == answer.choices[0].message.tool_calls[0].function.name
        create(model="m", messages=QUESTION, tools=[TOOL], extra_body={"patchbay": {"constrain": "off"}})
        create(model="m", messages=QUESTION, extra_body={"patchbay": {"constrain": "off"}})
    chat = "POST /v1/chat/completions"
    assert ["GET /v1/models", chat, chat, chat, chat] == paths(upstream)
    assert "Bearer a-key" == upstream.seen[0].headers["Authorization"]
    assert [True, True, False, False] == ["grammar" in body for body in chats(upstream)]
    assert not any("patchbay" in body for body in chats(upstream))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_wrapped_client_works_where_the_server_lists_no_models(kind: str) -> None:
    answering = llama_cpp()

    async def script(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            assert request.transport is not None
            request.transport.close()
        return await answering(request)

    with running_upstream(script) as upstream, wrapped(upstream, kind, tools="text") as create:
        assert create(model="m", messages=QUESTION, tools=[TOOL]).choices[0].message.tool_calls
    assert ["GET /v1/models", "POST /v1/chat/completions"] == paths(upstream)
    assert ["grammar" in body for body in chats(upstream)] == [False]


@pytest.mark.parametrize("kind", [openai.OpenAI, openai.AsyncOpenAI])
def test_chat_model_asks_its_server_once_what_it_is(kind: Any) -> None:
    async def main() -> None:
        client = kind(base_url=upstream.url, api_key="unused", max_retries=0)
        model = OpenAIChatModel(client, model="m", options=TextOptions(tools="text"))
        for _ in range(2):
            async with asyncio.timeout(BOUND):
                events = [event async for event in model.respond(ChatRequest(QUESTION, [ToolSpec("weather", parameters=SCHEMA)]))]
            assert ["weather"] == [call.name for call in events[-1].reply.tool_calls]
        closing = client.close()
        if closing is not None:
            await closing

    with running_upstream(llama_cpp()) as upstream:
        asyncio.run(main())
    chat = "POST /v1/chat/completions"
    assert ["GET /v1/models", chat, chat] == paths(upstream)
    assert [True, True] == ["grammar" in body for body in chats(upstream)]


def test_tool_runner_asks_its_server_once_what_it_is() -> None:
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"sunny in {city}"

    async def script(request: web.Request) -> web.StreamResponse:
        said = CALL if b"sunny in" not in await request.read() else "It is sunny."
        return await llama_cpp(content=said)(request)

    with running_upstream(script) as upstream, openai.OpenAI(base_url=upstream.url, api_key="unused") as client:
        result = asyncio.run(asyncio.wait_for(ToolRunner(client, [weather]).run("How is Rome?", model="m"), BOUND))
    assert ("It is sunny.", 2) == (result.content, result.iterations)
    assert "GET /v1/models" == paths(upstream)[0]
    assert 1 == paths(upstream).count("GET /v1/models")
