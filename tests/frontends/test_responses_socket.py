"""OpenAI Responses over a WebSocket: the ``openai`` client against real servers, and clients that keep no rule."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from socket import SHUT_RDWR
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from aiohttp import web
from openai.types.responses.responses_server_event import ResponseWsError
from tests.server.proxy_rig import ManualClock, Upstream, running_upstream
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from patchbay.proxy import create_app
from patchbay.server.responses_socket import MAX_AGE, MAX_STREAM_IDS, MAX_WAITING
from support.http_server import BOUND, ask, serving
from support.processes import listening

ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
CREATE = {"type": "response.create", "model": "m", "input": "Hi.", "store": False}


class Model:
    """Says how many messages there were. One called "held" begins, and goes on when it is released; one called "broken" fails."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.released = threading.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if body["model"] == "broken":
            return web.json_response({"error": {"message": "No such model."}}, status=404)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await self.write(response, f"{len(body['messages'])} messages: ", None)
        if body["model"] == "held":
            self.begun.set()
            while not self.released.is_set():
                await asyncio.sleep(0.002)
                if request.transport is None or request.transport.is_closing():
                    raise ConnectionResetError
        await self.write(response, body["messages"][-1]["content"], "stop")
        await response.write(b"data: [DONE]\n\n")
        return response

    @staticmethod
    async def write(response: web.StreamResponse, text: str, reason: str | None) -> None:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
        await response.write(f"data: {json.dumps({'id': 'x', 'created': 1, 'model': 'm', 'choices': [choice]})}\n\n".encode())


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.released.set()


@pytest.fixture
def upstream(model: Model) -> Iterator[Upstream]:
    with running_upstream(model) as upstream:
        yield upstream


@pytest.fixture
def port(upstream: Upstream) -> Iterator[int]:
    with serving(create_app(upstream.url), sockets=True) as port:
        yield port


def client_of(port: int, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0, timeout=BOUND, **options)


def opened(port: int, path: str = "/v1/responses", **options: Any) -> ClientConnection:
    options = {"open_timeout": BOUND, "close_timeout": BOUND, "proxy": None, **options}
    return connect(f"ws://127.0.0.1:{port}{path}", **options)


def ask_on(socket: ClientConnection, **fields: Any) -> dict[str, Any]:
    """Send a request, and return the last event of its answer."""
    socket.send(json.dumps({**CREATE, **fields}))
    return last(socket)


def last(socket: ClientConnection) -> dict[str, Any]:
    while True:
        event: dict[str, Any] = json.loads(socket.recv(timeout=BOUND))
        if event["type"] in ENDS:
            return event


def text_of(event: dict[str, Any]) -> str:
    assert "response.completed" == event["type"], event
    text: str = event["response"]["output"][0]["content"][0]["text"]
    return text


def end_of(socket: ClientConnection) -> int:
    """Read to the end; return the close code."""
    try:
        while True:
            socket.recv(timeout=BOUND)
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd is not None else 0


def code_of(event: dict[str, Any]) -> tuple[int, str]:
    return event["status"], event["error"]["code"]


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")  # the client's own
def test_openai_client_continues_unstored_responses(port: int) -> None:
    with client_of(port) as client:
        with client.responses.connect() as connection:
            texts, previous = [], None
            for text in ("One.", "Two.", "Three."):
                connection.response.create(model="m", input=text, store=False, previous_response_id=previous)
                kinds = []
                for event in connection:
                    kinds.append(event.type)
                    if event.type in ENDS:
                        break
                assert ["response.created", "response.in_progress"] == kinds[:2]
                assert "response.output_text.delta" in kinds
                assert event.type == "response.completed"
                previous = event.response.id
                texts.append(event.response.output_text)
            assert ["1 messages: One.", "3 messages: Two.", "5 messages: Three."] == texts
        with client.responses.connect() as another:
            another.response.create(model="m", input="Four.", store=False, previous_response_id=previous)
            refused = another.recv()
            assert isinstance(refused, ResponseWsError)
            assert (400, "previous_response_not_found", "previous_response_id") == (
                refused.status,
                refused.error.code,
                refused.error.param,
            )
            another.response.create(model="m", input="Four.", store=False)
            assert "response.created" == another.recv().type


