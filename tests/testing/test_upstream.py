"""The scripted upstream is a real server: what it plays is what arrives, whole or broken as the script says."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from urllib.parse import urlsplit

import openai
import pytest

from patchbay.testing import Message, Raw, ScriptedUpstream, Text, events, pieces
from support.processes import Process

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def connect():
    """Open a client on an upstream, without retries; closed at the end."""
    clients = []

    def connect(upstream: ScriptedUpstream) -> openai.OpenAI:
        clients.append(openai.OpenAI(base_url=upstream.url, api_key="unused", max_retries=0, timeout=60))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@contextmanager
def post(upstream: ScriptedUpstream, body: object) -> Iterator[http.client.HTTPResponse]:
    """Send a chat request and look at the bytes of its answer; leaving the block closes the connection."""
    address = urlsplit(upstream.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    with closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        with connection.getresponse() as response:
            yield response


def test_responses_follow_the_script_and_its_end_is_reported(connect):
    with ScriptedUpstream(["one", Text("two", finish_reason="length")]) as upstream:
        client = connect(upstream)
        first = client.chat.completions.create(model="m", messages=HELLO)
        second = client.chat.completions.create(model="m", messages=HELLO)
        assert "one" == first.choices[0].message.content
        assert ("two", "length") == (second.choices[0].message.content, second.choices[0].finish_reason)
        with pytest.raises(openai.InternalServerError, match="The script is over: it has 2 answers"):
            client.chat.completions.create(model="m", messages=HELLO)


def test_streamed_pieces_join_to_the_text(connect):
    text = "Grüße, 世界 🙂, in pieces."
    with ScriptedUpstream([Text(text, piece=3)]) as upstream:
        chunks = list(connect(upstream).chat.completions.create(model="m", messages=HELLO, stream=True))
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert text == "".join(deltas)
    assert all(len(delta) <= 3 for delta in deltas)
    assert "stop" == chunks[-1].choices[0].finish_reason


def test_upstream_refuses_tools_like_ollama_or_ignores_them_like_lm_studio(connect):
    with ScriptedUpstream(["never said"], tools="refuse") as upstream:
        with pytest.raises(openai.BadRequestError, match="small does not support tools"):
            connect(upstream).chat.completions.create(model="small", messages=HELLO, tools=TOOLS)
        assert TOOLS == upstream.chats[0].json["tools"]
    with ScriptedUpstream(lambda body: f"{body['model']} was asked {body['messages'][-1]['content']}") as upstream:
        answer = connect(upstream).chat.completions.create(model="m", messages=HELLO, tools=TOOLS)
    assert ("m was asked hello", None) == (answer.choices[0].message.content, answer.choices[0].message.tool_calls)


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_of_n_is_answered(connect, stream):
    with ScriptedUpstream(["same"]) as upstream:
        answer = connect(upstream).chat.completions.create(model="m", messages=HELLO, n=2, stream=stream)
        if stream:
            texts = ["", ""]
            for chunk in answer:
                texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        else:
            texts = [choice.message.content for choice in answer.choices]
    assert ["same", "same"] == texts


def test_requested_usage_has_its_own_chunk(connect):
    with ScriptedUpstream(["words here"]) as upstream:
        stream = connect(upstream).chat.completions.create(
            model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        *_, last = stream
    assert [] == last.choices
    assert last.usage.prompt_tokens + last.usage.completion_tokens == last.usage.total_tokens


def test_a_message_with_native_calls_streams_as_openai_streams_it(connect):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"at": "the sea"}'},
    }
    script = [Message({"content": "Well.", "tool_calls": [call]}, finish_reason="tool_calls")]
    with (
        ScriptedUpstream(script) as upstream,
        connect(upstream).chat.completions.stream(model="m", messages=HELLO) as stream,
    ):
        message = stream.get_final_completion().choices[0].message
    assert "Well." == message.content
    assert [call["function"]] == [{"name": c.function.name, "arguments": c.function.arguments} for c in message.tool_calls]


def test_raw_bytes_arrive_as_they_are_with_their_status_and_headers():
    data = events({"odd": True}, "not json").replace(b"\n", b"\r\n")
    raw = Raw(pieces(data, 1), status=203, content_type="text/plain", headers=[("X-Request-Id", "7")])
    with ScriptedUpstream([raw]) as upstream, post(upstream, {"model": "m", "messages": HELLO}) as response:
        seen = response.headers
        assert (203, "text/plain", "7") == (response.status, seen["content-type"], seen["x-request-id"])
        assert data == response.read()


def test_a_cut_answer_ends_before_its_body_does():
    with (
        ScriptedUpstream([Raw([b"data: {"], end="cut")]) as upstream,
        post(upstream, {"model": "m", "messages": HELLO}) as response,
        pytest.raises(http.client.IncompleteRead),
    ):
        response.read()


def test_client_that_abandons_a_hanging_response_is_noticed():
    with ScriptedUpstream([Raw([b": hello\n\n"], end="hang")]) as upstream:
        with post(upstream, {"model": "m", "messages": HELLO}) as response:
            assert b": hello\n" == response.readline()
            assert not upstream.chats[0].left.is_set()
        assert upstream.chats[0].left.wait(30)
        assert not upstream.chats[0].answered.is_set()


def test_upstream_stops_while_a_client_waits():
    with ExitStack() as client:
        with ScriptedUpstream([Raw([b": hello\n\n"], end="hang")]) as upstream:
            response = client.enter_context(post(upstream, {"model": "m", "messages": HELLO}))
            response.readline()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((urlsplit(upstream.url).hostname, urlsplit(upstream.url).port), timeout=5)


def test_other_paths_echo_the_request(connect):
    with ScriptedUpstream([]) as upstream:
        client = connect(upstream)
        assert ["scripted-model"] == [model.id for model in client.models.list()]
        echoed = client.post("/embeddings?limit=2", body={"input": "x"}, cast_to=object)
        assert ("POST", "/v1/embeddings", "limit=2") == (echoed["method"], echoed["path"], echoed["query"])
        assert ["/v1/models", "/v1/embeddings"] == [request.path for request in upstream.requests]
        with post(upstream, [1]) as response:
            assert 400 == response.status


def test_record_has_each_chat_request_and_its_response(connect, tmp_path):
    record = tmp_path / "record.jsonl"
    with ScriptedUpstream(["first"], tools="refuse", record=record) as upstream:
        client = connect(upstream)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS)
        client.chat.completions.create(model="m", messages=HELLO)
    entries = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(400, "m does not support tools"), (200, "first")] == [(e["status"], e["answer"]) for e in entries]
    assert HELLO == entries[1]["request"]["messages"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_upstream_command_serves_until_stopped(how, connect):
    command = [sys.executable, "-m", "patchbay.testing.upstream"]
    with Process(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().split()[-1]
            client = openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=60)
            answer = client.chat.completions.create(model="m", messages=HELLO)
            client.close()
            assert "(scripted model) I know only the fenced format, and my prompt names no tools in it. I was told: hello" == (
                answer.choices[0].message.content
            )
            process.send_signal(how)
            assert 0 == process.wait(30)
        finally:
            process.kill()
