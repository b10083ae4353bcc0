"""Failures inside a stream reach the client as errors, and every valid spelling of a stream is read."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec

import openai
import pytest

from patchbay.testing.script import DONE, Raw, Text, events, pieces
from support.fenced_texts import ROME, TOOLS, block, words
from support.scripted_server import chunk, completion, json_body

HTTP_CLIENTS = [importlib.import_module(name) for name in ("httpx", "httpx2") if find_spec(name)]
"""What the ``openai`` package may stand on; which one depends on its version."""
WEATHER = [("get_weather", '{"city": "Rome"}')]

FAILURES = {
    "error object in a data line": b'data: {"error":{"message":"CUDA OOM"}}\n\n',
    "error event": b'event: error\ndata: {"message":"CUDA OOM"}\n\n',
    "error as a string": b'data: {"error":"CUDA OOM"}\n\n',
    "error object at the top": b'data: {"object":"error","message":"CUDA OOM","type":"InternalServerError","code":500}\n\n',
    "detail": b'data: {"detail":"CUDA OOM"}\n\n',
    "error with a status": b'data: {"error":{"message":"CUDA OOM","type":"server_error","code":500}}\n\n',
}


def hello(model: str) -> bytes:
    """The beginning of an answer."""
    return events(chunk(model, role="assistant", content="Hello, this was"), done=False)


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("begun", [False, True], ids=["at once", "after text"])
def test_error_inside_a_stream_is_raised(wire, failure, begun):
    with pytest.raises(openai.APIError, match="CUDA OOM"):
        wire.ask(Raw([(hello(wire.model) if begun else b"") + failure + DONE]), stream=True)


def test_error_object_with_status_200_is_raised(wire, stream):
    with pytest.raises(openai.APIError, match="CUDA OOM"):
        wire.ask(Raw([b'{"error":{"message":"CUDA OOM"}}'], content_type="application/json"), stream=stream)


@pytest.mark.parametrize("as_event", [False, True], ids=["JSON", "one event"])
def test_whole_completion_in_place_of_a_stream_is_streamed(wire, as_event):
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    whole = completion(wire.model, {"content": f"Sure.\n{block(ROME)}"}, usage=usage)
    answer = wire.ask(Raw([events(whole)]) if as_event else json_body(whole), stream=True).first
    assert (WEATHER, ["Sure."], "tool_calls") == (answer.calls, words(answer.content), answer.finish_reason)


@pytest.mark.parametrize("end", ["clean", "cut"])
@pytest.mark.parametrize("half", [b"", b'data: {"choices":[{"ind'], ids=["whole lines", "half a line"])
def test_truncated_stream_is_an_error(wire, end, half):
    # Before its version 3.20 the package passes on what its HTTP client raises in mid-stream.
    with pytest.raises((openai.OpenAIError, *(library.TransportError for library in HTTP_CLIENTS))):
        wire.ask(Raw([hello(wire.model) + half], end=end), stream=True)


@pytest.mark.parametrize("data", [b"", DONE, b": comment\n\n"])
def test_empty_event_stream_is_an_error(wire, data):
    with pytest.raises(openai.APIError):
        wire.ask(Raw([data]), stream=True)


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
def test_unreadable_response_is_502(post, upstream, model, stream, body, kind):
    upstream.on(model, Raw([body], content_type=kind))
    response = post({"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "stream": stream})
    assert (502, True) == (response.status, bool(response.json["error"]["message"]))


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
def test_stream_is_read_in_any_spelling_and_split(wire, writing, size):
    answer = wire.ask(Raw(pieces(writing(stream_of(wire.model)), size)), stream=True).first
    assert WEATHER == answer.calls
    assert (["Caf\u00e9", "\U0001f600."], "tool_calls") == (words(answer.content), answer.finish_reason)


def test_line_separators_in_text_are_kept(wire, stream):
    text = "line\u2028para\u2029nel\x85vt\x0bff\x0cfs\x1c end\r\ncr\rlf\n\ndata: x\n\n[DONE]"
    assert text == wire.ask(Text(text, piece=3), stream=stream).first.content
