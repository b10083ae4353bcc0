"""Failures inside a stream reach the client as errors, and every valid spelling of a stream is read."""

from __future__ import annotations

import http.client
import importlib
import json
import threading
from collections.abc import Callable
from importlib.util import find_spec

import openai
import pytest

from patchbay.testing.script import DONE, Raw, Text, events, pieces
from support.chat_clients import Proxy, chat, http_request, sse_payloads
from support.fenced_texts import ROME, TOOLS, block, words
from support.scripted_server import PATIENCE, SharedUpstream, chunk, completion, json_body

Connect = Callable[..., openai.OpenAI]
Proxies = Callable[..., Proxy]

HTTP_CLIENTS = [importlib.import_module(name) for name in ("httpx", "httpx2") if find_spec(name)]
"""What the ``openai`` package may stand on; which one depends on its version."""

FAILURES = {
    "error object in a data line": b'data: {"error":{"message":"CUDA OOM"}}\n\n',
    "error event": b'event: error\ndata: {"message":"CUDA OOM"}\n\n',
    "error as a string": b'data: {"error":"CUDA OOM"}\n\n',
    "error object at the top": b'data: {"object":"error","message":"CUDA OOM","type":"InternalServerError","code":500}\n\n',
    "detail": b'data: {"detail":"CUDA OOM"}\n\n',
    "error with a status": b'data: {"error":{"message":"CUDA OOM","type":"server_error","code":500}}\n\n',
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("begun", [False, True], ids=["at once", "after text"])
def test_error_inside_a_stream_is_raised(
    connect: Connect, upstream: SharedUpstream, model: str, failure: bytes, begun: bool
) -> None:
    before = events(chunk(model, role="assistant", content="Hello, this was"), done=False) if begun else b""
    upstream.on(model, Raw([before + failure + DONE]))
    with pytest.raises(openai.APIError, match="CUDA OOM"):
        chat(connect(), model, stream=True, tools=TOOLS)


def test_text_after_the_finish_reason_is_tolerated(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    chunks = (
        chunk(model, role="assistant", content="Hello."),
        chunk(model, finish_reason="stop"),
        chunk(model, content=" Late."),
    )
    upstream.on(model, Raw([events(*chunks)]))
    answer = chat(connect(), model, stream=True, tools=TOOLS)
    assert answer.first.content in ("Hello.", "Hello. Late.")
    assert "stop" == answer.first.finish_reason


def test_error_event_is_the_last_of_a_proxied_stream(proxies: Proxies, upstream: SharedUpstream, model: str) -> None:
    before = events(chunk(model, role="assistant", content="Hello, this was"), done=False)
    shown = threading.Event()
    upstream.on(model, Raw([before, shown, FAILURES["error object in a data line"] + DONE]))
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", proxies("--tools", "text").port, timeout=PATIENCE)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        begun = response.readline()
        while b"Hello" not in begun:
            begun += response.readline()
        shown.set()
        payloads = sse_payloads(begun + response.read())
    finally:
        connection.close()
    assert 200 == response.status
    assert "[DONE]" not in payloads
    assert "CUDA OOM" in json.loads(payloads[-1])["error"]["message"]


def test_error_object_with_status_200_is_raised(connect: Connect, upstream: SharedUpstream, model: str, stream: bool) -> None:
    upstream.on(model, Raw([b'{"error":{"message":"CUDA OOM"}}'], content_type="application/json"))
    with pytest.raises(openai.APIError, match="CUDA OOM"):
        chat(connect(), model, stream=stream, tools=TOOLS)


@pytest.mark.parametrize("as_event", [False, True], ids=["JSON", "one event"])
def test_whole_completion_in_place_of_a_stream_is_streamed(
    connect: Connect, upstream: SharedUpstream, model: str, as_event: bool
) -> None:
    whole = completion(
        model, {"content": f"Sure.\n{block(ROME)}"}, usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    )
    upstream.on(model, Raw([events(whole)]) if as_event else json_body(whole))
    answer = chat(connect(), model, stream=True, tools=TOOLS)
    assert [("get_weather", '{"city": "Rome"}')] == answer.first.calls
    assert (["Sure."], "tool_calls") == (words(answer.first.content), answer.first.finish_reason)


@pytest.mark.parametrize("end", ["clean", "cut"])
@pytest.mark.parametrize("half", [b"", b'data: {"choices":[{"ind'], ids=["whole lines", "half a line"])
def test_truncated_stream_is_an_error(connect: Connect, upstream: SharedUpstream, model: str, end: str, half: bytes) -> None:
    begun = events(chunk(model, role="assistant", content="Hello, this was"), done=False)
    upstream.on(model, Raw([begun + half], end=end))
    # Before its version 3.20 the package passes on what its HTTP client raises in mid-stream.
    with pytest.raises((openai.OpenAIError, *(library.TransportError for library in HTTP_CLIENTS))):
        chat(connect(), model, stream=True, tools=TOOLS)


def test_stream_with_a_finish_reason_and_without_done_is_complete(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    upstream.on(
        model, Raw([events(chunk(model, role="assistant", content="Hi"), chunk(model, finish_reason="stop"), done=False)])
    )
    answer = chat(connect(), model, stream=True, tools=TOOLS)
    assert ("Hi", "stop") == (answer.first.content, answer.first.finish_reason)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html><h1>Bad gateway</h1></html>", "text/html"),
        (b"", "application/json"),
        (b'{"choices": [{"mess', "application/json"),
        (b"[]", "application/json"),
        (b'{"choices": 7}', "application/json"),
        (b'{"choices": []}', "application/json"),
        (b"null", "application/json"),
        (b'{"choices": [{"index": 0, "message": "text"}]}', "application/json"),
    ],
)
def test_unreadable_response_is_502(
    proxies: Proxies, upstream: SharedUpstream, model: str, stream: bool, body: bytes, kind: str
) -> None:
    upstream.on(model, Raw([body], content_type=kind))
    request = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "stream": stream}
    response = http_request(proxies("--tools", "text").port, "POST", "/v1/chat/completions", request)
    assert 502 == response.status
    assert response.json["error"]["message"]


