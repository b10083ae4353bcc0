"""Streamed calls, transparent clients, many streams at once, and the end of the upstream response when a client leaves."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import openai

import patchbay
from patchbay.testing.script import DONE, Raw, events
from support.chat_clients import chat, sdk_client, wrapped_client
from support.fenced_texts import ROME, TOOLS, block
from support.http_server import ask
from support.scripted_server import PATIENCE, chunk, completion, json_body

HI: list[Any] = [{"role": "user", "content": "Hi"}]
CACHED = [{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "two"}]


def endless(model: str) -> Raw:
    """A stream that begins and never ends."""
    return Raw([events(chunk(model, role="assistant", content="Hello there, "), done=False)], end="hang")


def shows_that_it_streams(model: str) -> Raw:
    """A whole answer of llama.cpp, which is asked for streams from then on."""
    return json_body(completion(model, {"content": "Hello."}, timings={"prompt_n": 1}))


def test_name_and_arguments_are_streamed_before_the_call_is_complete(wire):
    written = threading.Event()
    head = '```tool_call\n{"name": "write_file", "arguments": {"path": "a", "content": "' + "x" * 2000
    start = events(chunk(wire.model, role="assistant", content=head), done=False)
    end = events(chunk(wire.model, content='end"}}\n```'), chunk(wire.model, finish_reason="stop"))
    wire.upstream.on(wire.model, Raw([start, written, end]))
    name, arguments = "", ""
    with wire.connect("text").chat.completions.create(model=wire.model, messages=HI, tools=TOOLS, stream=True) as chunks:
        for part in chunks:
            for call in part.choices[0].delta.tool_calls or () if part.choices else ():
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            if arguments.count("x") > 1500 and name == "write_file":
                written.set()
    assert written.is_set()
    assert {"path": "a", "content": "x" * 2000 + "end"} == json.loads(arguments)


def test_wrapped_client_keeps_the_api_of_the_client(upstream, model):
    listed = {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}]}
    upstream.on("/v1/models", json_body(listed))
    upstream.on(model, block(ROME))
    asked = {"model": model, "messages": HI, "tools": TOOLS}
    with wrapped_client(upstream.url, tools="text") as client:
        assert isinstance(client, openai.OpenAI)
        assert ["m"] == [listed.id for listed in client.models.list()]
        with_raw = client.chat.completions.with_raw_response.create(**asked)
        assert 200 == with_raw.http_response.status_code
        assert "get_weather" == with_raw.parse().choices[0].message.tool_calls[0].function.name
        assert "tool_calls" == client.with_options(max_retries=1).chat.completions.create(**asked).choices[0].finish_reason
        with client.chat.completions.stream(**asked) as streamed:
            final = streamed.get_final_completion()
        assert "get_weather" == final.choices[0].message.tool_calls[0].function.name
        stream = client.chat.completions.create(**asked, stream=True)
        assert isinstance(stream, openai.Stream)
        stream.close()


async def test_async_client_is_wrapped(upstream, model):
    upstream.on(model, block(ROME))
    async with patchbay.wrap(openai.AsyncOpenAI(base_url=upstream.url, api_key="k", max_retries=0), tools="text") as client:
        assert isinstance(client, openai.AsyncOpenAI)
        whole = await client.chat.completions.create(model=model, messages=HI, tools=TOOLS)
        names = [whole.choices[0].message.tool_calls[0].function.name]
        async for part in await client.chat.completions.create(model=model, messages=HI, tools=TOOLS, stream=True):
            names += [call.function.name for call in part.choices[0].delta.tool_calls or () if call.function.name]
    assert ["get_weather", "get_weather"] == names


def test_proxied_request_without_tools_is_forwarded_byte_for_byte(post, upstream, model, stream):
    upstream.on(model, "Hello.")
    fields = {"messages": [{"role": "user", "content": CACHED}], "x": 1.0, "seed": 12345678901234567890}
    body = json.dumps({"stream": stream, "model": model, **fields}, indent=1).encode()
    through = post(body)
    port = int(upstream.url.split(":")[2].split("/")[0])
    direct = ask(port, "POST", "/v1/chat/completions", body, headers={"content-type": "application/json"})
    assert direct.body == through.body
    assert [body, body] == [seen.body for seen in upstream.seen[model]]


def test_wrapped_request_without_tools_is_sent_byte_for_byte(upstream, model, stream):
    upstream.on(model, "Hello.")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": CACHED}]
    with wrapped_client(upstream.url) as wrapped, sdk_client(upstream.url) as bare:
        one, two = (chat(client, model, stream=stream, messages=messages) for client in (wrapped, bare))
    first, second = upstream.seen[model]
    assert second.body == first.body
    assert (two.first, len(two.chunks)) == (one.first, len(one.chunks))


def test_content_parts_keep_their_fields_with_tools(wire):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
    wire.ask("Hello.", stream=False, messages=[{"role": "user", "content": [*CACHED, image]}])
    assert [*CACHED, image] == wire.requests[0].json["messages"][-1]["content"]


def test_64_concurrent_streams_get_their_own_responses(upstream, post, model):
    together = threading.Barrier(64, timeout=PATIENCE)
    names = [upstream.on(f"{model}-{number}", f"Number {number}.\n{block(ROME)}\n") for number in range(64)]

    def one(name: str) -> tuple[int, bool, bool]:
        together.wait()
        response = post({"model": name, "messages": HI, "tools": TOOLS, "stream": True})
        chunks = [json.loads(line[6:]) for line in response.body.decode().split("\n") if line.startswith("data: {")]
        text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        return response.status, f"Number {name.rpartition('-')[2]}." in text, response.body.endswith(DONE)

    with ThreadPoolExecutor(64) as pool:
        assert [(200, True, True)] * 64 == list(pool.map(one, names))


def test_upstream_is_closed_when_a_client_leaves_mid_stream(wire):
    wire.upstream.on(wire.model, endless(wire.model))
    chunks = wire.connect("text").chat.completions.create(model=wire.model, messages=HI, tools=TOOLS, stream=True)
    assert next(iter(chunks)) is not None
    chunks.close()
    assert wire.requests[0].left.wait(PATIENCE)


def test_upstream_is_closed_when_the_client_of_a_whole_answer_leaves(proxies, post, upstream, model):
    upstream.on(model, shows_that_it_streams(model), endless(model))
    body = {"model": model, "messages": HI, "tools": TOOLS}
    assert 200 == post(body).status
    port = urlsplit(proxies("--tools", "text").url).port
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        upstream.wait_for(model, number=1)
    second = upstream.seen[model][1]
    assert second.left.wait(PATIENCE)
    assert (True, {"include_usage": True}) == (second.json["stream"], second.json["stream_options"])
    assert "text/event-stream" == second.headers["accept"]


async def test_cancelled_task_that_waits_for_a_whole_answer_of_a_wrapped_client_frees_the_server(upstream, model):
    upstream.on(model, shows_that_it_streams(model), endless(model))
    async with patchbay.wrap(openai.AsyncOpenAI(base_url=upstream.url, api_key="k", max_retries=0), tools="text") as client:
        await client.chat.completions.create(model=model, messages=HI, tools=TOOLS)
        task = asyncio.create_task(client.chat.completions.create(model=model, messages=HI, tools=TOOLS))
        await asyncio.to_thread(upstream.wait_for, model, number=1)
        task.cancel()
        await asyncio.wait([task])
    assert await asyncio.to_thread(upstream.seen[model][1].left.wait, PATIENCE)


def test_whole_answer_is_the_same_streamed_and_not(wire):
    model, text = wire.model, f"I look.\n{block(ROME)}"
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    whole = completion(model, {"content": text}, timings={"prompt_n": 1}, usage=usage)
    pieces = [chunk(model, role="assistant", content=piece) for piece in (text[:9], text[9:30], text[30:])]
    ends = chunk(model, finish_reason="stop"), {**chunk(model), "choices": [], "usage": usage, "timings": {"prompt_n": 1}}
    wire.upstream.on(model, json_body(whole), Raw([events({**chunk(model), "id": "c", "choices": []}, *pieces, *ends)]))
    client, answers = wire.connect("text"), []
    for _ in range(2):
        answer = client.chat.completions.create(model=model, messages=HI, tools=TOOLS).model_dump(exclude_unset=True)
        answer["choices"][0].pop("logprobs", None)  # (null in the second one)
        answer["choices"][0]["message"]["tool_calls"][0]["id"] = "random"
        answers.append({**answer, "id": "c"})
    assert [None, True] == [request.json.get("stream") for request in wire.requests]
    assert answers[0] == answers[1]
