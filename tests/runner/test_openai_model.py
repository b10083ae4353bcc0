"""OpenAIChatModel reads whole and streamed answers alike, from either client, over a real socket; and stopping it stops the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from patchbay.errors import UpstreamError, UpstreamTimeoutError
from patchbay.models.chat_model import ChatRequest, ModelEvent, ModelReply, ReasoningDelta, TextDelta
from patchbay.models.openai import OpenAIChatModel, blocking_chunks
from patchbay.testing import Message, Raw, ScriptedUpstream, events
from patchbay.types import IncompleteCall, Reply, ToolCall, ToolSpec, Usage
from support.running import run

TOOL = ToolSpec("get_weather", "Tell it.", {"type": "object", "properties": {"city": {"type": "string"}}})
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
OTHER = {"id": "c2", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}


@contextmanager
def model_of(script: Any, kind: str, **options: Any) -> Iterator[tuple[OpenAIChatModel, ScriptedUpstream, Callable[[Any], Any]]]:
    """A model over a real client of a scripted server, and ``run`` for coroutines: it closes the client in the loop that used it."""
    with ScriptedUpstream(script) as upstream:
        client_class = openai.AsyncOpenAI if kind == "async" else openai.OpenAI
        client: Any = client_class(base_url=upstream.url, api_key="unused", max_retries=0, **options)

        async def bounded(coroutine: Any) -> Any:
            try:
                return await asyncio.wait_for(coroutine, 60)
            finally:
                closing = client.close()
                if closing is not None:
                    await closing

        yield OpenAIChatModel(client), upstream, lambda coroutine: asyncio.run(bounded(coroutine))


async def collect(model: OpenAIChatModel, request: ChatRequest) -> list[ModelEvent]:
    return [event async for event in model.respond(request)]


def request(**options: Any) -> ChatRequest:
    return ChatRequest([{"role": "user", "content": "hi"}], parameters={"model": "m"}, **options)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def ask(answer: Any, kind: str, *, stream: bool, **options: Any) -> tuple[list[ModelEvent], dict[str, Any]]:
    with model_of([answer], kind) as (model, upstream, run):
        got = run(collect(model, request(stream=stream, **options)))
        return got, upstream.chats[0].json


def reply_of(got: list[ModelEvent]) -> ModelReply:
    assert isinstance(got[-1], ModelReply)
    return got[-1]


def test_a_text_is_the_reply_and_its_deltas_add_up_to_it(kind, stream):
    got, body = ask("Hello, world.", kind, stream=stream)
    end = reply_of(got)
    assert (Reply("Hello, world."), "stop") == (end.reply, end.finish_reason)
    assert end.usage.total_tokens > 0
    assert ("m", [{"role": "user", "content": "hi"}]) == (body["model"], body["messages"])
    assert "tools" not in body
    if stream:
        assert {"include_usage": True} == body["stream_options"]
        assert "Hello, world." == "".join(event.text for event in got if isinstance(event, TextDelta))


def test_calls_are_read_and_tools_are_sent(kind, stream):
    answer = Message({"role": "assistant", "content": "let me", "tool_calls": [CALL, OTHER]}, finish_reason="tool_calls", piece=3)
    got, body = ask(answer, kind, stream=stream, tools=[TOOL], tool_choice="required")
    end = reply_of(got)
    assert (
        ToolCall("c1", "get_weather", '{"city": "Rome"}'),
        ToolCall("c2", "get_weather", '{"city": "Oslo"}'),
    ) == end.reply.tool_calls
    assert ("let me", "tool_calls") == (end.reply.content, end.finish_reason)
    assert ([TOOL.to_openai()], "required") == (body["tools"], body["tool_choice"])


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_from_either_field(kind, stream, field):
    got, _ = ask(Message({"role": "assistant", "content": "x", field: "hmm, well"}), kind, stream=stream)
    assert ("x", "hmm, well") == (reply_of(got).reply.content, reply_of(got).reply.reasoning)
    if stream:
        assert "hmm, well" == "".join(event.text for event in got if isinstance(event, ReasoningDelta))


def test_refusal_is_the_text_of_the_answer(kind, stream):
    got, _ = ask(Message({"role": "assistant", "content": None, "refusal": "I will not."}), kind, stream=stream)
    assert "I will not." == reply_of(got).reply.content


def test_truncated_call_is_incomplete_and_the_complete_one_before_it_is_kept(kind, stream):
    cut = {"id": "c2", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Os'}}
    answer = Message({"role": "assistant", "content": None, "tool_calls": [CALL, cut]}, finish_reason="length")
    end = reply_of(ask(answer, kind, stream=stream)[0])
    assert ["c1"] == [call.id for call in end.reply.tool_calls]
    assert (IncompleteCall("c2", "get_weather", '{"city": "Os', '{"city": "Os'),) == end.reply.incomplete
    assert "length" == end.finish_reason


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"city": Rome}', '{"city": "Rome"}'),
        ('{"city": "Rome"', '{"city": "Rome"}'),
        ("[1]", "[1]"),
        ('{"city": "Ro', '{"city": "Ro'),
    ],
    ids=["repaired", "closed", "a list", "cut off"],
)
def test_damaged_arguments_are_repaired_or_left_to_the_executor(kind, stream, written, read):
    wrong = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": written}}
    answer = Message({"role": "assistant", "content": None, "tool_calls": [wrong]}, finish_reason="tool_calls")
    end = reply_of(ask(answer, kind, stream=stream, tools=[TOOL])[0])
    assert (read, ()) == (end.reply.tool_calls[0].raw_arguments, end.reply.incomplete)


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **rest: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **rest}


def piece(index: int | None, id_: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    "deltas",
    [
        [piece(0, "a", "f", "{}"), piece(0, "b", "g", '{"x":'), piece(0, None, None, "1}")],
        [piece(0, "a", "f", ""), piece(1, "b", "g", '{"x":'), piece(0, None, None, "{}"), piece(1, None, None, "1}")],
        [piece(None, "a", "f", "{}"), piece(None, "b", "g", '{"x":1}')],
        [piece(0, "a", "f", "{}"), piece(0, "a", "f", ""), piece(1, "b", "g", {"x": 1})],
    ],
    ids=["one index for all", "interleaved", "no index", "repeated id and object"],
)
def test_streamed_calls_are_separated_for_any_indexing(deltas):
    class Client:
        """A look-alike of the SDK's client whose answers are plain dicts."""

        class chat:  # noqa: N801  (the SDK's name)
            class completions:  # noqa: N801
                @staticmethod
                def create(**_: Any) -> Any:
                    return iter([*(chunk(delta) for delta in deltas), chunk({}, "tool_calls")])

    end = reply_of(run(collect(OpenAIChatModel(Client), request(stream=True))))
    assert [("a", "f"), ("b", "g")] == [(call.id, call.name) for call in end.reply.tool_calls]
    assert [{}, {"x": 1}] == [json.loads(call.raw_arguments) for call in end.reply.tool_calls]


