"""Front-ends over HTTP: keys, errors in the protocol's own shape, stored responses, token counts, streams that break off."""

from __future__ import annotations

import json

import google.genai
import pytest
from aiohttp import web
from tests.server.proxy_rig import ManualClock, open_chat, raw_upstream, read_until, running_upstream, silent

from patchbay.proxy import create_app
from patchbay.testing import ScriptedUpstream
from support.http_server import BOUND, ask, serving

MESSAGES = ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]})
RESPONSES = ("/v1/responses", {"model": "m", "input": "Hi."})
GEMINI = ("/v1beta/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "Hi."}]}]})
STREAM = "/v1beta/models/m:streamGenerateContent?alt=sse"


@pytest.fixture
def upstream():
    with ScriptedUpstream(lambda _body: "Hello.") as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body", "header", "shape"),
    [
        (*MESSAGES, "x-api-key", lambda error: error["type"] == "error" and error["error"]["type"]),
        (*RESPONSES, "authorization", lambda error: error["error"]["type"]),
        (*GEMINI, "x-goog-api-key", lambda error: error["error"]["status"]),
    ],
    ids=["messages", "responses", "gemini"],
)
def test_the_key_of_each_protocol_is_checked_and_errors_have_its_shape(upstream, path, body, header, shape):
    with serving(create_app(upstream.url, api_key="right")) as port:
        value = "Bearer {}" if header == "authorization" else "{}"
        wrong = ask(port, "POST", path, body, headers={header: value.format("wrong")})
        assert (401, True) == (wrong.status, shape(wrong.json) in ("authentication_error", "UNAUTHENTICATED"))
        right = ask(port, "POST", path, body, headers={header: value.format("right")})
        assert (200, True) == (right.status, "Hello." in right.body.decode())
        assert "right" not in json.dumps(upstream.requests[-1].headers)
        damaged = ask(port, "POST", path, b"{", headers={header: value.format("right")})
        assert (400, True) == (damaged.status, shape(damaged.json) in ("invalid_request_error", "INVALID_ARGUMENT"))


