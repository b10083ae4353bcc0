"""Requests that are long, large or muddled, and clients that leave: the cost stays linear, and every call has one result."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.server.proxy_rig import read_until

from patchbay.frontends import AnthropicMessages, GenerateContent, OpenAIResponses
from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange
from patchbay.models.options import TextOptions
from patchbay.models.wire import encode
from patchbay.proxy import create_app
from patchbay.testing import ScriptedUpstream
from support.http_server import BOUND, ask, serving

SCHEMA = {"type": "object", "properties": {}}
GEMINI_PATH = "/v1beta/models/m:streamGenerateContent"
Round = tuple[str, str, bool]
"""A question, the id of the call that it brings, and whether that has a result."""


def messages(rounds: list[Round]) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    for text, call_id, answered in rounds:
        turns += [
            {"role": "user", "content": text},
            {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": "f", "input": {}}]},
        ]
        if answered:
            result = {"type": "tool_result", "tool_use_id": call_id, "content": f"got {text}"}
            turns.append({"role": "user", "content": [result, {**result, "content": "second"}]})
    return {"model": "m", "max_tokens": 9, "stream": True, "messages": turns, "tools": [{"name": "f", "input_schema": SCHEMA}]}


def responses(rounds: list[Round]) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for text, call_id, answered in rounds:
        items += [
            {"role": "user", "content": text},
            {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"},
        ]
        outputs = [f"got {text}", "second"] if answered else []
        items += [{"type": "function_call_output", "call_id": call_id, "output": output} for output in outputs]
    return {"model": "m", "stream": True, "input": items, "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]}


def gemini(rounds: list[Round]) -> dict[str, Any]:
    contents: list[dict[str, Any]] = []
    for text, call_id, answered in rounds:
        contents += [
            {"role": "user", "parts": [{"text": text}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}, "id": call_id}}]},
        ]
        outputs = [f"got {text}", "second"] if answered else []
        results = [{"functionResponse": {"name": "f", "id": call_id, "response": {"output": output}}} for output in outputs]
        contents += [{"role": "user", "parts": results}] * answered
    return {"contents": contents, "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]}]}


PROTOCOLS = {
    "messages": (messages, AnthropicMessages(), "/v1/messages"),
    "responses": (responses, OpenAIResponses(), "/v1/responses"),
    "gemini": (gemini, GenerateContent(), GEMINI_PATH),
}


def upstream_request(name: str, body: dict[str, Any]) -> bytes:
    """What a text model's server is sent."""
    _, frontend, path = PROTOCOLS[name]
    decoded = frontend.decode(encode(body), path)
    return Exchange(encode(decoded.body), TextOptions(tools="text"), Capabilities(), decoded.encoder).request


def calls_of(name: str, size: int) -> int:
    """How many functions are called, of Python and of C, to decode a conversation of so many items and to write its prompt."""
    body, count = PROTOCOLS[name][0]([(f"Question {number}", f"call_{number}", True) for number in range(size // 4)]), 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        upstream_request(name, body)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", PROTOCOLS)
def test_ten_times_the_items_cost_ten_times_the_calls(name: str) -> None:
    calls_of(name, 40)  # what is compiled and cached once
    assert calls_of(name, 10_000) <= 11 * calls_of(name, 1000)


MUDDLES: dict[str, list[Round]] = {
    "one id for all calls": [("one", "x", True), ("two", "x", True), ("three", "x", True)],
    "calls without results": [("one", "a", False), ("two", "b", True), ("three", "c", False)],
    "an id again without a result": [("one", "a", True), ("two", "a", False), ("three", "b", True)],
}


@pytest.mark.parametrize("muddle", MUDDLES)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_each_call_of_a_muddled_conversation_has_one_result(name: str, muddle: str) -> None:
    rounds = MUDDLES[muddle]
    view = json.loads(upstream_request(name, PROTOCOLS[name][0](rounds)))["messages"][1:]
    text = "\n".join(message["content"] for message in view)
    assert len(rounds) == text.count("```tool_call\n") == text.count("```tool_result ")
    for question, _, answered in rounds:
        assert int(answered) == text.count(f"got {question}")
    assert "second" not in text


@pytest.mark.parametrize("name", PROTOCOLS)
def test_result_without_a_call_is_sent_as_text(name: str) -> None:
    body = PROTOCOLS[name][0]([("one", "a", True)])
    turns = body.get("messages") or body.get("input") or body["contents"]
    del turns[:2]
    assert b"got one" in upstream_request(name, body)


@pytest.mark.parametrize("name", ["messages", "responses"])
def test_large_image_is_accepted_within_the_limit_and_refused_beyond(name: str) -> None:
    data = "A" * 20_000_000
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    path, body = "/v1/messages", {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [image]}]}
    if name == "responses":
        part = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
        path, body = "/v1/responses", {"model": "m", "input": [{"role": "user", "content": [part]}]}
    with ScriptedUpstream(lambda _body: "Seen.") as upstream:
        with serving(create_app(upstream.url)) as port:
            refused = ask(port, "POST", path, body)
            assert (413, [], True) == (refused.status, upstream.requests, "limit" in refused.message)
        with serving(create_app(upstream.url, max_body_size="30MiB")) as port:
            assert b"Seen." in ask(port, "POST", path, body).body
    assert data in upstream.requests[-1].body.decode()


def in_chunks(data: bytes, *, end: bytes = b"") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (data[:20], data[20:])) + end


CHUNKED = b"transfer-encoding: chunked"
CUT: dict[str, tuple[Callable[[bytes], tuple[bytes, bytes]], bytes]] = {
    "half of what is declared": (lambda body: (b"content-length: %d" % len(body), body[: len(body) // 2]), b""),
    "one byte less than declared": (lambda body: (b"content-length: %d" % len(body), body[:-1]), b""),
    "a whole request, declared longer": (lambda body: (b"content-length: %d" % (len(body) + 1), body), b""),
    "nothing of what is declared": (lambda body: (b"content-length: %d" % len(body), b""), b""),
    "all but the last chunk": (lambda body: (CHUNKED, in_chunks(body)), b""),
    "half a chunk": (lambda body: (CHUNKED, in_chunks(body)[: len(body) // 2]), b""),
    "half a chunk's size": (lambda body: (CHUNKED, in_chunks(body) + b"1"), b""),
    "a chunk's size that is none": (lambda body: (CHUNKED, in_chunks(body, end=b"xyz\r\n")), b"HTTP/1.1 400 "),
    "less than there is": (lambda body: (b"content-length: %d" % (len(body) - 1), body), b"HTTP/1.1 400 "),
}
"""What is sent of a request before its client goes: the header of its length and the bytes; and how the answer begins, if any."""


@pytest.mark.parametrize("cut", CUT)
def test_truncated_body_sends_no_upstream_request(cut: str, caplog: pytest.LogCaptureFixture) -> None:
    path, body = "/v1/messages", encode(messages([("one", "a", True)]))
    length, sent = CUT[cut][0](body)
    with (
        ScriptedUpstream(lambda _body: "Fine.") as upstream,
        serving(create_app(upstream.url, tools="text", constrain="off")) as port,
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=BOUND) as connection:
            connection.sendall(
                b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n%b\r\n\r\n" % (path.encode(), length)
            )
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            answer = read_until(connection, b"never")
        begin = CUT[cut][1]
        assert begin == answer[: len(begin)] if begin else not answer
        assert b"Fine." in ask(port, "POST", path, body).body
    assert 1 == len(upstream.requests)
    assert [] == [record for record in caplog.records if record.levelname == "ERROR"]
