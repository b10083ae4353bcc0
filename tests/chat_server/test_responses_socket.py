"""OpenAI Responses over a WebSocket on ``patchbay serve``: the registry's tools, the token, and sessions beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from chat_server.rig import call, calls
from patchbay.testing import ScriptedUpstream
from realtime.server.rig import Serving, serving
from tools_server.rig import BOUND, calling_back, json_response

TOKEN = "a-token-of-this-server"
SUNNY = json_response({"output": {"sky": "clear"}, "is_error": False})


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream([calls(call("weather", '{"city": "Rome"}')), "It is clear.", "It is."]) as upstream:
        yield upstream


def responses_socket(server: Serving, **headers: str) -> ClientConnection:
    address = f"ws://127.0.0.1:{server.port}/v1/responses"
    return connect(address, additional_headers=headers, proxy=None, open_timeout=BOUND, close_timeout=BOUND)


def answer_on(socket: ClientConnection, **fields: Any) -> dict[str, Any]:
    socket.send(json.dumps({"type": "response.create", "model": "m", "store": False, **fields}))
    while True:
        event: dict[str, Any] = json.loads(socket.recv(timeout=BOUND))
        if event["type"] in ("response.completed", "response.failed", "error"):
            return event


def test_registry_tools_run_for_a_message_beside_a_session(upstream: ScriptedUpstream) -> None:
    with calling_back(SUNNY) as callback, serving(upstream=upstream.url) as server:
        server.http.register("weather", callback.url, role="ben")
        with server.session(query="model=m"), responses_socket(server, **{"X-Patchbay-Role": "ben"}) as socket:
            answer = answer_on(socket, input="How is Rome?")
            assert "It is clear." == answer["response"]["output"][0]["content"][0]["text"]
            assert {"city": "Rome"} == callback.calls[0].json["arguments"]
            answer = answer_on(socket, input="Sure?", previous_response_id=answer["response"]["id"])
            assert "It is." == answer["response"]["output"][0]["content"][0]["text"]


def test_the_token_is_the_clients_key_or_the_key_is_the_upstreams(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with serving(None, "--token-file", str(file), upstream=upstream.url) as server:
        for key, forwarded in ((TOKEN, None), ("the-upstreams", "Bearer the-upstreams")):
            with responses_socket(server, Authorization=f"Bearer {key}") as socket:
                assert "response.completed" == answer_on(socket, input="Hi.")["type"]
            assert forwarded == upstream.requests[-1].headers.get("authorization")
        with pytest.raises(InvalidStatus) as refused, responses_socket(server, Origin="https://example.com"):
            pass
        error = json.loads(refused.value.response.body)["error"]
        assert (403, "untrusted_origin") == (refused.value.response.status_code, error["code"])
