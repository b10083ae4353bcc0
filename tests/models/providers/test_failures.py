"""What goes wrong between a model and its server: the error says what and where, holds no key, and nothing is left running."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable
from typing import Any

import openai
import pytest

import patchbay
from patchbay import ToolRunner
from patchbay.errors import ConfigurationError, InvalidRequestError, ToolChoiceError, UpstreamError
from patchbay.models.openai import OpenAIChatModel
from patchbay.models.resolve import resolve_model
from patchbay.testing import Message, Raw, ScriptedUpstream, Text, events
from patchbay.testing.script import error
from support.scripted_server import SharedUpstream

from .conftest import QUESTION, WEATHER, cancel_closes_response, first_event, reply_of, run
from .test_chat_providers import piece

KEY = "my-own-secret-key-7"


def model_at(server: ScriptedUpstream, **options: Any) -> Any:
    return resolve_model(f"{server.url}#m", **{"api_key": KEY, "max_retries": 0, **options})


def failure_of(model: Any, **asked: Any) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        run(model, reply_of(model, [QUESTION], **asked))
    return caught.value


@pytest.fixture(params=[(), (WEATHER,)], ids=["without tools", "with tools"])
def tools(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_an_http_error_has_its_status_and_the_servers_words(status: int, tools: Any, stream: bool) -> None:
    with ScriptedUpstream(lambda _: error(status, "Try it tomorrow.")) as server:
        failure = failure_of(model_at(server), tools=tools, stream=stream)
    assert status == failure.upstream_status
    assert f"The model's server answered HTTP {status}: Try it tomorrow." == str(failure)


def test_key_is_redacted_from_errors_and_logs(tools: Any, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with ScriptedUpstream(lambda _: error(401, f"Incorrect API key provided: {KEY}.")) as server:
        model = model_at(server)
        failure = failure_of(model, tools=tools, stream=stream)
    assert "Incorrect API key provided: [redacted]." in str(failure)
    shown = "".join(traceback.format_exception(failure)) + failure.body + repr(failure) + repr(model) + caplog.text
    assert KEY not in shown


def test_key_of_the_callers_client_is_redacted_from_errors() -> None:
    with ScriptedUpstream(lambda _: error(401, f"No such key: {KEY}")) as server:

        async def ask() -> None:
            async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
                await reply_of(OpenAIChatModel(client, model="m"), [QUESTION])

        with pytest.raises(UpstreamError) as caught:
            asyncio.run(asyncio.wait_for(ask(), 60))
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_unreachable_server_error_has_its_url_and_the_reason() -> None:
    model = resolve_model("http://127.0.0.1:9/v1#m", max_retries=0)
    text = str(failure_of(model))
    assert "http://127.0.0.1:9/v1/chat/completions" in text
    assert "onnection" in text.partition("reached")[2]  # the system's reason, behind what we say


def test_a_path_that_does_not_exist_is_named(tools: Any) -> None:
    with ScriptedUpstream(lambda _: error(404, "Not Found")) as server:
        text = str(failure_of(model_at(server), tools=tools))
    assert f"{server.url}/chat/completions" in text
    assert "HTTP 404" in text


def test_html_page_is_an_error_that_quotes_it(tools: Any, stream: bool) -> None:
    page = Raw([b"<html>Welcome to nginx</html>"], content_type="text/html")
    with ScriptedUpstream(lambda _: page) as server:
        failure = failure_of(model_at(server), tools=tools, stream=stream)
    if tools or not stream:  # a stream of no events has no words to show
        assert "Welcome to nginx" in str(failure)
    assert failure.upstream_status is None  # the server did not say 502


@pytest.mark.parametrize("status", [302, 307])
def test_key_is_not_sent_to_a_redirect(status: int, tools: Any) -> None:
    with ScriptedUpstream(lambda _: "Clear.") as other:
        target = f"{other.url.replace('127.0.0.1', 'localhost')}/chat/completions"
        redirect = Raw([], status=status, headers=[("location", target)])
        with ScriptedUpstream(lambda _: redirect) as server:
            model = model_at(server)
            if status == 307:
                assert "Clear." == run(model, reply_of(model, [QUESTION], tools=tools)).reply.content
            else:  # turns a POST into a GET, which no such server answers
                assert f"redirect to {target}" in str(failure_of(model, tools=tools))
        assert other.requests
        assert not any(KEY in str(request.headers) for request in other.requests)


BEGUN = piece({"role": "assistant", "content": "It is "})
CUTS: dict[str, Raw] = {
    "connection lost": Raw([events(BEGUN, done=False)], end="cut"),
    "connection lost in an event": Raw([events(BEGUN, done=False) + b'data: {"choices"'], end="cut"),
    "ended without an end": Raw([events(BEGUN, done=False)]),
    "ended in a call": Raw(
        [
            events(
                piece({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": '{"ci'}}]}),
                done=False,
            )
        ]
    ),
    "an error": Raw([events(BEGUN, {"error": {"message": "CUDA OOM"}}, done=False)]),
    "nothing": Raw([]),
}


@pytest.mark.parametrize("answer", CUTS.values(), ids=CUTS)
def test_a_stream_that_is_cut_is_an_error(answer: Raw, tools: Any) -> None:
    with ScriptedUpstream(lambda _: answer) as server:
        failure_of(model_at(server), tools=tools, stream=True)


def test_truncated_whole_answer_is_an_error(tools: Any) -> None:
    half = Raw([b'{"choices": [{"index": 0, "message": {"con'], content_type="application/json", end="cut")
    with ScriptedUpstream(lambda _: half) as server:
        failure_of(model_at(server), tools=tools)


@pytest.mark.parametrize("begun", [b"", events(BEGUN, done=False)], ids=["silent", "begun"])
def test_cancellation_closes_the_response(begun: bytes, tools: Any, stream: bool) -> None:
    arrived = threading.Event()

    def script(_: Any) -> Raw:
        arrived.set()
        return Raw([begun] if begun else [], end="hang")

    with ScriptedUpstream(script) as server:
        model = model_at(server)
        assert cancel_closes_response(model, server, arrived, tools=tools, stream=stream)


def test_leaving_a_stream_closes_the_response(tools: Any) -> None:
    with ScriptedUpstream(lambda _: Raw([events(BEGUN, done=False)], end="hang")) as server:
        model = model_at(server, tool_mode="native")
        assert "It is " == first_event(model, tools).text
        assert server.requests[0].left.wait(30)


def test_ignored_tool_choice_is_a_tool_choice_error(stream: bool) -> None:
    """As with Gemini: it is no failure of the server's."""
    with ScriptedUpstream(lambda _: "I would rather not.") as server:
        model = model_at(server, tool_mode="native", choice_rounds=1)
        with pytest.raises(ToolChoiceError, match="asked 2 times"):
            run(model, reply_of(model, [QUESTION], tool_choice="required", stream=stream))