def test_a_look_alike_with_async_methods_works_too(stream):
    class Client:
        class chat:  # noqa: N801
            class completions:  # noqa: N801
                @staticmethod
                async def create(*, stream: bool = False, **_: Any) -> Any:
                    async def chunks() -> Any:
                        yield chunk({"content": "x"})
                        yield chunk({}, "stop", usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3})

                    if stream:
                        return chunks()
                    return {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": {"total_tokens": 3}}

    end = reply_of(run(collect(OpenAIChatModel(Client), request(stream=stream))))
    assert ("x", 3) == (end.reply.content, end.usage.total_tokens)


def test_usage_is_read_from_any_chunk():
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    answer = Raw([events(chunk({"content": "x"}, usage=usage), chunk({}, "stop"))])
    assert Usage(1, 2, 3) == reply_of(ask(answer, "async", stream=True)[0]).usage


FAILURES = {
    "status": Raw([b'{"error": {"message": "CUDA OOM"}}'], status=500, content_type="application/json"),
    "error under 200": Raw([b'{"error": {"message": "CUDA OOM"}}'], content_type="application/json"),
    "html": Raw([b"<html>CUDA OOM</html>"], content_type="text/html"),
    "no choices": Raw([b'{"choices": [], "note": "CUDA OOM"}'], content_type="application/json"),
}
STREAM_FAILURES = {
    "status": FAILURES["status"],
    "error event": Raw([events(chunk({"content": "x"}), {"error": {"message": "CUDA OOM"}})]),
    "cut": Raw([events(chunk({"content": "x"}), done=False)], end="cut"),
    "ended early": Raw([events(chunk({"content": "x"}), done=False)]),
    "nothing": Raw([]),
    "half a line": Raw([events(chunk({"content": "x"}), done=False), b'data: {"choi\n\n']),
}


@pytest.mark.parametrize("answer", FAILURES.values(), ids=FAILURES)
def test_a_failing_server_is_an_upstream_error_with_its_words(kind, answer):
    with pytest.raises(UpstreamError, match="CUDA OOM") as caught:
        ask(answer, kind, stream=False)
    if answer.status != 200:
        assert 500 == caught.value.upstream_status
        assert isinstance(caught.value.__cause__, openai.APIError)


@pytest.mark.parametrize("answer", STREAM_FAILURES.values(), ids=STREAM_FAILURES)
def test_failed_stream_never_ends_cleanly(kind, answer):
    with pytest.raises(UpstreamError):
        ask(answer, kind, stream=True)


def test_a_server_that_never_answers_is_a_timeout(kind, stream):
    with model_of([Raw([], end="hang")], kind, timeout=0.2) as (model, _, run), pytest.raises(UpstreamTimeoutError):
        run(collect(model, request(stream=stream)))


def test_client_error_stays_a_client_error(kind):
    with model_of([], kind) as (model, _, run), pytest.raises(TypeError):
        run(collect(model, ChatRequest([], parameters={"model": "m", "extra_headers": 1})))


def test_server_without_stream_options_is_remembered(kind):
    def script(body: dict[str, Any]) -> Any:
        if "stream_options" in body:
            return Raw([b'{"error": {"message": "unknown field stream_options"}}'], status=400, content_type="application/json")
        return "fine"

    async def main(model: OpenAIChatModel) -> list[str | None]:
        return [reply_of(await collect(model, request(stream=True))).reply.content for _ in range(2)]

    with model_of(script, kind) as (model, upstream, run):
        assert ["fine", "fine"] == run(main(model))
        assert [True, False, False] == ["stream_options" in chat.json for chat in upstream.chats]


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_stopping_a_stream_frees_the_server(kind, how):
    answer = Raw([events(chunk({"content": "Hello"}), done=False)], end="hang")

    async def main(model: OpenAIChatModel) -> None:
        responses = model.respond(request(stream=True))
        assert TextDelta("Hello") == await anext(responses)
        if how == "cancel":
            waiting = asyncio.create_task(anext(responses))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await responses.aclose()
        assert await asyncio.to_thread(upstream.chats[0].left.wait, 30)

    with model_of([answer], kind) as (model, upstream, run):
        run(main(model))


def test_a_stream_that_opens_after_its_caller_left_is_closed():
    async def main(model: OpenAIChatModel) -> None:
        task = asyncio.create_task(collect(model, request(stream=True)))
        while not upstream.chats:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(upstream.chats[0].left.wait, 30)

    # The first bytes come after the cancellation at the earliest: the server writes its headers with them.
    answer = Raw([events(chunk({"content": "x"}), done=False)], end="hang", gap=0.05)
    with model_of([answer], "sync") as (model, upstream, run):
        run(main(model))


async def test_slow_reader_applies_backpressure_to_the_thread():
    read = []

    def numbers() -> Iterator[int]:
        for number in range(1000):
            read.append(number)
            yield number

    chunks = blocking_chunks(numbers())
    assert 0 == await anext(chunks)
    while len(read) < 50:  # the thread runs
        await asyncio.sleep(0)
    ahead = [len(read) - chunk async for chunk in chunks]
    assert (999, True) == (len(ahead), max(ahead) < 100)
