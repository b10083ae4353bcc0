"""What goes wrong: upstreams that refuse, fail and fall silent, clients that leave, and requests that pass as in the proxy."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from chat_server.rig import MODEL, SUNNY, THEIRS, USER, call, calls, serve_chat, serve_weather
from patchbay.testing import Raw, Text, events
from patchbay.testing.script import error
from tools_server.rig import BOUND, calling_back, no_response

BODY = {"model": MODEL, "messages": [USER]}


def refusal(status: int, **headers: str) -> Raw:
    body = {"error": {"message": "no such luck", "type": "some_type", "param": None, "code": "some_code"}}
    return Raw([json.dumps(body).encode()], status=status, content_type="application/json", headers=list(headers.items()))


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("status", [401, 429, 500])
def test_upstream_refusal_keeps_its_status(status: int, streamed: bool) -> None:
    with serve_chat([refusal(status, **{"retry-after": "7"})]) as at:
        at.server.register("weather")
        with pytest.raises(openai.APIStatusError, match="no such luck") as caught:
            at.ask(stream=streamed)
        assert (status, "7", None) == (
            caught.value.status_code, caught.value.response.headers["retry-after"], caught.value.response.headers.get("x-should-retry")
        )  # fmt: skip


def test_error_after_a_tool_ran_forbids_automatic_retries() -> None:
    for answer in (refusal(503, **{"x-should-retry": "true"}), Raw([b"<html>"], content_type="text/html")):
        with serve_weather([calls(call("weather")), answer]) as at:
            with at.client(max_retries=2) as client, pytest.raises(openai.APIStatusError) as caught:
                client.chat.completions.create(**BODY)
            assert "false" == caught.value.response.headers["x-should-retry"]
            assert ([1, 2], caught.value.status_code) == (
                [len(at.callback.calls), len(at.asked)],
                503 if answer.status == 503 else 502,
            )


def test_failure_during_a_stream_is_its_last_event() -> None:
    with serve_weather([calls(call("weather"), content="Let me see."), refusal(503)]) as at:
        answer = at.post({**BODY, "stream": True})
        assert 200 == answer.status
        outcome = [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line]
        assert "no such luck" in outcome[-1]["error"]["message"]
        assert "Let me see." == "".join(each["choices"][0]["delta"].get("content") or "" for each in outcome[:-1])


@pytest.mark.parametrize("end", ["cut", "clean"])
def test_an_answer_that_breaks_off_is_a_failure(end: Any) -> None:
    chunk = {"id": "x", "model": "m", "choices": [{"index": 0, "delta": {"content": "It"}}]}
    with serve_chat([Raw([events(chunk, done=False)], end=end)]) as at:
        at.server.register("weather")
        with pytest.raises(openai.APIError):
            at.stream()


def test_field_refused_by_the_upstream_is_left_out() -> None:
    def script(body: dict[str, Any]) -> Any:
        if any("reasoning_content" in message for message in body["messages"]):
            return error(400, "property 'reasoning_content' is unsupported")
        return "done" if body["messages"][-1]["role"] == "tool" else calls(call("weather"), reasoning_content="Hm.")

    with serve_weather(script) as at:
        assert ["done", "done"] == [at.ask().choices[0].message.content for _ in range(2)]
        assert (3 + 2, 2) == (len(at.asked), len(at.callback.calls))


@contextlib.contextmanager
def asking(at: Any, *, streamed: bool) -> Iterator[http.client.HTTPConnection]:
    """A connection that has asked, and is closed at the end."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", at.server.port, timeout=BOUND)) as connection:
        body = json.dumps({**BODY, "stream": streamed})
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        yield connection


@pytest.mark.parametrize("streamed", [True, False])
def test_disconnected_client_stops_the_tool_at_once(streamed: bool) -> None:
    called, closed = threading.Event(), threading.Event()

    def waits(connection: socket.socket, _end: threading.Event) -> None:
        called.set()
        assert b"" == connection.recv(1)
        closed.set()

    with serve_weather([calls(call("weather"))], answers=waits) as at:
        with asking(at, streamed=streamed):
            assert called.wait(BOUND)
        assert closed.wait(BOUND)
        assert 1 == len(at.asked)


def test_disconnected_client_stops_the_model_at_once() -> None:
    arrived = threading.Event()

    def hangs(_: Any) -> Raw:
        arrived.set()
        return Raw([b": wait\n\n"], end="hang")

    with serve_chat(hangs) as at:
        at.server.register("weather")
        with asking(at, streamed=True):
            assert arrived.wait(BOUND)
        assert at.upstream.chats[0].left.wait(BOUND)


