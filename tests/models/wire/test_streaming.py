"""Streamed calls, transparent clients, many streams at once, and the end of the upstream response when a client leaves."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import openai

import patchbay
from patchbay.testing.script import DONE, Raw, events
from support.chat_clients import Proxy, chat, http_request, sdk_client, wrapped_client
from support.fenced_texts import ROME, TOOLS, block
from support.scripted_server import PATIENCE, SharedUpstream, chunk, completion, json_body

Connect = Callable[..., openai.OpenAI]


def test_name_and_arguments_are_streamed_before_the_call_is_complete(
    connect: Connect, upstream: SharedUpstream, model: str
) -> None:
    written = threading.Event()
    head = '```tool_call\n{"name": "write_file", "arguments": {"path": "a", "content": "' + "x" * 2000
    start = events(chunk(model, role="assistant", content=head), done=False)
    end = events(chunk(model, content='end"}}\n```'), chunk(model, finish_reason="stop"))
    upstream.on(model, Raw([start, written, end]))
    name, arguments = "", ""
    messages = [{"role": "user", "content": "Write."}]
    with connect().chat.completions.create(model=model, messages=messages, tools=TOOLS, stream=True) as chunks:
        for part in chunks:
            for call in part.choices[0].delta.tool_calls or () if part.choices else ():
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            if arguments.count("x") > 1500 and name == "write_file":
                written.set()
    assert written.is_set()
    assert {"path": "a", "content": "x" * 2000 + "end"} == json.loads(arguments)


def test_wrapped_client_keeps_the_api_of_the_client(upstream: SharedUpstream, model: str) -> None:
    upstream.on(
        "/v1/models",
        Raw(
            [b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x"}]}'],
            content_type="application/json",
        ),
    )
    upstream.on(model, block(ROME))
    messages = [{"role": "user", "content": "Weather?"}]
    with wrapped_client(upstream.url, tools="text") as client:
        assert isinstance(client, openai.OpenAI)
        assert ["m"] == [listed.id for listed in client.models.list()]
        with_raw = client.chat.completions.with_raw_response.create(model=model, messages=messages, tools=TOOLS)
        assert 200 == with_raw.http_response.status_code
        assert "get_weather" == with_raw.parse().choices[0].message.tool_calls[0].function.name
        other = client.with_options(max_retries=1).chat.completions.create(model=model, messages=messages, tools=TOOLS)
        assert "tool_calls" == other.choices[0].finish_reason
        with client.chat.completions.stream(model=model, messages=messages, tools=TOOLS) as streamed:
            final = streamed.get_final_completion()
        assert "get_weather" == final.choices[0].message.tool_calls[0].function.name
        stream = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, stream=True)
        assert isinstance(stream, openai.Stream)
        stream.close()


async def _ask_async(url: str, model: str) -> list[str]:
    names = []
    async with patchbay.wrap(openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0), tools="text") as client:
        assert isinstance(client, openai.AsyncOpenAI)
        messages = [{"role": "user", "content": "Weather?"}]
        whole = await client.chat.completions.create(model=model, messages=messages, tools=TOOLS)
        names.append(whole.choices[0].message.tool_calls[0].function.name)
        stream = await client.chat.completions.create(model=model, messages=messages, tools=TOOLS, stream=True)
        async for part in stream:
            names += [call.function.name for call in part.choices[0].delta.tool_calls or () if call.function.name]
    return names


def test_async_client_is_wrapped(upstream: SharedUpstream, model: str) -> None:
    upstream.on(model, block(ROME))
    assert ["get_weather", "get_weather"] == asyncio.run(_ask_async(upstream.url, model))


CACHED = [
    {"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": "two"},
]


def test_proxied_request_without_tools_is_forwarded_byte_for_byte(
    upstream: SharedUpstream, proxies: Callable[..., Proxy], model: str, stream: bool
) -> None:
    upstream.on(model, "Hello.")
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": CACHED}],
            "stream": stream,
            "model": model,
            "x": 1.0,
            "seed": 12345678901234567890,
        },
        indent=1,
    ).encode()
    headers = {"content-type": "application/json"}
    through = http_request(proxies("--tools", "text").port, "POST", "/v1/chat/completions", body, headers)
    direct = http_request(int(upstream.url.split(":")[2].split("/")[0]), "POST", "/v1/chat/completions", body, headers)
    assert direct.body == through.body
    assert [body, body] == [seen.body for seen in upstream.seen[model]]


def test_wrapped_request_without_tools_is_sent_byte_for_byte(upstream: SharedUpstream, model: str, stream: bool) -> None:
    upstream.on(model, "Hello.")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": CACHED}]
    with wrapped_client(upstream.url) as wrapped, sdk_client(upstream.url) as bare:
        one = chat(wrapped, model, stream=stream, messages=messages)
        two = chat(bare, model, stream=stream, messages=messages)
    first, second = upstream.seen[model]
    assert second.body == first.body
    assert (two.first, len(two.chunks)) == (one.first, len(one.chunks))


def test_content_parts_keep_their_fields_with_tools(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    upstream.on(model, "Hello.")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
    chat(connect(), model, stream=False, tools=TOOLS, messages=[{"role": "user", "content": [*CACHED, image]}])
    assert [*CACHED, image] == upstream.seen[model][0].json["messages"][-1]["content"]


def test_64_concurrent_streams_get_their_own_responses(
    upstream: SharedUpstream, proxies: Callable[..., Proxy], model: str
) -> None:
    together = threading.Barrier(64, timeout=PATIENCE)
    names = [upstream.on(f"{model}-{number}", f"Number {number}.\n{block(ROME)}\n") for number in range(64)]
    port = proxies("--tools", "text").port

    def one(name: str) -> tuple[int, bool, bool]:
        together.wait()
        body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "stream": True}
        response = http_request(port, "POST", "/v1/chat/completions", body)
        text = "".join(
            choice["delta"].get("content") or ""
            for line in response.body.decode().split("\n")
            if line.startswith("data: {")
            for choice in json.loads(line[6:])["choices"]
        )
        return response.status, f"Number {name.rpartition('-')[2]}." in text, response.body.endswith(DONE)

    with ThreadPoolExecutor(64) as pool:
        assert [(200, True, True)] * 64 == list(pool.map(one, names))


def test_upstream_is_closed_when_a_client_leaves_mid_stream(upstream: SharedUpstream, connect: Connect, model: str) -> None:
    upstream.on(model, Raw([events(chunk(model, role="assistant", content="Hello there, "), done=False)], end="hang"))
    messages = [{"role": "user", "content": "Hi"}]
    chunks = connect().chat.completions.create(model=model, messages=messages, tools=TOOLS, stream=True)
    assert next(iter(chunks)) is not None
    chunks.close()
    assert upstream.seen[model][0].left.wait(PATIENCE)


def _shows_that_it_streams(model: str) -> dict[str, Any]:
    return completion(model, {"content": "Hello."}, timings={"prompt_n": 1})


def test_upstream_is_closed_when_the_client_of_a_whole_answer_leaves(
    proxies: Callable[..., Proxy], upstream: SharedUpstream, model: str
) -> None:
    endless = Raw([events(chunk(model, role="assistant", content="Hello there, "), done=False)], end="hang")
    upstream.on(model, json_body(_shows_that_it_streams(model)), endless)
    proxy = proxies("--tools", "text")
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
    assert 200 == http_request(proxy.port, "POST", "/v1/chat/completions", body).status
    with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=PATIENCE)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        upstream.wait_for(model, number=1)
    second = upstream.seen[model][1]
    assert second.left.wait(PATIENCE)
    assert (True, {"include_usage": True}, "text/event-stream") == (
        second.json["stream"],
        second.json["stream_options"],
        second.headers["accept"],
    )


def test_task_that_waits_for_a_whole_answer_of_a_wrapped_client_frees_the_server_when_it_is_cancelled(
    upstream: SharedUpstream, model: str
) -> None:
    endless = Raw([events(chunk(model, role="assistant", content="Hello there, "), done=False)], end="hang")
    upstream.on(model, json_body(_shows_that_it_streams(model)), endless)

    async def leave() -> None:
        async with patchbay.wrap(openai.AsyncOpenAI(base_url=upstream.url, api_key="k", max_retries=0), tools="text") as client:
            messages: Any = [{"role": "user", "content": "Hi"}]
            tools: Any = TOOLS
            await client.chat.completions.create(model=model, messages=messages, tools=tools)
            task = asyncio.create_task(client.chat.completions.create(model=model, messages=messages, tools=tools))
            await asyncio.to_thread(upstream.wait_for, model, number=1)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(leave())
    assert upstream.seen[model][1].left.wait(PATIENCE)


def test_whole_answer_is_the_same_streamed_and_not(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    text = f"I look.\n{block(ROME)}"
    whole = completion(model, {"content": text}, timings={"prompt_n": 1}, usage=usage)
    pieces = [chunk(model, role="assistant", content=piece) for piece in (text[:9], text[9:30], text[30:])]
    ends = chunk(model, finish_reason="stop"), {**chunk(model), "choices": [], "usage": usage, "timings": {"prompt_n": 1}}
    upstream.on(model, json_body(whole), Raw([events({**chunk(model), "id": "c", "choices": []}, *pieces, *ends)]))
    client = connect()
    answers = []
    for _ in range(2):
        messages: Any = [{"role": "user", "content": "Weather?"}]
        answer = client.chat.completions.create(model=model, messages=messages, tools=TOOLS).model_dump(exclude_unset=True)
        answer["choices"][0].pop("logprobs", None)  # (null in the second one)
        answer["choices"][0]["message"]["tool_calls"][0]["id"] = "random"
        answers.append({**answer, "id": "c"})
    assert [None, True] == [request.json.get("stream") for request in upstream.seen[model]]
    assert answers[0] == answers[1]