def test_empty_event_stream_is_an_error(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    for suffix, data in (("a", b""), ("b", DONE), ("c", b": comment\n\n")):
        upstream.on(model + suffix, Raw([data]))
        with pytest.raises(openai.APIError):
            chat(connect(), model + suffix, stream=True, tools=TOOLS)


def stream_of(model: str) -> bytes:
    """A stream with a call in it, as LF lines."""
    text = f"Caf\u00e9 \U0001f600.\n{block(ROME)}\n"
    deltas = [chunk(model, content=text[at : at + 9]) for at in range(0, len(text), 9)]
    return events(chunk(model, role="assistant", content=""), *deltas, chunk(model, finish_reason="stop"))


def multi_line(data: bytes) -> bytes:
    """The same events with each JSON over several data lines."""
    return data.replace(b', "choices"', b',\ndata: "choices"').replace(b',"choices"', b',\ndata: "choices"')


WRITINGS: dict[str, Callable[[bytes], bytes]] = {
    "LF": lambda data: data,
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "CR": lambda data: data.replace(b"\n", b"\r"),
    "last event without blank line": lambda data: data.rstrip(b"\n"),
    "last event without blank line, CRLF": lambda data: data.replace(b"\n", b"\r\n").rstrip(b"\r\n"),
    "data over several lines": multi_line,
    "data over several lines, CRLF": lambda data: multi_line(data).replace(b"\n", b"\r\n"),
    "no blank after data:": lambda data: data.replace(b"data: ", b"data:"),
    "comments and other fields": lambda data: (
        b": hello\n\n" + data.replace(b"data: {", b"event: message\nid: 7\nretry: 5\ndata: {")
    ),
    "byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "no [DONE]": lambda data: data.replace(DONE, b""),
}


@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize("writing", WRITINGS.values(), ids=WRITINGS)
def test_stream_is_read_in_any_spelling_and_split(
    upstream: SharedUpstream, connect: Connect, model: str, writing: Callable[[bytes], bytes], size: int
) -> None:
    upstream.on(model, Raw(pieces(writing(stream_of(model)), size)))
    answer = chat(connect(), model, stream=True, tools=TOOLS)
    assert [("get_weather", '{"city": "Rome"}')] == answer.first.calls
    assert (["Caf\u00e9", "\U0001f600."], "tool_calls") == (words(answer.first.content), answer.first.finish_reason)


def test_line_separators_in_text_are_kept(connect: Connect, upstream: SharedUpstream, model: str, stream: bool) -> None:
    text = "line\u2028para\u2029nel\x85vt\x0bff\x0cfs\x1c end\r\ncr\rlf\n\ndata: x\n\n[DONE]"
    upstream.on(model, Text(text, piece=3))
    assert text == chat(connect(), model, stream=stream, tools=TOOLS).first.content