def test_slow_tool_keeps_the_stream_alive_and_is_no_upstream_timeout() -> None:
    beaten = threading.Event()

    def waits(connection: socket.socket, end: threading.Event) -> None:
        assert beaten.wait(BOUND)
        SUNNY(connection, end)

    script = [calls(call("weather"), content="Let me see."), Text("Clear.", piece=9)]
    settings = {"upstream_timeout": 1.5, "heartbeat": 0.6}
    with serve_weather(script, proxy=settings, answers=waits) as at, asking(at, streamed=True) as connection:
        answer = connection.getresponse()
        seen = b""
        while seen.count(b": keep-alive\n\n") < 3:  # longer than the upstream may be silent
            seen += answer.readline()
        beaten.set()
        seen += answer.read()
        assert b"Clear." in seen
        assert seen.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("body", [[], {"model": MODEL}, {**BODY, "messages": [5]}, {**BODY, "tools": "x"}])
def test_invalid_request_is_400(body: Any) -> None:
    with serve_chat([]) as at:
        at.server.register("weather")
        answer = at.post(body)
        assert (400, "invalid_request_error", []) == (answer.status, answer.json["error"]["type"], at.upstream.requests)


# Where the server adds nothing, it is the plain proxy

CUSTOM = {"type": "custom", "custom": {"name": "code"}}
FUNCTIONS = {"functions": [THEIRS["function"]]}


@pytest.mark.parametrize(
    ("registered", "fields"),
    [(False, {}), (False, {"n": 2}), (True, {"tool_choice": "none"}), (True, {"tool_choice": "none", "tools": [THEIRS]}), (True, FUNCTIONS),
     (True, {"tools": [CUSTOM]}), (True, {"tools": [THEIRS, CUSTOM]}), (False, {"tools": [THEIRS]})],
)  # fmt: skip
def test_request_without_tools_to_add_passes_through_unchanged(registered: bool, fields: dict[str, Any]) -> None:
    body = json.dumps({**BODY, **fields}, indent=1).encode()
    text = b'{"id": "x", "object": "chat.completion",   "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]}'
    with serve_chat([Raw([text], content_type="application/json")]) as at:
        if registered:
            at.server.register("weather")
        answer = at.server.ask("POST", "/v1/chat/completions", raw=body)
        assert (200, text, body) == (answer.status, answer.body, at.upstream.chats[0].body)


def test_all_else_below_v1_passes_through() -> None:
    with serve_chat([]) as at, at.client() as client:
        assert ["scripted-model"] == [model.id for model in client.models.list()]
        answer = at.server.ask("POST", "/v1/embeddings?a=b", {"input": "x"}, openai_project="p")
        assert (200, "/v1/embeddings", "a=b", "p") == (
            answer.status, (seen := at.upstream.requests[-1]).path, seen.query, seen.headers["openai-project"]
        )  # fmt: skip
        for path in ("/v1/../api/tools", "/v1/%2e%2e/secret"):
            assert 404 == at.server.ask("GET", path).status


def test_headers_of_the_client_go_up_with_every_round_but_not_one_that_is_for_one_request() -> None:
    with serve_weather([calls(call("weather")), Text("ok")]) as at:
        assert 200 == at.post(BODY, openai_project="p", idempotency_key="k").status
        assert [("p", None)] * 2 == [
            (each.headers["openai-project"], each.headers.get("idempotency-key")) for each in at.upstream.chats
        ]


def test_request_log_has_each_round(tmp_path: Any) -> None:
    log = tmp_path / "log"
    with serve_weather([calls(call("weather")), "ok"], proxy={"log_file": str(log)}) as at:
        assert "ok" == at.ask().choices[0].message.content
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert ["client_request", "upstream_request", "upstream_request", "response"] == [entry["event"] for entry in entries]


@pytest.mark.parametrize("streamed", [True, False])
def test_turn_cut_short_by_server_stop_says_so_and_forbids_retries(streamed: bool) -> None:
    with contextlib.ExitStack() as stack:
        callback = stack.enter_context(calling_back(no_response))
        with serve_chat([calls(call("weather"), content="Let me see." if streamed else None)]) as at:
            at.server.register("weather", callback.url)
            connection = stack.enter_context(asking(at, streamed=streamed))
            while not callback.calls:
                callback.end.wait(0.005)
        response = connection.getresponse()
        text = response.read()
    assert b"server_stopping" in text
    if streamed:
        assert (200, True) == (response.status, b"Let" in text)
    else:
        assert (503, "false") == (response.status, response.getheader("x-should-retry"))