def test_unknown_tool_choice_is_an_invalid_request_error() -> None:
    choice = {"type": "function", "function": {"name": "no_such_tool"}}
    with ScriptedUpstream([]) as server:
        model = model_at(server)
        with pytest.raises(InvalidRequestError, match="no_such_tool") as caught:
            run(model, reply_of(model, [QUESTION], tool_choice=choice))
    assert ("tool_choice", []) == (caught.value.param, server.requests)


@pytest.mark.parametrize(
    "listed",
    [b"{}", b"[]", b"null", b"<html>", b'{"data": null}', b'{"data": [{}]}', b'{"data": [{"id": 3}]}', b'{"data": ["m"]}'],
)
def test_empty_model_list_requires_a_name(listed: bytes) -> None:
    with SharedUpstream() as server:
        server.on("/v1/models", Raw([listed], content_type="text/html" if listed.startswith(b"<") else "application/json"))
        model = resolve_model(server.url)
        with pytest.raises(ConfigurationError, match=f"names no model.*{server.url}#name"):
            run(model, reply_of(model, [QUESTION]))


def get_weather(city: str) -> str:
    """Tell the weather."""
    return f"clear in {city}"


CALL: Callable[[], Message] = lambda: Message(  # noqa: E731
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}],
    },
    finish_reason="tool_calls",
)


def run_error(runner: ToolRunner) -> Any:
    """What ``run_sync`` gives; its connections are kept in the loop in the background, where they are closed."""
    try:
        return runner.run_sync("How is Rome?").content
    finally:
        runner.close()


def test_a_user_names_a_server_and_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedUpstream([CALL(), Text("Clear."), CALL(), Text("Clear.")]) as server:
        assert "Clear." == run_error(ToolRunner(f"{server.url}#m", tools=[get_weather]))
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert "Clear." == run_error(ToolRunner("m", tools=[get_weather]))
    assert [False, False, True, True] == [KEY in request.headers["authorization"] for request in server.chats]


def test_wrong_key_error_quotes_the_server() -> None:
    with ScriptedUpstream(lambda _: error(401, "Incorrect API key provided.")) as server:
        runner = ToolRunner(f"{server.url}#m", tools=[get_weather], api_key=KEY)
        with pytest.raises(UpstreamError, match=r"HTTP 401: Incorrect API key provided\.") as caught:
            run_error(runner)
    assert 401 == caught.value.upstream_status


def test_undecodable_answer_is_an_error_and_closes_the_response(stream: bool) -> None:
    packed = Raw([b"this is no gzip"], headers=[("content-encoding", "gzip")], end="hang")
    with ScriptedUpstream(lambda _: packed) as server:
        model = model_at(server)

        async def ask() -> bool:
            with pytest.raises(UpstreamError):
                await reply_of(model, [QUESTION], stream=stream)
            return await asyncio.to_thread(server.requests[0].left.wait, 30)

        assert run(model, ask())


@pytest.mark.parametrize("places", [(0, 1, 2, 3), (0, 0, 0, 0)], ids=["a place each", "one place"])
def test_streamed_calls_without_ids_get_ids(places: tuple[int, ...]) -> None:
    """By the wrapped client itself, for its caller: otherwise results could not be matched."""
    named = [
        {"index": index, "type": "function", "function": {"name": "get_weather", "arguments": "{}"}, **ids}
        for index, ids in zip(places, ({}, {"id": ""}, {"id": "a"}, {"id": "a"}), strict=True)
    ]
    answer = Raw([events(*(piece({"tool_calls": [call]}) for call in named), piece({}, "tool_calls"))])
    with ScriptedUpstream(lambda _: answer) as server:

        async def ask() -> list[tuple[int, str]]:
            async with patchbay.wrap(openai.AsyncOpenAI(base_url=server.url, api_key="k"), tools="native") as client:
                stream: Any = await client.chat.completions.create(
                    model="m", messages=[QUESTION], tools=[WEATHER.to_openai()], stream=True
                )
                deltas = [call async for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
                return [(call.index, call.id) for call in deltas if call.id]

        given = asyncio.run(asyncio.wait_for(ask(), 60))
    ids = [call_id for _, call_id in given]
    assert [0, 1, 2, 3] == [place for place, _ in given]
    assert (4, 4, True) == (len(ids), len(set(ids)), all(ids))
    assert "a" in ids