def test_stored_response_is_continued_on_any_connection_and_by_post(port: int) -> None:
    with client_of(port) as client:
        with client.responses.stream(model="m", input="One.") as events:
            first = events.get_final_response()
        with opened(port, additional_headers={"Authorization": "Bearer k"}) as socket:
            second = ask_on(socket, input="Two.", store=True, previous_response_id=first.id)
        with opened(port, additional_headers={"Authorization": "Bearer k"}) as socket:
            third = ask_on(socket, input="Three.", store=True, previous_response_id=second["response"]["id"])
        assert "5 messages: Three." == text_of(third)
        with client.responses.stream(model="m", input="Four.", previous_response_id=third["response"]["id"]) as events:
            assert "7 messages: Four." == events.get_final_response().output_text


def test_response_that_cannot_be_continued_is_dropped(port: int) -> None:
    with opened(port) as socket:
        first = ask_on(socket)["response"]["id"]
        broken = ask_on(socket, model="broken", previous_response_id=first)
        assert (404, True) == (broken["status"], "No such model." in broken["error"]["message"])
        assert (400, "previous_response_not_found") == code_of(ask_on(socket, previous_response_id=first))
        assert "1 messages: Hi." == text_of(ask_on(socket))


def test_a_response_without_a_model_begins_a_conversation(port: int, upstream: Upstream) -> None:
    with opened(port) as socket:
        empty = ask_on(socket, input="One.", generate=False)
        assert ("response.completed", []) == (empty["type"], empty["response"]["output"])
        assert [] == upstream.seen
        assert "2 messages: Two." == text_of(ask_on(socket, input="Two.", previous_response_id=empty["response"]["id"]))


def test_requests_wait_for_each_other_in_a_bounded_queue(port: int, model: Model) -> None:
    with opened(port) as socket:
        socket.send(json.dumps({**CREATE, "model": "held", "stream_id": "a"}))
        assert model.begun.wait(BOUND)
        for number in range(MAX_WAITING + 1):
            socket.send(json.dumps({**CREATE, "input": f"Item {number}.", "stream_id": "b"}))
        assert (429, "too_many_messages") == code_of(last(socket))
        model.released.set()
        held = last(socket)
        assert ("a", "1 messages: Hi.") == (held["stream_id"], text_of(held))
        for number in range(MAX_WAITING):
            event = last(socket)
            assert ("b", f"1 messages: Item {number}.") == (event["stream_id"], text_of(event))


ODD: dict[str, tuple[Any, str, str | None]] = {
    "half a message": ('{"type": "response.create", "mod', "invalid_request", None),
    "no JSON": ("hello", "invalid_request", None),
    "no object": ("[1, 2]", "invalid_request", None),
    "nested without end": ('{"type":' + "[" * 100_000, "invalid_request", None),
    "deeply nested": (json.dumps(CREATE)[:-1] + ', "a": ' + "[" * 5000 + "]" * 5000 + "}", "invalid_request", None),
    "binary": (b"\x00\x01", "invalid_request", None),
    "binary JSON": (json.dumps(CREATE).encode(), "invalid_request", None),
    "no type": ('{"model": "m", "input": "Hi."}', "invalid_request", None),
    "another type": ('{"type": "response.steer", "input": "x", "stream_id": "a"}', "invalid_request", "a"),
    "a type that is none": ('{"type": {}, "stream_id": null}', "invalid_request", None),
    "no model": ('{"type": "response.create", "stream_id": "a.B_c-1"}', "invalid_request", "a.B_c-1"),
    "no input": ('{"type": "response.create", "model": "m", "input": 7}', "invalid_request", None),
    "background": (json.dumps({**CREATE, "background": True}), "invalid_request", None),
    "an empty lane": (json.dumps({**CREATE, "stream_id": ""}), "invalid_stream_id", None),
    "a lane with quotes": (json.dumps({**CREATE, "stream_id": 'a"b'}), "invalid_stream_id", None),
    "a lane of half a character": (json.dumps({**CREATE, "stream_id": "\ud83d"}), "invalid_stream_id", None),
    "a lane that is a number": (json.dumps({**CREATE, "stream_id": 7}), "invalid_stream_id", None),
    "no previous response": (json.dumps({**CREATE, "previous_response_id": "x"}), "previous_response_not_found", None),
    "a previous response that is none": (json.dumps({**CREATE, "previous_response_id": [{}]}), "invalid_request", None),
}