def test_client_key_is_sent_upstream_as_a_bearer_token(upstream):
    with serving(create_app(upstream.url)) as port:
        path, body = MESSAGES
        headers = {"x-api-key": "secret", "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
        assert 200 == ask(port, "POST", f"{path}?beta=true", body, headers=headers).status
    sent = upstream.requests[-1]
    assert ("Bearer secret", "") == (sent.headers["authorization"], sent.query)
    assert not [name for name in sent.headers if name.startswith("anthropic") or name == "x-api-key"]


def test_tokens_are_estimated_where_the_upstream_cannot_count(upstream):
    with serving(create_app(upstream.url)) as port:
        for path, body in (MESSAGES, RESPONSES):
            suffix = "count_tokens" if "messages" in path else "input_tokens"
            assert ask(port, "POST", f"{path}/{suffix}", body).json["input_tokens"] > 0
        assert ask(port, "POST", "/v1beta/models/m:countTokens", GEMINI[1]).json["totalTokens"] > 0
    assert ["/apply-template"] == [request.path for request in upstream.requests]  # asked once


def test_tokens_are_counted_by_the_upstream_that_can():
    """llama.cpp has a tokenizer beside ``/v1``; whether the upstream has one is asked once."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if request.path == "/up/apply-template":
            return web.json_response({"prompt": json.dumps(body["messages"])})
        assert "/up/tokenize" == request.path
        return web.json_response({"tokens": list(range(len(body["content"])))})

    async def refuse(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "no"}, status=404)

    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 1_000_000}}
    shown = {**MESSAGES[1], "messages": [{"role": "user", "content": [picture]}]}
    text = json.dumps([{"role": "user", "content": "Hi."}])
    path = "/v1/messages/count_tokens"
    with running_upstream(answer) as at, serving(create_app(at.url)) as port:
        assert {"input_tokens": len(text)} == ask(port, "POST", path, MESSAGES[1]).json
        assert 1000 <= ask(port, "POST", path, shown).json["input_tokens"] < 1100
        assert 2 == len(at.seen)
    with running_upstream(refuse) as at, serving(create_app(at.url)) as port:
        first, second = (ask(port, "POST", path, MESSAGES[1]).json for _ in range(2))
        assert (first, 1) == (second, len(at.seen))
        assert first["input_tokens"] < 20


def test_models_are_listed_in_the_clients_shape(upstream):
    import anthropic  # which takes half a second: not in each worker

    with serving(create_app(upstream.url)) as port:
        claude = anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="k", max_retries=0)
        gemini = google.genai.Client(api_key="k", http_options={"base_url": f"http://127.0.0.1:{port}"})
        with claude:
            assert ["scripted-model"] == [model.id for model in claude.models.list()]
            assert "scripted-model" == claude.models.retrieve("scripted-model").display_name
            with pytest.raises(anthropic.NotFoundError, match="no model 'other'"):
                claude.models.retrieve("other")
        assert ["models/scripted-model"] == [model.name for model in gemini.models.list()]
        assert "models/scripted-model" == gemini.models.get(model="scripted-model").name
        assert ["models/scripted-model"] == [model["name"] for model in ask(port, "GET", "/v1beta/models").json["models"]]
        assert "list" == ask(port, "GET", "/v1/models").json["object"]
    assert {"/models"} == {request.path.removeprefix("/v1") for request in upstream.requests}
    assert "Bearer k" == upstream.requests[0].headers["authorization"]


def test_a_websocket_is_refused_so_that_clients_send_a_post(upstream):
    opening = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "a" * 22 + "==",
    }
    with serving(create_app(upstream.url)) as port:
        refused = ask(port, "GET", "/v1/responses", headers=opening)
        assert (426, "no_websocket") == (refused.status, refused.json["error"]["code"])
        assert 200 == ask(port, "HEAD", "/").status
    assert [] == upstream.requests


@pytest.mark.parametrize(("request_", "beat"), [(MESSAGES, b'event: ping\ndata: {"type":"ping"}'), (RESPONSES, b": keep-alive")])
def test_silent_stream_gets_keep_alives_of_the_protocol(request_, beat):
    clock, (path, body) = ManualClock(), request_
    with (
        running_upstream(silent) as upstream,
        serving(create_app(upstream.url, heartbeat=15.0), clock=clock) as port,
        open_chat(port, {**body, "stream": True}, path=path) as connection,
    ):
        assert upstream.arrived.wait(BOUND)
        clock.move(16.0)
        assert beat in read_until(connection, b"\n\n")


def test_a_gemini_stream_is_served_as_events_only(upstream):
    with serving(create_app(upstream.url)) as port:
        whole = ask(port, "POST", "/v1beta/models/m:streamGenerateContent", GEMINI[1])
        assert (400, "INVALID_ARGUMENT") == (whole.status, whole.json["error"]["status"])
        unknown = ask(port, "POST", "/v1beta/files", {})
        assert (404, "NOT_FOUND") == (unknown.status, unknown.json["error"]["status"])
        assert b"Hello" in ask(port, "POST", STREAM, GEMINI[1]).body


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        (MESSAGES[0], {**MESSAGES[1], "stream": True}, "event: error"),
        (RESPONSES[0], {**RESPONSES[1], "stream": True}, "event: response.failed"),
        (STREAM, GEMINI[1], '"status":"INTERNAL"'),
    ],
    ids=["messages", "responses", "gemini"],
)
def test_a_stream_that_breaks_off_ends_with_an_error_of_the_protocol(path, body, last):
    chunk = {
        "id": "x",
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": "Half of the answer"}, "finish_reason": None}],
    }
    event = f"data: {json.dumps(chunk)}\n\n".encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n"
    with raw_upstream(head + event) as url, serving(create_app(url)) as port:
        events = ask(port, "POST", path, body).body.decode().strip().split("\n\n")
    assert "Half" in "".join(events)
    assert last in events[-1]
