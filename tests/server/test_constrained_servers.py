"""Constraints on real sockets: in every protocol, over the proxy, the tool server and the ``openai`` clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
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


def llama_cpp(*, content: str = CALL, refuses: bool = False, has_tools: bool = False) -> Script:
    """A server that describes itself as llama.cpp does, and answers with this content.

    ``refuses``: no grammar is taken. ``has_tools``: its model's template has them.
    """

    async def script(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/props"):
            return web.json_response({"chat_template_caps": {"supports_tools": has_tools}, "chat_template": ""})
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


Asker = Callable[..., list[str]]
"""Asks for a call; the names of those that come."""
CLIENTS = ["wrapped", "wrapped async", "model", "model async"]
LISTED, PROPERTIES, CHATTED = "GET /v1/models", "GET /props", "POST /v1/chat/completions"


@contextmanager
def asking(upstream: Upstream, kind: str, **options: Any) -> Iterator[Asker]:
    """A client of a server: wrapped, or below a ChatModel."""
    client_type = openai.AsyncOpenAI if kind.endswith("async") else openai.OpenAI
    client: Any = client_type(base_url=upstream.url, api_key="a-key", max_retries=0)
    body: Any = {"model": "m", "messages": QUESTION}
    model = OpenAIChatModel(client, model="m", options=TextOptions(**options))
    create = wrap(client, **options).chat.completions.create

    async def modelled(**given: Any) -> list[str]:
        request = ChatRequest(QUESTION, [ToolSpec("weather", parameters=SCHEMA)], **given)
        async with asyncio.timeout(BOUND):
            return [call.name for call in [event async for event in model.respond(request)][-1].reply.tool_calls]

    with asyncio.Runner() as runner:

        def call(**given: Any) -> list[str]:
            if kind.startswith("model"):
                return runner.run(modelled(**given))
            made = create(**body, tools=[TOOL], **given)
            answer = runner.run(made) if kind.endswith("async") else made
            return [call.function.name for call in answer.choices[0].message.tool_calls]

        yield call
        closing = client.close()
        if closing is not None:
            runner.run(closing)


@pytest.mark.parametrize("kind", CLIENTS)
def test_client_asks_its_server_once_what_it_is(kind: str) -> None:
    with running_upstream(llama_cpp()) as upstream, asking(upstream, kind, tools="text") as call:
        assert [["weather"], ["weather"]] == [call(), call()]
    assert [LISTED, PROPERTIES, CHATTED, CHATTED] == paths(upstream)
    assert {"Bearer a-key"} == {request.headers["Authorization"] for request in upstream.seen}
    assert [True, True] == ["grammar" in body for body in chats(upstream)]


@pytest.mark.parametrize("kind", CLIENTS[:2])
def test_own_options_of_a_wrapped_client_never_reach_the_model(kind: str) -> None:
    with running_upstream(llama_cpp()) as upstream, asking(upstream, kind, tools="text") as call:
        for constrain in ("auto", "off"):
            call(extra_body={"patchbay": {"constrain": constrain}})
    assert [True, False] == ["grammar" in body for body in chats(upstream)]
    assert not any("patchbay" in body for body in chats(upstream))


@pytest.mark.parametrize("has_tools", [False, True])
@pytest.mark.parametrize("kind", CLIENTS)
def test_client_reads_whether_the_template_of_llama_cpp_has_tools(kind: str, has_tools: bool) -> None:
    with running_upstream(llama_cpp(has_tools=has_tools)) as upstream, asking(upstream, kind, tools="auto") as call:
        assert ["weather"] == call()
    assert [LISTED, PROPERTIES, CHATTED] == paths(upstream)
    [body] = chats(upstream)
    assert {"tools" if has_tools else "grammar"} == {"tools", "grammar"} & body.keys()


@pytest.mark.parametrize("kind", CLIENTS)
def test_client_asks_a_server_that_is_not_llama_cpp_for_its_models_only(kind: str) -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/models"):
            return web.json_response({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]})
        return await llama_cpp()(request)

    with running_upstream(script) as upstream, asking(upstream, kind, tools="text") as call:
        assert ["weather"] == call()
    assert [LISTED, CHATTED] == paths(upstream)
    assert ["structured_outputs" in body for body in chats(upstream)] == [True]


@pytest.mark.parametrize("properties", [web.Response, web.json_response], ids=["no JSON", "not an object"])
@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("kind", CLIENTS)
def test_llama_cpp_is_known_by_its_models_where_it_has_no_properties(kind: str, status: int, properties: Any) -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/props"):
            return properties(text="[1]", status=status)  # type: ignore[no-any-return]
        return await llama_cpp()(request)

    with running_upstream(script) as upstream, asking(upstream, kind, tools="text") as call:
        assert [["weather"], ["weather"]] == [call(), call()]
    assert [LISTED, PROPERTIES, CHATTED, CHATTED] == paths(upstream)
    assert ["grammar" in body for body in chats(upstream)] == [True, True]


@pytest.mark.parametrize("kind", CLIENTS)
def test_llama_cpp_that_loads_its_model_is_asked_again_with_a_later_request(kind: str) -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/props") and len(chats(upstream)) < 1:
            return web.json_response({"error": {"message": "Loading model"}}, status=503)
        return await llama_cpp()(request)

    with running_upstream(script) as upstream, asking(upstream, kind, tools="text") as call:
        assert [["weather"], ["weather"]] == [call(), call()]
    assert [LISTED, PROPERTIES, CHATTED] * 2 == paths(upstream)
    assert ["grammar" in body for body in chats(upstream)] == [False, True]


@pytest.mark.parametrize("kind", CLIENTS)
def test_client_works_where_the_server_does_not_describe_itself(kind: str) -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            assert request.transport is not None
            request.transport.close()
        return await llama_cpp()(request)

    with running_upstream(script) as upstream, asking(upstream, kind, tools="text") as call:
        assert ["weather"] == call()
    assert [LISTED, CHATTED] == paths(upstream)
    assert ["grammar" in body for body in chats(upstream)] == [False]


@pytest.mark.parametrize("endless", ["/models", "/props"])
@pytest.mark.parametrize("kind", CLIENTS[:2])
def test_wrapped_client_leaves_a_description_that_does_not_end(kind: str, endless: str) -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        if not request.path.endswith(endless):
            return await llama_cpp()(request)
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        while True:
            await response.write(b" " * 65536)

    with running_upstream(script) as upstream, asking(upstream, kind, tools="text") as call:
        assert ["weather"] == call()
        assert upstream.left.wait(BOUND)
    assert ["grammar" in body for body in chats(upstream)] == [False]


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
    assert [LISTED, PROPERTIES, CHATTED, CHATTED] == paths(upstream)