def test_connection_survives_an_invalid_message(port: int) -> None:
    with opened(port) as socket:
        for name, (message, code, stream_id) in ODD.items():
            socket.send(message)
            event = last(socket)
            ResponseWsError.model_validate(event, strict=True)
            assert (name, code, stream_id) == (name, event["error"]["code"], event.get("stream_id"))
            assert 400 <= event["status"] < 500
        socket.send(
            ['{"type": "response.create", "model": "m",', ' "stream": false, "background": false, "input": "In pieces."}']
        )
        assert "1 messages: In pieces." == text_of(last(socket))
        assert "response.completed" == ask_on(socket, input="Half a character: \ud83d")["type"]


def frame(first: int, payload: bytes, *, length: int | None = None) -> bytes:
    """A frame with a mask of zeros; ``length``: the one that it declares."""
    return bytes([first, 0xFE]) + struct.pack(">H", len(payload) if length is None else length) + bytes(4) + payload


WHOLE = json.dumps(CREATE).encode().ljust(200)
FRAMES = {
    "half a frame": (frame(0x81, WHOLE[:90], length=200), None),
    "half a head": (frame(0x81, WHOLE)[:3], None),
    "a message without its end": (frame(0x01, WHOLE), None),
    "no mask": (b"\x81\x7e" + struct.pack(">H", 200) + WHOLE, 1002),
    "an unknown kind": (frame(0x83, WHOLE), 1002),
    "a piece of no message": (frame(0x80, WHOLE), 1002),
    "no UTF-8": (frame(0x81, b"\xff" * 200), 1007),
    "a frame of 2 GB": (b"\x81\xff" + struct.pack(">Q", 1 << 31) + bytes(4), 1009),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_broken_frame_ends_its_connection_alone(name: str, port: int, upstream: Upstream) -> None:
    data, code = FRAMES[name]
    with opened(port) as bystander:
        with opened(port) as socket:
            socket.socket.sendall(data)
            if code is None:
                socket.socket.shutdown(SHUT_RDWR)
            else:
                assert code == end_of(socket)
        assert "1 messages: Hi." == text_of(ask_on(bystander))
    assert 1 == len(upstream.seen)


def test_lanes_of_a_connection_are_bounded(port: int) -> None:
    with opened(port) as socket:
        for number in range(MAX_STREAM_IDS):
            assert f"lane-{number}" == ask_on(socket, generate=False, stream_id=f"lane-{number}")["stream_id"]
        assert (400, "websocket_stream_limit_reached") == code_of(ask_on(socket, stream_id="another"))
        assert "response.completed" == ask_on(socket, generate=False)["type"]


@pytest.mark.parametrize("is_polite", [True, False])
def test_upstream_is_closed_when_the_client_leaves(is_polite: bool, port: int, upstream: Upstream, model: Model) -> None:
    with opened(port) as socket:
        for _ in range(3):  # those that wait are not begun
            socket.send(json.dumps({**CREATE, "model": "held"}))
        assert model.begun.wait(BOUND)
        if not is_polite:
            socket.socket.shutdown(SHUT_RDWR)
    assert upstream.left.wait(BOUND)
    assert 200 == ask(port, "GET", "/health").status
    assert 1 == len(upstream.seen)


def test_a_handshake_is_checked_before_it_is_accepted(upstream: Upstream) -> None:
    key = {"Authorization": "Bearer a-key-for-the-proxy"}

    def refused(port: int, path: str = "/v1/responses", **headers: str) -> tuple[int, str]:
        with pytest.raises(InvalidStatus) as error, opened(port, path, additional_headers=headers):
            pass
        return error.value.response.status_code, json.loads(error.value.response.body)["error"]["code"]

    with serving(create_app(upstream.url, api_key="a-key-for-the-proxy"), sockets=True) as port:
        assert (401, "invalid_api_key") == refused(port)
        assert (401, "invalid_api_key") == refused(port, Authorization="Bearer another")
        assert (403, "untrusted_origin") == refused(port, **key, Origin="https://example.com")
        assert (426, "no_websocket") == refused(port, "/v1/chat/completions", **key)
        assert (426, "no_websocket") == refused(port, "/", **key)
        for origin in ({}, {"Origin": "http://localhost:3000"}):
            with opened(port, "/v1/responses/", additional_headers={**key, **origin}) as socket:
                assert "1 messages: Hi." == text_of(ask_on(socket))
    elsewhere = {"Origin": "https://example.com"}
    with serving(create_app(upstream.url, cors=True), sockets=True) as port, opened(port, additional_headers=elsewhere) as socket:
        assert "1 messages: Hi." == text_of(ask_on(socket))
    assert not any(name.lower().startswith("sec-") or name.lower() in ("upgrade", "origin") for name in upstream.seen[0].headers)


def test_a_message_may_be_as_large_as_a_body(upstream: Upstream) -> None:
    with serving(create_app(upstream.url, max_body_size=100_000), sockets=True) as port, opened(port) as socket:
        assert "response.completed" == ask_on(socket, input="x" * 90_000)["type"]
        with contextlib.suppress(ConnectionClosed):  # in the midst of it
            socket.send(json.dumps({**CREATE, "input": "x" * 100_000}))
        assert 1009 == end_of(socket)


def test_a_connection_ends_at_its_age_limit_after_the_running_response(upstream: Upstream, model: Model) -> None:
    clock = ManualClock()
    app = create_app(upstream.url, upstream_timeout=0)
    with serving(app, sockets=True, clock=clock) as port, opened(port) as idle, opened(port) as busy:
        assert "1 messages: Hi." == text_of(ask_on(idle))
        busy.send(json.dumps({**CREATE, "model": "held"}))
        assert model.begun.wait(BOUND)
        clock.move(MAX_AGE)
        assert (400, "websocket_connection_limit_reached") == code_of(last(idle))
        assert 1001 == end_of(idle)
        model.released.set()
        assert "1 messages: Hi." == text_of(last(busy))
        assert (400, "websocket_connection_limit_reached") == code_of(last(busy))
        assert 1001 == end_of(busy)


@pytest.mark.parametrize("seconds", [30, 0])
def test_a_stopping_server_finishes_running_responses_within_the_drain_timeout(
    seconds: int, upstream: Upstream, model: Model
) -> None:
    flags = ["--upstream", upstream.url, "--port", "0", "--drain-timeout", str(seconds)]
    with listening([sys.executable, "-m", "patchbay", "proxy", *flags], name="patchbay proxy") as child:
        port = urlsplit(child.url).port
        assert port is not None
        with opened(port) as idle, opened(port) as busy:
            assert "1 messages: Hi." == text_of(ask_on(idle))
            busy.send(json.dumps({**CREATE, "model": "held"}))
            assert model.begun.wait(BOUND)
            os.kill(child.pid, signal.SIGTERM)
            assert 1001 == end_of(idle)
            if seconds:
                model.released.set()
                assert "1 messages: Hi." == text_of(last(busy))
            else:
                assert "server_stopping" == last(busy)["response"]["error"]["code"]
            assert 1001 == end_of(busy)


def test_a_response_is_logged_as_that_of_a_websocket(upstream: Upstream, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "patchbay.server.requests")
    log = tmp_path / "log.jsonl"
    with serving(create_app(upstream.url, log_file=str(log)), sockets=True) as port, opened(port) as socket:
        assert "response.completed" == ask_on(socket)["type"]
        assert 404 == ask_on(socket, model="broken")["status"]
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    events = ["client_request", "upstream_request", "response", "client_request", "upstream_request", "upstream_error"]
    assert events == [entry["event"] for entry in entries]
    assert ("WS", "/v1/responses", "Hi.") == (entries[0]["method"], entries[0]["path"], entries[0]["body"]["input"])
    lines = [record.getMessage() for record in caplog.records if record.name == "patchbay.server.requests"]
    assert ["WS /v1/responses 200", "WS /v1/responses 404"] == [" ".join(line.split()[1:4]) for line in lines]
