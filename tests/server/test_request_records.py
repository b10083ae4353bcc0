"""Each finished request to a model has one record, in every protocol, whatever became of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from proxy_rig import Records, chat_body, open_chat, open_stream, read_until, recording, running_upstream
from websockets.sync.client import connect

from chat_server.rig import PROTOCOLS, call, calls, request_of, serve_weather
from patchbay.hooks import HookManager, Meta
from patchbay.models.request_record import RequestRecord
from patchbay.proxy import create_app
from patchbay.server import ToolsSettings, create_tools_app
from patchbay.server.event_stream import EventStream, StreamedEvent
from patchbay.testing import ScriptedUpstream, Text
from patchbay.tools.registry import Registration
from realtime.server.rig import Client
from support.http_server import BOUND, ask, serving

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
CALL = '```tool_call\n{"name": "weather", "arguments": {"city": "Rome"}}\n```'
MESSAGES = [{"role": "user", "content": "How is Rome?"}]


@contextlib.contextmanager
def proxy(script: Any, **settings: Any) -> Iterator[tuple[int, Records]]:
    with ScriptedUpstream(script) as upstream:
        app = create_app(upstream.url, **{"tools": "text", **settings})
        records = recording(app)
        with serving(app, sockets=True) as port:
            yield port, records


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_record_has_what_was_asked_and_answered_in_every_protocol(protocol: str, stream: bool) -> None:
    with proxy([CALL]) as (port, records):
        path, body = request_of(protocol, model="m", stream=stream, tool="weather")
        if protocol == "chat" and stream:
            body["stream_options"] = {"include_usage": True}
        assert 200 == ask(port, "POST", path, body).status
        [record] = records.wait()
    assert (protocol, "m", "text", stream, 1, ("weather",), 200, "") == (
        record.protocol, record.model, record.mode, record.stream, record.tools, record.calls, record.status, record.error,
    )  # fmt: skip
    assert (True, ("tools=text was chosen",)) == (record.seconds > 0, record.reasons)
    assert (int, int) == (type(record.prompt_tokens), type(record.completion_tokens))


def test_message_of_a_websocket_and_a_response_in_the_background_have_records() -> None:
    with proxy([CALL, "Fine."]) as (port, records):
        with connect(f"ws://127.0.0.1:{port}/v1/responses", open_timeout=BOUND) as socket:
            socket.send(
                json.dumps({"type": "response.create", **request_of("responses", model="m", stream=True, tool="weather")[1]})
            )
            while "response.completed" not in socket.recv(BOUND):
                pass
        assert 200 == ask(port, "POST", "/v1/responses", {"model": "b", "input": "Hi.", "background": True}).status
        first, second = records.wait(2)
    assert ("responses", "m", True, ("weather",), 200) == (
        first.protocol, first.model, first.stream, first.calls, first.status,
    )  # fmt: skip
    assert ("responses", "b", False, ()) == (second.protocol, second.model, second.stream, second.calls)


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_an_answer_that_is_passed_on_are_read_from_its_end(stream: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    with proxy([Text("Fine. " * 3000, piece=100)]) as (port, records):
        answer = ask(port, "POST", "/v1/chat/completions", {"model": "m", "messages": MESSAGES, **options})
        [record] = records.wait()
    assert b"Fine." in answer.body
    assert ("", 0, stream, True) == (record.mode, record.tools, record.stream, (record.completion_tokens or 0) > 4000)


def test_requests_that_fail_have_records_with_the_reason() -> None:
    key, chat = {"authorization": "Bearer the-key"}, "/v1/chat/completions"
    with serving(app := create_app("http://127.0.0.1:9/v1", api_key="the-key", max_body_size=1000)) as port:
        records = recording(app)
        sent = [
            (chat, {"model": "m", "messages": MESSAGES}, {}),
            (chat, {"model": "m"}, key),
            ("/v1/messages", {"model": "m" * 2000}, key),
            ("/v1/responses", {"model": "m", "input": "Hi."}, key),
        ]
        statuses = [ask(port, "POST", path, body, headers=headers).status for path, body, headers in sent]
        found = records.wait(4)
    expected = [
        (401, "invalid_api_key", ""),
        (400, "invalid_request", ""),
        (413, "request_too_large", ""),
        (502, "upstream_error", "m"),
    ]
    assert expected == [(each.status, each.error.partition(":")[0], each.model) for each in found]
    assert [each[0] for each in expected] == statuses


async def open_after_the_last_event(request: web.Request) -> web.StreamResponse:
    response = await open_stream(request, b"data: {}\n\ndata: [DO", b"NE]\n\n")
    await asyncio.Event().wait()
    return response


def test_client_that_leaves_after_the_last_event_has_the_whole_answer(tmp_path: Path) -> None:
    with running_upstream(open_after_the_last_event) as upstream:
        app = create_app(upstream.url, log_file=str(tmp_path / "log"))
        records = recording(app)
        with serving(app) as port:
            client = open_chat(port, chat_body(stream=True, tools=None))
            assert b"]\n\n" in read_until(client, b"]\n\n")
            client.close()
            [record] = records.wait()
            assert upstream.left.wait(BOUND)
    assert (200, "") == (record.status, record.error)
    events = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert ["client_request", "upstream_request", "response"] == events


def test_record_says_why_the_model_was_asked_again() -> None:
    with ScriptedUpstream(["Fine.", CALL], tools="refuse") as upstream, serving(app := create_app(upstream.url)) as port:
        records = recording(app)
        body = {"model": "m", "messages": MESSAGES, "tools": CHAT_TOOLS, "tool_choice": "required"}
        assert 200 == ask(port, "POST", "/v1/chat/completions", body).status
        [record] = records.wait()
    assert (
        "HTTP 400: the server refuses tools, so they are in the prompt",
        "tool_choice was not met: asked again",
    ) == record.reasons


def test_other_requests_have_no_record() -> None:
    with proxy(["Fine."]) as (port, records):
        for method, path in (("GET", "/v1/models"), ("GET", "/health"), ("POST", "/v1/embeddings"), ("POST", "/nowhere")):
            ask(port, method, path, {"model": "m"} if method == "POST" else None)
        ask(port, "POST", "/v1/messages/count_tokens", {"model": "m", "messages": MESSAGES})
        ask(port, "POST", "/v1/chat/completions", {"model": "last", "messages": MESSAGES})
        assert ["last"] == [each.model for each in records.wait()]


def test_each_request_of_a_session_has_a_record() -> None:
    with ScriptedUpstream([calls(call("weather", '{"city": "Rome"}')), "Sunny."]) as upstream:
        app = create_tools_app(("ann",), upstream=upstream.url, settings=ToolsSettings(lease=0.0))
        app.registry.register(Registration("weather", "", SCHEMA, callback_url="http://127.0.0.1:9/"))
        assert app.proxy is not None
        records = recording(app.proxy)
        with serving(app, sockets=True) as port:
            address = f"ws://127.0.0.1:{port}/api/sessions/ann?model=m&session=s1"
            with connect(address, open_timeout=BOUND, proxy=None) as socket:
                Client(socket).answer("How is Rome?")
            first, second = records.wait(2)
    assert [("session", "m", "ann", "s1", True, 200)] * 2 == [
        (each.protocol, each.model, each.agent, each.session, each.stream, each.status) for each in (first, second)
    ]
    assert (1, ("weather",), ()) == (first.tools, first.calls, second.calls)
    assert (first.prompt_tokens or 0) > 0


def test_turn_with_tools_of_the_server_has_one_record() -> None:
    with serve_weather([calls(call("weather", '{"city": "Rome"}')), "Sunny."]) as at:
        records = recording(at.server.app.proxy)
        assert 200 == at.post(**{"X-Patchbay-Session": "s1"}).status
        [record] = records.wait()
    assert ("ann", "s1", "native", 1, ("weather",)) == (
        record.agent, record.session, record.mode, record.tools, record.calls,
    )  # fmt: skip
    assert (record.prompt_tokens or 0) > 0


async def test_record_of_a_turn_follows_the_last_event_of_the_turn_in_the_event_stream() -> None:
    hooks = HookManager()
    stream = EventStream(hooks)
    reader = stream.join(session="s1")
    try:
        hooks.events.emit("agent.turn.end", Meta(session_key="s1"), {}, {"Status": "completed"})
        stream.add_request(RequestRecord(id="t1", session="s1", model="m"))
        found: list[StreamedEvent | int] = []
        while len(found) < 2:
            found += await reader.read(BOUND) or pytest.fail("no event")
    finally:
        reader.close()
        await hooks.aclose()
    assert ["agent.turn.end", "server.request"] == [each.kind for each in found if isinstance(each, StreamedEvent)]
    assert isinstance(last := found[-1], StreamedEvent)
    assert ("m", "t1") == (json.loads(last.data)["payload"]["model"], json.loads(last.data)["scope"]["turn_id"])
